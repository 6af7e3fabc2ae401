"""The variant of TVM's TFLite importer, which its shipped tables match."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relay as _relay

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import AxisAttrs, PoolAttrs, ReduceAttrs, ResizeAttrs
from qdqbridge.core.ops.elementwise import CONCAT, MAX, MIN
from qdqbridge.core.ops.normalization import SOFTMAX
from qdqbridge.core.ops.pooling import AVERAGE_POOL, GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.reduction import REDUCE_MEAN, REDUCE_SUM
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.unary import ABS, HARD_SWISH, LEAKY_RELU, SIGMOID, TANH
from qdqbridge.tvm.qnn.emit.dtypes import storage
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter
from qdqbridge.tvm.qnn.emit.table import at
from qdqbridge.tvm.qnn.emit.variant import Row
from qdqbridge.tvm.qnn.emit.windows import window_pads
from qdqbridge.tvm.qnn.weights import axis_weights
from qdqbridge.tvm.relay.emit.forms import in_floats, params_of, rescaled

# --------------------------------------------------------------------------------------------------
# ``image.resize2d`` where Relay's has ONNX's meaning, in the attributes that tables look for.

_NEAREST = (
    ("asymmetric", "floor", ""),
    ("align_corners", "round_prefer_ceil", ""),
    ("half_pixel", "round_prefer_ceil", "round_prefer_ceil"),
)
"""Coordinates, ONNX's nearest mode, and Relay's rounding method as tables want it stated."""

_LINEAR = (("half_pixel", "round_prefer_ceil"), ("asymmetric", ""), ("align_corners", ""))
"""Coordinates, and the rounding method that tables want stated although nothing is rounded."""


def resized(
    emitter: FunctionEmitter,
    node: Node,
    attributes: ResizeAttrs,
    source: QuantParams,
    result: QuantParams,
) -> Expr | None:
    """Returns a resize of the two spatial axes of an image; None where Relay has no such one."""
    x = emitter.value(node.operand(0))
    before, after = emitter.extents(x), node.output.type.shape
    if len(before) != 4 or after is None or attributes.antialias:
        return None
    axes = emitter.spatial(node, 4)
    size = [extent for axis in axes if isinstance(extent := after[axis], int)]
    others = [axis for axis in range(4) if axis not in axes]
    if len(size) != 2 or any(_resize_scale(attributes, axis) not in (None, 1.0) for axis in others):
        return None
    lengths = [before[axis] for axis in axes]
    mode = _mode(attributes, axes, lengths, size)
    if mode is None:
        return None
    attrs = {"layout": emitter.layout(node, 4), **mode}
    if attributes.mode == "nearest" and source.same_mapping(result):
        return emitter.clamp(emitter.emit(relay.image.resize2d(x, tuple(size), **attrs)), result)
    real = emitter.real(node.operand(0))
    return emitter.quantize(emitter.emit(relay.image.resize2d(real, tuple(size), **attrs)), result)


def _resize_scale(attributes: ResizeAttrs, axis: int) -> float | None:
    return None if attributes.scales is None else attributes.scales[axis]


def _mode(
    attributes: ResizeAttrs, axes: list[int], lengths: list[int], size: list[int]
) -> dict[str, Any] | None:
    """Returns method, coordinates and rounding under which every weight is ONNX's."""
    wanted = [axis_weights(attributes, *e) for e in zip(axes, lengths, size, strict=True)]
    if attributes.mode == "nearest":
        for coordinates, nearest, rounding in _NEAREST:
            plain = ResizeAttrs("nearest", coordinates, nearest, None, None)
            if _equal_resize_weights(wanted, plain, lengths, size):
                return _attrs("nearest_neighbor", coordinates, rounding)
    elif attributes.mode == "linear":
        for coordinates, rounding in _LINEAR:
            plain = ResizeAttrs("linear", coordinates, "floor", None, None)
            if _equal_resize_weights(wanted, plain, lengths, size):
                return _attrs("linear", coordinates, rounding)
    return None


def _attrs(method: str, coordinates: str, rounding: str) -> dict[str, Any]:
    return {
        "method": method,
        "coordinate_transformation_mode": coordinates,
        "rounding_method": rounding,
    }


def _equal_resize_weights(
    wanted: list[NDArray[Any]], plain: ResizeAttrs, lengths: list[int], size: list[int]
) -> bool:
    found = [axis_weights(plain, 0, n, m) for n, m in zip(lengths, size, strict=True)]
    return all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))


# --------------------------------------------------------------------------------------------------

relay: Any = _relay


def kernel_layout(depthwise: bool, transposed: bool) -> str:
    """HWIO, HWOI for depthwise kernels, IOHW for transposed ones."""
    return "IOHW" if transposed else "HWOI" if depthwise else "HWIO"


def _average_pool(emitter: FunctionEmitter, node: Node, attributes: PoolAttrs) -> Expr | None:
    """``cast -> nn.avg_pool2d -> cast [-> clip]``, and a requantize where parameters differ."""
    found = params_of(node)
    if found is None or any(step != 1 for step in attributes.dilations):
        return None
    x, pads = emitter.value(node.operand(0)), attributes.pads
    if attributes.count_include_pad and any(pads):
        x, pads = _padded(emitter, node, x, attributes, found[0]), (0,) * len(pads)
    window = {
        "pool_size": attributes.kernel_shape,
        "strides": attributes.strides,
        "padding": window_pads(emitter, node, replace(attributes, pads=pads), emitter.extents(x)),
        "count_include_pad": False,
    }
    wide, rank = emitter.cast(x, "int32"), emitter.rank(x)
    average = emitter.function(node.op.tvm.format(rank=rank - 2))
    sums = average(wide, layout=emitter.layout(node, rank), **window)
    return _narrowed(emitter, emitter.emit(sums), *found)


