"""Rules that find products of activations that are quantized while the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.linear import transposed
from qdqbridge.core.canonical.storage import signed_constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Origin, Value
from qdqbridge.core.graph.patterns import (
    AnyOf,
    AnyPattern,
    Part,
    Pattern,
    PatternMatch,
)
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.accumulator import centered
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.dynamic import (
    DYNAMIC_BLOCK_DENSE,
    DYNAMIC_CONV,
    DYNAMIC_DENSE,
    BlockAttrs,
    DynamicAttrs,
)
from qdqbridge.core.ops.matmul import MATMUL, packed_product
from qdqbridge.core.ops.run_time_parameters import DEQUANTIZE_LINEAR
from qdqbridge.core.rewrite import (
    Proposal,
    Replace,
    RuleContext,
    pattern_rule,
    replaced,
    rule,
)

_QUANTIZE = "DynamicQuantizeLinear"
_BYTE = 8
"""Bits of the codes that MatMulInteger and ConvInteger multiply."""


_CODES = Part("codes", (_QUANTIZE, "x"))
_SCALES = ("Mul", Part("scale", constant=False), Part("scales", constant=True))


def _scaled(sums: AnyPattern) -> Pattern:
    """Returns the pattern of int32 sums that become floats of their scale."""
    real = ("Cast", Part("sums", sums, sole=True), {"to": DType.FLOAT32})
    return ("Mul", Part("real", real, sole=True), _SCALES)


@pattern_rule("dynamic-product", _scaled(("MatMulInteger", _CODES, "w", "zero", "points?")))
def dynamic_product(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Cast(MatMulInteger(q, w)) * (s * sw) -> DynamicDense(x, w)``, q and s being those of x."""
    del context
    x = match["x"]
    weight = _quantized_matrix(match["w"], match.values.get("points"), match["scales"])
    if weight is None or not _is_of_one_quantize(match):
        return None
    if x.rank is None or x.rank < 2 or x.type.dtype is not DType.FLOAT32:
        return None
    origin = _origin_of_product(node, match, "sums")
    return replaced(node, DYNAMIC_DENSE, DynamicAttrs(), [x, weight], origin)


def _is_of_one_quantize(match: PatternMatch) -> bool:
    """True where codes, scale and zero point are the results of one DynamicQuantizeLinear."""
    return match.node("codes").outputs == [match["codes"], match["scale"], match["zero"]]


def _origin_of_product(node: Node, match: PatternMatch, product: str) -> Origin:
    return match.node(product).origin.joined(match.node("real").origin).joined(node.origin)


def _quantized_matrix(w: Value, zero_point: Value | None, scales: Value) -> Value | None:
    """Returns a matrix (K, N) of integers as a quantized constant (N, K); else None.

    Args:
        w: The integers.
        zero_point: Their zero points; None for 0.
        scales: Their scales.
    """
    data, factor = w.constant, scales.constant
    if data is None or w.rank != 2 or w.quant is not None:
        return None
    if zero_point is not None and zero_point.constant is None:
        return None
    if factor is None or factor.dtype is not DType.FLOAT32:
        return None
    zero = np.zeros((), np.int32) if zero_point is None else _flat(zero_point)
    scale: NDArray[Any] = factor.numpy().reshape(-1)
    columns = data.shape[1]
    # Other shapes broadcast the result, which the operator does not.
    if factor.shape not in ((), (1,), (columns,), (1, columns)) or zero.size not in (1, columns):
        return None
    # Parameters of a type are positive numbers; a Mul takes anything.
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return None
    params = _weight_qparams(data.dtype, scale, zero)
    return transposed(constant(*signed_constant(data, params), w.name))


def _flat(value: Value) -> NDArray[np.int32]:
    assert value.constant is not None
    return value.constant.numpy().reshape(-1).astype(np.int32)


def _weight_qparams(
    dtype: DType, scale: NDArray[Any], zero: NDArray[np.int32], axis: int = 1
) -> QuantParams:
    if scale.size == 1 and zero.size == 1:
        return QuantParams(dtype, scale.reshape(()), zero.reshape(()))
    scale, zero = np.broadcast_arrays(scale, zero.reshape(-1))
    return QuantParams(dtype, scale, zero, axis=axis)


_SHIFTED = ("Sub", ("Cast", _CODES), ("Cast", "zero"))
_FLOAT_SUMS = ("Cast", Part("conv", ("Conv", _SHIFTED, "w"), sole=True))


