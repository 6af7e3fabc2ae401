"""Activations and arithmetic that a host is given as several calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Form, Operator
from qdqbridge.core.graph.patterns import (
    Part,
    Pattern,
    PatternMatch,
    match_value_pattern,
    near,
    scalar,
)
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import (
    AlphaAttrs,
    AxesAttrs,
    ClipAttrs,
    EpsilonAttrs,
    NormAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.core.ops.bodies import body_of, in_order, matched, outermost_forms, written
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.data_movement import EXPAND, RESHAPE
from qdqbridge.core.ops.elementwise import DIV, MAX, MIN, MUL, PRELU, WHERE
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
    SOFTMAXES,
    deviation,
    mean_square,
)
from qdqbridge.core.ops.pooling import GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.reduction import REDUCE_MEAN
from qdqbridge.core.ops.table import BY_NAME, OPERATORS
from qdqbridge.core.ops.unary import ABS, CLIP, THRESHOLDED_RELU
from qdqbridge.core.rewrite import Replace, Rule, RuleContext, pattern_rule, rule
from qdqbridge.tvm.qnn.read.rules.recorded import (
    UNREAD,
    candidates,
    completed,
    made_by_unread,
    present,
    provenance_of_node,
    says,
    stated,
)

_FLOOR_DIVIDE = f"{UNREAD}floor_divide"


@rule("clip-of-bounds", MIN, MAX)
def clip_of_bounds(node: Node, context: RuleContext) -> Replace | None:
    """``Min(Max(x, low), high) -> Clip(x)``, of which either may be missing."""
    del context
    if len(node.inputs) != 2 or not says(node, CLIP.name):
        return None
    bound, source = scalar(node.operand(1)), node.operand(0)
    if bound is None:
        return None
    if node.op is MAX:
        return completed(node, CLIP, [source], ClipAttrs(bound, None))
    inner = source.producer
    first = None if inner is None else inner.attributes
    if inner is not None and isinstance(first, ClipAttrs) and first.high is None:
        return completed(node, CLIP, [inner.operand(0)], ClipAttrs(first.low, bound))
    return completed(node, CLIP, [source], ClipAttrs(None, bound))


@rule("relu-of-threshold", WHERE)
def relu_of_threshold(node: Node, context: RuleContext) -> Replace | None:
    """``Where(x > alpha, x, 0) -> ThresholdedRelu(x)``."""
    del context
    given, test = stated(node, THRESHOLDED_RELU.name, AlphaAttrs), node.operand(0).producer
    if test is None or given is None or test.op.name not in (f"{UNREAD}greater", "Greater"):
        return None
    x, other, zeros = test.operand(0), node.operand(1), node.operand(2)
    bound = scalar(test.operand(1))
    if other is not x or bound is None or not near(bound, given.alpha) or not _is_zero(zeros):
        return None
    return completed(node, THRESHOLDED_RELU, [x], given)


def _is_zero(value: Value) -> bool:
    """True for zeros, also of an extent that is known at run time only."""
    made = value.producer
    if made is not None and made.op is EXPAND:
        value = made.operand(0)
    zero = value.constant is not None and not value.constant.numpy().any()
    return zero or made_by_unread(value, "zeros_like")


@rule("prelu-of-choice", WHERE)
def prelu_of_choice(node: Node, context: RuleContext) -> Replace | None:
    """``Where(x < 0, x * slope, x) -> PRelu(x, slope)``."""
    del context
    if provenance_of_node(node) is not None and not says(node, PRELU.name):
        return None
    test, scaled, x = node.operand(0).producer, node.operand(1).producer, node.operand(2)
    if test is None or scaled is None or scaled.op is not MUL:
        return None
    if test.op.name not in (f"{UNREAD}less", "Less"):
        return None
    if test.operand(0) is not x or scalar(test.operand(1)) != 0 or scaled.operand(0) is not x:
        return None
    return completed(node, PRELU, [x, scaled.operand(1)])


@rule("extreme-of-several", MIN, MAX)
def extreme_of_several(node: Node, context: RuleContext) -> Replace | None:
    """``Min(Min(a, b), c) -> Min(a, b, c)``, and likewise for Max."""
    del context
    provenance, inner = provenance_of_node(node), node.operand(0).producer
    if provenance is None or not says(node, node.op.name) or len(provenance.operands) < 3:
        return None
    if inner is None or inner.op is not node.op:
        return None
    # Values within one recorded node have its name: a Min that the file has by itself has another.
    if inner.output.name != provenance.name or len(node.inputs) != 2:
        return None
    return completed(node, node.op, [*present(inner), node.operand(1)])


@rule("integer-quotient", WHERE, _FLOOR_DIVIDE)
def integer_quotient(node: Node, context: RuleContext) -> Replace | None:
    """``Where(a < 0 xor b < 0, -(abs(a) // abs(b)), abs(a) // abs(b)) -> Div(a, b)``."""
    del context
    if not says(node, DIV.name):
        return None
    if node.op.name == _FLOOR_DIVIDE:
        # Floor and truncation are the same without signs, so emission writes no choice.
        unsigned = not node.operand(0).type.dtype.is_signed
        return completed(node, DIV, present(node)) if unsigned else None
    whole = node.operand(2).producer
    if whole is None or whole.op.name != _FLOOR_DIVIDE:
        return None
    sides = [side.producer for side in present(whole)]
    if any(side is None or side.op is not ABS for side in sides):
        return None
    return completed(node, DIV, [side.operand(0) for side in sides if side is not None])


@rule("closing-cast", CAST)
def closing_cast(node: Node, context: RuleContext) -> Replace | None:
    """``Cast(Softmax(x)) -> Softmax(x)``: an operator of another float type ends with a Cast."""
    del context
    inner, provenance = node.operand(0).producer, provenance_of_node(node)
    if inner is None or provenance is None or provenance_of_node(inner) != provenance:
        return None
    data = inner.outputs[0]
    if inner.op is CAST or inner.op.name != provenance.op or len(inner.outputs) > 1:
        return None
    return completed(node, inner.op, inner.inputs, inner.attributes) if data.quant is None else None


# ---- by the forms and bodies of rows -----------------------------------------------------------

_COMPARISONS = {"Less": f"{UNREAD}less", "Greater": f"{UNREAD}greater"}
"""Operators without a row: a host reads their calls as ONNX's own nodes, or not by themselves."""


def _as_calls(pattern: Pattern) -> Pattern:
    if not isinstance(pattern, tuple):
        return pattern
    name, *rest = pattern
    return (_COMPARISONS.get(name, name), *map(_as_calls, rest))


def _with_calls(forms: Sequence[Form]) -> tuple[Form, ...]:
    called = [replace(form, pattern=_as_calls(form.pattern)) for form in forms]
    return (*forms, *(form for form in called if form not in forms))


_RECORDED: Mapping[str, tuple[Form, ...]] = {
    op.name: _with_calls(outermost_forms(op))
    for op in OPERATORS
    if op.forms and op not in (PRELU, THRESHOLDED_RELU)
}


@rule("recorded-form")
def recorded_form(node: Node, context: RuleContext) -> Replace | None:
    """``x * (Clip(x + 3, 0, 6) / 6) -> HardSwish(x)``, and every other form of a row."""
    del context
    for one in candidates(node):
        forms = _RECORDED.get(one.op)
        if forms is None:
            continue
        found = written(BY_NAME[one.op], node.output, forms=forms, stated=one.attributes)
        if found is not None:
            return completed(node, found.op, found.operands, found.attributes)
    return None


@rule("recorded-body")
def recorded_body(node: Node, context: RuleContext) -> Replace | None:
    """``a * Sigmoid(a) * b -> SwiGLU(a, b)``: what an operator stands for, as its row says."""
    del context
    for one in candidates(node):
        row, operands = BY_NAME.get(one.op), dict[str, Value]()
        if row is None or row.body is None or not isinstance(one.attributes, row.attributes):
            continue
        body = body_of(row, one.attributes, node.output.type.shape, len(one.operands))
        if matched(node.output, body, operands):
            return completed(node, row, in_order(operands), one.attributes)
    return None


def _unmistakable() -> dict[str, list[tuple[Operator, tuple[Form, ...]]]]:
    found: dict[str, list[tuple[Operator, tuple[Form, ...]]]] = {}
    for op in OPERATORS:
        own: dict[str, list[Form]] = {}
        for form in op.forms:
            if form.unmistakable and isinstance(form.pattern, tuple):
                own.setdefault(str(form.pattern[0]), []).append(form)
        own.pop(WHERE.name, None)  # a choice without a span is PRelu or what it is
        for end, forms in own.items():
            found.setdefault(end, []).append((op, _with_calls(forms)))
    return found


_ENDS = _unmistakable()


@rule("unmistakable-form", *_ENDS)
def unmistakable_form(node: Node, context: RuleContext) -> Replace | None:
    """``x * (Erf(x / sqrt(2)) + 1) * 0.5 -> Gelu(x)``: what nobody writes for anything else."""
    del context
    if provenance_of_node(node) is not None:
        return None
    for op, forms in _ENDS[node.op.name]:
        found = written(op, node.output, forms=forms)
        if found is not None:
            return completed(node, found.op, found.operands, found.attributes)
    return None


RULES: tuple[Rule, ...] = (
    clip_of_bounds,
    relu_of_threshold,
    prelu_of_choice,
    extreme_of_several,
    integer_quotient,
    closing_cast,
    recorded_form,
    recorded_body,
)
UNMISTAKABLE: tuple[Rule, ...] = (unmistakable_form,)


@rule("softmax-of-flat", RESHAPE)
def softmax_of_flat(node: Node, context: RuleContext) -> Replace | None:
    """``Reshape(Softmax(Reshape(x))) -> Softmax(x)``: over several axes."""
    del context
    inner = node.operand(0).producer
    if inner is None or inner.op not in SOFTMAXES:
        return None
    given, flat = stated(node, inner.op.name, SoftmaxAttrs), inner.operand(0).producer
    if given is None or flat is None or flat.op is not RESHAPE:
        return None
    return completed(node, inner.op, [flat.operand(0)], given)


NORMS_RULES: tuple[Rule, ...] = (softmax_of_flat,)


# ---- Operators that TVM's frontends write as several calls, put together again -------------------
# Only what nobody writes for anything else: a chain that a model may well contain itself stays what
# it is, and :mod:`qdqbridge.core.canonical.fusions` is there for who wants it whole.


# ---- Relax -------------------------------------------------------------------------------------

VARIANCE = "variance"
"""Form of a mean that one call of TVM's makes of differences from the mean."""

_CENTRED: Pattern = ("Sub", "x", "mean")
_INSTANCE: Pattern = (
    "Add",
    ("Mul", ("Div", _CENTRED, deviation("variance")), "gamma"),
    "beta",
)


@pattern_rule("instance-norm-of-frontend", _INSTANCE)
def instance_norm_of_frontend(
    node: Node, match: PatternMatch, context: RuleContext
) -> Replace | None:
    """``(x - mean) / Sqrt(variance(x) + eps) * gamma + beta -> InstanceNormalization``."""
    del context
    if provenance_of_node(node):
        return None
    x, mean = match["x"], match["mean"].producer
    rank = x.rank or 0
    over = ReduceAttrs(tuple(range(2, rank)))
    if not _is_variance(match["variance"], x, over):
        return None
    if mean is None or mean.operand(0) is not x or mean.attributes not in (over, NO_ATTRIBUTES):
        return None
    vectors = [_channel_vector(match[name], rank) for name in ("gamma", "beta")]
    if None in vectors:
        return None
    attributes = EpsilonAttrs(match.numbers["epsilon"])
    return completed(node, INSTANCE_NORMALIZATION, [x, *vectors], attributes)


def _is_variance(value: Value, x: Value, over: ReduceAttrs) -> bool:
    """True for what one call of TVM's makes; a model's own steps stay what they are."""
    made, found = value.producer, PatternMatch({"x": x})
    if made is None or made.origin.variant != VARIANCE or made.attributes != over:
        return False
    return match_value_pattern(value, mean_square(_CENTRED), found)


@pattern_rule("batch-norm-of-frontend", _INSTANCE)
def batch_norm_of_frontend(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``(x - mean) / Sqrt(variance + eps) * gamma + beta -> BatchNormalization``.

    TVM decomposes it so for inference.
    """
    del context
    provenance = provenance_of_node(node)
    if provenance is not None and provenance.op != BATCH_NORMALIZATION.name:
        return None
    names = ("gamma", "beta", "mean", "variance")
    vectors = [_per_channel(match[name], node.output.rank or 0) for name in names]
    if None in vectors:
        return None
    attributes = EpsilonAttrs(match.numbers["epsilon"])
    return completed(node, BATCH_NORMALIZATION, [match["x"], *vectors], attributes)


def _per_channel(value: Value, rank: int) -> Value | None:
    """Returns the vector behind one element per channel, whose other axes have been added."""
    wide, shape = value.producer, value.type.shape or ()
    if wide is not None:
        added = AxesAttrs((0, *range(2, rank)))
        return wide.operand(0) if wide.attributes == added and wide.operand(0).rank == 1 else None
    if value.constant is None or len(shape) != rank or [*shape[:1], *shape[2:]] != [1] * (rank - 1):
        return None
    return _flat(value, value.constant)


_AFFINE = (
    "Add",
    ("Mul", Part("norm", ("GroupNormalization", "x", "ones", "zeros")), "gamma"),
    "beta",
)


@pattern_rule("group-norm-of-frontend", _AFFINE)
def group_norm_of_frontend(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``GroupNormalization(x, 1, 0) * gamma + beta -> GroupNormalization(x, gamma, beta)``."""
    del context
    ones, zeros = match["ones"].constant, match["zeros"].constant
    if provenance_of_node(node) or ones is None or zeros is None:
        return None
    if zeros.numpy().any() or (ones.numpy() != 1).any():
        return None
    vectors = [_channel_vector(match[name], node.output.rank or 0) for name in ("gamma", "beta")]
    if None in vectors:
        return None
    attributes = match.node("norm").attributes
    return completed(node, GROUP_NORMALIZATION, [match["x"], *vectors], attributes)


def _channel_vector(value: Value, rank: int) -> Value | None:
    """Returns the vector behind one element per channel of ``rank`` axes."""
    node, shape = value.producer, value.type.shape or ()
    if shape[1:] != (1,) * (rank - 2) or len(shape) != rank - 1:
        return None
    if node is not None and isinstance(node.attributes, ReshapeAttrs | AxesAttrs):
        return node.operand(0) if node.operand(0).rank == 1 else None
    return None if value.constant is None else _flat(value, value.constant)


def _flat(value: Value, data: Constant) -> Value:
    flat = data.map(lambda array: array.reshape(-1), shape=(data.size,))
    return Value(TensorType(data.dtype, (data.size,)), value.name, constant=flat)


# ---- Relay -------------------------------------------------------------------------------------

_INVERSE: Pattern = ("Div", 1.0, deviation(mean_square(_CENTRED)))
_LAYER_NORM: Pattern = ("Add", ("Mul", ("Mul", _CENTRED, _INVERSE), "gamma"), "beta")

_LOW: Pattern = ("Floor", "x")
_REST: Pattern = ("Sub", "x", _LOW)
_EVEN: Pattern = ("Mul", ("Floor", ("Mul", _LOW, 0.5)), 2.0)
_TIE: Pattern = (
    "unread:logical_and",
    ("unread:equal", _REST, 0.5),
    ("unread:not_equal", _LOW, _EVEN),
)
_UP: Pattern = ("unread:logical_or", ("unread:greater", _REST, 0.5), _TIE)
_ROUND: Pattern = ("Where", _UP, ("Add", _LOW, 1.0), _LOW)


@pattern_rule("half-to-even", _ROUND)
def half_to_even(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``Where(x - Floor(x) > 0.5 or …, Floor(x) + 1, Floor(x)) -> Round(x)``."""
    del context
    return completed(node, "Round", [match["x"]])


@pattern_rule("layer-norm-of-importer", _LAYER_NORM)
def layer_norm_of_importer(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``(x - mean) * (1 / Sqrt(variance + eps)) * gamma + beta -> LayerNormalization``."""
    del context
    x, axis = match["x"], _mean_first_axis(match["mean"].producer, match["x"])
    if provenance_of_node(node) or axis is None:
        return None
    operands = [x, match["gamma"], match["beta"]]
    attributes = NormAttrs(axis, match.numbers["epsilon"])
    return completed(node, LAYER_NORMALIZATION, operands, attributes)


def _mean_first_axis(mean: Node | None, x: Value) -> int | None:
    """Returns the first of the last axes over which a mean is taken, None for other axes."""
    if mean is None or mean.operand(0) is not x:
        return None
    rank, attributes = x.rank or 0, mean.attributes
    if mean.op is GLOBAL_AVERAGE_POOL:
        return 2
    if mean.op is not REDUCE_MEAN or not isinstance(attributes, ReduceAttrs):
        return None
    axes = attributes.axes
    whole = bool(axes) and axes == tuple(range(axes[0], rank)) and attributes.keepdims
    return axes[0] if whole else None


RELAX: tuple[Rule, ...] = (
    instance_norm_of_frontend,
    group_norm_of_frontend,
    batch_norm_of_frontend,
)
RELAY: tuple[Rule, ...] = (half_to_even, layer_norm_of_importer)
