"""Rules that give float products one form: what is added to them per channel is their bias.

onnxruntime's float kernels round a bias inside a product differently from one behind it, so the
origin remembers what the file had, and writers write that.
"""

from __future__ import annotations

from dataclasses import replace

from qdqbridge.core.graph.graph import Node, Origin, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.patterns import Part, PatternMatch
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import GemmAttrs, ReshapeAttrs
from qdqbridge.core.ops.build import constant, dequantized, result
from qdqbridge.core.ops.data_movement import RESHAPE
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.rewrite.rule import (
    Proposal,
    Replace,
    RuleContext,
    made_by,
    pattern_rule,
    replaced,
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


@pattern_rule(
    "convolution-bias",
    ("Add", Part("product", (("Conv", "ConvTranspose"), "x", "w"), sole=True), "column"),
)
def convolution_bias(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(Conv(x, w), column) -> Conv(x, w, vector)`` for a float result of Conv.

    Importers write a bias so: reshaped to one element per channel.
    """
    del context
    conv = match.node("product")
    if conv.output.quant is not None or _integer(conv):
        return None
    vector = _channel_addend(conv, match["column"])
    return None if vector is None else with_added_bias(conv, node, vector)


def _integer(conv: Node) -> bool:
    """True for a product of integers, whose bias has a rule of its own."""
    return conv.operand(0).quant is not None and conv.operand(1).quant is not None


def with_added_bias(product: Node, add: Node, bias: Value) -> Replace:
    """Proposes a product with the bias that an Add behind it adds."""
    operands, origin = [*product.inputs[:2], bias], added_origin(product, add)
    return replaced(add, product.op, product.attributes, operands, origin)


def _channel_addend(conv: Node, addend: Value) -> Value | None:
    """Returns the vector behind an addend (1, C, 1, …), None where it is something else."""
    shape, out = addend.type.shape, conv.output.type.shape
    if shape is None or out is None or len(out) < 3:
        return None
    wanted = (out[1], *([1] * (len(out) - 2)))
    # Only one number per channel, at the channels' axis, is a bias; (C,) alone broadcasts along the
    # width.
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
    return replaced(node, GEMM, ROWS, [a, _transposed_constant(w), *node.inputs[2:]])


def _is_plain(w: Value) -> bool:
    return w.constant is not None and w.quant is None and w.type.dtype.is_float


@pattern_rule(
    "product-bias",
    (
        "Add",
        Part("product", ("Gemm", "x", Part("w", constant=True)), sole=True),
        Part("vector", constant=True),
    ),
)
def product_bias(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(Gemm(a, w), vector) -> Gemm(a, w, vector)`` for a float product and a constant."""
    del context
    product, w, vector = match.node("product"), match["w"], match["vector"]
    if product.output.quant is not None or product.attributes != ROWS:
        return None
    units, data = w.type.shape[0] if w.type.shape else None, vector.constant
    if not (_is_plain(w) and _is_plain(vector)) or data is None:
        return None
    if data.shape not in ((units,), (1, units)):
        return None
    flat = data.map(lambda array: array.reshape(-1), shape=data.shape[-1:])
    return with_added_bias(product, node, constant(flat, None, vector.name))


_ROWS_OF_ALL = Part("rows", (("Reshape", "Flatten"), "x"))
_PRODUCT_OF_ROWS = (("Gemm", "Dense"), _ROWS_OF_ALL, Part("w", constant=True), "bias?")


@pattern_rule(
    "product-of-rows",
    (("Reshape", "Flatten"), Part("product", _PRODUCT_OF_ROWS, sole=True)),
)
def product_of_rows(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Reshape(Gemm(Reshape(x), w, bias)) -> Add(MatMul(x, transpose(w)), bias)``; so Dense(x, w).

    The Reshapes make rows of all but the last axis and undo that: optimizers write a product of
    more axes so.
    """
    del context
    product, x, w = match.node("product"), match["x"], match["w"]
    source, bias, output = product.output, match.values.get("bias"), node.output
    given, wanted = x.type.shape, output.type.shape
    if w.type.shape is None or given is None or wanted is None or len(given) < 2:
        return None
    if given[-1] != w.type.shape[1] or (*given[:-1], w.type.shape[0]) != wanted:
        return None
    if source.rank != 2 or output.type != source.type.with_shape(wanted):
        return None
    # A Reshape with other parameters on both sides is a rounding, which may not get lost.
    if not _same_encoding(x, match["rows"]):
        return None
    origin = match.origin()
    if product.op is DENSE:
        return replaced(node, DENSE, product.attributes, [x, *product.inputs[1:]], origin)
    if product.attributes != ROWS or not _is_plain(w) or x.quant is not None:
        return None
    if bias is not None and (bias.constant is None or bias.rank != 1):
        return None
    matrix = _transposed_constant(w)
    if bias is None:
        return replaced(node, MATMUL, NO_ATTRIBUTES, [x, matrix], origin)
    value = result(MATMUL, NO_ATTRIBUTES, [x, matrix], output.type, origin)
    return replaced(node, ADD, NO_ATTRIBUTES, [value, bias], origin)


def _transposed_constant(w: Value) -> Value:
    assert w.constant is not None  # the caller says so
    data = w.constant.transposed()
    return Value(TensorType(data.dtype, data.shape), w.name, constant=data)


def _same_encoding(a: Value, b: Value) -> bool:
    return (a.quant and a.quant.params) == (b.quant and b.quant.params)
