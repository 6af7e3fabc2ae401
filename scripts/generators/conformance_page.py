"""Writes ``docs/conformance.md``: ``python -m scripts.generators.conformance_page``.

Every engine that is installed here runs every case, one after the other
(``scripts/engines_env``, ``scripts/arm_python``, the install lines of ``qdqbridge doctor``).
``--cache FOLDER`` keeps the results, and takes those that the same versions and the same code made.
An engine that is not installed here keeps the column that the page has, and its version there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import qdqbridge
from qdqbridge.app.conforming import (
    IMPORTER,
    OUTCOMES,
    ConformanceResult,
    conform,
    engine_version,
)
from qdqbridge.errors import QdqBridgeError
from qdqbridge.targets.conformance.situations import SITUATIONS, cases
from qdqbridge.targets.engines.kinds import ENGINES
from scripts.generators import conformance_causes
from scripts.generators.conformance_causes import CAUSES, cause_of
from scripts.generators.conformance_faults import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
OWN = ("interpreter", "tvm", IMPORTER)
"""Engines that are, or begin with, code of this package."""
EXPORTED = ", exported"
"""Behind the name of an engine that gets what its export profile makes of each case."""
LABELS: Mapping[str, str] = {
    "interpreter": "ours",
    "tvm": "ours on TVM",
    f"onnxruntime-optimized{EXPORTED}": "ours, exported",
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


@dataclass(frozen=True)
class Column:
    """An engine on all cases.

    Attributes:
        version: What computed.
        results: Of the cases.
        causes: Of each wrong case a letter, and whether that is proven.
    """

    version: str
    results: list[ConformanceResult]
    causes: Mapping[str, tuple[str, bool]]

    def of(self, situation: str) -> list[ConformanceResult]:
        return [result for result in self.results if result.situation == situation]


def column_of(name: str, cache: Path | None) -> Column | None:
    """Returns an engine's results; None where it does not run here.

    Args:
        name: A key of ``LABELS``.
        cache: What keeps results.
    """
    engine, exported, _ = name.partition(EXPORTED)
    try:
        version = engine_version(engine)
    except QdqBridgeError as error:
        print(f"{LABELS[name]}: not run: {error.why}", file=sys.stderr)
        return None
    key = _key(engine, version, bool(exported))

    def run() -> list[Any]:
        found = conform(engine, report=_progress(LABELS[name]), exported=bool(exported))
        return [{**asdict(each), "computed": list(map(_plain, each.computed))} for each in found]

    results = [_result(**each) for each in _kept(cache, f"{name}.json", key, run)]
    wrong = [result for result in results if result.outcome == "wrong"]

    def prove() -> list[Any]:
        report = _progress(f"{LABELS[name]}, causes")
        found: list[Any] = []
        for done, each in enumerate(wrong, 1):
            found.append([each.name, *cause_of(name, each)])
            report(done, len(wrong))
        return found

    by_code = sha256(Path(conformance_causes.__file__).read_bytes()).hexdigest()
    told = _kept(cache, f"{name}.causes.json", key + by_code, prove) if wrong else []
    return Column(version, results, {case: (letter, proven) for case, letter, proven in told})


def _kept(cache: Path | None, name: str, key: str, make: Callable[[], list[Any]]) -> list[Any]:
    """Returns what a file of the cache has under this key; else what is made, and keeps it."""
    file = cache / name.replace(", ", "-") if cache else None
    if file is not None and file.exists():
        known = json.loads(file.read_text("utf-8"))
        if known["key"] == key:
            return list(known["rows"])
    rows = make()
    if file is not None:
        file.write_text(json.dumps({"key": key, "rows": rows}), "utf-8")
    return rows


def _key(engine: str, version: str, exported: bool) -> str:
    """Returns what decides results: versions, cases, and as much of this package as takes part."""
    package = Path(qdqbridge.__file__).parent
    ours = exported or engine in OWN or (engine in ENGINES and ENGINES[engine].suffix != ".onnx")
    parts = package if ours else package / "targets" / "engines" / "workers"
    digest = sha256(version.encode())
    for case in cases():
        digest.update(case.body.model.SerializeToString())
        allowed = [array for _, arrays in case.body.allowed for array in arrays]
        for array in (*case.body.inputs.values(), *allowed):
            digest.update(array.tobytes())
    for part in sorted(parts.rglob("*.py")):
        digest.update(part.read_bytes())
    return digest.hexdigest()


def _plain(array: Any) -> list[Any]:
    return [str(array.dtype), list(array.shape), array.ravel().astype(float).tolist()]


def _result(computed: list[Any], **told: str) -> ConformanceResult:
    arrays = (np.reshape(values, shape).astype(kind) for kind, shape, values in computed)
    return ConformanceResult(**told, computed=tuple(arrays))


def _progress(label: str) -> Callable[[int, int], None]:
    started = time.monotonic()

    def report(done: int, count: int) -> None:
        if done % 50 == 0 or done == count:
            taken = time.monotonic() - started
            print(f"{label}: {done} of {count}, {taken:.0f} s", file=sys.stderr, flush=True)

    return report


@dataclass(frozen=True)
class KeptColumn:
    """What the page says of an engine that does not run here.

    Attributes:
        version: What computed.
        cells: By situation; ``right`` has how many are right.
        rows: Of what is not right: case, outcome, and what it said.
    """

    version: str
    cells: Mapping[str, str]
    rows: list[tuple[str, str, str]]


def kept_column(label: str) -> KeptColumn | None:
    """Returns the column of the page that is there; None where it has none."""
    lines = PAGE.read_text("utf-8").splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("This page is made by"))
    versions = dict(each.split(": ", 1) for each in lines[place + 1].rstrip(".").split("; "))
    table = [[part.strip(" `") for part in line.split("|")[1:-1]] for line in lines if "|" in line]
    head = next(row for row in table if row[0] == "situation")
    if label not in head or label not in versions:
        return None
    cells = {row[0]: row[head.index(label)] for row in table if len(row) == len(head)}
    rows = [row for row in table if len(row) == 4 and label in row[0].split(", ")]
    told = [(case, outcome, said) for _, case, outcome, said in rows if outcome in OUTCOMES]
    return KeptColumn(versions[label], cells, told)


def cell(column: Column | KeptColumn, situation: str) -> str:
    if isinstance(column, KeptColumn):
        return column.cells[situation]
    results = column.of(situation)
    counts = Counter(result.outcome for result in results)
    if counts["equal"] == len(results):
        return "equal"
    bad = [f"{counts[outcome]} {MARKS[outcome]}" for outcome in OUTCOMES[1:] if counts[outcome]]
    letters = sorted({column.causes[r.name][0] for r in results if r.outcome == "wrong"})
    return ", ".join(bad).replace("wrong", f"wrong ({', '.join(letters)})")


def right(column: Column | KeptColumn) -> str:
    """Returns how many cases are right."""
    if isinstance(column, KeptColumn):
        return column.cells["right"]
    return str(sum(result.outcome in OUTCOMES[:2] for result in column.results))


def not_right(column: Column | KeptColumn) -> list[tuple[str, str, str]]:
    """Returns the first case of each situation that is not right: case, outcome, what it said."""
    if isinstance(column, KeptColumn):
        return column.rows
    first: dict[tuple[str, str], tuple[str, str, str]] = {}
    for r in column.results:
        if r.outcome in OUTCOMES[2:]:
            told = (r.name, r.outcome, escaped(r.cause))
            first.setdefault((r.situation, r.outcome), told)
    return list(first.values())


def causes(columns: Mapping[str, Column | KeptColumn]) -> list[str]:
    """Returns what is not right, with the engines it is so on."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for engine, column in columns.items():
        for told in not_right(column):
            found.setdefault(told, []).append(LABELS[engine])
    return [
        f"| {', '.join(on)} | `{name}` | {outcome} | {said} |"
        for (name, outcome, said), on in found.items()
    ]


