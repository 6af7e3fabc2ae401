"""The operators that products stand for, of the steps of them that a host was given.

Each step says which operator it is a part of (``Origin.whole``), and where all are still there they
are that operator again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.graph import Node, Value, Whole
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operator
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.graph.types import QuantType, ValueType
from qdqbridge.core.ops.bodies import LETTERS, body_of, folded, parts, trimmed
from qdqbridge.core.ops.build import permuted_constant
from qdqbridge.core.ops.data_movement import TRANSPOSE
from qdqbridge.core.ops.matmul import DENSE, MATMUL, moved_type, no_number
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite import Replace, Rule, RuleContext, rule


@rule("operator-of-steps")
def operator_of_steps(node: Node, context: RuleContext) -> Replace | None:
    """``Conv(DepthToSpace(x), w) -> the operator whose steps say that they are its``."""
    del context
    whole = node.origin.whole
    row = None if whole is None else BY_NAME.get(whole.op)
    if whole is None or row is None or row.body is None or len(node.outputs) != 1:
        return None
    match = _BodyMatch(row, whole)
    body = body_of(row, whole.attributes, node.output.rank, len(whole.shapes))
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


RULES: tuple[Rule, ...] = (operator_of_steps,)
