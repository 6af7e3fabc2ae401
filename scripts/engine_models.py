"""Whole models on an engine: as they are, and as the engine's export profile writes them.

``scripts/engine_models.py qnn-htp FOLDER --every 10`` takes every tenth ``.onnx`` file of a folder,
gives numbers (1) to its open extents, and says of the original and of what was exported: is it
taken whole, in how many partitions, how far are operators off on the engine's own operands (LSB),
and in how many samples outputs have the argmax of the interpreter. Inputs are random.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qdqbridge
from qdqbridge.engines import ENGINES, ProcessLimits
from qdqbridge.errors import QdqBridgeError
from qdqbridge.graph.extents import symbolic_extents, with_numbers
from qdqbridge.graph.graph import Graph

LIMITS = ProcessLimits(seconds=120)
COLUMNS = ("file", "what", "taken", "left", "partitions", "lsb", "argmax", "words")


def samples(graph: Graph, count: int) -> list[dict[str, Any]]:
    """Returns random inputs, one feeding each."""
    chance = np.random.default_rng(3)
    found: list[dict[str, Any]] = []
    for _ in range(count):
        feeds: dict[str, Any] = {}
        for value in graph.inputs:
            dtype = value.type.dtype.numpy
            shape = [dim if isinstance(dim, int) else 1 for dim in value.type.shape or ()]
            if dtype.kind == "f":
                feeds[value.name] = chance.normal(size=shape).astype(dtype)
            else:
                high = 2 if dtype.kind == "b" else min(100, np.iinfo(dtype).max)
                feeds[value.name] = chance.integers(0, high, shape).astype(dtype)
        found.append(feeds)
    return found


def judged(engine: str, source: Path, graph: Graph, feeds: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the columns that say what an engine makes of a file."""
    from qdqbridge.judging import opened

    with opened(engine, source, graph, LIMITS) as judge:
        verdict = judge.taken()
        left = Counter(placement.operator for placement in verdict.left)
        equal = total = 0
        for feed in feeds:
            ours, theirs = qdqbridge.evaluate(graph, feed), judge.run(feed, judge.outputs)
            for name, want in ours.items():
                if want.ndim and want.dtype.kind in "fiu" and want.size:
                    total += 1
                    equal += int(np.argmax(want.ravel()) == np.argmax(theirs[name].ravel()))
        local = qdqbridge.compare(graph, judge, feeds[0], local=True)
    named = " ".join(f"{operator}:{number}" for operator, number in left.most_common(5))
    whole = "whole" if verdict.takes_all else "part"
    why = next((placement.why for placement in verdict.left if placement.why), "")
    rated = f"{equal}/{total}"
    return [whole, named, str(verdict.partitions), str(local.max_lsb), rated, why[:80]]


def both(engine: str, path: Path, name: str, count: int) -> list[list[str]]:
    """Returns the rows of a model: the original, and the exported one."""
    try:
        graph = qdqbridge.load(path)
        graph = with_numbers(graph, dict.fromkeys(symbolic_extents(graph), 1))
        feeds = samples(graph, count)
        qdqbridge.evaluate(graph, feeds[0])
    except QdqBridgeError as error:
        return [[name, "source", "unread", "", "", "", "", error.what[:80]]]
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "written.onnx"
        for what in ("original", "exported"):
            try:
                file, shown = path, graph
                if what == "exported":
                    qdqbridge.save(graph, written, ENGINES[engine].profile)
                    file, shown = written, qdqbridge.load(written)
                rows.append([name, what, *judged(engine, file, shown, feeds)])
            except QdqBridgeError as error:
                flat = " ".join(f"{error.what} {error.why}".split())
                rows.append([name, what, "no", "", "", "", "", flat[:160]])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=[*ENGINES])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--largest", type=int, default=20_000_000, help="bytes of a file")
    given = parser.parse_args()
    files = sorted(path for path in given.folder.rglob("*.onnx"))[:: given.every]
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(COLUMNS)
    for path in files:
        if path.stat().st_size <= given.largest:
            name = str(path.relative_to(given.folder))
            table.writerows(both(given.engine, path, name, given.samples))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
