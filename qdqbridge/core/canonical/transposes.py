"""The rule for regions of another layout: transposes around them cancel."""

from __future__ import annotations

from dataclasses import dataclass, field

from qdqbridge.core.graph.attribute_codecs import permuted_attributes
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.attributes import (
    ReduceAttrs,
    SoftmaxAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.build import permuted_operand, permuted_type
from qdqbridge.core.ops.cast import CAST
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE, REQUANTIZE
from qdqbridge.core.ops.data_movement import TRANSPOSE
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.reduction import REDUCE_MAX, REDUCE_MIN
from qdqbridge.core.ops.selection import PAD
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

_MOST = 64
_CONVERTED = (QUANTIZE, DEQUANTIZE, REQUANTIZE, CAST)


@rule("region-of-a-layout", TRANSPOSE)
def region_of_a_layout(node: Node, context: RuleContext) -> Proposal:
    """``Transpose(op(Transpose(x))) -> op(x)`` where the second undoes the first.

    Of any number of elementwise operators, joins, conversions and reductions in between, if every
    way into them is such a transpose or a constant. Nothing is computed that was not.
    """
    attributes = node.attributes
    if not isinstance(attributes, TransposeAttrs) or node.operand(0).producer is None:
        return None
    source = node.operand(0)
    if source.producer is None or source.producer.op is TRANSPOSE:
        return None
    region = _FloatRegion(attributes.perm, context)
    value = region.permuted(source)
    if value is None or not region.cancelled:
        return None
    value.name = value.name or node.output.name
    return Replace({node.output: value})


@dataclass(slots=True)
class _FloatRegion:
    """What lies before a transpose, built anew in the layout behind it.

    Attributes:
        perm: The permutation of the transpose.
        context: The surroundings.
        made: What stands for what.
        cancelled: How many transposes into the region are undone.
    """

    perm: tuple[int, ...]
    context: RuleContext
    made: dict[Value, Value] = field(default_factory=dict[Value, Value])
    cancelled: int = 0

    def permuted(self, value: Value) -> Value | None:
        """Returns a value with its axes permuted, without a new transpose; None if there is none.

        A value that is read outside of the region too would be computed twice, so it is refused.
        """
        if value in self.made:
            return self.made[value]
        constant = value.constant is not None
        found = permuted_operand(value, self.perm) if constant else self._computed(value)
        if found is not None:
            self.made[value] = found
        return found

    def _computed(self, value: Value) -> Value | None:
        node = value.producer
        if node is None or len(self.made) > _MOST:
            return None
        attributes = node.attributes
        if isinstance(attributes, TransposeAttrs):
            undone = tuple(attributes.perm[axis] for axis in self.perm)
            if undone != tuple(range(len(self.perm))):
                return None
            self.cancelled += 1
            return node.operand(0)
        if len(node.outputs) != 1 or self.context.sole_reader(value) is None:
            return None
        movable = node.output.rank == len(self.perm) and _in_any_layout(node)
        return self._rebuilt(node) if movable else None

    def _rebuilt(self, node: Node) -> Value | None:
        operands: list[Value | None] = []
        for value in node.inputs:
            if value is None:
                operands.append(None)
                continue
            if value.constant is None and value.rank != len(self.perm):
                return None
            permuted = self.permuted(value)
            if permuted is None:
                return None
            operands.append(permuted)
        if node.output.type.shape is None:
            return None
        attributes = permuted_attributes(node.attributes, self.perm)
        result = Value(permuted_type(node.output.type, self.perm), node.output.name)
        Node(node.op, attributes, operands, [result], node.origin)
        return result


def _in_any_layout(node: Node) -> bool:
    """True for an operator that gives the same numbers wherever its axes lie in memory."""
    attributes = node.attributes
    if isinstance(attributes, SoftmaxAttrs):
        return len(attributes.axes) == 1
    if isinstance(attributes, ReduceAttrs):  # a sum depends on the order in memory
        return node.op in (REDUCE_MAX, REDUCE_MIN) and attributes.keepdims
    layouts = node.op in (CONCAT, PAD) or node.op in _CONVERTED
    return layouts or node.op.flow is Flow.ELEMENTWISE
