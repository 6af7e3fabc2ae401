"""Arm's CMSIS-NN, for Cortex-M: int8 or int16, channels-last."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm.relay.op.contrib import cmsisnn

from qdqbridge.tvm.relay.tables.adapter import (
    Adapter,
    MatchedExpression,
    Rule,
    attribute,
    batch,
    dtype,
    number,
    operands,
    output,
    row,
    symmetric_weight,
    types,
    weights,
)

_CODES = types("int8", "int16")
_EFFECTIVE_PADDING = "GetEffectiveConv2DPadding"


def _padding(conv2d: Any, pad: Any) -> list[int]:
    """Returns top, left, bottom, right of a convolution and the pad before it.

    TVM computes it in C++, in builds that have CMSIS-NN.
    """
    layout, own = str(conv2d.attrs.data_layout), [int(p) for p in conv2d.attrs.padding]
    sides = [pad.attrs.pad_width[layout.index(axis)] for axis in "HW"]
    ends = [int(side[end]) for end in (0, 1) for side in sides]
    return [a + b for a, b in zip(own, ends, strict=True)]


@contextmanager
def _shim() -> Generator[None, None, None]:
    present = hasattr(cmsisnn, _EFFECTIVE_PADDING)
    if not present:
        setattr(cmsisnn, _EFFECTIVE_PADDING, _padding)
    try:
        yield
    finally:
        if not present:
            delattr(cmsisnn, _EFFECTIVE_PADDING)


def _cmsis_nn_pattern_table() -> Sequence[Any]:
    return cmsisnn.pattern_table()


def _zero_at_16_bits(arguments: tuple[int, ...]) -> Rule:
    def rule(found: MatchedExpression) -> Iterator[str]:
        zeros = [number(found.call.args[i]) for i in arguments]
        if dtype(found.data) == "int16" and any(z is None or z.any() for z in zeros):
            yield "a zero point of int16 values is not 0"

    return rule


def _biased(found: MatchedExpression) -> Iterator[str]:
    if int(found.call.attrs.groups) > 1 and found.inside("nn.bias_add") is None:
        yield "a depthwise convolution without a bias"


def _accumulator(found: MatchedExpression) -> Iterator[str]:
    wanted = {"int8": "int32", "int16": "int64"}.get(dtype(found.data))
    actual = str(found.call.attrs.out_dtype)
    if wanted is not None and actual != wanted:
        yield f"the accumulator is {actual}, {wanted} is taken"


_PRODUCT = (_CODES, weights("int8"), symmetric_weight, _zero_at_16_bits((2,)), _accumulator)
_POOL = (_CODES, attribute("layout", "NHWC", what="the layout"), batch)
_BINARY = (operands("int8", "int16"), _zero_at_16_bits((3, 5, 7)))

CMSIS_NN = Adapter(
    name="cmsis-nn",
    variant="tflite",
    table=_cmsis_nn_pattern_table,
    rewrites=("int8", "softmax-1/256"),
    shim=_shim,
    guards={
        # The table reads axis 3 as channels and does not ask whether it is.
        "qnn_conv2d": row(
            "qnn.conv2d",
            attribute("data_layout", "NHWC", what="the layout"),
            attribute("kernel_layout", "HWIO", "HWOI", what="the kernel layout"),
        ),
    },
    reasons={
        "qnn_conv2d": row("qnn.conv2d", *_PRODUCT, _biased),
        "qnn_fully_connected": row("qnn.dense", *_PRODUCT),
        "qnn_avg_pool2d": row("nn.avg_pool2d", *_POOL),
        "qnn_max_pool2d": row("nn.max_pool2d", *_POOL),
        "qnn_add": row("qnn.add", *_BINARY),
        "qnn_mul": row("qnn.mul", *_BINARY),
        "qnn_softmax": row(
            "nn.softmax", _CODES, output(("int8", 1 / 256, -128), ("int16", 1 / 32768, 0))
        ),
    },
)
