"""The rule for islands of another layout: transposes around them cancel."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from qdqbridge.canonical.build import constant
from qdqbridge.canonical.rule import Proposal, Replace, Scope, rule
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.operator import Attributes, Flow
from qdqbridge.graph.types import QuantType, TensorType, ValueType
from qdqbridge.ops.attributes import (
    AxisAttrs,
    PadAttrs,
    ReduceAttrs,
    SoftmaxAttrs,
    TransposeAttrs,
)

_MOST = 64
_CONVERTED = ("quantize", "dequantize", "requantize", "Cast")


@rule("island-of-a-layout", "Transpose")
def island_of_a_layout(node: Node, scope: Scope) -> Proposal:
    """``Transpose(op(Transpose(x))) -> op(x)`` where the second undoes the first.

    Of any number of elementwise operators, joins, conversions and reductions in between, if every
    way into them is such a transpose or a constant. Nothing is computed that was not.
    """
    attributes = node.attributes
    if not isinstance(attributes, TransposeAttrs) or node.operand(0).producer is None:
        return None
    source = node.operand(0)
    if source.producer is None or source.producer.op.name == "Transpose":
        return None
    island = _Island(attributes.perm, scope)
    value = island.turned(source)
    if value is None or not island.cancelled:
        return None
    value.name = value.name or node.output.name
    return Replace({node.output: value})


@dataclass(slots=True)
class _Island:
    """What lies before a transpose, built anew in the layout behind it.

    Attributes:
        perm: The permutation of the transpose.
        scope: The surroundings.
        made: What stands for what.
        cancelled: How many transposes into the island are undone.
    """

    perm: tuple[int, ...]
    scope: Scope
    made: dict[Value, Value] = field(default_factory=dict[Value, Value])
    cancelled: int = 0

    def turned(self, value: Value) -> Value | None:
        """Returns a value with its axes permuted, without a new transpose; None if there is none.

        A value that is read outside of the island too would be computed twice, so it is refused.
        """
        if value in self.made:
            return self.made[value]
        found = self._constant(value) if value.constant is not None else self._computed(value)
        if found is not None:
            self.made[value] = found
        return found

    def _constant(self, value: Value) -> Value | None:
        data, rank = value.constant, len(self.perm)
        if data is None or (value.quant is not None and not value.quant.params.per_tensor):
            return None
        if data.size == 1 and len(data.shape) <= 1:
            return value
        wide = (1,) * (rank - len(data.shape)) + data.shape
        if len(wide) != rank:
            return None
        shape = tuple(wide[axis] for axis in self.perm)
        moved = data.map(lambda array: array.reshape(wide).transpose(self.perm), shape=shape)
        params = None if value.quant is None else value.quant.params
        return constant(moved, params, value.name)

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
        if len(node.outputs) != 1 or self.scope.sole_reader(value) is None:
            return None
        own = self._attributes(node)
        return None if own is None else self._rebuilt(node, own)

    def _rebuilt(self, node: Node, attributes: Attributes) -> Value | None:
        operands: list[Value | None] = []
        for value in node.inputs:
            if value is None:
                operands.append(None)
                continue
            if value.constant is None and value.rank != len(self.perm):
                return None
            turned = self.turned(value)
            if turned is None:
                return None
            operands.append(turned)
        type_ = self._type(node.output.type)
        if type_ is None:
            return None
        result = Value(type_, node.output.name)
        Node(node.op, attributes, operands, [result], node.origin)
        return result

    def _type(self, type_: ValueType) -> ValueType | None:
        if type_.shape is None:
            return None
        shape = tuple(type_.shape[axis] for axis in self.perm)
        if isinstance(type_, QuantType):
            return type_.with_shape(shape) if type_.params.per_tensor else None
        return TensorType(type_.dtype, shape)

    def _attributes(self, node: Node) -> Attributes | None:
        """Returns the attributes of an operator that may change its layout, else None."""
        attributes, place = node.attributes, self.perm.index
        if node.output.rank != len(self.perm):
            return None
        if node.op.name == "Concat" and isinstance(attributes, AxisAttrs):
            return AxisAttrs(place(attributes.axis))
        if isinstance(attributes, SoftmaxAttrs) and len(attributes.axes) == 1:
            return SoftmaxAttrs((place(attributes.axes[0]),))
        picks = node.op.name in ("ReduceMax", "ReduceMin")  # a sum depends on the order in memory
        if picks and isinstance(attributes, ReduceAttrs) and attributes.keepdims:
            return ReduceAttrs(tuple(sorted(place(axis) for axis in attributes.axes)))
        if isinstance(attributes, PadAttrs):
            rank = len(self.perm)
            sides = attributes.pads[:rank], attributes.pads[rank:]
            pads = tuple(side[axis] for side in sides for axis in self.perm)
            return replace(attributes, pads=pads)
        free = node.op.flow is Flow.ELEMENTWISE or node.op.name in _CONVERTED
        return attributes if free else None
