"""Activations and arithmetic that a host spells as several calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.operator import NO_ATTRIBUTES, Form, Operator, Pattern
from qdqbridge.graph.patterns import near, scalar
from qdqbridge.ops.attributes import (
    AlphaAttrs,
    ClipAttrs,
)
from qdqbridge.ops.data_movement import EXPAND
from qdqbridge.ops.elementwise import MAX, MIN, MUL, WHERE
from qdqbridge.ops.forms import outermost_forms, written
from qdqbridge.ops.table import OPERATORS
from qdqbridge.qnn.read.call import Call
from qdqbridge.qnn.read.fused import Find, Fused, present, stated_attributes


def _clip(node: Node, call: Call) -> Fused | None:
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
    given = stated_attributes(call, AlphaAttrs)
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
    if any(side is None or side.op.name != "Abs" for side in sides):
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
    "Clip": _clip,
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
