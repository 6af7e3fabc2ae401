"""How much of every model of folders Ethos-U takes: Vela asked about each file that is written.

One CSV row per file and accelerator; with ``--resume`` rows that are there already are kept. For
each: the multiplications, which part of them runs on the NPU, and why the others do not, in Vela's
words. Files with one digest are the same graph, and are asked about once.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import qdqbridge as qb
from qdqbridge.tflite_io.vela import VelaReport, compiled
from qdqbridge.tflite_io.writer import TFLiteModel, converted

FIELDS: tuple[str, ...] = (
    "file",
    "accelerator",
    "status",
    "macs",
    "share",
    "cpu",
    "digest",
    "seconds",
)
_NAMED = re.compile(r"\([^()]*\)|'[^']*'")
"""What a reason says of one tensor only."""


def rows_of(
    path: Path, accelerators: list[str], known: dict[tuple[str, str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yields the CSV rows of one file."""
    made = _made(path)
    for accelerator in accelerators:
        row: dict[str, Any] = {"file": str(path), "accelerator": accelerator}
        if isinstance(made, str):
            yield row | {"status": made}
            continue
        key = made.digest, accelerator
        if key not in known:
            known[key] = _asked(made, accelerator)
        yield row | known[key]


def _made(path: Path) -> TFLiteModel | str:
    """Returns a file's model for Ethos-U, or why there is none."""
    try:
        graph = qb.load(path, decomposed=True)
        if not any(value.quant is not None for value in graph.values()):
            return "float"
        return converted(graph, npu=True)
    except qb.QdqBridgeError as error:
        return f"refused: {error.what}: {error.why[:300]}"


def _asked(made: TFLiteModel, accelerator: str) -> dict[str, Any]:
    start = time.perf_counter()
    row: dict[str, Any] = {"digest": made.digest[:16]}
    try:
        report = compiled(made.model, accelerator)
    except qb.QdqBridgeError as error:
        row["status"] = f"refused: {error.what}: {error.why[:300]}"
    else:
        row |= {"status": "compiled", "macs": report.macs, "share": f"{report.share:.6f}"}
        row["cpu"] = "; ".join(_on_cpu(report))
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _on_cpu(report: VelaReport) -> Iterator[str]:
    """Yields the products that stay on the CPU, and why, the largest first."""
    found: Counter[tuple[str, str]] = Counter()
    for operator in report.operators:
        if operator.macs and not operator.npu:
            found[operator.name, _NAMED.sub("", operator.reason)] += operator.macs
    for (name, reason), macs in found.most_common():
        yield f"{name} {macs / report.macs:.1%}: {reason}"


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there")
    parser.add_argument("--accelerators", default="ethos-u55-128,ethos-u65-256,ethos-u85-256")
    args = parser.parse_args()
    accelerators = args.accelerators.split(",")
    done: list[dict[str, Any]] = []
    if args.resume and args.csv.exists():
        with args.csv.open(newline="") as file:
            done = list(csv.DictReader(file))
    asked = {(row["file"], row["accelerator"]) for row in done}
    known: dict[tuple[str, str], dict[str, Any]] = {}
    with args.csv.open("a" if done else "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not done:
            writer.writeheader()
        for path in (p for folder in args.folders for p in sorted(folder.rglob("*.onnx"))):
            left = [a for a in accelerators if (str(path), a) not in asked]
            for row in rows_of(path, left, known) if left else ():
                writer.writerow(row)
                file.flush()
                done.append(row)
    for accelerator in accelerators:
        shares = [float(row["share"]) for row in done
                  if row["accelerator"] == accelerator and row.get("share")]  # fmt: skip
        enough = sum(share >= 0.95 for share in shares)
        print(f"{accelerator}: {enough} of {len(shares)} files with 95 % of the multiplications "
              f"or more on the NPU", file=sys.stderr)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
