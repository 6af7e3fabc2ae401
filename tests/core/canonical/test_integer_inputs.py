"""Integer graph inputs that move before somebody says what they mean (idioms J4 and G10)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.core.canonical.idiom_models import settled
from tests.onnx_models import Builder, canonical, ints, ops

SCALE, ZERO = 2**-5, 120
SHAPE = [1, 4, 4, 4]
Moves = Callable[[Builder, str, bool], str]
"""Adds movers to ``x``, which holds real numbers or, where the flag is False, stored integers."""


def model(move: Moves, *, early: bool) -> onnx.ModelProto:
    """A uint8 input, moved and convolved; dequantized before it moves or behind."""
    b = Builder(17)
    x = b.input("x", SHAPE, TensorProto.UINT8)
    if early:
        y = move(b, b.dq(x, SCALE, ZERO), True)
        y = b.qdq(y, SCALE, ZERO)
    else:
        y = b.dq(move(b, x, False), SCALE, ZERO)
    b.output(b.qdq(b.op("Conv", y, b.weight(ints((3, 4, 1, 1)), 2**-7)), 2**-2, 100))
    return b.model()


def channels_first(b: Builder, x: str, real: bool) -> str:
    del real
    return b.op("MaxPool", b.op("Transpose", x, perm=[0, 3, 1, 2]), kernel_shape=[2, 2])


def padded(b: Builder, x: str, real: bool) -> str:
    value = np.float32(0.5) if real else np.uint8(ZERO + 16)
    return b.op("Pad", x, b.init(np.array([0, 0, 1, 1, 0, 0, 1, 1])), b.init(value))


def parts(b: Builder, x: str, real: bool) -> str:
    del real
    first = b.op("Split", x, outputs=2, axis=1)
    swapped = b.op("Concat", first + ":1", first, axis=1)
    rows = b.op("Gather", swapped, b.init(np.array([2, 0])), axis=2)
    return b.op("Reshape", rows, b.init(np.array([1, 4, -1, 1])))


def joined(b: Builder, x: str, real: bool) -> str:
    code = ints((1, 4, 4, 2), 3, np.uint8)
    more = b.dq(b.init(code), SCALE, ZERO) if real else b.init(code)
    return b.op("Concat", x, more, axis=3)


@pytest.mark.idiom("J4", "G10")
@pytest.mark.parametrize("move", [channels_first, padded, parts, joined])
def test_where_the_dequantize_stands_leaves_no_trace(move: Moves) -> None:
    early, late = settled(model(move, early=True)), settled(model(move, early=False))
    assert late.digest == early.digest
    assert early.inputs[0].quant is not None
    assert "reinterpret" not in ops(early)


def test_a_clip_of_input_integers_is_a_range() -> None:
    b = Builder(17)
    x = b.input("x", SHAPE, TensorProto.UINT8)
    clipped = b.op("Clip", x, b.init(np.uint8(3)), b.init(np.uint8(200)))
    y = b.op("Conv", b.dq(clipped, SCALE, ZERO), b.weight(ints((3, 4, 1, 1)), 2**-7))
    b.output(b.qdq(y, 2**-2, 100))
    g = settled(b.model())
    assert ops(g) == ["requantize", "Conv", "dequantize"]
    quant = g.nodes[0].output.quant
    assert quant is not None and (quant.params.qmin, quant.params.qmax) == (3, 200)


def test_what_reads_numbers_keeps_them() -> None:
    b = Builder(17)
    x = b.input("x", SHAPE, TensorProto.UINT8)
    y = b.op("Transpose", x, perm=[0, 3, 1, 2])
    b.output(b.op("Relu", b.dq(y, SCALE, ZERO)))
    b.output(b.op("Cast", y, to=TensorProto.INT64), elem_type=TensorProto.INT64)
    g = settled(b.model())
    assert ops(g).count("reinterpret") == 1


def test_an_input_that_is_an_output_as_well_carries_its_parameters() -> None:
    b = Builder(17)
    x = b.input("x", [2, 3], TensorProto.UINT8)
    b.output(x, [2, 3], TensorProto.UINT8)
    b.output(b.op("Exp", b.dq(x, SCALE, ZERO)))
    g = settled(b.model())
    assert g.inputs[0].quant is not None and g.outputs[0] is g.inputs[0]


def test_an_input_that_nobody_reads_means_nothing() -> None:
    """Its parameters could not be written: no node of the file would have them."""
    b = Builder(17)
    x = b.input("x", [2, 3], TensorProto.UINT8)
    pair = b.q(b.dq(x, SCALE, ZERO), SCALE, ZERO)
    b.output(pair, [2, 3], TensorProto.UINT8)
    g = settled(b.model())
    assert ops(g) == [] and g.inputs[0].quant is None
    plain = Builder(17)
    x = plain.input("x", [2, 3], TensorProto.UINT8)
    plain.output(plain.op("Identity", x), [2, 3], TensorProto.UINT8)
    assert canonical(plain.model()).digest == g.digest