@pattern_rule(
    "dynamic-convolution",
    _scaled(AnyOf((("ConvInteger", _CODES, "w", "zero", "points?"), _FLOAT_SUMS))),
)
def dynamic_convolution(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Cast(ConvInteger(q, w)) * (s * sw) -> DynamicConv(x, w)``, q and s being those of x.

    Also of ``Cast(Conv(Cast(q) - Cast(z), w))`` for its sum, which float32 holds where it is read.
    """
    del context
    x, w, is_float = match["x"], match["w"], "conv" in match.values
    if w.constant is None or x.type.dtype is not DType.FLOAT32 or not _is_of_one_quantize(match):
        return None
    conv = match.node("conv" if is_float else "sums")
    points = _float_zero_points(w) if is_float else _integer_zero_point(w, match)
    attributes = CONV.of(conv) if is_float else _conv_integer_attrs(conv)
    weight = None if points is None else _scaled_weight(w, points, match["scales"])
    if weight is None or attributes is None:
        return None
    origin = _origin_of_product(node, match, "conv" if is_float else "sums")
    return replaced(node, DYNAMIC_CONV, attributes, [x, weight], origin)


def _integer_zero_point(w: Value, match: PatternMatch) -> NDArray[np.int32] | None:
    """Returns the zero point of a ConvInteger's weight, which has one."""
    zero = match.values.get("points")
    if w.quant is not None or (zero is not None and zero.constant is None):
        return None
    points = np.zeros(1, np.int32) if zero is None else _flat(zero)
    return points if points.size == 1 else None


def _float_zero_points(w: Value) -> NDArray[np.int32] | None:
    """Returns the zero points of a weight whose real values are integers."""
    params = None if w.quant is None else w.quant.params
    if params is None or params.blocked or params.axis not in (None, 0):
        return None
    integers = (params.scale == 1).all()
    return params.zero_point.astype(np.int32).reshape(-1) if integers else None


_REACH, _MOST = 255, 1 << 31
"""The largest code of an activation less its zero point; the end of int32."""


def _scaled_weight(w: Value, zero: NDArray[np.int32], scales: Value) -> Value | None:
    """Returns a convolution's weight with the scales of a Mul; None where they do not fit."""
    data, factor = w.constant, scales.constant
    if data is None or factor is None or factor.dtype is not DType.FLOAT32:
        return None
    channels, rank = data.shape[0], len(data.shape)
    column = (channels, *[1] * (rank - 2))
    if factor.size != 1 and factor.shape not in (column, (1, *column)):
        return None
    scale: NDArray[Any] = factor.numpy().reshape(-1)
    reach = np.abs(data.numpy().astype(np.int64) - zero.reshape(-1, *[1] * (rank - 1)))
    largest = reach.reshape(channels, -1).sum(axis=1).max(initial=0)
    usual = np.isfinite(scale).all() and (scale > 0).all() and (zero == zero[:1]).all()
    # The file's sums are int32, which wraps beyond this; the operator's are exact.
    if not usual or _REACH * largest >= _MOST:
        return None
    params = _weight_qparams(data.dtype, scale, zero[:1], axis=0)
    return constant(*signed_constant(data, params), w.name)


def _conv_integer_attrs(node: Node) -> ConvAttrs | None:
    """Returns the window of a ConvInteger; None where its padding depends on extents."""
    stated, rank = node.attributes.stated(), (node.operand(1).rank or 0) - 2
    # SAME depends on the image, whose extents may be open.
    if rank < 1 or stated.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None

    def each(name: str, count: int, default: int) -> tuple[int, ...]:
        return tuple(stated.get(name, [default] * count))

    group = int(stated.get("group", 1))
    strides, dilations = each("strides", rank, 1), each("dilations", rank, 1)
    pads = each("pads", 2 * rank, 0)
    return ConvAttrs(strides=strides, dilations=dilations, pads=pads, group=group)


@pattern_rule(
    "dynamic-activation",
    (
        ("Dense", "Conv"),
        (DEQUANTIZE_LINEAR.name, _CODES, "scale", "zero"),
        Part("w", constant=True),
        Part("bias?", constant=True),
    ),
)
def dynamic_activation(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Dense(DequantizeLinear(q, s, z), w) -> DynamicDense(x, w)``, all three being those of x.

    Of a Conv a DynamicConv. Sums of floats become exact ones, so it is asked for.
    """
    del context
    x, w, bias = match["x"], match["w"], match.values.get("bias")
    if w.constant is None or w.quant is None or node.output.quant is not None:
        return None
    if not _is_of_one_quantize(match):
        return None
    params = w.quant.params
    if x.type.dtype is not DType.FLOAT32 or node.output.type.dtype is not DType.FLOAT32:
        return None
    bytes_ = params.storage_dtype.is_integer and params.storage_dtype.bits == _BYTE
    if not bytes_ or params.blocked or params.axis not in (None, 0):
        return None
    if bias is not None and bias.quant is not None:
        return None
    whole = np.abs(centered(w.constant.numpy(), params).astype(np.int64))
    if _REACH * int(whole.reshape(len(whole), -1).sum(axis=1).max(initial=0)) >= _MOST:
        return None
    operands = [x, *node.inputs[1:]]
    origin = match.node("codes").origin.joined(node.origin)
    if node.op is CONV:
        if (params.zero_point != params.zero_point.flat[0]).any():  # a ConvInteger has one
            return None
        return replaced(node, DYNAMIC_CONV, node.attributes, operands, origin)
    if x.rank is None or x.rank < 2:
        return None
    return replaced(node, DYNAMIC_DENSE, DynamicAttrs(), operands, origin)


@rule("block-product", MATMUL)
def block_product(node: Node, context: RuleContext) -> Proposal:
    """``MatMul(x, w) -> DynamicBlockDense(x, transpose(w))`` of a MatMulNBits that rounds x."""
    del context
    said, x, w = packed_product(node.origin.variant), node.operand(0), node.operand(1)
    if said is None or w.constant is None or w.quant is None or w.rank != 2:
        return None
    params, floats = w.quant.params, x.quant is None and node.output.quant is None
    if not floats or not said.rounds(params.storage_dtype.bits):
        return None
    attributes, operands = BlockAttrs(said.block_size), [x, transposed(w)]
    name, type_ = node.output.name, node.output.type
    made = result(DYNAMIC_BLOCK_DENSE, attributes, operands, type_, node.origin, name)
    return Replace({node.output: made})


_ALONG = {"axes": "#axes", "keepdims": True}
_LOW = ("Clip", ("ReduceMin", "x", _ALONG), None, 0.0)
_WIDTH = ("Sub", ("Clip", ("ReduceMax", "x", _ALONG), 0.0, None), _LOW)
_ROW_SCALE = ("Where", ("Equal", _WIDTH, 0.0), 1.0, ("Div", _WIDTH, 255.0))
_ROW_POINT = ("Round", ("Clip", ("Sub", 0.0, ("Div", _LOW, "scale")), 0.0, 255.0))
_ROW_CODES = ("Clip", ("Add", ("Round", ("Div", "x", "scale")), "point"), 0.0, 255.0)
_ROW_SUMS = (
    "Sub",
    ("MatMulInteger", ("Cast", _ROW_CODES, DType.UINT8), "w", 0.0, Part("points", constant=True)),
    ("Mul", ("Cast", Part("point", _ROW_POINT), DType.INT32), Part("sums", constant=True)),
)


@pattern_rule(
    "dynamic-rows",
    ("Mul", ("Cast", _ROW_SUMS, DType.FLOAT32), ("Mul", Part("scale", _ROW_SCALE), "scales")),
)
def dynamic_rows(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """The steps that quantize each row of x by itself, multiply and scale -> ``DynamicDense``."""
    del context
    x, sums = match["x"], match["sums"].constant
    if x.type.dtype is not DType.FLOAT32 or x.rank is None or x.rank < 2:
        return None
    if match.numbers["axes"] != (x.rank - 1,):
        return None
    weight = _quantized_matrix(match["w"], match["points"], match["scales"])
    if weight is None or weight.constant is None or weight.quant is None or sums is None:
        return None
    columns = centered(weight.constant.numpy(), weight.quant.params).astype(np.int64).sum(axis=1)
    if not np.array_equal(sums.numpy().reshape(-1), columns):
        return None
    return replaced(node, DYNAMIC_DENSE, DynamicAttrs(rows=True), [x, weight], match.origin())


_BIASED = tuple(op.name for op in (DYNAMIC_DENSE, DYNAMIC_BLOCK_DENSE, DYNAMIC_CONV))


@pattern_rule(
    "dynamic-bias",
    ("Add", Part("product", (_BIASED, "x", "w"), sole=True), Part("vector", constant=True)),
)
def dynamic_bias(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(DynamicDense(x, w), vector) -> DynamicDense(x, w, vector)`` for a constant.

    Of a DynamicBlockDense, and of a DynamicConv and one number per channel too.
    """
    del context
    product, vector = match.node("product"), match["vector"]
    shape, data = match["w"].type.shape, vector.constant
    units = None if shape is None else shape[0]
    if data is None or vector.quant is not None or not isinstance(units, int):
        return None
    rank = product.output.rank or 0
    spatial = [1] * (rank - 2) if product.op is DYNAMIC_CONV else []
    behind = data.shape[-1 - len(spatial) :] == (units, *spatial)
    fits = behind and data.size == units and len(data.shape) <= rank
    if not fits or data.dtype is not node.output.type.dtype:
        return None
    flat = data.map(lambda array: array.reshape(-1), shape=(units,))
    operands = [*product.inputs[:2], constant(flat, None, vector.name)]
    return replaced(node, product.op, product.attributes, operands, match.origin())
