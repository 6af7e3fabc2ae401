"""Which axis of an output has a score for each class: what computes it says it."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.autoquant.simulation.metrics import class_axes
from tests.onnx_models import Builder, canonical

CONV, DENSE, POOL = "Conv", "MatMul", "AveragePool"


def drawn(seed):
    """A tail of moves and element-wise operators, and where it takes the axis of the scores."""
    rng = np.random.default_rng(seed)
    b, kind = Builder(), [CONV, DENSE, POOL][seed % 3]
    rank = int(rng.integers(3, 6))
    shape = [1, *rng.choice(np.arange(3, 9), rank - 1, replace=False).tolist()]
    x, axis = b.input("x", shape), rank - 1 if kind == DENSE else 1
    if kind == CONV:
        weight = np.ones((9, shape[1], *[1] * (rank - 2)), np.float32)
        x, shape[1] = b.op("Conv", x, b.init(weight)), 9
    elif kind == DENSE:
        x, shape[-1] = b.op("MatMul", x, b.init(np.ones((shape[-1], 9), np.float32))), 9
    else:
        x = b.op("AveragePool", x, kernel_shape=[1] * (rank - 2))
    for _ in range(int(rng.integers(0, 4))):
        match int(rng.integers(4)):
            case 0:
                perm = [0, *(1 + rng.permutation(rank - 1)).tolist()]
                x, axis = b.op("Transpose", x, perm=perm), perm.index(axis)
            case 1:
                x = b.op("Add", b.init(np.full([1] * rank, 2, np.float32)), x)
            case 2:
                x = b.op("Sigmoid", x)
            case _:
                x = b.op("LeakyRelu", x)
    b.output(x)
    return b, axis, 9 if kind != POOL else shape[1]


@pytest.mark.parametrize("seed", range(99))
def test_scores_are_found_where_they_were_moved_to(seed):
    b, axis, classes = drawn(seed)
    graph = canonical(b.model())
    assert class_axes(graph.outputs) == (axis,)
    assert (graph.outputs[0].type.shape or ())[axis] == classes


@pytest.mark.parametrize("axis", [1, 2])
def test_a_softmax_names_the_axis(axis):
    b = Builder()
    b.output(b.op("Softmax", b.input("x", [2, 4, 5]), axis=axis))
    assert class_axes(canonical(b.model()).outputs) == (axis,)


def test_a_row_is_one_examples():
    b = Builder()
    b.output(b.op("Relu", b.input("x", [2, 3, 1])))
    b.output(b.op("Relu", b.input("y", ["n", 3])))
    b.output(b.op("Relu", b.input("z", [7])))
    assert class_axes(canonical(b.model()).outputs) == (None, 1, None)
