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


def cell(results: list[ConformanceResult]) -> str:
    counts = Counter(result.outcome for result in results)
    if counts["equal"] == len(results):
        return "equal"
    bad = [f"{counts[outcome]} {MARKS[outcome]}" for outcome in OUTCOMES[1:] if counts[outcome]]
    return ", ".join(bad)


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


def escaped(cause: str) -> str:
    return " ".join(cause.replace("|", "\\|").replace("<", "‹").replace(">", "›").split())[:120]


def faults() -> list[str]:
    return [
        f"| {each.project} | {LABELS[each.engine]} | `{each.case}` | {each.title}. {each.cause} | "
        f"{f'[reported]({each.known})' if each.known else 'none found'} |"
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
        cells = " | ".join(cell(rs) for rs in own.values())
        lines.append(f"| `{each.name}` | {count} | {each.section} | {cells} |")
    right = (sum(r.outcome in OUTCOMES[:2] for r in rs) for rs in results.values())
    lines.append(f"| right | {len(cases())} | | " + " | ".join(map(str, right)) + " |")
    lines += [
        "",
        "## Faults whose cause is known",
        "",
        "`python -m scripts.generators.conformance_faults FOLDER` runs each, and writes those that",
        "are still there as folders to be reported: file, inputs, what the text wants, a report.",
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
