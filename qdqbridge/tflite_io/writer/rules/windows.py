"""Windows as TFLite has them: over images, padded in one of two ways, in one group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.interpreter import evaluate_node
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantType, TensorType, ValueType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    PadAttrs,
    PoolAttrs,
    ResizeAttrs,
    SliceAttrs,
    SplitAttrs,
)
from qdqbridge.core.ops.build import (
    constant,
    result,
)
from qdqbridge.core.ops.pooling import AVERAGE_POOL, MAX_POOL
from qdqbridge.core.ops.shapes import span
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite import Proposal, Replace, Rule, RuleContext, rule
from qdqbridge.tflite_io.writer.rows.products import transposed_padding
from qdqbridge.tflite_io.writer.rows.windows import padding_of, resize_flags

_WINDOWS = ("Conv", "MaxPool", "AveragePool")


@rule("rows-as-images", "Conv", "ConvTranspose", "MaxPool", "AveragePool")
def rows_as_images(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x) -> Squeeze(Conv(Unsqueeze(x)))``: of a sequence, as an image of height 1."""
    del context
    x, output, attributes = node.operand(0), node.output, node.attributes
    if x.rank != 3 or x.type.shape is None or output.type.shape is None or len(node.outputs) > 1:
        return None
    wide = _wide(attributes)
    if wide is None:
        return None
    axes = AxesAttrs((2,))
    image = result(BY_NAME["Unsqueeze"], axes, [x], _with_height(x.type), node.origin)
    operands: list[Value | None] = [image, *node.inputs[1:]]
    if len(node.inputs) > 1:
        weight = node.operand(1)
        if weight.constant is None:
            return None
        shape = (*weight.constant.shape[:2], 1, *weight.constant.shape[2:])
        data = weight.constant.map(lambda array: array.reshape(shape), shape=shape)
        operands[1] = constant(
            data, None if weight.quant is None else weight.quant.params, weight.name
        )
    made = result(node.op, wide, operands, _with_height(output.type), node.origin)
    flat = result(BY_NAME["Squeeze"], axes, [made], output.type, node.origin, output.name)
    return Replace({output: flat})


def _wide(attributes: object) -> ConvAttrs | ConvTransposeAttrs | PoolAttrs | None:
    """Returns attributes of a sequence for an image of height 1."""
    match attributes:
        case ConvAttrs(strides, dilations, pads, group):
            return ConvAttrs((1, *strides), (1, *dilations), _around(pads), group)
        case ConvTransposeAttrs(strides, dilations, pads, more, group):
            return ConvTransposeAttrs(
                (1, *strides), (1, *dilations), _around(pads), (0, *more), group
            )
        case PoolAttrs(kernel, strides, dilations, pads):
            return replace(
                attributes, kernel_shape=(1, *kernel), strides=(1, *strides),
                dilations=(1, *dilations), pads=_around(pads),
            )  # fmt: skip
        case _:
            return None


def _around(pads: Sequence[int]) -> tuple[int, ...]:
    return (0, pads[0], 0, pads[1])


def _with_height(type_: ValueType) -> ValueType:
    assert type_.shape is not None
    return type_.with_shape((*type_.shape[:2], 1, *type_.shape[2:]))


