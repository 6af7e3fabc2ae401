"""The variants of Relay modules, and how exact each one is.

Distances are from the interpreter, of builds with half-even rounding
(``qdqbridge.tvm.relay.build``), in LSB of the result, over random 8-bit codes and parameters:

* ``canonical``: none. Relay's names where Relay has the operator, the dialect's elsewhere.
* ``dnnl``: none. ``requantize(int32) -> clip -> cast``, biases by ``add``. The table of TVM that
  starts from it writes ``clip(0, 255)`` whatever the range is, so it is right for uint8 results of
  the full range only, and multiplies scales per channel along the last axis: hence NHWC.
* ``tflite``: what the tables of CMSIS-NN, Ethos-U, Ethos-N, Arm Compute Library and VSI match.
  Their forms of averages divide integers and drop the rest, and no legal arrangement of
  ``cast -> mean -> requantize`` rounds it:

  * AveragePool: 38 % of results by 1; by up to 2 where operand and result have different
    parameters, whose requantize comes after the division (one step of the operand, in the units of
    the result: 4 from a 16-bit operand to a result 3.7 times as fine);
  * GlobalAveragePool and ReduceMean: 46 to 58 %, by up to 2 for the same reason;
  * linear Resize: 0 to 2 %, by 1: Relay's ``image.resize2d`` adds in another order;
  * Sigmoid, Tanh, LeakyRelu, Abs, HardSwish, Softmax: none found over all codes of 20 pairs of
    parameters (10 rows of Softmax), but ``dequantize -> float operator -> quantize`` is Relay's
    float operator, which promises no bits.

  Everything else, ReduceSum and nearest Resize among them, is exact.
* ``fq2i``: what ``FakeQuantizationToInteger`` writes, without its errors. GlobalAveragePool rounds
  before it divides: 52 % by 1. Everything else is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relay as _relay

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow, Operator
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import AxisAttrs, PoolAttrs, ReduceAttrs, ResizeAttrs
from qdqbridge.core.ops.elementwise import ADD, CONCAT, MAX, MIN
from qdqbridge.core.ops.normalization import OVER_CHANNELS, SOFTMAX
from qdqbridge.core.ops.pooling import AVERAGE_POOL, GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.reduction import REDUCE_MEAN, REDUCE_SUM
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.unary import ABS, HARD_SWISH, LEAKY_RELU, SIGMOID, TANH
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.accumulate import window_pads
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, Row, Variant, clip, storage
from qdqbridge.tvm.qnn.emit.nodes import float_form
from qdqbridge.tvm.qnn.emit.table import at
from qdqbridge.tvm.qnn.weights import axis_weights

# ---- the variant of ``FakeQuantizationToInteger``, for tables written for its output -------------


def kernel_layout(depthwise: bool, transposed: bool) -> str:
    """OHWI, IOHW for transposed kernels."""
    del depthwise
    return "IOHW" if transposed else "OHWI"


def bias(emitter: FunctionEmitter, acc: Expr, array: NDArray[Any], axis: int) -> Expr:
    """``nn.bias_add`` after a convolution, ``add`` after a product (ONNX's Gemm)."""
    if emitter.rank(acc) > 3:
        return bias_add(emitter, acc, array, axis)
    return emitter.emit(emitter.op.add(acc, emitter.number(array)))


def clamp(emitter: FunctionEmitter, stored: Expr, params: QuantParams) -> Expr:
    """``maximum(stored, zero point)`` for a ReLU, else ``clip``."""
    # Tables look for the maximum where a Relu is meant, and take any other clip as it is.
    upper = params.qmax == params.storage_dtype.qmax
    if not upper or not params.per_tensor or params.qmin != int(params.zero_point):
        return clip(emitter, stored, params)
    zero = emitter.number(np.asarray(params.qmin, storage(params)))
    return emitter.emit(emitter.op.maximum(stored, zero))


def global_average_pool(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """``requantize(int32) -> nn.global_avg_pool2d -> requantize``."""
    found = params_of(node)
    if found is None or node.operand(0).rank != 4:
        return None
    wide = rescaled(emitter, emitter.value(node.operand(0)), *found, out_dtype="int32")
    layout = emitter.layout(node, 4)
    mean = emitter.emit(relay.nn.global_avg_pool2d(wide, layout=layout))
    return emitter.clamp(rescaled(emitter, mean, found[1], found[1]), found[1])


# ---- the variant of TVM's MXNet and PyTorch importers, from which its DNNL table starts ----------


def requantize(
    emitter: FunctionEmitter, acc: Expr, scale: NDArray[np.float32], axis: int, params: QuantParams
) -> Expr:
    """``requantize(out_dtype int32) -> clip -> cast [-> clip]``.

    The table takes 0..255 as the first clip's range, whatever is there, so that a narrower range
    of uint8 gets a clip of its own.
    """
    zero = emitter.number(np.zeros((), np.int32))
    args = [acc, emitter.number(scale), zero, emitter.scale(params), emitter.zero_point(params)]
    wide = emitter.qnn("requantize", args, {"axis": axis, "out_dtype": "int32"})
    low, high = _range(params)
    held = emitter.cast(emitter.emit(emitter.op.clip(wide, low, high)), storage(params))
    return held if (low, high) == (params.qmin, params.qmax) else clip(emitter, held, params)


def _range(params: QuantParams) -> tuple[int, int]:
    full = params.storage_dtype
    return (full.qmin, full.qmax) if full is DType.UINT8 else (params.qmin, params.qmax)


def add(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """``qnn.add -> clip`` with the product that nobody else reads in front; else plain.

    The table computes such an addition with the product before it, and asks for the clip also
    where it limits nothing. A product that others read as well would be computed twice.
    """
    result, values = node.output.quant, [node.operand(0), node.operand(1)]
    alone = [value for value in values if _is_single_use_product(value)]
    if result is None or not alone:
        return None
    front = alone[0]
    args: list[Expr] = []
    pair = [front, values[1] if front is values[0] else values[0]]
    for value in pair:
        if value.quant is None or not value.quant.params.per_tensor:
            return None
        args += [emitter.scale(value.quant.params), emitter.zero_point(value.quant.params)]
    if front is not values[0]:
        emitter.swap()
    params = result.params
    args += [emitter.scale(params), emitter.zero_point(params)]
    operands = [emitter.value(value) for value in pair]
    total = emitter.qnn("add", [*operands, *args], {"out_dtype": storage(params)})
    low, high = _range(params)
    held = emitter.emit(emitter.op.clip(total, low, high))
    return held if (low, high) == (params.qmin, params.qmax) else clip(emitter, held, params)


def _is_single_use_product(value: Value) -> bool:
    node = value.producer
    return node is not None and node.op.flow is Flow.ACCUMULATE and len(value.users) == 1


relay: Any = _relay


def params_of(node: Node) -> tuple[QuantParams, QuantParams] | None:
    """Returns the parameters of operand and result where both have one scale and zero point."""
    x, y = node.operand(0).quant, node.output.quant
    if x is None or y is None or not (x.params.per_tensor and y.params.per_tensor):
        return None
    return x.params, y.params


def bias_add(emitter: FunctionEmitter, acc: Expr, bias: NDArray[Any], axis: int) -> Expr:
    """``nn.bias_add(acc, bias; axis)``; a bias of no single axis is added."""
    if bias.ndim != 1:
        return emitter.emit(emitter.op.add(acc, emitter.number(bias)))
    axis = axis if axis >= 0 else emitter.rank(acc) - 1
    return emitter.emit(relay.nn.bias_add(acc, emitter.number(bias), axis))


def in_floats(emitter: FunctionEmitter, node: Node) -> Expr:
    """``dequantize -> float operator -> quantize``."""
    return emitter.emit(float_form(emitter, node))


def rescaled(
    emitter: FunctionEmitter, stored: Expr, source: QuantParams, result: QuantParams, *,
    out_dtype: str = "", terms: int = 1,
) -> Expr:  # fmt: skip
    """``requantize`` from one mapping to another; a sum of codes has ``terms`` zero points."""
    zero = np.asarray(source.zero_point * terms, np.int32)
    args = [stored, emitter.scale(source), emitter.number(zero)]
    args += [emitter.scale(result), emitter.zero_point(result)]
    attrs = {"out_dtype": out_dtype or storage(result)}
    return emitter.qnn("requantize", args, attrs)


# ---- The variant of TVM's TFLite importer, which its shipped tables match ------------------------


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
    # Relay's operator resizes the two axes of the image only.
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
    # By what every result is made of, not by names: several modes agree for given extents.
    found = [axis_weights(plain, 0, n, m) for n, m in zip(lengths, size, strict=True)]
    return all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))


def tflite_kernel_layout(depthwise: bool, transposed: bool) -> str:
    """HWIO, HWOI for depthwise kernels, IOHW for transposed ones."""
    return "IOHW" if transposed else "HWOI" if depthwise else "HWIO"


def _average_pool(emitter: FunctionEmitter, node: Node, attributes: PoolAttrs) -> Expr | None:
    """``cast -> nn.avg_pool2d -> cast [-> clip]``, and a requantize where parameters differ."""
    found = params_of(node)
    if found is None or any(step != 1 for step in attributes.dilations):
        return None
    x, pads = emitter.value(node.operand(0)), attributes.pads
    # Relay pads integers with 0, and that is not what the zero point stands for.
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
    # Every term brings its zero point along.
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


# ---- The variants of Relay modules, and how exact each one is ------------------------------------


@dataclass(frozen=True, slots=True)
class RelayVariant:
    """A variant with its layout.

    Attributes:
        variant: The choices.
        layout: ``NCHW`` or ``NHWC`` where the caller asks for neither.
        fixed: Operators that it can write channels-first only.
    """

    variant: Variant
    layout: str
    fixed: frozenset[Operator]


FORMS: Mapping[str, RelayVariant] = MappingProxyType(
    {
        "canonical": RelayVariant(
            Variant(bias=bias_add, scalar_zero_point=True), "NCHW", OVER_CHANNELS
        ),
        "tflite": RelayVariant(
            Variant(
                name="tflite", bias=bias_add, zero_bias=True, scalar_zero_point=True,
                kernel_layout=tflite_kernel_layout, rows=ROWS,
            ),
            "NHWC", OVER_CHANNELS,
        ),
        "dnnl": RelayVariant(
            Variant(
                name="dnnl", scalar_zero_point=True, requantize=requantize,
                rows={ADD: add},
            ),
            "NHWC", OVER_CHANNELS,
        ),
        "fq2i": RelayVariant(
            Variant(
                name="fq2i", bias=bias, scalar_zero_point=True, clamp=clamp,
                kernel_layout=kernel_layout,
                rows={GLOBAL_AVERAGE_POOL: global_average_pool},
            ),
            "NHWC", OVER_CHANNELS,
        ),
    }
)  # fmt: skip
"""By name."""


def variant_of(name: str) -> RelayVariant:
    """Returns a form by name.

    Raises:
        UnsupportedTargetError: There is none.
    """
    if name not in FORMS:
        raise UnsupportedTargetError(
            f"Relay modules have no variant {name!r}", fix=f"use one of {', '.join(FORMS)}"
        )
    return FORMS[name]
