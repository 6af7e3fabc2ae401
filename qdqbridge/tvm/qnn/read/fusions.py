"""Operators that a host writes as several calls, put together again.

Every float operator without a counterpart on the host is emitted as a chain of others. The last
call of such a chain completes it: what stands behind it is compared with the chain, and the whole
operator takes its place. Where a span says which operator a call belongs to, only that one is
looked for; without spans, only chains that nobody writes for anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Form, Operator
from qdqbridge.core.graph.patterns import Pattern, PatternMatch, match_value_pattern, near, scalar
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import (
    AlphaAttrs,
    ClipAttrs,
    GemmAttrs,
    NormAttrs,
    ReshapeAttrs,
    SoftmaxAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.bodies import in_order, matched
from qdqbridge.core.ops.cast import CAST
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.convolution import OPERATORS as CONVOLUTIONS
from qdqbridge.core.ops.data_movement import EXPAND, RESHAPE
from qdqbridge.core.ops.elementwise import ADD, MAX, MIN, MUL, WHERE
from qdqbridge.core.ops.forms import outermost_forms, written
from qdqbridge.core.ops.matmul import GEMM, MATMUL, broken_factors
from qdqbridge.core.ops.softmax import OPERATORS as SOFTMAXES
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.core.ops.unary import ABS
from qdqbridge.tvm.qnn.origin import Provenance
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.products import scaled_bias
from qdqbridge.tvm.qnn.read.reading import Reading, tensor


@dataclass(frozen=True, slots=True)
class Fused:
    """An operator found behind a value."""

    op: str
    attributes: Attributes
    operands: list[Value]


Find: TypeAlias = "Callable[[Node, Call], Fused | None]"


def present(node: Node) -> list[Value]:
    """Returns the operands that are not left out."""
    return [value for value in node.inputs if value is not None]


# ---- activations and arithmetic ---------------------------------------------------------------


def _fuse_clip(node: Node, call: Call) -> Fused | None:
    """``Min(Max(x, low), high)``, of which either may be missing."""
    del call
    if len(node.inputs) != 2 or node.op not in (MIN, MAX):
        return None
    bound, source = scalar(node.operand(1)), node.operand(0)
    if bound is None:
        return None
    if node.op is MAX:
        return Fused("Clip", ClipAttrs(bound, None), [source])
    inner = source.producer
    first = None if inner is None else inner.attributes
    if inner is not None and isinstance(first, ClipAttrs) and first.high is None:
        return Fused("Clip", ClipAttrs(first.low, bound), [inner.operand(0)])
    return Fused("Clip", ClipAttrs(None, bound), [source])


def _thresholded(node: Node, call: Call) -> Fused | None:
    given = call.stated(AlphaAttrs)
    test = node.operand(0).producer if node.op is WHERE else None
    if test is None or given is None or test.op.name not in ("unread:greater", "Greater"):
        return None
    x, other, zeros = test.operand(0), node.operand(1), node.operand(2)
    bound = scalar(test.operand(1))
    if other is not x or bound is None or not near(bound, given.alpha) or not _is_zero(zeros):
        return None
    return Fused("ThresholdedRelu", given, [x])


def _is_zero(value: Value) -> bool:
    """True for zeros, also of an extent that is known at run time only."""
    made = value.producer
    if made is not None and made.op is EXPAND:
        value = made.operand(0)
    zero = value.constant is not None and not value.constant.numpy().any()
    return zero or _is_unread(value, "zeros_like")


def _is_unread(value: Value, name: str) -> bool:
    return value.producer is not None and value.producer.op.name == f"unread:{name}"


def _prelu(node: Node, call: Call) -> Fused | None:
    del call
    if node.op is not WHERE:
        return None
    test, scaled, x = node.operand(0).producer, node.operand(1).producer, node.operand(2)
    if test is None or scaled is None or scaled.op is not MUL:
        return None
    if test.op.name not in ("unread:less", "Less"):
        return None
    if test.operand(0) is not x or scalar(test.operand(1)) != 0 or scaled.operand(0) is not x:
        return None
    return Fused("PRelu", NO_ATTRIBUTES, [x, scaled.operand(1)])


def _several(node: Node, call: Call) -> Fused | None:
    """A Min or Max of several operands, of which the last call takes in one more."""
    provenance, inner = call.provenance, node.operand(0).producer
    if (
        provenance is None
        or inner is None
        or inner.op is not node.op
        or len(provenance.operands) < 3
    ):
        return None
    if inner.output.name != provenance.name or len(node.inputs) != 2:
        return None
    return Fused(provenance.op, NO_ATTRIBUTES, [*present(inner), node.operand(1)])


def _integer_quotient(node: Node, call: Call) -> Fused | None:
    """``where(a < 0 xor b < 0, -(abs(a) // abs(b)), abs(a) // abs(b))``."""
    del call
    if node.op.name == "unread:floor_divide" and not node.operand(0).type.dtype.is_signed:
        return Fused("Div", NO_ATTRIBUTES, [node.operand(0), node.operand(1)])
    if node.op is not WHERE:
        return None
    whole = node.operand(2).producer
    if whole is None or whole.op.name != "unread:floor_divide":
        return None
    sides = [whole.operand(i).producer for i in (0, 1)]
    if any(side is None or side.op is not ABS for side in sides):
        return None
    return Fused("Div", NO_ATTRIBUTES, [side.operand(0) for side in sides if side is not None])


_COMPARISONS = {"Less": "unread:less", "Greater": "unread:greater"}
"""Operators without a row: a host reads their calls as ONNX's own nodes, or not by themselves."""


def _as_calls(pattern: Pattern) -> Pattern:
    if not isinstance(pattern, tuple):
        return pattern
    name, *rest = pattern
    return (_COMPARISONS.get(name, name), *map(_as_calls, rest))


def _by_forms(op: Operator, forms: Sequence[Form]) -> Find:
    """Returns what finds an operator that is written in one of these forms."""
    called = [replace(form, pattern=_as_calls(form.pattern)) for form in forms]
    forms = (*forms, *(form for form in called if form not in forms))

    def find(node: Node, call: Call) -> Fused | None:
        stated = None if call.provenance is None else call.provenance.attributes
        found = written(op, node.output, forms=forms, stated=stated)
        return None if found is None else Fused(op.name, found.attributes, found.operands)

    return find


ACTIVATIONS: Mapping[str, Find] = {
    **{op.name: _by_forms(op, outermost_forms(op)) for op in OPERATORS if op.forms},
    "Clip": _fuse_clip,
    "ThresholdedRelu": _thresholded,
    "PRelu": _prelu,
    "Min": _several,
    "Max": _several,
    "Div": _integer_quotient,
}
"""What completes each activation and each arithmetic operator, by the graph's name."""


def unmistakable() -> dict[str, list[Find]]:
    """Returns what finds operators that nothing names, by the operator that ends the chain."""
    found: dict[str, list[Find]] = {}
    for op in OPERATORS:
        own: dict[str, list[Form]] = {}
        for form in op.forms:
            if form.unmistakable and isinstance(form.pattern, tuple):
                own.setdefault(str(form.pattern[0]), []).append(form)
        for end, forms in own.items():
            found.setdefault(end, []).append(_by_forms(op, forms))
    return found


# ---- products ---------------------------------------------------------------------------------


def _gemm(node: Node, call: Call) -> Fused | None:
    """``matmul(a, b)``, then ``* alpha``, then ``+ beta * c``, as the span's attributes say."""
    given = call.stated(GemmAttrs)
    if given is None:
        return None
    if node.op is MATMUL and given.alpha == 1.0:
        return _fuse_transposed_gemm(node, given)
    if node.op is MUL:
        inner, alpha = node.operand(0).producer, scalar(node.operand(1))
        if inner is None or inner.op is not MATMUL or alpha is None:
            return None
        return _fuse_transposed_gemm(inner, given) if near(alpha, given.alpha) else None
    if node.op is ADD:
        inner, bias = node.operand(0).producer, scaled_bias(node.operand(1), given)
        if inner is None or bias is None or inner.op is not GEMM or len(inner.inputs) != 2:
            return None
        x = inner.operand(0)
        if x.quant is None and bias.type.dtype is not x.type.dtype:
            return None  # of plain integers that are scaled in floats; a cast ends them
        return Fused("Gemm", given, [x, inner.operand(1), bias])
    return _whole_gemm(node, given) if node.op is CAST and broken_factors(given) else None


def _whole_gemm(node: Node, given: GemmAttrs) -> Fused | None:
    """A Gemm of integers, whose factors are not: a cast of the sum of what is scaled in floats."""
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
    if inner is None or inner.op not in (MATMUL, GEMM) or len(inner.inputs) != 2:
        return None
    product = (
        _fuse_transposed_gemm(inner, given)
        if inner.op is MATMUL
        else Fused("Gemm", given, present(inner))
    )
    return None if product is None else replace(product, operands=[*product.operands, *added])


def _fuse_transposed_gemm(node: Node, given: GemmAttrs) -> Fused | None:
    a, b = node.operand(0), node.operand(1)
    a = _permuted(a) if given.trans_a else a
    b = _permuted(b) if given.trans_b else b
    return None if a is None or b is None else Fused("Gemm", given, [a, b])


def _permuted(value: Value) -> Value | None:
    node = value.producer
    if node is None or not isinstance(node.attributes, TransposeAttrs):
        return None
    return node.operand(0)


def linear(node: Node, call: Call) -> Fused | None:
    """``matmul(x, transpose(constant)) + vector``: what exporters write for a linear layer."""
    del call
    inner, bias = node.operand(0).producer, node.operand(1)
    if inner is None or inner.op is not MATMUL or inner.operand(0).rank != 2:
        return None
    w = _permuted(inner.operand(1))
    if w is None or w.constant is None or bias.constant is None or bias.rank != 1:
        return None
    return Fused("Gemm", GemmAttrs(trans_b=True), [inner.operand(0), w, bias])


def _fuse_dense(node: Node, call: Call) -> Fused | None:
    """``matmul(x, transpose(w)) [+ bias]``."""
    if node.op is MATMUL:
        w = _permuted(node.operand(1))
        return None if w is None else Fused("Dense", NO_ATTRIBUTES, [node.operand(0), w])
    return _biased(node, "Dense", call)


def _biased(node: Node, name: str, call: Call) -> Fused | None:
    """``op(x, w) + column(bias)``."""
    inner = node.operand(0).producer if node.op is ADD else None
    if inner is None or inner.op.name != name or len(inner.inputs) != 2:
        return None
    bias, rank = node.operand(1), len(call.result.shape or ())
    if name != "Dense":
        vector = _bias_from_column(bias, rank)
        if vector is None:
            return None
        bias = vector
    return Fused(name, inner.attributes, [inner.operand(0), inner.operand(1), bias])


def _bias_from_column(bias: Value, rank: int) -> Value | None:
    """Returns the vector behind a column (C, 1, …) of ``rank`` - 1 axes."""
    node = bias.producer
    if node is not None and isinstance(node.attributes, ReshapeAttrs):
        return node.operand(0) if node.operand(0).rank == 1 else None
    data = bias.constant
    if data is None or len(data.shape) != rank - 1 or data.size != data.shape[0]:
        return None
    flat = data.map(lambda array: array.reshape(-1), shape=(data.size,))
    return Value(TensorType(data.dtype, (data.size,)), bias.name, constant=flat)


def _conv(name: str) -> Find:
    return lambda node, call: _biased(node, name, call)


# ---- norms, softmax ----------------------------------------------------------------------------


def _normalized(node: Node, call: Call) -> Fused | None:
    """``x / sqrt(mean(x * x) + epsilon) * gamma [+ beta]``; for a layer norm x is centred."""
    given, provenance = call.stated(NormAttrs), call.provenance
    if given is None or provenance is None:
        return None
    if node.op is ADD:
        inner = node.operand(0).producer
        if inner is None or inner.op.name != provenance.op or len(inner.inputs) != 2:
            return None
        return Fused(provenance.op, given, [*present(inner), node.operand(1)])
    found = PatternMatch()
    square: Pattern = ("ReduceMean", ("Mul", "x", "x"))
    root: Pattern = ("Sqrt", ("Add", square, "#epsilon"))
    if not match_value_pattern(node.output, ("Mul", ("Div", "x", root), "gamma"), found):
        return None
    if not near(found.numbers["epsilon"], given.epsilon):
        return None
    x = found.values["x"]
    if provenance.op == "LayerNormalization":
        centred = PatternMatch()
        if not match_value_pattern(x, ("Sub", "y", ("ReduceMean", "y")), centred):
            return None
        x = centred.values["y"]
    return Fused(provenance.op, given, [x, found.values["gamma"]])


def flat_softmax(node: Node, call: Call) -> Fused | None:
    """``reshape(softmax(reshape(x)))``: a softmax over several axes."""
    given, provenance = call.stated(SoftmaxAttrs), call.provenance
    inner = node.operand(0).producer if node.op is RESHAPE else None
    if given is None or provenance is None or inner is None or inner.op.name != provenance.op:
        return None
    flat = inner.operand(0).producer
    if flat is None or flat.op is not RESHAPE:
        return None
    return Fused(provenance.op, given, [flat.operand(0)])


PRODUCTS: Mapping[str, Find] = {
    "Gemm": _gemm,
    "Dense": _fuse_dense,
    **{row.name: _conv(row.name) for row in CONVOLUTIONS},
    "LayerNormalization": _normalized,
    "RMSNormalization": _normalized,
    **{row.name: flat_softmax for row in SOFTMAXES},
}
"""What completes each product, norm and softmax, by the graph's name."""


# ---- which one it is --------------------------------------------------------------------------


def fused(reading: Reading, call: Call, value: Value) -> Value:
    """Returns the result of the operator that ``value`` completes, or ``value`` itself."""
    node = value.producer
    if node is None:
        return value
    provenance = call.provenance
    if provenance is None:
        found = next((w for f in UNMISTAKABLE.get(node.op.name, ()) if (w := f(node, call))), None)
    elif provenance.op == node.op.name and provenance.op not in PARTIAL:
        return value
    else:
        finds = ((STATED.get(stated.op), stated) for stated in _candidate_provenances(provenance))
        wholes = (
            find(node, replace(call, provenance=one)) for find, one in finds if find is not None
        )
        found = next((whole for whole in wholes if whole is not None), None)
    if found is None:
        return value
    return reading.node(found.op, found.attributes, found.operands, tensor(call), call)


def _candidate_provenances(provenance: Provenance) -> list[Provenance]:
    """Returns what recorded calls may be: the operator itself, or a step that has forms."""
    if not isinstance(provenance.attributes, CompositionAttrs):
        return [provenance]
    steps = {(step.op.name, step.attributes): step for step in provenance.attributes.steps}
    return [
        replace(provenance, op=step.op.name, attributes=step.attributes)
        for step in steps.values()
        if step.op.forms
    ]


def _by_body(op: Operator) -> Find:
    """Returns what finds an operator that is written as the operators it stands for."""

    def find(node: Node, call: Call) -> Fused | None:
        attributes, operands = call.stated(op.attributes), dict[str, Value]()
        if attributes is None or op.body is None:
            return None
        if not matched(node.output, op.body(attributes), operands):
            return None
        return Fused(op.name, attributes, in_order(operands))

    return find


_BODIES = {op.name: _by_body(op) for op in OPERATORS if op.body}
STATED: Mapping[str, Find] = {**ACTIVATIONS, **PRODUCTS, **_BODIES}
"""What completes each operator, by the operator that a span names."""

PARTIAL = frozenset(("Min", "Max"))
"""Operators that are looked for behind a call of their own name too."""

_FORMS = unmistakable()
UNMISTAKABLE: Mapping[str, Sequence[Find]] = {
    **_FORMS,
    "Add": (linear, *_FORMS["Add"], STATED["Conv"], STATED["ConvTranspose"]),
    "Where": (STATED["PRelu"],),
}
"""Chains that are read without a span, by the operator that ends them."""