def _padded(
    emitter: FunctionEmitter, node: Node, x: Expr, attributes: PoolAttrs, params: QuantParams
) -> Expr:
    rank = len(attributes.kernel_shape)
    widths = [0] * (2 * (rank + 2))
    for i, axis in enumerate(emitter.spatial(node, rank + 2)):
        widths[2 * axis : 2 * axis + 2] = [attributes.pads[i], attributes.pads[rank + i]]
    return emitter.emit(emitter.op.nn.pad(x, widths, "constant", int(params.zero_point)))


def _narrowed(
    emitter: FunctionEmitter, wide: Expr, source: QuantParams, result: QuantParams
) -> Expr:
    """Returns int32 codes in the result's type; a requantize only between different mappings."""
    stored = emitter.cast(wide, storage(source))
    if not source.same_mapping(result):
        stored = rescaled(emitter, stored, source, result)
    return emitter.clamp(stored, result)


def _mean(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """``cast -> mean -> requantize``."""
    found = params_of(node)
    if found is None:
        return None
    axes, keepdims = _reduced(emitter, node)
    wide = emitter.cast(emitter.value(node.operand(0)), "int32")
    mean = emitter.emit(emitter.op.mean(wide, axes, keepdims))
    return emitter.clamp(rescaled(emitter, mean, *found), found[1])


def _sum(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """``cast -> sum -> requantize``, the zero point times the number of terms."""
    found = params_of(node)
    if found is None:
        return None
    axes, keepdims = _reduced(emitter, node)
    x = emitter.value(node.operand(0))
    terms = int(np.prod([emitter.extents(x)[axis] for axis in axes]))
    total = emitter.emit(emitter.op.sum(emitter.cast(x, "int32"), axes, keepdims))
    return emitter.clamp(rescaled(emitter, total, *found, terms=terms), found[1])


def _reduced(emitter: FunctionEmitter, node: Node) -> tuple[list[int], bool]:
    if isinstance(node.attributes, ReduceAttrs):
        return list(node.attributes.axes), node.attributes.keepdims
    return emitter.spatial(node, node.operand(0).rank or 0), True


def _extreme(name: str) -> Row:
    """``minimum(a, b) [-> clip] [-> requantize]`` on codes of one mapping."""

    def emit(emitter: FunctionEmitter, node: Node) -> Expr | None:
        found = params_of(node)
        if found is None or len(node.inputs) != 2:
            return None
        other = node.operand(1).quant
        if other is None or not other.params.same_mapping(found[0]):
            return None
        operands = [emitter.value(node.operand(i)) for i in (0, 1)]
        stored = emitter.emit(emitter.function(name)(*operands))
        if not found[0].same_mapping(found[1]):
            stored = rescaled(emitter, stored, *found)
        return emitter.clamp(stored, found[1])

    return emit


def _hard_swish(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """``x * clip(x + 3, 0, 6) / 6`` between dequantize and quantize."""
    found = params_of(node)
    if found is None:
        return None

    def number(value: float) -> Expr:
        return emitter.number(np.asarray(value, np.float32))

    real = emitter.real(node.operand(0))
    gate = emitter.emit(emitter.op.clip(emitter.emit(emitter.op.add(real, number(3))), 0, 6))
    product = emitter.emit(emitter.op.multiply(real, gate))
    return emitter.quantize(emitter.emit(emitter.op.divide(product, number(6))), found[1])


def _resize(emitter: FunctionEmitter, node: Node, attributes: ResizeAttrs) -> Expr | None:
    """``image.resize2d`` on codes where it is nearest, else between dequantize and quantize."""
    found = params_of(node)
    return None if found is None else resized(emitter, node, attributes, *found)


def _emit_tflite_concat(emitter: FunctionEmitter, node: Node, attributes: AxisAttrs) -> Expr | None:
    """``concatenate`` of operands of the result's mapping; others are requantized before."""
    result = node.output.quant
    assert result is not None
    values = [value for value in node.inputs if value is not None]
    if any(value.quant is None or not value.quant.params.per_tensor for value in values):
        return None
    parts = [emitter.converted(value, result.params) for value in values]
    return emitter.emit(emitter.op.concat(parts, axis=attributes.axis))


ROWS: dict[Operator, Row] = {
    GLOBAL_AVERAGE_POOL: _mean,
    REDUCE_MEAN: _mean,
    REDUCE_SUM: _sum,
    MIN: _extreme("minimum"),
    MAX: _extreme("maximum"),
    SIGMOID: in_floats,
    TANH: in_floats,
    LEAKY_RELU: in_floats,
    ABS: in_floats,
    SOFTMAX: in_floats,
    HARD_SWISH: _hard_swish,
    **dict((at(AVERAGE_POOL, _average_pool), at(RESIZE, _resize), at(CONCAT, _emit_tflite_concat))),
}
