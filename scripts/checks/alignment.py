"""Aligns quantized files with their float originals, and looks for what is aligned wrongly.

Run as ``python -m scripts.checks.alignment COLLECTION [--every N] [--first K]``: suite A, whose
manifest names the network of each file. Two float originals are taken of each network: the
collection's own (``float_op17``), and a twin, the file itself without its roundings, without
names. It prints the share of the nodes to which one corresponds, and pairs that are wrong: of the
twin, another value than the one it was made from; of the original, nodes that compute something
else on the same operands, and constants that are no rounding of the original's.
"""

from __future__ import annotations

import argparse
import csv
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

import qdqbridge as qb
from qdqbridge.autoquant.attribution.causes import node_errors
from qdqbridge.autoquant.attribution.common_form import common_form, distance, without_arithmetic
from qdqbridge.autoquant.attribution.correspondence import (
    Correspondence,
    correspondence,
    fed,
    keeps_elements,
)
from qdqbridge.autoquant.attribution.simulation import GraphRuns
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.graph import NO_ORIGIN, Graph, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.errors import QdqBridgeError

Array = NDArray[Any]
_SAMPLES = 8
_LEFT = 10.0
"""Decibels; what kernels really leave is beyond 20, and another tensor leaves none."""
_FAR = 0.9
"""Relative distance; four bits leave 0.2, retrained weights 0.5, and other weights are beyond 1."""


def twin(quantized: Graph) -> tuple[Graph, Mapping[Value, str]]:
    """Returns a graph without its roundings and names, and what became of which value."""
    form = common_form(quantized)
    steps = copied(form.steps)
    names: dict[Value, str] = {}
    for number, value in enumerate(form.steps.values()):
        if value.constant is None and value not in form.steps.inputs:
            steps.values[value].name = f"t{number}"
    for value, copy in steps.values.items():
        names[value] = _elements(copy).name
    for node in steps.graph.nodes:
        node.origin = NO_ORIGIN
    return steps.graph, {v: names[s] for v, s in form.values.items() if s in names}


def wrong_of_twin(found: Correspondence, made: Mapping[Value, str]) -> Iterator[str]:
    """Yields values that stand for another one than they were made from."""
    for theirs, value in found.values.items():
        want, own = made.get(theirs), _elements(value)
        if want is not None and own.name and own.name != want:
            yield f"{theirs.name} for {own.name}, not {want}"


def _elements(value: Value) -> Value:
    """Returns the value that has the same elements in the same order before any reshape."""
    while value.producer is not None and keeps_elements(value.producer):
        value = value.producer.operand(0)
    return value


def wrong_of_original(
    found: Correspondence, data: Mapping[str, Array]
) -> Iterator[tuple[str, bool]]:
    """Yields what is paired, and whether it is something else in the float original.

    A node is right where the original's nodes that it stands for compute what it stores, on its own
    operands, constants and roundings; a constant where it is near the original's.
    """
    floats = GraphRuns(found.reference, data)
    theirs = GraphRuns(found.quantized, fed(found.quantized, found, data))
    for each in node_errors(found, floats, theirs, {}):
        if each.place.op.flow not in (Flow.CONVERT, Flow.MOVE):
            left = min(each.parts.get(what, np.inf) for what in ("kernel", "body"))
            yield f"{each.operator} {each.name}: {left:.1f} dB", left < _LEFT
    for constant in found.rounded:
        if constant.replaced is not None and constant.value.constant is not None:
            apart = distance(constant.value.constant.numpy(), constant.replaced)
            far = apart is None or apart >= _FAR
            yield f"{constant.kind} {constant.name}: {apart}", far


def data_of(folder: Path, port: Value, rows: int) -> dict[str, Array]:
    """Returns samples of a network for its float original."""
    with np.load(folder / "inputs.npz") as arrays:
        found = [arrays[name] for name in arrays.files if name != "labels"]
    return {port.name: found[0][:rows].astype(np.float32)}


def main(arguments: list[str]) -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("collection", type=Path)
    asked.add_argument("--every", type=int, default=1)
    asked.add_argument("--first", type=int, default=0)
    given = asked.parse_args(arguments)
    logging.disable(logging.WARNING)
    with (given.collection / "manifest.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[given.first :: given.every]
    counts: Counter[str] = Counter()
    networks = sorted({row["network"] for row in rows})
    folders = {n: given.collection / n / "float_op17" for n in networks}
    floats = {name: qb.load(folder / "model.onnx") for name, folder in folders.items()}
    for row in track(rows, disable=not sys.stderr.isatty()):
        name = row["network"]
        try:
            quantized = qb.load(given.collection / row["file"])
        except QdqBridgeError as error:
            print(row["file"], "not read:", error)
            continue
        read = without_arithmetic(quantized).graph
        if not any(v.quant is not None for v in read.values()):
            counts["float files"] += 1
            continue
        counts["files"] += 1
        made, names = twin(read)
        for kind, original in (("original", floats[name]), ("twin", made)):
            found = correspondence(original, replace(read, name=""))
            nodes = [n for n in found.quantized.nodes if n.op.flow is not Flow.CONVERT]
            counts[f"nodes, {kind}"] += len(nodes)
            counts[f"unknown, {kind}"] += len(found.unknown)
            if found.unknown:
                print(row["file"], kind, Counter(n.op.name for n in found.unknown))
            if kind == "original":
                judged = list(
                    wrong_of_original(found, data_of(folders[name], original.inputs[0], _SAMPLES))
                )
                counts["pairs, original"] += len(judged)
                wrong = [said for said, is_wrong in judged if is_wrong]
            else:
                # the copy that was aligned has values of its own: by their names in the twin
                places = dict(zip(read.values(), found.quantized.values(), strict=True))
                wrong = list(wrong_of_twin(found, {places[v]: t for v, t in names.items()}))
                counts["pairs, twin"] += sum(v in found.values for v in places.values())
            counts[f"wrong, {kind}"] += len(wrong)
            if wrong:
                print(row["file"], kind, "wrong:", wrong[:4])
    for kind in ("original", "twin"):
        whole, left = counts[f"nodes, {kind}"], counts[f"unknown, {kind}"]
        print(
            f"{kind}: {counts['files']} files, {whole} nodes,",
            f"{1 - left / max(whole, 1):.2%} aligned;",
            f"{counts[f'wrong, {kind}']} wrong of {counts[f'pairs, {kind}']} pairs",
        )
    print(f"{counts['float files']} float files left out")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