def letters(column: Column | KeptColumn) -> list[tuple[str, bool]]:
    """Returns a letter of each wrong case, and whether that is proven here."""
    if isinstance(column, Column):
        return list(column.causes.values())
    said = re.findall(r"(\d+) wrong \(([a-z])\)", " ".join(column.cells.values()))
    return [(letter, False) for count, letter in said for _ in range(int(count))]


def why(columns: Mapping[str, Column | KeptColumn]) -> list[str]:
    """Returns the letters that the page has, with their engines, and of how many cases proven."""
    engines: dict[str, list[str]] = {}
    proofs: dict[str, list[bool]] = {}
    for engine, column in columns.items():
        for letter, proven in letters(column):
            proofs.setdefault(letter, []).append(proven)
            if LABELS[engine] not in engines.setdefault(letter, []):
                engines[letter].append(LABELS[engine])
    return [
        f"| {c.letter} | {', '.join(engines[c.letter])} | {c.said} | "
        f"{sum(proofs[c.letter])} of {len(proofs[c.letter])} |"
        for c in sorted(CAUSES, key=lambda cause: cause.letter)
        if c.letter in engines
    ]


def escaped(cause: str) -> str:
    return " ".join(cause.replace("|", "\\|").replace("<", "‹").replace(">", "›").split())[:120]


def faults() -> list[str]:
    return [
        f"| {each.project} | {LABELS[each.engine]} | `{each.case}` | {each.title}. {each.cause} | "
        f"{f'[reported]({each.known})' if each.known else each.near or 'none found'} |"
        for each in FAULTS
    ]


def page(cache: Path | None) -> str:
    known = {e: column_of(e, cache) or kept_column(label) for e, label in LABELS.items()}
    columns = {engine: each for engine, each in known.items() if each is not None}
    versions = [f"{LABELS[engine]}: {each.version}" for engine, each in columns.items()]
    lines = [
        "# Conformance to ONNX's text",
        "",
        f"{len(cases())} small models in {len(SITUATIONS)} situations, whose results are computed",
        "in integers and fractions from ONNX's text. `equal`: every case, bit for bit. `free`: the",
        "text leaves a choice, and the engine follows one reading of it. Otherwise, how many cases",
        "are wrong, refused or crashed. LiteRT and TOSA get what our export to TFLite writes; what",
        "that has no counterpart for is refused. *Ours, exported*: what `--profile ort` writes,",
        "in onnxruntime with all optimizations.",
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
        "| situation | cases | section | " + " | ".join(LABELS[e] for e in columns) + " |",
        "|---" * (3 + len(columns)) + "|",
    ]
    for each in SITUATIONS:
        count = sum(case.situation is each for case in cases())
        cells = " | ".join(cell(column, each.name) for column in columns.values())
        lines.append(f"| `{each.name}` | {count} | {each.section} | {cells} |")
    lines.append(f"| right | {len(cases())} | | " + " | ".join(map(right, columns.values())) + " |")
    lines += [
        "",
        "## Why",
        "",
        "The letters of wrong cells. *Proven* is of how many cases: a calculation of the cause",
        "gives what the engine computed, bit for bit; or the engine is right without it; or",
        "`qdqbridge compare --local` explains each value that differs",
        "(`scripts/generators/conformance_causes.py`). Of what is refused the words are below.",
        "",
        "| letter | engines | cause | proven |",
        "|---|---|---|---|",
        *why(columns),
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
        *causes(columns),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, help="a folder that keeps results, or is made")
    cache = parser.parse_args().cache
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(cache), "utf-8")


if __name__ == "__main__":
    main()