@rule("padding-apart", *_WINDOWS)
def padding_apart(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, pads) -> Conv(Pad(x))`` where TFLite's two paddings are others.

    A pool of averages that does not count its padding has no such form: it is taken at every place
    and every stride-th result kept.
    """
    del context
    x, attributes = node.operand(0), node.attributes
    if not isinstance(attributes, ConvAttrs | PoolAttrs) or x.rank != 4 or len(node.outputs) > 1:
        return None
    if isinstance(attributes, PoolAttrs):
        kernel: Sequence[int] = attributes.kernel_shape
    else:
        shape = node.operand(1).type.shape
        if shape is None or any(isinstance(e, str) for e in shape):
            return None
        kernel = [e for e in shape[2:] if isinstance(e, int)]
    given, made = _spatial(x), _spatial(node.output)
    if given is None or made is None:
        return None
    # TFLite's average pools never count their padding, so a pool that does gets a Pad even where
    # the padding itself would fit.
    counted = isinstance(attributes, PoolAttrs) and attributes.count_include_pad
    fits = padding_of(attributes, kernel, given, made) is not None
    if fits and not (counted and any(attributes.pads)):
        return None
    if node.op is AVERAGE_POOL and not counted:
        return _every_place(node, attributes, kernel, given, made)
    pads = _ends_needed(attributes, kernel, given, made)
    if pads is None:
        return None
    padded = _padded(node, x, pads)
    bare = replace(attributes, pads=(0,) * len(pads))
    if isinstance(bare, PoolAttrs):
        bare = replace(bare, count_include_pad=False, ceil_mode=False)
    operands = [padded, *node.inputs[1:]]
    value = result(node.op, bare, operands, node.output.type, node.origin, node.output.name)
    return Replace({node.output: value})


def _spatial(value: Value) -> list[int] | None:
    shape = value.type.shape
    return None if shape is None else [-1 if isinstance(e, str) else e for e in shape[2:]]


def _ends_needed(
    attributes: ConvAttrs | PoolAttrs,
    kernel: Sequence[int],
    given: Sequence[int],
    made: Sequence[int],
) -> tuple[int, ...] | None:
    """Returns pads with as much at the ends as the windows reach."""
    rank = len(given)
    begins, ends = list(attributes.pads[:rank]), list(attributes.pads[rank:])
    for axis in range(rank):
        if given[axis] < 0 or made[axis] < 0:
            if isinstance(attributes, PoolAttrs) and attributes.ceil_mode:
                return None
            continue
        size = span(kernel[axis], attributes.dilations[axis])
        reach = (made[axis] - 1) * attributes.strides[axis] + size
        ends[axis] = max(0, reach - given[axis] - begins[axis])
    return (*begins, *ends)


def _padded(node: Node, x: Value, pads: Sequence[int]) -> Value:
    """Returns an image behind a Pad: zeros, or what no maximum takes."""
    value = 0.0
    if node.op is MAX_POOL:
        value = -math.inf
        if x.quant is not None:
            # The lowest code is below or equal to any other, so it is never the maximum beside one.
            low = np.asarray(x.quant.params.storage_dtype.qmin)
            value = float(dequantize(low.astype(x.type.dtype.numpy), x.quant.params.widened()))
    half = len(pads) // 2
    whole = (0, 0, *pads[:half], 0, 0, *pads[half:])
    assert x.type.shape is not None
    shape = tuple(
        f"{extent}+{whole[a] + whole[a + len(whole) // 2]}"
        if isinstance(extent, str) and whole[a] + whole[a + len(whole) // 2]
        else extent
        if isinstance(extent, str)
        else extent + whole[a] + whole[a + len(whole) // 2]
        for a, extent in enumerate(x.type.shape)
    )
    type_ = x.type.with_shape(shape)
    if isinstance(type_, QuantType):
        type_ = QuantType(type_.params.widened(), shape)
    return result(BY_NAME["Pad"], PadAttrs(whole, "constant", value), [x], type_, node.origin)


def _every_place(
    node: Node,
    attributes: ConvAttrs | PoolAttrs,
    kernel: Sequence[int],
    given: Sequence[int],
    made: Sequence[int],
) -> Proposal:
    rank = len(given)
    if not isinstance(attributes, PoolAttrs) or -1 in (*given, *made):
        return None
    # What SAME pads with stride 1, where every element is the middle of a window: the same
    # averages, of which every stride-th is wanted.
    begins = tuple((size - 1) // 2 for size in kernel)
    if attributes.pads[:rank] != begins or set(attributes.dilations) != {1}:
        return None
    if any((m - 1) * s >= g for m, s, g in zip(made, attributes.strides, given, strict=True)):
        return None
    ends = tuple(size - 1 - begin for size, begin in zip(kernel, begins, strict=True))
    dense = replace(attributes, strides=(1,) * rank, pads=(*begins, *ends), ceil_mode=False)
    shape = node.output.type.shape
    assert shape is not None
    type_ = node.output.type.with_shape((*shape[:2], *given))
    every = result(node.op, dense, node.inputs, type_, node.origin)
    lasts = tuple((m - 1) * s + 1 for m, s in zip(made, attributes.strides, strict=True))
    kept = SliceAttrs((0,) * rank, lasts, tuple(range(2, rank + 2)), tuple(attributes.strides))
    output = node.output
    value = result(BY_NAME["Slice"], kept, [every], output.type, node.origin, output.name)
    return Replace({output: value})


@rule("whole-then-slice", "ConvTranspose")
def whole_then_slice(node: Node, context: RuleContext) -> Proposal:
    """``ConvTranspose(x, pads) -> Slice(ConvTranspose(x))`` where TFLite cuts off others."""
    del context
    attributes, x, output = node.attributes, node.operand(0), node.output
    if not isinstance(attributes, ConvTransposeAttrs) or x.rank != 4:
        return None
    shape = node.operand(1).type.shape
    given, made = _spatial(x), _spatial(output)
    if shape is None or given is None or made is None or -1 in (*given, *made):
        return None
    kernel = [e for e in shape[2:] if isinstance(e, int)]
    if not any(attributes.pads) or _tflite_pads(attributes, kernel, given, made):
        return None
    rank = len(given)
    whole = [
        (g - 1) * s + k
        for g, s, k in zip(given, attributes.strides, kernel, strict=True)
    ]  # fmt: skip
    more = tuple(
        max(0, m + attributes.pads[a] - w) for a, (m, w) in enumerate(zip(made, whole, strict=True))
    )
    bare = replace(attributes, pads=(0,) * (2 * rank), output_padding=more)
    assert output.type.shape is not None
    full = (*output.type.shape[:2], *(w + m for w, m in zip(whole, more, strict=True)))
    value = result(node.op, bare, node.inputs, output.type.with_shape(full), node.origin)
    begins = tuple(attributes.pads[:rank])
    ends = tuple(b + m for b, m in zip(begins, made, strict=True))
    cut = SliceAttrs(begins, ends, tuple(range(2, rank + 2)), (1,) * rank)
    sliced = result(BY_NAME["Slice"], cut, [value], output.type, node.origin, output.name)
    return Replace({output: sliced})


def _tflite_pads(
    attributes: ConvTransposeAttrs,
    kernel: Sequence[int],
    given: Sequence[int],
    made: Sequence[int],
) -> bool:
    return transposed_padding(attributes, kernel, given, made) is not None


@rule("convolution-per-group", "ConvTranspose")
def convolution_per_group(node: Node, context: RuleContext) -> Proposal:
    """``ConvTranspose(x; groups) -> Concat(ConvTranspose(Split(x)) …)``."""
    del context
    attributes, x, weight, output = node.attributes, node.operand(0), node.operand(1), node.output
    if not isinstance(attributes, ConvTransposeAttrs) or attributes.group == 1:
        return None
    if weight.constant is None or x.type.shape is None or output.type.shape is None:
        return None
    group, bias = attributes.group, node.optional(2)
    if weight.quant is not None and not weight.quant.params.per_tensor:
        return None
    # A part of one would need a part of its scales, too.
    if bias is not None and (bias.constant is None or _per_channel_axis(bias) is not None):
        return None
    channels, results = x.type.shape[1], output.type.shape[1]
    if isinstance(channels, str) or isinstance(results, str) or group > 64:
        return None
    sizes = (channels // group,) * group
    part = x.type.with_shape((x.type.shape[0], channels // group, *x.type.shape[2:]))
    parts = [Value(part) for _ in range(group)]
    Node(BY_NAME["Split"], SplitAttrs(1, sizes), [x], parts, node.origin)
    made: list[Value | None] = []
    shape = (output.type.shape[0], results // group, *output.type.shape[2:])
    for place, image in enumerate(parts):
        operands: list[Value | None] = [image, _slice_group_constant(weight, place, group)]
        if bias is not None:
            operands.append(_slice_group_constant(bias, place, group))
        one = replace(attributes, group=1)
        made.append(result(node.op, one, operands, output.type.with_shape(shape), node.origin))
    joined = result(
        BY_NAME["Concat"], AxisAttrs(1), made, output.type, node.origin, output.name
    )  # fmt: skip
    return Replace({output: joined})


def _per_channel_axis(value: Value) -> int | None:
    return None if value.quant is None else value.quant.params.axis


def _slice_group_constant(value: Value, place: int, count: int) -> Value:
    """Returns a part of a constant along its first axis."""
    assert value.constant is not None
    size = value.constant.shape[0] // count
    shape = (size, *value.constant.shape[1:])
    data = value.constant.map(lambda a: a[place * size : (place + 1) * size], shape=shape)
    return constant(data, None if value.quant is None else value.quant.params, value.name)


SHAPES: tuple[Rule, ...] = (rows_as_images,)
RULES: tuple[Rule, ...] = (convolution_per_group, whole_then_slice, padding_apart)


# ---- Resizes that TFLite has not: to the nearest element in other ways than its three

Number = TypeVar("Number", int, float)
_IMAGE = 4
_LARGEST = 1 << 24
"""Up to which float32 counts."""


@rule("nearest-by-index", "Resize")
def nearest_by_index(node: Node, context: RuleContext) -> Proposal:
    """``Resize(x; nearest) -> Gather(Gather(x; rows); columns)`` where TFLite takes other ones."""
    del context
    attributes, x, output = node.attributes, node.operand(0), node.output
    given, made = x.type.shape, output.type.shape
    if not isinstance(attributes, ResizeAttrs) or attributes.mode != "nearest":
        return None
    if given is None or made is None or len(given) != _IMAGE or given[1] != made[1]:
        return None
    if attributes.roi or resize_flags(attributes, given, made) is not None:
        return None
    for axis in (2, 3):
        old, new = given[axis], made[axis]
        if isinstance(old, str) or isinstance(new, str) or not 0 < max(old, new) < _LARGEST:
            return None
    value = x
    for axis in (2, 3):
        places = _places(attributes, axis, given[axis], made[axis])
        if np.array_equal(places, np.arange(len(places))) and given[axis] == made[axis]:
            continue
        assert value.type.shape is not None
        shape = tuple(made[a] if a == axis else e for a, e in enumerate(value.type.shape))
        index = constant(Constant.of(places), None, "")
        type_ = value.type.with_shape(shape)
        value = result(BY_NAME["Gather"], AxisAttrs(axis), [value, index], type_, node.origin)
    if value is x:
        return None
    value.name, value.type = output.name, output.type
    return Replace({output: value})


def _places(attributes: ResizeAttrs, axis: int, old: object, new: object) -> np.ndarray:
    """Returns which element along an axis each result takes: those of a ramp."""
    assert isinstance(old, int) and isinstance(new, int)
    shape = tuple(old if a == axis else 1 for a in range(_IMAGE))
    along = replace(
        attributes,
        scales=None if attributes.scales is None else _only(attributes.scales, axis, 1.0),
        sizes=None if attributes.sizes is None else _only(attributes.sizes, axis, 1),
    )
    # The interpreter resizes the places themselves: no second formula that could differ from it.
    ramp = np.arange(old, dtype=np.float32).reshape(shape)
    values = [Value(TensorType(DType.FLOAT32, shape))]
    row = Node(BY_NAME["Resize"], along, values, [Value(TensorType(DType.FLOAT32, None))])
    return np.asarray(evaluate_node(row, [ramp])[0]).reshape(-1).astype(np.int64)


def _only(numbers: Sequence[Number], axis: int, rest: Number) -> tuple[Number, ...]:
    return tuple(number if a == axis else rest for a, number in enumerate(numbers))


RESIZES_RULES: tuple[Rule, ...] = (nearest_by_index,)
