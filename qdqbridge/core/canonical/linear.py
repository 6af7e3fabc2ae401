"""Rules that give float products one form: what is added to them per channel is their bias.

onnxruntime's float kernels round a bias inside a product differently from one behind it, so the
origin remembers what the file had, and writers write that.
"""

from __future__ import annotations

from dataclasses import replace

from qdqbridge.core.graph.graph import Node, Origin, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import GemmAttrs, ReshapeAttrs
from qdqbridge.core.ops.build import constant, dequantized, result
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.rewrite.rule import (
    Proposal,
    Replace,
    RuleContext,
    made_by,
    rule,
    stored_behind,
)

ROWS = GemmAttrs(trans_b=True)
"""The attributes of a float product whose weight has one row per unit."""


def added_origin(product: Node, add: Node) -> Origin:
    """Returns the origin of a product that has taken in an Add behind it."""
    origin = product.origin.joined(add.origin)
    if not product.origin.variant or product.origin.with_add:
        return origin
    return replace(origin, variant=product.origin.variant, with_add=True)


@rule("convolution-bias", ADD)
def convolution_bias(node: Node, context: RuleContext) -> Proposal:
    """``Add(Conv(x, w), column) -> Conv(x, w, vector)`` for a float result of Conv.

    Importers write a bias so: reshaped to one element per channel.
    """
    for index in (0, 1):
        source, other = node.operand(index), node.operand(1 - index)
        conv = source.producer
        if conv is None or conv.op not in (CONV, CONV_TRANSPOSE):
            continue
        if source.quant is not None or conv.optional(2) is not None:
            continue
        if context.sole_reader(source) is not node or _integer(conv):
            continue
        vector = _channel_addend(conv, other)
        if vector is None:
            continue
        return _joined(conv, node, [*conv.inputs[:2], vector])
    return None


def _integer(conv: Node) -> bool:
    """True for a product of integers, whose bias has a rule of its own."""
    return conv.operand(0).quant is not None and conv.operand(1).quant is not None


def _joined(product: Node, add: Node, operands: list[Value | None]) -> Replace:
    output, origin = add.output, added_origin(product, add)
    value = result(product.op, product.attributes, operands, output.type, origin, output.name)
    return Replace({output: value})


def _channel_addend(conv: Node, addend: Value) -> Value | None:
    """Returns the vector behind an addend (1, C, 1, …), None where it is something else."""
    shape, out = addend.type.shape, conv.output.type.shape
    if shape is None or out is None or len(out) < 3:
        return None
    wanted = (out[1], *([1] * (len(out) - 2)))
    if shape not in (wanted, (1, *wanted)) or not isinstance(out[1], int):
        return None
    reshape = made_by(addend, RESHAPE)
    if reshape is not None and isinstance(reshape.attributes, ReshapeAttrs):
        source = reshape.operand(0)
        known = source.rank == 1 and source.quant is None and not conv.origin.variant
        return source if known else None
    stored = stored_behind(addend) or addend
    if stored.constant is None:
        return None
    flat = stored.constant.map(lambda a: a.reshape(-1), shape=(out[1],))
    params = None if stored.quant is None else stored.quant.params
    if params is None:
        return constant(flat, None, stored.name)
    typed = constant(flat, params.with_axis(None if params.axis is None else 0), stored.name)
    return dequantized(typed, addend.type.dtype, conv.origin)


@rule("product-of-matrices", MATMUL, GEMM)
def product_of_matrices(node: Node, context: RuleContext) -> Proposal:
    """``MatMul(a, w) -> Gemm(a, transpose(w); transB)`` for float matrices and a constant w.

    A Gemm says of itself that it takes matrices: nobody else has to know the rank of a.
    """
    del context
    a, w, given = node.operand(0), node.operand(1), node.attributes
    matrices = w.rank == 2 and (a.rank == 2 or (a.rank is None and node.op is GEMM))
    if not matrices or a.quant is not None or not _is_plain(w):
        return None
    if isinstance(given, GemmAttrs) and given != GemmAttrs():
        return None
    assert w.constant is not None
    data = w.constant.transposed()
    permuted = Value(TensorType(data.dtype, data.shape), w.name, constant=data)
    operands, output = [a, permuted, *node.inputs[2:]], node.output
    op, name = GEMM, node.output.name
    return Replace({output: result(op, ROWS, operands, output.type, node.origin, name)})


def _is_plain(w: Value) -> bool:
    return w.constant is not None and w.quant is None and w.type.dtype.is_float


@rule("product-bias", ADD)
def product_bias(node: Node, context: RuleContext) -> Proposal:
    """``Add(Gemm(a, w), vector) -> Gemm(a, w, vector)`` for a float product and a constant."""
    for index in (0, 1):
        source, other = node.operand(index), node.operand(1 - index)
        product = made_by(source, GEMM)
        if product is None or source.quant is not None or context.sole_reader(source) is not node:
            continue
        w = product.operand(1)
        if product.optional(2) is not None or product.attributes != ROWS or not _is_plain(w):
            continue
        units = w.type.shape[0] if w.type.shape else None
        data = other.constant
        if data is None or not _is_plain(other) or data.shape not in ((units,), (1, units)):
            continue
        flat = data.map(lambda array: array.reshape(-1), shape=data.shape[-1:])
        bias = constant(flat, None, other.name)
        return _joined(product, node, [*product.inputs[:2], bias])
    return None


@rule("product-of-rows", RESHAPE, FLATTEN)
def product_of_rows(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(Gemm(Reshape(x), w, bias)) -> Add(MatMul(x, transpose(w)), bias)``; so Dense(x, w).

    The Reshapes make rows of all but the last axis and undo that: optimizers write a product of
    more axes so.
    """
    source = node.operand(0)
    product = made_by(source, GEMM) or made_by(source, DENSE)
    if product is None or context.sole_reader(source) is not node:
        return None
    rows = made_by(product.operand(0), RESHAPE) or made_by(product.operand(0), FLATTEN)
    w, bias, output = product.operand(1), product.optional(2), node.output
    if rows is None or w.type.shape is None or w.constant is None:
        return None
    x = rows.operand(0)
    given, wanted, units = x.type.shape, output.type.shape, w.type.shape[0]
    if given is None or wanted is None or len(given) < 2:
        return None
    if given[-1] != w.type.shape[1] or (*given[:-1], units) != wanted or source.rank != 2:
        return None
    if output.type != source.type.with_shape(wanted) or not _same_encoding(x, product.operand(0)):
        return None
    origin = rows.origin.joined(product.origin).joined(node.origin)
    if product.op is DENSE:
        operands = [x, *product.inputs[1:]]
        value = result(DENSE, product.attributes, operands, output.type, origin, output.name)
        return Replace({output: value})
    if product.attributes != ROWS or not _is_plain(w) or x.quant is not None:
        return None
    if bias is not None and (bias.constant is None or bias.rank != 1):
        return None
    data = w.constant.transposed()
    permuted = Value(TensorType(data.dtype, data.shape), w.name, constant=data)
    name = output.name if bias is None else ""
    value = result(MATMUL, NO_ATTRIBUTES, [x, permuted], output.type, origin, name)
    if bias is not None:
        value = result(ADD, NO_ATTRIBUTES, [value, bias], output.type, origin, output.name)
    return Replace({output: value})


def _same_encoding(a: Value, b: Value) -> bool:
    return (a.quant and a.quant.params) == (b.quant and b.quant.params)
