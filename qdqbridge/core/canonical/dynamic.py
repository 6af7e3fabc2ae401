"""Rules that find products of activations that are quantized while the model runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.dense import transposed
from qdqbridge.core.canonical.weights import signed_constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.patterns import PatternMatch, match_value_pattern
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.accumulator import centered
from qdqbridge.core.ops.attributes import CastAttrs, ConvAttrs, ReduceAttrs
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.cast import CAST
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.dynamic import (
    DYNAMIC_BLOCK_DENSE,
    DYNAMIC_CONV,
    DYNAMIC_DENSE,
    BlockAttrs,
    DynamicAttrs,
)
from qdqbridge.core.ops.elementwise import ADD, MUL, SUB
from qdqbridge.core.ops.matmul import DENSE, MATMUL
from qdqbridge.core.ops.packed_products import packed_product
from qdqbridge.core.ops.reduction import REDUCE_MIN
from qdqbridge.core.ops.run_time_parameters import DEQUANTIZE_LINEAR
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, made_by, rule

_QUANTIZE, _PRODUCT = "DynamicQuantizeLinear", "MatMulInteger"
_CODES, _SCALE, _ZERO_POINT = range(3)
"""Results of DynamicQuantizeLinear."""
_BYTE = 8
"""Bits of the codes that MatMulInteger and ConvInteger multiply."""


@rule("dynamic-product", MUL)
def dynamic_product(node: Node, context: RuleContext) -> Proposal:
    """``Cast(MatMulInteger(q, w)) * (s * sw) -> DynamicDense(x, w)``, q and s being those of x."""
    for index in (0, 1):
        cast, scales = made_by(node.operand(index), CAST), node.operand(1 - index)
        if cast is None or cast.attributes != CastAttrs(DType.FLOAT32):
            continue
        product = made_by(cast.operand(0), _PRODUCT)
        if product is None or context.sole_reader(cast.operand(0)) is not cast:
            continue
        if context.sole_reader(cast.output) is not node:
            continue
        source, weight = _source(product), _quantized_rhs(product, scales)
        if (
            source is None
            or weight is None
            or source.outputs[_SCALE] is not _dynamic_scale_factor(scales)
        ):
            continue
        x, output = source.operand(0), node.output
        if x.rank is None or x.rank < 2 or x.type.dtype is not DType.FLOAT32:
            continue
        origin = product.origin.joined(cast.origin).joined(node.origin)
        operands, name = [x, weight], output.name
        made = result(DYNAMIC_DENSE, DynamicAttrs(), operands, output.type, origin, name)
        return Replace({output: made})
    return None


def _source(product: Node) -> Node | None:
    """Returns the node that quantized the first operand of a product, with that zero point."""
    codes, zero_point = product.operand(0), product.optional(2)
    node = made_by(codes, _QUANTIZE)
    if node is None or node.outputs[_CODES] is not codes or len(node.outputs) != 3:
        return None
    return node if zero_point is node.outputs[_ZERO_POINT] else None


def _dynamic_scale_factor(scales: Value) -> Value | None:
    """Returns the operand of a product of scales that is not constant."""
    node = scales.producer
    if node is None or node.op is not MUL:
        return None
    running = [value for value in node.inputs if value is not None and value.constant is None]
    return running[0] if len(running) == 1 else None


def _constant_scale_factor(scales: Value) -> Value | None:
    """Returns the operand of a product of scales that is a constant."""
    node = scales.producer
    known = [] if node is None else [v for v in node.inputs if v is not None and v.is_constant]
    return known[0] if len(known) == 1 else None


def _quantized_rhs(product: Node, scales: Value) -> Value | None:
    """Returns the second operand of a product as a quantized constant (N, K); else None."""
    known = _constant_scale_factor(scales)
    return (
        None if known is None else _quantized_matrix(product.operand(1), product.optional(3), known)
    )


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
    if factor.shape not in ((), (1,), (columns,), (1, columns)) or zero.size not in (1, columns):
        return None
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


@rule("dynamic-convolution", MUL)
def dynamic_convolution(node: Node, context: RuleContext) -> Proposal:
    """``Cast(ConvInteger(q, w)) * (s * sw) -> DynamicConv(x, w)``, q and s being those of x.

    Also of ``Cast(Conv(Cast(q) - Cast(z), w))`` for its sum, which float32 holds where it is read.
    """
    for index in (0, 1):
        cast, scales = made_by(node.operand(index), CAST), node.operand(1 - index)
        if cast is None or cast.attributes != CastAttrs(DType.FLOAT32):
            continue
        found = _integer_sums(cast, context) if context.sole_reader(cast.output) is node else None
        if found is None or found.source.outputs[_SCALE] is not _dynamic_scale_factor(scales):
            continue
        x, output, weight = found.source.operand(0), node.output, found.scaled(scales)
        if weight is None or x.type.dtype is not DType.FLOAT32:
            continue
        origin = found.node.origin.joined(cast.origin).joined(node.origin)
        operands, name = [x, weight], output.name
        made = result(DYNAMIC_CONV, found.attributes, operands, output.type, origin, name)
        return Replace({output: made})
    return None


@dataclass(frozen=True, slots=True)
class _IntegerSums:
    """Exact sums of a convolution of codes that a DynamicQuantizeLinear makes.

    Attributes:
        node: The convolution.
        attributes: Its window.
        source: What quantizes the activation.
        w: The weight's codes.
        zero: Its zero points, one or one per channel; a ConvInteger has one.
    """

    node: Node
    attributes: ConvAttrs
    source: Node
    w: Value
    zero: NDArray[np.int32]

    def scaled(self, scales: Value) -> Value | None:
        """Returns the weight with the scales of a Mul; None where they do not fit."""
        data, known = self.w.constant, _constant_scale_factor(scales)
        factor = None if known is None else known.constant
        if data is None or factor is None or factor.dtype is not DType.FLOAT32:
            return None
        channels, rank = data.shape[0], len(data.shape)
        column = (channels, *[1] * (rank - 2))
        if factor.size != 1 and factor.shape not in (column, (1, *column)):
            return None
        scale: NDArray[Any] = factor.numpy().reshape(-1)
        reach = np.abs(data.numpy().astype(np.int64) - self.zero.reshape(-1, *[1] * (rank - 1)))
        largest = reach.reshape(channels, -1).sum(axis=1).max(initial=0)
        usual = (
            np.isfinite(scale).all() and (scale > 0).all() and (self.zero == self.zero[:1]).all()
        )
        if not usual or _REACH * largest >= _MOST:
            return None
        params = _weight_qparams(data.dtype, scale, self.zero[:1], axis=0)
        return constant(*signed_constant(data, params), self.w.name)


_REACH, _MOST = 255, 1 << 31
"""The largest code of an activation less its zero point; the end of int32."""


def _integer_sums(cast: Node, context: RuleContext) -> _IntegerSums | None:
    """Returns the convolution whose int32 sums a Cast reads."""
    total = cast.operand(0)
    if context.sole_reader(total) is not cast:
        return None
    node = made_by(total, "ConvInteger")
    if node is not None:
        source, zero, w = _source(node), node.optional(3), node.operand(1)
        attributes = _conv_integer_attrs(node)
        if source is None or attributes is None or (zero is not None and zero.constant is None):
            return None
        points = np.zeros(1, np.int32) if zero is None else _flat(zero)
        fits = w.constant is not None and w.quant is None and points.size == 1
        return _IntegerSums(node, attributes, source, w, points) if fits else None
    whole = made_by(total, CAST)
    node = None if whole is None else made_by(whole.operand(0), CONV)
    attributes = None if node is None else CONV.of(node)
    if node is None or attributes is None or context.sole_reader(node.output) is not whole:
        return None
    source, w = _shifted_source(node.operand(0)), node.operand(1)
    if source is None or w.constant is None or w.quant is None or node.optional(2) is not None:
        return None
    params = w.quant.params
    if params.blocked or params.axis not in (None, 0) or not (params.scale == 1).all():
        return None
    return _IntegerSums(node, attributes, source, w, params.zero_point.astype(np.int32).reshape(-1))


def _shifted_source(value: Value) -> Node | None:
    """Returns the DynamicQuantizeLinear of ``Cast(codes) - Cast(zero point)``."""
    shifted = made_by(value, SUB)
    parts = [] if shifted is None else [made_by(shifted.operand(i), CAST) for i in (0, 1)]
    read = [part.operand(0) for part in parts if part is not None]
    node = made_by(read[0], _QUANTIZE) if len(read) == 2 else None
    if node is None or len(node.outputs) != 3:
        return None
    return node if read == [node.outputs[_CODES], node.outputs[_ZERO_POINT]] else None


def _conv_integer_attrs(node: Node) -> ConvAttrs | None:
    """Returns the window of a ConvInteger; None where its padding depends on extents."""
    stated, rank = node.attributes.stated(), (node.operand(1).rank or 0) - 2
    if rank < 1 or stated.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None

    def each(name: str, count: int, default: int) -> tuple[int, ...]:
        return tuple(stated.get(name, [default] * count))

    group = int(stated.get("group", 1))
    strides, dilations = each("strides", rank, 1), each("dilations", rank, 1)
    pads = each("pads", 2 * rank, 0)
    return ConvAttrs(strides=strides, dilations=dilations, pads=pads, group=group)


@rule("dynamic-activation", DENSE, CONV)
def dynamic_activation(node: Node, context: RuleContext) -> Proposal:
    """``Dense(DequantizeLinear(q, s, z), w) -> DynamicDense(x, w)``, all three being those of x.

    Of a Conv a DynamicConv. Sums of floats become exact ones, so it is asked for.
    """
    del context
    source, w, bias = _dequantized_source(node.operand(0)), node.operand(1), node.optional(2)
    if source is None or w.constant is None or w.quant is None or node.output.quant is not None:
        return None
    x, params = source.operand(0), w.quant.params
    if x.type.dtype is not DType.FLOAT32 or node.output.type.dtype is not DType.FLOAT32:
        return None
    bytes_ = params.storage_dtype.is_integer and params.storage_dtype.bits == _BYTE
    if not bytes_ or params.blocked or params.axis not in (None, 0):
        return None
    if bias is not None and (bias.constant is None or bias.quant is not None):
        return None
    whole = np.abs(centered(w.constant.numpy(), params).astype(np.int64))
    if _REACH * int(whole.reshape(len(whole), -1).sum(axis=1).max(initial=0)) >= _MOST:
        return None
    attributes: Attributes = DynamicAttrs()
    if node.op is CONV:
        attributes = node.attributes
        if (params.zero_point != params.zero_point.flat[0]).any():  # a ConvInteger has one
            return None
    elif x.rank is None or x.rank < 2:
        return None
    op, operands = (DYNAMIC_CONV if node.op is CONV else DYNAMIC_DENSE), [x, *node.inputs[1:]]
    origin, output = source.origin.joined(node.origin), node.output
    made = result(op, attributes, operands, output.type, origin, output.name)
    return Replace({output: made})


def _dequantized_source(value: Value) -> Node | None:
    """Returns the DynamicQuantizeLinear whose codes a DequantizeLinear turns back to floats."""
    back = made_by(value, DEQUANTIZE_LINEAR)
    node = None if back is None else made_by(back.operand(0), _QUANTIZE)
    if back is None or node is None or len(node.outputs) != 3:
        return None
    return node if back.inputs == node.outputs else None


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


_LOW = ("Clip", ("ReduceMin", "x", "#axes", True), None, 0.0)
_WIDTH = ("Sub", ("Clip", ("ReduceMax", "x", "#axes", True), 0.0, None), _LOW)
_ROW_SCALE = ("Where", ("Equal", _WIDTH, 0.0), 1.0, ("Div", _WIDTH, 255.0))
_ROW_POINT = ("Round", ("Clip", ("Sub", 0.0, ("Div", _LOW, "scale")), 0.0, 255.0))
_ROW_CODES = ("Clip", ("Add", ("Round", ("Div", "x", "scale")), "point"), 0.0, 255.0)
_ROW_SUMS = (
    "Sub",
    ("MatMulInteger", ("Cast", "codes", DType.UINT8), "w", 0.0, "points"),
    ("Mul", ("Cast", "point", DType.INT32), "sums"),
)
_ROW_PRODUCT = ("Mul", ("Cast", _ROW_SUMS, DType.FLOAT32), ("Mul", "scale", "scales"))


@rule("dynamic-rows", MUL)
def dynamic_rows(node: Node, context: RuleContext) -> Proposal:
    """The steps that quantize each row of x by itself, multiply and scale -> ``DynamicDense``."""
    del context
    found = PatternMatch()
    parts = ("point", _ROW_POINT), ("codes", _ROW_CODES), ("scale", _ROW_SCALE)
    if not match_value_pattern(node.output, _ROW_PRODUCT, found, either_order=True):
        return None
    if not all(
        match_value_pattern(found.values[name], part, found, either_order=True)
        for name, part in parts
    ):
        return None
    x, w, sums = (found.values[name] for name in ("x", "w", "sums"))
    reduced = {step.record(ReduceAttrs).axes for step in found.nodes if step.op is REDUCE_MIN}
    if x.type.dtype is not DType.FLOAT32 or x.rank is None or x.rank < 2:
        return None
    if reduced != {(x.rank - 1,)}:
        return None
    weight = _quantized_matrix(w, found.values["points"], found.values["scales"])
    if weight is None or weight.constant is None or weight.quant is None or sums.constant is None:
        return None
    columns = centered(weight.constant.numpy(), weight.quant.params).astype(np.int64).sum(axis=1)
    if not np.array_equal(sums.constant.numpy().reshape(-1), columns):
        return None
    origin, output = node.origin, node.output
    for step in found.nodes:
        origin = step.origin.joined(origin)
    attributes = DynamicAttrs(rows=True)
    made = result(DYNAMIC_DENSE, attributes, [x, weight], output.type, origin, output.name)
    return Replace({output: made})


_BIASED = (DYNAMIC_DENSE, DYNAMIC_BLOCK_DENSE, DYNAMIC_CONV)


@rule("dynamic-bias", ADD)
def dynamic_bias(node: Node, context: RuleContext) -> Proposal:
    """``Add(DynamicDense(x, w), vector) -> DynamicDense(x, w, vector)`` for a constant.

    Of a DynamicBlockDense, and of a DynamicConv and one number per channel too.
    """
    for index in (0, 1):
        source, other = node.operand(index), node.operand(1 - index)
        product = next(filter(None, (made_by(source, op) for op in _BIASED)), None)
        data = other.constant
        if product is None or data is None or other.quant is not None:
            continue
        if product.optional(2) is not None or context.sole_reader(source) is not node:
            continue
        shape = product.operand(1).type.shape
        units = None if shape is None else shape[0]
        rank = source.rank or 0
        spatial = [1] * (rank - 2) if product.op is DYNAMIC_CONV else []
        behind = data.shape[-1 - len(spatial) :] == (units, *spatial)
        fits = behind and data.size == units and len(data.shape) <= rank
        if not fits or data.dtype is not node.output.type.dtype or not isinstance(units, int):
            continue
        flat = data.map(lambda array: array.reshape(-1), shape=(units,))
        operands = [*product.inputs[:2], constant(flat, None, other.name)]
        origin, output = product.origin.joined(node.origin), node.output
        made = result(product.op, product.attributes, operands, output.type, origin, output.name)
        return Replace({output: made})
    return None
