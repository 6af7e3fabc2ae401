"""What a file writes twice is there once: a conversion of a value, what a subgraph captures."""

from __future__ import annotations

from collections.abc import Hashable

from qdqbridge.core.canonical.storage import same_elements
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops import run_time_parameters
from qdqbridge.core.ops.table import BY_NAME, OPERATORS
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

_MERGED = (Flow.CONVERT, Flow.REINTERPRET, Flow.MOVE)
_MANY = 64
"""Readers of one value that are compared one by one."""
_FEW = 64


_SHARED = frozenset(
    (
        *(row.name for row in OPERATORS if row.flow in _MERGED),
        *(row.name for row in run_time_parameters.OPERATORS),
    )
)


_RANDOM = frozenset(
    (
        "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
        "Multinomial", "Dropout", "If", "Loop", "Scan",
    )
)  # fmt: skip
"""What gives other numbers each time, or may hold what does."""


@rule("merge-equal")
def merge_equal(node: Node, context: RuleContext) -> Proposal:
    """``f(x), f(x) -> f(x)`` for conversions and data-movement operators (idioms A23, A24).

    So for ONNX's operators without a row, but random ones: optimizers of files merge all of them.
    """
    name = node.op.name
    if name not in _SHARED and (name in BY_NAME or name in _RANDOM or "::" in name):
        return None
    first = node.inputs[0] if node.inputs else None
    if len(node.outputs) != 1 or first is None or first.constant is not None:
        return None
    for count, (other, _) in enumerate(first.users):
        if other is node:
            return None
        if count == _MANY:
            break
        if _equal(node, other):
            return Replace({node.output: other.output})
    # Behind so many readers: what was met before, which may have been rewritten meanwhile.
    operands = tuple(map(_identity, node.inputs))
    key = node.op.name, repr(node.attributes), operands, node.output.type
    other = context.shared.setdefault(key, node)
    if other is node:
        return None
    if other.linked and _equal(node, other):
        return Replace({node.output: other.output})
    context.shared[key] = node
    return None


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
        and all(map(_same_operand, other.inputs, node.inputs))
        and other.attributes == node.attributes
        and repr(other.attributes) == repr(node.attributes)  # 0.0 == -0.0
        and len(other.outputs) == 1
        and other.output.type == node.output.type
    )


def _same_operand(a: Value | None, b: Value | None) -> bool:
    """True for one value, and for two constants of the same few elements."""
    if a is b:
        return True
    if a is None or b is None or a.constant is None or b.constant is None or a.type != b.type:
        return False
    return a.constant.size <= _FEW and same_elements(a.constant, b.constant)
