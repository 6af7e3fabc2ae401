"""Reading a small model as a producer writes it, with everything checked that must always hold."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.targets.profiles.export import export
from tests.core.canonical.at_work import data_for
from tests.onnx_models import Array, Builder, ints, load, run

X = 2**-5
"""The scale of most activations here; powers of two keep every float sum exact."""


def settled(model: onnx.ModelProto) -> Graph:
    """Returns the canonical graph: verified, a fixpoint, and computing what the raw graph does."""
    raw = load(model)
    verify(raw)
    data = data_for(raw)
    before = run(raw, data)
    g = canonicalize(load(model))
    verify(g)
    text = g.text()
    assert canonicalize(g).text() == text
    inputs = {v.name: data[v.name] for v in g.inputs}
    for want, got in zip(before, run(g, inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    _written_and_read_again(g)
    return g


def _written_and_read_again(g: Graph) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.onnx"
        export(g, path)
        assert canonicalize(read(path, canonicalize)).digest == g.digest


def node_of(g: Graph, name: str) -> Node:
    (node,) = [n for n in g.nodes if n.op.name == name]
    return node


def notes_of(g: Graph, rule: str) -> list[str]:
    return [note.reason for note in g.notes if note.rule == rule]


def constant_of(node: Node, index: int) -> Array:
    value = node.operand(index)
    assert value.constant is not None
    return value.constant.numpy()


def conv(
    b: Builder,
    x: str,
    *,
    bias: str = "",
    shape: tuple[int, ...] = (4, 3, 1, 1),
    scale: Any = 2**-7,
    **attributes: Any,
) -> str:
    """Adds a Conv of an int8 weight."""
    channels = {"axis": 0} if np.ndim(scale) else {}
    w = b.weight(ints(shape, 1), scale, **channels)
    return b.op("Conv", x, w, *([bias] if bias else []), **attributes)
