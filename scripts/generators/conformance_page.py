"""Writes ``docs/conformance.md``: ``python -m scripts.generators.conformance_page [RESULTS]``.

RESULTS is a folder of what ``qdqbridge conformance --engine E --json`` says, as ``E.json``: engines
live in several environments and on several processors. What is missing there and runs here is run,
and written to it. That takes a minute for each of ours, ONNX's and onnxruntime's.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

from qdqbridge.app.conforming import OUTCOMES, ConformanceResult, conform, engine_version
from qdqbridge.errors import QdqBridgeError
from qdqbridge.targets.conformance.situations import SITUATIONS, cases
from scripts.generators.conformance_faults import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
LABELS: Mapping[str, str] = {
    "interpreter": "ours",
    "tvm": "ours on TVM",
    "onnx.reference": "onnx.reference",
    "onnxruntime": "onnxruntime, off",
    "onnxruntime-basic": "basic",
    "onnxruntime-optimized": "all",
    "onnxruntime-avx2": "AVX2",
    "onnxruntime-arm": "Arm",
    "onnxruntime-web": "WASM",
    "openvino": "OpenVINO",
    "litert": "LiteRT",
    "qnn-htp": "Hexagon v68",
    "qnn-htp-v73": "Hexagon v73",
    "tosa": "TOSA",
    "iree": "IREE",
    "tvm-importer": "TVM's importer",
}
"""The columns, in their order; an engine that has none here has no results."""
_HEXAGON = ("qnn-htp", "qnn-htp-v73")
_OPTIMIZED = ("onnxruntime-optimized", "onnxruntime-avx2", "onnxruntime-web", "onnxruntime-arm")
_TFLITE = ("litert", "tosa")
_CAUSES: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...] = (
    ("q", ("onnx.reference",), ("quantize_far", "quantize_infinity"),
     "the quotient becomes int32 before it is clipped, and wraps"),
    ("t", ("onnx.reference", "tvm-importer"),
     ("quantize_mixed_types", "quantize_float32_by_float16"),
     "divides in the wider of the two types, not in that of y_scale"),
    ("i", ("onnx.reference", "litert", "tosa", "openvino"), ("quantize_large_int32",),
     "int32 is not divided in float32: beyond 2^24 it is rounded before, or not at all"),
    ("l", ("onnx.reference",), ("body",), "a Loop without a condition runs no iteration"),
    ("z", ("onnx.reference",), ("qlinear*",),
     "rounds after it adds the zero point: ties beside an odd one go to the other number"),
    ("d", ("onnxruntime-basic", *_OPTIMIZED, *_HEXAGON), ("fake_quantize",),
     "DoubleQDQPairsRemover: two pairs of roundings become one"),
    ("p", ("onnxruntime-avx2",), ("conv*", "qlinearconv*", "matmulinteger_large"),
     "pairs of products of bytes are added in 16 bits, which saturate"),
    ("r", _OPTIMIZED, ("arithmetic_between", "shared_dequantize", "quantize_constant"),
     "the fused QLinear kernel multiplies by ratios of scales: ties are none any more"),
    ("h", ("onnxruntime-web", "iree"),
     ("quantize_*float16*", "quantize_precision", "quantize_mixed_types", "dequantize_float_types"),
     "computes in float32 what the text computes in float16 or bfloat16"),
    ("w", ("onnxruntime-web", "litert"), ("quantize_far", "quantize_infinity"),
     "the quotient becomes int32 before it is clipped, and wraps"),
    ("o", ("openvino",), ("quantize_saturates_after_zero_point",),
     "numbers below the range of uint16 wrap"),
    ("x", ("openvino", "litert"), ("dequantize*",),
     "computes x · scale - zero_point · scale, or in another type, where the text subtracts first"),
    ("c", ("openvino",), ("conv*",),
     "sums are floats, and the FakeQuantize behind them rounds as (f)"),
    ("f", ("openvino",), ("*",),
     "a FakeQuantize stands for QuantizeLinear: it divides the distance to the low end by the "
     "range, so that quotients beside ties and ties beside odd zero points are rounded otherwise"),
    ("a", ("litert",), ("quantize_*", "clamp_before_quantize"),
     "multiplies by the reciprocal of y_scale; what is left over from vectors of 32 rounds halves "
     "away from zero"),
    ("m", ("tosa",), ("quantize_division", "clamp_before_quantize"),
     "multiplies by the reciprocal of y_scale"),
    ("g", _TFLITE, ("*",),
     "multipliers are fixed-point numbers of 31 bits, and rounded half up or away from zero"),
    ("b", _HEXAGON, ("conv_qdq_bias",),
     "an Add of a stored bias behind the convolution is computed as another operator"),
    ("k", _HEXAGON, ("*",),
     "kernels of the NPU round in ways of their own, at most a few steps off"),
    ("n", ("iree",), ("matmulinteger*", "qlinearmatmul"),
     "unsigned codes are multiplied as signed ones; batches of results are rounded once more"),
)  # fmt: skip
"""Why cells are wrong: a letter, engines, situations; the first row that fits."""
MARKS = dict(zip(OUTCOMES, ("", "free", "wrong", "refused", "crashed"), strict=True))


def results_of(engine: str, folder: Path) -> tuple[str, list[ConformanceResult]] | None:
    """Returns an engine's version and results; None where there are none and it does not run."""
    file = folder / f"{engine}.json"
    if not file.exists():
        try:
            version = engine_version(engine)
            found = [asdict(each) for each in conform(engine)]
        except QdqBridgeError:
            return None
        file.write_text(json.dumps({"engine": engine, "version": version, "cases": found}), "utf-8")
    told = json.loads(file.read_text("utf-8"))
    return told["version"], [ConformanceResult(**each) for each in told["cases"]]


