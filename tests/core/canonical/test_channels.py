"""Transposes to channels-last: carried down a graph until something undoes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.edit import verify
from tests.onnx_models import Builder, ints, load, ops, run

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
Make = Callable[[Builder, str, str], str]
"""Makes a result of two channels-last images."""


def vector(*numbers: float) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.float32)


CHANNELS_LAST: dict[str, tuple[Make, list[str]]] = {
    "add": (lambda b, x, y: b.op("Add", x, y), ["Add", "Transpose"]),
    "a vector of channels": (
        lambda b, x, y: b.op("Mul", b.op("Add", x, y), b.init(vector(1, 2, 3))),
        ["Add", "Mul", "Transpose"],
    ),
    "a number": (lambda b, x, y: b.op("Mul", x, b.init(vector(3))), ["Mul", "Transpose"]),
    "concat of channels": (
        lambda b, x, y: b.op("Concat", x, y, axis=3), ["Concat", "Transpose"]
    ),
    "softmax of channels": (
        lambda b, x, y: b.op("Softmax", x, axis=-1), ["Softmax", "Transpose"]
    ),
    "pad": (
        lambda b, x, y: b.op("Pad", x, b.init(np.array([0, 1, 2, 0, 0, 3, 0, 0]))),
        ["Pad", "Transpose"],
    ),
    "mean over space": (
        lambda b, x, y: b.op("ReduceMax", b.op("Add", x, y), axes=[1, 2], keepdims=0),
        ["Add", "ReduceMax"],
    ),
    "mean over space, kept": (
        lambda b, x, y: b.op("ReduceMax", x, axes=[1, 2]), ["GlobalMaxPool", "Transpose"]
    ),
    "flattened": (
        lambda b, x, y: b.op("Flatten", b.op("ReduceMax", x, axes=[1, 2])),
        ["GlobalMaxPool", "Flatten"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANNELS_LAST)
def test_transposes_go_down(case: str) -> None:
    make, wanted = CHANNELS_LAST[case]
    b = Builder(17)
    x, y = (b.input(name, [2, 3, 4, 5]) for name in "xy")
    last = [b.op("Transpose", value, perm=LAST) for value in (x, y)]
    b.output(make(b, *last))
    raw = load(b.model())
    data = {n: np.random.default_rng(i).normal(size=(2, 3, 4, 5)).astype(np.float32)
            for i, n in enumerate("xy") if n in {v.name for v in raw.inputs}}  # fmt: skip
    before = run(raw, data)
    graph = canonicalize(raw, channels_first=True)
    verify(graph)
    assert ops(graph) == wanted
    for a, c in zip(before, run(graph, data), strict=True):
        assert a.tobytes() == c.tobytes()
    digest = graph.digest
    assert canonicalize(graph, channels_first=True).digest == digest


REFUSED: dict[str, Make] = {
    "an operand of another layout": lambda b, x, y: b.op("Add", x, b.input("z", [2, 4, 5, 3])),
    "an axis that is cut": lambda b, x, y: b.op("Reshape", x, b.init(np.array([2, 60]))),
    "means that leave another order": lambda b, x, y: b.op(
        "ReduceMax", x, axes=[1], keepdims=0
    ),
    "a sort": lambda b, x, y: b.op("TopK", x, b.init(np.array([1])), axis=3, outputs=2),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_shows_its_layout_keeps_it(case: str) -> None:
    b = Builder(17)
    x = b.op("Transpose", b.input("x", [2, 3, 4, 5]), perm=LAST)
    b.output(REFUSED[case](b, x, x))
    graph = canonicalize(load(b.model()), channels_first=True)
    assert ops(graph)[0] == "Transpose"


def test_a_branching_island_between_convolutions() -> None:
    """What is added to a later value of its island is computed once, channels first."""
    b = Builder(17)
    w = b.weight(ints((3, 3, 1, 1)), vector(0.5, 0.25, 0.125), axis=0)

    def conv(value: str) -> str:
        first = b.op("Transpose", value, perm=FIRST)
        return b.op("Transpose", b.op("Conv", first, w), perm=LAST)

    def stored(value: str, scale: float) -> str:
        return b.qdq(value, scale, 100)

    x = stored(b.input("x", [1, 4, 5, 3]), 0.03125)
    a = stored(conv(x), 0.5)
    c = stored(b.op("Add", conv(a), b.init(vector(1, 2, 3))), 0.75)
    y = stored(b.op("Add", a, c), 1.0)
    b.output(conv(y))
    graph = canonicalize(load(b.model()), channels_first=True)
    assert ops(graph).count("Transpose") == 2  # of the input and the output
    assert graph.nodes[-1].op.name == "Transpose"


def test_the_canonical_form_does_not_move_transposes() -> None:
    b = Builder(17)
    x = b.op("Transpose", b.input("x", [2, 3, 4, 5]), perm=LAST)
    b.output(b.op("Relu", x))
    assert ops(canonicalize(load(b.model()))) == ["Transpose", "Relu"]
