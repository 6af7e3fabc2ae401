"""Products that a host is given with their factors, bias and transposes as calls of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.graph import Node, Value, Whole
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operator
from qdqbridge.core.graph.patterns import (
    Part,
    Pattern,
    PatternMatch,
    match_value_pattern,
    near,
    scalar,
)
from qdqbridge.core.graph.types import QuantType, TensorType, ValueType
from qdqbridge.core.ops.attributes import GemmAttrs, ReshapeAttrs, TransposeAttrs
from qdqbridge.core.ops.bodies import LETTERS, body_of, folded, parts, trimmed
from qdqbridge.core.ops.build import permuted_constant
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.data_movement import TRANSPOSE
from qdqbridge.core.ops.elementwise import ADD, MUL
from qdqbridge.core.ops.matmul import (
    DENSE,
    GEMM,
    MATMUL,
    broken_factors,
    factor,
    moved_type,
    no_number,
)
from qdqbridge.core.ops.table import BY_NAME
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


# ---- The operators that products stand for, of the steps of them that a host was given -----------
# Each step says which operator it is a part of (``Origin.whole``), and where all are still there
# they are that operator again.


@rule("operator-of-steps")
def operator_of_steps(node: Node, context: RuleContext) -> Replace | None:
    """``Conv(DepthToSpace(x), w) -> the operator whose steps say that they are its``."""
    del context
    whole = node.origin.whole
    row = None if whole is None else BY_NAME.get(whole.op)
    if whole is None or row is None or row.body is None or len(node.outputs) != 1:
        return None
    match = _BodyMatch(row, whole)
    body = body_of(row, whole.attributes, node.output.type.shape, len(whole.shapes))
    if not match.fits(node.output, body):
        return None
    result = Value(node.output.type, node.output.name)
    Node(row, whole.attributes, trimmed(match.operands), [result], replace(node.origin, whole=None))
    return Replace({node.output: result})


class _BodyMatch:
    """The operands of an operator, found behind the last of its steps."""

    def __init__(self, row: Operator, whole: Whole) -> None:
        self.row, self.whole = row, whole
        self.operands: list[Value | None] = [None] * len(LETTERS)

    def fits(self, value: Value | None, body: Pattern) -> bool:
        """Returns whether a value is computed as the body says."""
        if value is None:
            return isinstance(body, str)
        if isinstance(body, str):
            return self._is(max(LETTERS.find(body), 0), value)
        if not isinstance(body, tuple):
            return False
        row, inner, attributes = parts(body)
        if row.flow is Flow.MOVE and value.constant is not None:
            return self._unmoved(value, body)
        given = _operands_of(value.producer, row, attributes)
        if given is None or len(given) > len(inner):
            return False
        padded = [*given, *[None] * len(inner)]
        return all(self.fits(v, part) for v, part in zip(padded, inner, strict=False))

    def _is(self, index: int, value: Value) -> bool:
        known = self.operands[index]
        self.operands[index] = value if known is None else known
        return self.operands[index] is value

    def _unmoved(self, value: Value, body: Pattern) -> bool:
        """Takes the constant that was moved, as it was: where each element went is computed."""
        index = _letter(body)
        shape = self.whole.shapes[index] if index < len(self.whole.shapes) else None
        if shape is None or value.constant is None:
            return False
        type_ = _type_before(self.row, self.whole.attributes, value.type, shape, index)
        moved = None if type_ is None else _through(body, type_)
        if type_ is None or moved != value.type:
            return False

        def before(array: Array) -> Array:
            places = _places(body, shape).reshape(-1)
            own = np.empty(places.size, array.dtype)
            own[places] = array.reshape(-1)
            return own.reshape(shape)

        data = value.constant.map(before, shape=shape)
        return self._is(index, Value(type_, value.name, constant=data))


def _letter(body: Pattern) -> int:
    while isinstance(body, tuple):
        body = parts(body)[1][0]
    return max(LETTERS.find(str(body)), 0)


def _places(body: Pattern, shape: tuple[int, ...]) -> Array:
    """Returns at which place each element of a moved constant was."""
    first = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    given = [first] * len(LETTERS)
    return folded(
        body, given, lambda row, attributes, values: row.compute(attributes, values)[0], no_number
    )


def _through(body: Pattern, type_: ValueType) -> ValueType | None:
    given: list[ValueType | None] = [type_] * len(LETTERS)

    def step(
        row: Operator, attributes: Attributes, values: list[ValueType | None]
    ) -> ValueType | None:
        first = values[0]
        return None if first is None else moved_type(row, attributes, first)

    return folded(body, given, step, no_number)


def _type_before(
    row: Operator, attributes: Attributes, type_: ValueType, shape: tuple[int, ...], index: int
) -> ValueType | None:
    """Returns the type of an operand that was moved; a weight's parameters lie as its row says."""
    if not isinstance(type_, QuantType) or type_.params.per_tensor:
        return type_.with_shape(shape)
    geometry = None if row.weight is None else row.weight(attributes, len(shape))
    if index != 1 or geometry is None or type_.params.blocked:
        return None
    return QuantType(type_.params.with_axis(geometry.axis), shape)


def _operands_of(
    node: Node | None, row: Operator, attributes: Attributes
) -> list[Value | None] | None:
    """Returns the operands of a step; a host multiplies by a constant matrix as by another."""
    if node is None:
        return None
    if node.op is row and node.attributes == attributes:
        return list(node.inputs)
    if {node.op, row} != {MATMUL, DENSE} or len(node.inputs) > 2:
        return None
    weight = _swapped(node.operand(1))
    return None if weight is None else [node.operand(0), weight]


def _swapped(value: Value) -> Value | None:
    if value.constant is not None:
        return permuted_constant(value, (1, 0)) if value.rank == 2 else None
    node = value.producer
    turned = None if node is None else TRANSPOSE.of(node)
    return node.operand(0) if node is not None and turned and turned.perm == (1, 0) else None


STEP_RULES: tuple[Rule, ...] = (operator_of_steps,)
