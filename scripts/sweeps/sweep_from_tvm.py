"""Every model of a folder through TVM's importer: ``scripts/sweeps/sweep_from_tvm FOLDER``.

The folder is as for ``scripts/sweeps/sweep``. Each file is imported by
``tvm.relax.frontend.onnx``, read by ``from_relax`` and made canonical; its digest is compared
with that of ``load`` on the file. Where it differs, the first difference is the reason. A table
of the reasons ends the run.

With ``--own`` no importer takes part: what ``to_relax`` writes, in both forms, is read back.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from tvm.relax.frontend.onnx import from_onnx

import qdqbridge as qb
from qdqbridge.core.graph.diff import diff

FIELDS = ("file", "route", "status", "why", "digest", "nodes", "seconds")
Row = dict[str, object]
IMPORTER, SPELLINGS = "importer", ("qnn", "qdq")


def rows_of(path: Path, routes: Sequence[str]) -> Iterator[Row]:
    """Yields the CSV rows of one model, one for each route there and back."""
    try:
        graph = qb.load(path)
    except qb.QdqBridgeError as error:
        yield {"status": "not loaded", "why": _words(error)}
        return
    for route in routes:
        start = time.perf_counter()
        row = _row(path, graph, route)
        yield row | {"route": route, "seconds": round(time.perf_counter() - start, 2)}


def _row(path: Path, graph: qb.Graph, route: str) -> Row:
    row: Row = {"nodes": len(graph.nodes), "digest": graph.digest[:16]}
    try:
        module = imported(path) if route == IMPORTER else qb.to_relax(graph, variant=route)[0]
    except qb.QdqBridgeError as error:
        return row | {"status": "not emitted", "why": _words(error)}
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
    outcome = " ".join(str(row[key]) for key in ("route", "status") if key in row)
    return f"{outcome}: {reason[:110]}" if reason else outcome


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("sweep_from_tvm.csv"))
    parser.add_argument("--only", nargs="*", default=[], help="words, one of them in the name")
    parser.add_argument("--own", action="store_true", help="read what to_relax writes")
    parser.add_argument("--count", type=int, default=None, help="stop after so many files")
    arguments = parser.parse_args()
    names = sorted(_selected(arguments.folder, arguments.only))
    random.Random(4).shuffle(names)  # what is done when it is stopped is a sample
    routes = SPELLINGS if arguments.own else (IMPORTER,)
    kinds: Counter[str] = Counter()
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for name in names[: arguments.count]:
            for row in rows_of(arguments.folder / name, routes):
                writer.writerow({"file": name} | row)
                kinds[_kind(row)] += 1
            file.flush()
    for kind, count in kinds.most_common():
        print(f"{count:4} {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
