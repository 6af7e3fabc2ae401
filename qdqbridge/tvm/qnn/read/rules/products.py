"""Products that a host is given with their factors, bias and transposes as calls of their own."""

from __future__ import annotations

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.patterns import Part, PatternMatch, match_value_pattern, near, scalar
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import GemmAttrs, ReshapeAttrs, TransposeAttrs
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.elementwise import ADD, MUL
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL, broken_factors, factor
from qdqbridge.core.rewrite import Replace, Rule, RuleContext, pattern_rule, rule
from qdqbridge.tvm.qnn.read.rules.recorded import (
    completed,
    present,
    provenance_of_node,
    says,
    stated,
)

_UNBIASED = 2


@rule("gemm-of-product", MATMUL)
def gemm_of_product(node: Node, context: RuleContext) -> Replace | None:
    """``MatMul(Transpose(a), b) -> Gemm(a, b)`` where nothing is scaled."""
    del context
    given = stated(node, GEMM.name, GemmAttrs)
    if given is None or given.alpha != 1.0:
        return None
    operands = _before_transposes(node, given)
    return None if operands is None else completed(node, GEMM, operands, given)


@pattern_rule("gemm-of-scaled-product", ("Mul", Part("product", ("MatMul", "a", "b")), "#alpha"))
def gemm_of_scaled_product(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``MatMul(a, b) * alpha -> Gemm(a, b)``."""
    del context
    given = stated(node, GEMM.name, GemmAttrs)
    if given is None or not _is_factor(match.numbers["alpha"], given.alpha, match["product"]):
        return None
    operands = _before_transposes(match.node("product"), given)
    return None if operands is None else completed(node, GEMM, operands, given)


@rule("gemm-of-sum", ADD)
def gemm_of_sum(node: Node, context: RuleContext) -> Replace | None:
    """``Gemm(a, b) + beta * c -> Gemm(a, b, c)``."""
    del context
    given, inner = stated(node, GEMM.name, GemmAttrs), node.operand(0).producer
    bias = None if given is None else scaled_bias(node.operand(1), given)
    if given is None or bias is None or inner is None or inner.op is not GEMM:
        return None
    x = inner.operand(0)
    if len(inner.inputs) != _UNBIASED or (x.quant is None and bias.type.dtype is not x.type.dtype):
        return None  # of plain integers that are scaled in floats; a cast ends them
    return completed(node, GEMM, [x, inner.operand(1), bias], given)


def scaled_bias(value: Value, given: GemmAttrs) -> Value | None:
    """Returns what a Gemm's beta was multiplied with, None where it was not."""
    if given.beta == 1.0:
        return value
    found = PatternMatch()
    if not match_value_pattern(value, ("Mul", "c", "#beta"), found):
        return None
    return found["c"] if _is_factor(found.numbers["beta"], given.beta, value) else None


def _is_factor(number: float, given: float, of: Value) -> bool:
    """True for a factor as the element type of what it scales has it: -1 of no unsigned one."""
    dtype = of.type.dtype
    return near(number, given) or (dtype.is_integer and number == factor(given, dtype.numpy))


@rule("gemm-of-integers", CAST)
def gemm_of_integers(node: Node, context: RuleContext) -> Replace | None:
    """``Cast(Cast(MatMul(a, b)) * alpha + beta * Cast(c)) -> Gemm(a, b, c)``.

    The operands are integers, and its factors are not.
    """
    del context
    given = stated(node, GEMM.name, GemmAttrs)
    if given is None or not broken_factors(given):
        return None
    total, added = node.operand(0).producer, list[Value]()
    if total is not None and total.op is ADD:
        bias = scaled_bias(total.operand(1), given)
        cast = None if bias is None else bias.producer
        if cast is None or cast.op is not CAST:
            return None
        added, total = [cast.operand(0)], total.operand(0).producer
    if total is not None and given.alpha != 1.0:
        alpha = scalar(total.operand(1)) if total.op is MUL else None
        exact = alpha is not None and near(alpha, given.alpha)
        total = total.operand(0).producer if exact else None
    inner = total.operand(0).producer if total is not None and total.op is CAST else total
    if inner is None or inner.op not in (MATMUL, GEMM) or len(inner.inputs) != _UNBIASED:
        return None
    operands = _before_transposes(inner, given) if inner.op is MATMUL else present(inner)
    return None if operands is None else completed(node, GEMM, [*operands, *added], given)


def _before_transposes(node: Node, given: GemmAttrs) -> list[Value] | None:
    a, b = node.operand(0), node.operand(1)
    sides = [_permuted(a) if given.trans_a else a, _permuted(b) if given.trans_b else b]
    known = [side for side in sides if side is not None]
    return known if len(known) == len(sides) else None


def _permuted(value: Value) -> Value | None:
    node = value.producer
    if node is None or not isinstance(node.attributes, TransposeAttrs):
        return None
    return node.operand(0)


_TURNED = ("Transpose", Part("w", constant=True), {})
_LINEAR = ("Add", ("MatMul", "x", _TURNED), Part("bias", constant=True))


@pattern_rule("gemm-of-linear-layer", _LINEAR)
def gemm_of_linear_layer(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``MatMul(x, Transpose(constant)) + vector -> Gemm(x, constant, vector)``."""
    del context
    x, w, bias = (match[name] for name in ("x", "w", "bias"))
    if provenance_of_node(node) is not None or bias.rank != 1 or x.rank != 2:
        return None
    if node.operand(1) is not bias:  # without spans, only what nobody writes for anything else
        return None
    return completed(node, GEMM, [x, w, bias], GemmAttrs(trans_b=True))


@pattern_rule("dense-of-product", ("MatMul", "x", ("Transpose", "w", {})))
def dense_of_product(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``MatMul(x, Transpose(w)) -> Dense(x, w)``."""
    del context
    return completed(node, DENSE, [match["x"], match["w"]]) if says(node, DENSE.name) else None


@rule("product-with-bias", ADD)
def product_with_bias(node: Node, context: RuleContext) -> Replace | None:
    """``Conv(x, w) + Reshape(bias) -> Conv(x, w, bias)``, and likewise for a Dense."""
    del context
    inner = node.operand(0).producer
    if inner is None or len(inner.inputs) != _UNBIASED:
        return None
    bias = node.operand(1)
    if inner.op is DENSE and says(node, DENSE.name):
        return _biased(node, inner, bias, inner.attributes)
    convolves = inner.op in (CONV, CONV_TRANSPOSE)
    if not convolves or (provenance_of_node(node) is not None and not says(node, inner.op.name)):
        return None
    vector = bias_from_column(bias, node.output.rank or 0)
    return None if vector is None else _biased(node, inner, vector, inner.attributes)


def _biased(node: Node, inner: Node, bias: Value, attributes: Attributes) -> Replace:
    return completed(node, inner.op, [inner.operand(0), inner.operand(1), bias], attributes)


def bias_from_column(bias: Value, rank: int) -> Value | None:
    """Returns the vector behind a column (C, 1, …) of ``rank`` - 1 axes."""
    node = bias.producer
    if node is not None and isinstance(node.attributes, ReshapeAttrs):
        return node.operand(0) if node.operand(0).rank == 1 else None
    data = bias.constant
    if data is None or len(data.shape) != rank - 1 or data.size != data.shape[0]:
        return None
    flat = data.map(lambda array: array.reshape(-1), shape=(data.size,))
    return Value(TensorType(data.dtype, (data.size,)), bias.name, constant=flat)


RULES: tuple[Rule, ...] = (
    gemm_of_product,
    gemm_of_scaled_product,
    gemm_of_sum,
    gemm_of_integers,
    dense_of_product,
    product_with_bias,
)
UNMISTAKABLE: tuple[Rule, ...] = (gemm_of_linear_layer,)
