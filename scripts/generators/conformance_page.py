"""Writes ``docs/conformance.md``: ``python -m scripts.generators.conformance_page``.

Engines beside each other on the conformance cases. It takes about a minute.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnxruntime

from qdqbridge.app.conforming import OUTCOMES, ConformanceResult, conform
from qdqbridge.targets.conformance.situations import SITUATIONS, cases

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
ENGINES = {
    "interpreter": "ours",
    "onnx.reference": f"onnx.reference {onnx.__version__}",
    "onnxruntime": f"onnxruntime {onnxruntime.__version__}, off",
    "onnxruntime-basic": "basic",
    "onnxruntime-optimized": "all",
}
MARKS = dict(zip(OUTCOMES, ("", "free", "wrong", "refused", "crashed"), strict=True))


def cell(results: list[ConformanceResult]) -> str:
    counts = Counter(result.outcome for result in results)
    if counts["equal"] == len(results):
        return "equal"
    bad = [f"{counts[outcome]} {MARKS[outcome]}" for outcome in OUTCOMES[1:] if counts[outcome]]
    return ", ".join(bad)


def causes(results: dict[str, list[ConformanceResult]]) -> list[str]:
    """Returns the first case of each situation that is not right, with the engines it is so on."""
    found: dict[tuple[str, str], list[str]] = {}
    for engine, all_of_it in results.items():
        seen: set[tuple[str, str]] = set()
        for r in all_of_it:
            if r.outcome in OUTCOMES[2:] and (r.situation, r.outcome) not in seen:
                seen.add((r.situation, r.outcome))
                found.setdefault((r.name, f"{r.outcome} | {escaped(r.cause)}"), []).append(engine)
    return [f"| {', '.join(on)} | `{name}` | {told} |" for (name, told), on in found.items()]


def escaped(cause: str) -> str:
    return " ".join(cause.replace("|", "\\|").replace("<", "‹").replace(">", "›").split())[:160]


def page() -> str:
    results = {engine: list(conform(engine)) for engine in ENGINES}
    lines = [
        "# Conformance to ONNX's text",
        "",
        f"{len(cases())} small models in {len(SITUATIONS)} situations, whose results are computed",
        "in integers and fractions from ONNX's text. `equal`: every case, bit for bit. `free`: the",
        "text leaves a choice, and the engine follows one reading of it. Otherwise, how many cases",
        "are wrong, refused or crashed.",
        "",
        "`qdqbridge conformance --engine E` runs any engine here, and shows all of its cases with",
        "`--json`. `python -m scripts.generators.conformance FOLDER` writes the cases in ONNX's",
        "own layout of test data, for a runner that knows nothing of this package.",
        "This page is made by `python -m scripts.generators.conformance_page`.",
        "",
        "| situation | cases | section | " + " | ".join(ENGINES.values()) + " |",
        "|---" * (3 + len(ENGINES)) + "|",
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
        "## What is not right",
        "",
        "The first case of each situation. Ours divides float16 and bfloat16 data in float32 in",
        "every opset, as [what is supported](support.md) says; opset 23 asks for the type of the",
        "scale.",
        "",
        "| engine | case | outcome | what it said or computed |",
        "|---|---|---|---|",
    ]
    lines += causes(results)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
