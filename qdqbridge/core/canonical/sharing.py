"""What a file writes twice is there once: a conversion of a value, what a subgraph captures."""

from __future__ import annotations

from collections.abc import Hashable

from qdqbridge.core.canonical.storage import same_elements
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule, stored_behind

_MANY = 64
"""Readers of one value that are compared one by one."""
_FEW = 64


_RANDOM = frozenset(
    (
        "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
        "Multinomial", "Dropout", "If", "Loop", "Scan",
    )
)  # fmt: skip
"""What gives other numbers each time, or may hold what does."""


_TAKE_IN = (Flow.ACCUMULATE, Flow.AVERAGE, Flow.ELEMENTWISE, Flow.ROUND)
"""What computes in integers where a quantize takes its result."""


@rule("merge-equal")
def merge_equal(node: Node, context: RuleContext) -> Proposal:
    """``f(x), f(x) -> f(x)`` (idioms A23, A24), as optimizers of files do, but of what is random.

    Not where each may take in a quantize of its own.
    """
    name = node.op.name
    if name in _RANDOM or (name not in BY_NAME and "::" in name):
        return None
    first = node.inputs[0] if node.inputs else None
    if len(node.outputs) != 1 or first is None or first.constant is not None:
        return None
    if _takes_in(node, context):
        return None
    for count, (other, _) in enumerate(first.users):
        if other is node:
            return None
        if count == _MANY:
            break
        if _equal(node, other) and not _takes_in(other, context):
            return Replace({node.output: other.output})
    # Behind so many readers: what was met before, which may have been rewritten meanwhile.
    count = node.op.commuting
    operands = (*sorted(map(id, node.inputs[:count])), *map(_identity, node.inputs[count:]))
    key = node.op.name, repr(node.attributes), operands, node.output.type
    other = context.shared.setdefault(key, node)
    if other is node:
        return None
    if other.linked and _equal(node, other) and not _takes_in(other, context):
        return Replace({node.output: other.output})
    context.shared[key] = node
    return None


def _takes_in(node: Node, context: RuleContext) -> bool:
    """True for an operator of quantized values that a quantize reads."""
    if node.op.flow not in _TAKE_IN or node.output.quant is not None:
        return False
    stored = (v is not None and (v.quant or stored_behind(v)) for v in node.inputs)
    return any(stored) and any(reader.op is QUANTIZE for reader in context.readers(node.output))


@rule("capture-once")
def capture_once(node: Node, context: RuleContext) -> Proposal:
    """``If(c, x, x) -> If(c, x)``: what a subgraph captures under two names it captures once.

    An initializer and an Identity of it, say, or two initializers of the same few elements.
    """
    del context
    own = len(node.inputs) - node.attributes.captured()
    captured, found = node.inputs[own:], dict[Hashable, int]()
    firsts = [found.setdefault(_identity(value), place) for place, value in enumerate(captured)]
    if len(found) == len(captured):
        return None
    once = node.attributes.captured_once(firsts)
    operands = [*node.inputs[:own], *(captured[first] for first in found.values())]
    outputs = [Value(output.type, output.name) for output in node.outputs]
    for output, old in zip(outputs, node.outputs, strict=True):
        output.declared, output.metadata = old.declared, old.metadata
    Node(node.op, once, operands, outputs, node.origin)
    return Replace(dict(zip(node.outputs, outputs, strict=True)))


def _identity(value: Value | None) -> Hashable:
    """Returns what is equal of one value, and of two constants of the same few elements."""
    if value is None or value.constant is None or value.constant.size > _FEW:
        return value
    return value.type, value.constant.numpy().tobytes()


def _equal(node: Node, other: Node) -> bool:
    return (
        other.op is node.op
        and len(other.inputs) == len(node.inputs)
        and _same_operands(node, other)
        and other.attributes == node.attributes
        and repr(other.attributes) == repr(node.attributes)  # 0.0 == -0.0
        and len(other.outputs) == 1
        and other.output.type == node.output.type
    )


def _same_operands(node: Node, other: Node) -> bool:
    """True for the same operands; those that may change places stand in any order."""
    left, count = list(other.inputs), min(node.op.commuting, len(node.inputs))
    for index, value in enumerate(node.inputs):
        places = range(max(count - index, 1))
        place = next((i for i in places if _same_operand(left[i], value)), None)
        if place is None:
            return False
        del left[place]
    return True


def _same_operand(a: Value | None, b: Value | None) -> bool:
    """True for one value, and for two constants of the same few elements."""
    if a is b:
        return True
    if a is None or b is None or a.constant is None or b.constant is None or a.type != b.type:
        return False
    return a.constant.size <= _FEW and same_elements(a.constant, b.constant)
