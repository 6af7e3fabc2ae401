"""The graph's values as TFLite declares tensors: types, extents and parameters, or why not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.quantization import QuantParams, sound_scales
from qdqbridge.core.graph.types import Shape, static_shape
from qdqbridge.core.ops.cast import CAST
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.core.ops.shape_operator import SHAPE
from qdqbridge.core.rewrite.rule import stored_behind
from qdqbridge.tflite_io.conversion import DTYPES
from qdqbridge.tflite_io.writer.flatbuffer import TensorQuantization

TYPE_NAMES: Mapping[DType, str] = {dtype: name for name, dtype in DTYPES.items()}
"""TFLite's names of element types."""


class NoCounterpart(Exception):
    """A node that TFLite cannot say.

    Args:
        reason: Why.
        fix: What could be done about it.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


_OTHER_FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)


def refuse_other_floats(node: Node) -> None:
    """TFLite's kernels compute in float32; others are moved and cast only.

    Raises:
        NoCounterpart: The node computes in another one.
    """
    if node.op.flow is Flow.MOVE or node.op in (CAST, SHAPE):
        return
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.quant is None and value.type.dtype in _OTHER_FLOATS:
            raise NoCounterpart(
                f"it computes in {value.type.dtype.label}", "convert the model to float32"
            )


def is_late(node: Node | None) -> bool:
    """True for a dequantized constant, which is written where somebody reads it."""
    return node is not None and node.op is DEQUANTIZE and node.operand(0).is_constant


def is_weight(value: Value) -> bool:
    """True for a constant, also one that is dequantized."""
    return (stored_behind(value) or value).is_constant


def axis_in(shape: tuple[int, ...], value: Value, axis: int) -> int:
    """Returns where a weight's axis is after a reshape that only adds or drops extents of 1."""
    assert value.constant is not None
    before = math.prod(value.constant.shape[:axis])
    for place in range(len(shape)):
        if math.prod(shape[:place]) == before and shape[place] == value.constant.shape[axis]:
            return place
    raise NoCounterpart(f"the scales of '{value.name}' lie along an axis that is reshaped")


def quantization_of(params: QuantParams) -> TensorQuantization:
    """Returns parameters as TFLite stores them.

    Raises:
        NoCounterpart: TFLite has no such parameters.
    """
    if params.blocked:
        raise NoCounterpart("its scales are per block", "use scales per channel")
    if params.expressed_dtype is not DType.FLOAT32 or not params.storage_dtype.is_integer:
        raise NoCounterpart(
            f"it is {params.storage_dtype.label} with scales of {params.scale_dtype.label}",
            "quantize to int8 or int16 with float32 scales",
        )
    if not sound_scales(params.scale, params.storage_dtype).all():
        raise NoCounterpart(
            "its scale is too large or too small, or no number", "calibrate it again"
        )
    return TensorQuantization(
        np.asarray(params.scale, np.float32), params.zero_point.astype(np.int64), params.axis or 0
    )


def narrowed(numbers: Sequence[int]) -> Sequence[int]:
    """Returns numbers that 32 bits hold.

    Raises:
        NoCounterpart: One is larger.
    """
    if any(abs(number) > DType.INT32.qmax for number in numbers):
        raise NoCounterpart(
            f"it counts to {max(map(abs, numbers)):,}, TFLite to {DType.INT32.qmax:,}"
        )
    return numbers


def extents(value: Value) -> tuple[int, ...]:
    """Returns a value's extents, -1 where open.

    Raises:
        NoCounterpart: Its rank is not known.
    """
    shape: Shape = value.type.shape
    if shape is None:
        raise NoCounterpart(f"the rank of '{value.name}' is not known")
    return tuple(-1 if isinstance(e, str) else e for e in shape)


def fixed_extents(value: Value) -> tuple[int, ...]:
    """Returns a value's extents, all of which are known.

    Raises:
        NoCounterpart: One is open.
    """
    shape = static_shape(value.type.shape)
    if shape is None:
        raise NoCounterpart(f"the shape of '{value.name}' is open", "fix it with --extent")
    return shape
