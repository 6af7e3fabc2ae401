"""Arm Compute Library, for Cortex-A: 8 bits, one scale for a tensor, channels-last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm.relay.op.contrib import arm_compute_lib

from qdqbridge.tvm.relay.tables.adapter import (
    Adapter,
    MatchedExpression,
    attribute,
    batch,
    number,
    per_tensor,
    row,
    shape,
    types,
    ungrouped,
    weights,
)

_CODES = types("int8", "uint8")
_LAYOUT = attribute("layout", "NHWC", what="the layout")
_UNDILATED = attribute("dilation", (1, 1))


def _acl_pattern_table() -> Sequence[Any]:
    return arm_compute_lib.arm_compute_lib_pattern_table()


def _depthwise(found: MatchedExpression) -> Iterator[str]:
    """The table looks at the first two axes of the kernel, whatever they are."""
    kernel = shape(found.call.args[1])[:2]
    if int(found.call.attrs.groups) == 1 or kernel in ((3, 3), (5, 5)):
        return
    yield f"a depthwise window is {kernel[0]}x{kernel[1]}, 3x3 or 5x5 is taken"


def _depthwise_strides(found: MatchedExpression) -> Iterator[str]:
    strides = tuple(int(step) for step in found.call.attrs.strides)
    if int(found.call.attrs.groups) > 1 and strides not in ((1, 1), (2, 2)):
        yield f"a depthwise stride is {strides[0]}x{strides[1]}, 1x1 or 2x2 is taken"


def _disabled(found: MatchedExpression) -> Iterator[str]:
    del found
    yield "the table leaves concatenations out unless it is told otherwise"


def _scalars(found: MatchedExpression) -> Iterator[str]:
    constants = [number(arg) for arg in found.call.args[2:8]]
    if any(value is not None and value.size > 1 for value in constants):
        yield "an operand has a scale for each channel"


ARM_COMPUTE_LIB = Adapter(
    name="arm_compute_lib",
    variant="tflite",
    table=_acl_pattern_table,
    rewrites=("per-tensor",),
    reasons={
        "qnn_conv2d": row(
            "qnn.conv2d", _CODES, weights("int8", "uint8"), per_tensor,
            attribute("data_layout", "NHWC", what="the layout"), batch, ungrouped, _depthwise,
            _depthwise_strides, attribute("out_dtype", "int32", "", what="the accumulator"),
        ),
        "qnn_dense": row(
            "qnn.dense", _CODES, weights("int8", "uint8"), per_tensor,
            attribute("out_dtype", "int32", what="the accumulator"),
        ),
        "avg_pool2d": row(
            ("nn.avg_pool2d", "nn.global_avg_pool2d"), _CODES, _LAYOUT, _UNDILATED
        ),
        "concatenate": row("concatenate", _disabled),
        "nn.max_pool2d": row(
            "nn.max_pool2d", types("int8", "uint8", "float32"), _LAYOUT, _UNDILATED
        ),
        "qnn.add": row("qnn.add", _CODES, _scalars),
    },
)  # fmt: skip