def letter(engine: str, situation: str) -> str:
    """Returns the letter of what makes a cell wrong.

    Raises:
        LookupError: No row of ``_CAUSES`` fits: look what it is.
    """
    for name, engines, situations, _ in _CAUSES:
        if engine in engines and any(fnmatchcase(situation, each) for each in situations):
            return name
    raise LookupError(f"nobody has said why {engine} is wrong about {situation}")


def cell(engine: str, results: list[ConformanceResult]) -> str:
    counts = Counter(result.outcome for result in results)
    if counts["equal"] == len(results):
        return "equal"
    bad = [f"{counts[outcome]} {MARKS[outcome]}" for outcome in OUTCOMES[1:] if counts[outcome]]
    why = f" ({letter(engine, results[0].situation)})" if counts["wrong"] else ""
    return ", ".join(bad).replace("wrong", f"wrong{why}")


def causes(results: Mapping[str, list[ConformanceResult]]) -> list[str]:
    """Returns the first case of each situation that is not right, with the engines it is so on."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for engine, all_of_it in results.items():
        seen: set[tuple[str, str]] = set()
        for r in all_of_it:
            if r.outcome in OUTCOMES[2:] and (r.situation, r.outcome) not in seen:
                seen.add((r.situation, r.outcome))
                found.setdefault((r.name, r.outcome, escaped(r.cause)), []).append(LABELS[engine])
    return [
        f"| {', '.join(on)} | `{name}` | {outcome} | {told} |"
        for (name, outcome, told), on in found.items()
    ]


def why(results: Mapping[str, list[ConformanceResult]]) -> list[str]:
    """Returns the letters that the page has, with their engines."""
    found: dict[str, list[str]] = {}
    for engine, rs in results.items():
        for each in sorted({letter(engine, r.situation) for r in rs if r.outcome == "wrong"}):
            found.setdefault(each, []).append(LABELS[engine])
    return [
        f"| {name} | {', '.join(found[name])} | {said} |"
        for name, _, _, said in sorted(_CAUSES)
        if name in found
    ]


def escaped(cause: str) -> str:
    return " ".join(cause.replace("|", "\\|").replace("<", "‹").replace(">", "›").split())[:120]


def faults() -> list[str]:
    return [
        f"| {each.project} | {LABELS[each.engine]} | `{each.case}` | {each.title}. {each.cause} | "
        f"{f'[reported]({each.known})' if each.known else each.near or 'none found'} |"
        for each in FAULTS
    ]


def page(folder: Path) -> str:
    known = {engine: results_of(engine, folder) for engine in LABELS}
    results = {engine: each[1] for engine, each in known.items() if each is not None}
    versions = [f"{LABELS[e]}: {each[0]}" for e, each in known.items() if each is not None]
    lines = [
        "# Conformance to ONNX's text",
        "",
        f"{len(cases())} small models in {len(SITUATIONS)} situations, whose results are computed",
        "in integers and fractions from ONNX's text. `equal`: every case, bit for bit. `free`: the",
        "text leaves a choice, and the engine follows one reading of it. Otherwise, how many cases",
        "are wrong, refused or crashed. LiteRT and TOSA get what our export to TFLite writes; what",
        "that has no counterpart for is refused.",
        "",
        "`qdqbridge conformance --engine E` runs any engine here, and shows all of its cases with",
        "`--json`. Without this package, ONNX's own runner (`onnx.backend.test`) takes the cases:",
        "",
        "```sh",
        "python -m scripts.generators.conformance FOLDER   # writes them in ONNX's layout",
        "cd FOLDER && python run.py onnxruntime            # or onnx.reference, or a backend",
        "```",
        "",
        "This page is made by `python -m scripts.generators.conformance_page`, of these:",
        f"{'; '.join(versions)}.",
        "",
        "| situation | cases | section | " + " | ".join(LABELS[e] for e in results) + " |",
        "|---" * (3 + len(results)) + "|",
    ]
    for each in SITUATIONS:
        own = {e: [r for r in rs if r.situation == each.name] for e, rs in results.items()}
        count = len(own["interpreter"])
        cells = " | ".join(cell(e, rs) for e, rs in own.items())
        lines.append(f"| `{each.name}` | {count} | {each.section} | {cells} |")
    right = (sum(r.outcome in OUTCOMES[:2] for r in rs) for rs in results.values())
    lines.append(f"| right | {len(cases())} | | " + " | ".join(map(str, right)) + " |")
    lines += [
        "",
        "## Why",
        "",
        "The letters of wrong cells. What is refused has the engine's words below.",
        "",
        "| letter | engines | cause |",
        "|---|---|---|",
        *why(results),
        "",
        "## Faults whose cause is known",
        "",
        "`python -m scripts.generators.conformance_faults FOLDER` runs each, and writes those that",
        "are still there as folders to be reported: file, inputs, what the text wants, a report.",
        "It also writes those of Arm's converter to TOSA, as TFLite files.",
        "",
        "| project | engine | case | what it does | report |",
        "|---|---|---|---|---|",
        *faults(),
        "",
        "## What is not right",
        "",
        "The first case of each situation.",
        "",
        "| engine | case | outcome | what it said or computed |",
        "|---|---|---|---|",
        *causes(results),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", help="a folder of E.json")
    given = parser.parse_args().results
    with TemporaryDirectory() as empty:
        PAGE.write_text(page(given or Path(empty)), "utf-8")


if __name__ == "__main__":
    main()
