"""Every model of a folder through TVM's own ONNX importer: ``scripts/sweep_from_tvm FOLDER``.

The folder is as for ``scripts/sweep``. Each file is imported by ``tvm.relax.frontend.onnx``, read
by ``from_relax`` and made canonical; its digest is compared with that of ``load`` on the file.
Where it differs, the first difference is the reason. A table of the reasons ends the run.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from tvm.relax.frontend.onnx import from_onnx

import qdqbridge as qb
from qdqbridge.graph.diff import diff

FIELDS = ("file", "status", "why", "digest", "nodes", "seconds")
Row = dict[str, object]


def row_of(path: Path) -> Row:
    """Returns the CSV row of one model."""
    start = time.perf_counter()
    row = _row(path)
    return row | {"seconds": round(time.perf_counter() - start, 2)}


def _row(path: Path) -> Row:
    try:
        graph = qb.load(path)
    except qb.QdqBridgeError as error:
        return {"status": "not loaded", "why": _words(error)}
    row: Row = {"nodes": len(graph.nodes), "digest": graph.digest[:16]}
    try:
        module = imported(path)
    except Exception as error:  # whatever TVM's importer raises
        return row | {"status": "not imported", "why": _last(error)}
    try:
        again = qb.from_relax(module)
    except qb.QdqBridgeError as error:
        return row | {"status": "not read", "why": _words(error)}
    except Exception as error:  # a bug of ours: recorded, and the sweep goes on
        return row | {"status": "CRASH", "why": f"{error!r}"[:300]}
    if again.digest == graph.digest:
        return row | {"status": "same"}
    found = diff(again, graph)
    why = f"{len(found)} differ: {found[0]}"[:300] if found else "differs"
    return row | {"status": "differs", "why": why}


def imported(path: Path) -> Any:
    """Returns a file as TVM imports it, without what that prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return from_onnx(onnx.load(path))


def _words(error: qb.QdqBridgeError) -> str:
    return f"{type(error).__name__}: {error.what} ({error.why[:300]})"


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:200] if lines else ''}"


def _selected(folder: Path, words: list[str]) -> Iterator[str]:
    with (folder / "manifest.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if not words or any(word in row["file"] for word in words):
                yield row["file"]


def _kind(row: Row) -> str:
    """Returns a row's outcome with the names and numbers of its reason left out."""
    reason = re.sub(r"'[^']*'|\d+", "…", str(row.get("why", "")))
    return f"{row['status']}: {reason[:110]}" if reason else str(row["status"])


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("sweep_from_tvm.csv"))
    parser.add_argument("--only", nargs="*", default=[], help="words, one of them in the name")
    parser.add_argument("--count", type=int, default=None, help="stop after so many files")
    arguments = parser.parse_args()
    names = sorted(_selected(arguments.folder, arguments.only))
    random.Random(4).shuffle(names)  # what is done when it is stopped is a sample
    kinds: Counter[str] = Counter()
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for name in names[: arguments.count]:
            row = {"file": name} | row_of(arguments.folder / name)
            writer.writerow(row)
            file.flush()
            kinds[_kind(row)] += 1
    for kind, count in kinds.most_common():
        print(f"{count:4} {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
