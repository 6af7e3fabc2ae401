"""Ways out of a graph and back, after which its digest must be what it was."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.options import RelaxVariant

HOSTED = ("qnn", "qdq")
"""Forms on Relax."""


def loaded(model: onnx.ModelProto) -> Graph:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return qb.load(path)


def saved(graph: Graph) -> Graph:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.onnx"
        qb.save(graph, path)
        return qb.load(path)


def hosted(graph: Graph, variant: RelaxVariant) -> Graph:
    module, params = qb.to_relax(graph, variant=variant)
    return qb.from_relax(module, params)


def trips(graph: Graph, *, relax: bool) -> Iterator[tuple[str, Graph | qb.QdqBridgeError]]:
    """Yields every way's name, and the graph that came back or why none did."""
    for name in ("save", *(HOSTED if relax else ())):
        try:
            yield name, saved(graph) if name == "save" else hosted(graph, name)
        except qb.QdqBridgeError as error:
            yield name, error
