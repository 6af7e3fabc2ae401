"""In which layout each operator can take its operands and give its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast

from qdqbridge.core.graph.attribute_codecs import Holds, attribute_codecs_of
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import AnyAttributes, Flow, Operator, Row, typed
from qdqbridge.core.graph.types import static_shape
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    ExpandAttrs,
    ReduceAttrs,
    SoftmaxAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.cast import CAST
from qdqbridge.core.ops.data_movement import (
    DEPTH_TO_SPACE,
    EXPAND,
    FLATTEN,
    IDENTITY,
    RESHAPE,
    SPACE_TO_DEPTH,
    SQUEEZE,
    TILE,
    TRANSPOSE,
    UNSQUEEZE,
)
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
)
from qdqbridge.core.ops.pooling import GLOBAL_POOLS
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.selection import GATHER, PAD, SLICE, SPLIT
from qdqbridge.core.ops.table import OPERATORS

# ---- the channels-last permutation, and which values do not notice it ----------------------------


def channels_last(rank: int) -> tuple[int, ...]:
    """Returns the permutation from (N, C, spatial…) to (N, spatial…, C)."""
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """Returns the inverse: axis ``a`` of (N, C, spatial…) is axis ``channels_first(r)[a]``."""
    return (0, rank - 1, *range(1, rank - 1))


def unmoved(value: Value) -> bool:
    """True where both layouts hold the elements in one order, so that a reshape converts them."""
    shape = value.type.shape
    return shape is not None and (shape[1:2] == (1,) or all(extent == 1 for extent in shape[2:]))


# --------------------------------------------------------------------------------------------------


class LayoutConstraint(Enum):
    """What an operand or result asks of the layout in which its value is stored."""

    AS_IS = "as the graph has it"
    LAST = "channels-last"
    FOLLOW = "whatever the node's other followers have"
    FREE = "whatever the value has"


@dataclass(frozen=True, slots=True)
class NodeConstraints:
    """The sides of a node's operands and results; a result is never FREE."""

    inputs: tuple[LayoutConstraint, ...]
    outputs: tuple[LayoutConstraint, ...]


def _over_windows(row: Operator) -> bool:
    window = any(
        codec.holds is Holds.SPATIAL for codec in attribute_codecs_of(row.attributes).values()
    )
    return (window and row.body is None) or row in GLOBAL_POOLS or row is RESIZE


WINDOWS = frozenset(row for row in OPERATORS if _over_windows(row))
"""Operators over windows: where channels-last is asked for, it is for them."""

_CHANNELS = frozenset(
    (INSTANCE_NORMALIZATION, GROUP_NORMALIZATION, BATCH_NORMALIZATION, DEPTH_TO_SPACE,
     SPACE_TO_DEPTH)
)  # fmt: skip
_ALONG = frozenset((CONCAT, SLICE, SPLIT, PAD, TILE, IDENTITY))
_CONVERTED = (Flow.CONVERT, Flow.REINTERPRET)


def constraints(node: Node, ranks: Collection[int], fixed: Collection[Operator]) -> NodeConstraints:
    """Returns the sides of a node.

    Args:
        node: Any node.
        ranks: Ranks of the values that may be stored channels-last.
        fixed: Operators whose host form is channels-first only.
    """
    result = node.output
    if node.op in fixed:
        return _all(node, LayoutConstraint.AS_IS)
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(node, ranks)
    if node.op in WINDOWS or node.op in _CHANNELS:
        side = LayoutConstraint.LAST if node.op in WINDOWS else LayoutConstraint.FOLLOW
        side = side if result.rank in ranks else LayoutConstraint.AS_IS
        return NodeConstraints(
            (side, *map(_weight_layout, node.inputs[1:])), _repeat_for_outputs(node, side)
        )
    if node.op in _ALONG or node.op.flow in _CONVERTED:
        return _all(node, LayoutConstraint.FOLLOW)
    if node.op.flow is Flow.ELEMENTWISE or node.op is CAST:
        return _elementwise(node)
    return _all(node, LayoutConstraint.AS_IS)


def _weight_layout(value: Value | None) -> LayoutConstraint:
    """A weight that is computed has its own axes; a constant is laid out as the call wants it."""
    return LayoutConstraint.FREE if value is None or value.is_constant else LayoutConstraint.AS_IS


def _repeat_for_outputs(node: Node, side: LayoutConstraint) -> tuple[LayoutConstraint, ...]:
    return (side,) * len(node.outputs)


def _all(node: Node, side: LayoutConstraint) -> NodeConstraints:
    return NodeConstraints((side,) * len(node.inputs), _repeat_for_outputs(node, side))


def _elementwise(node: Node) -> NodeConstraints:
    """Follows where every operand has all axes, or is a constant that can be given them."""
    rank = node.output.rank
    for value in node.inputs:
        if value is not None and value.rank != rank and not broadcast_constant(value):
            return _all(node, LayoutConstraint.AS_IS)
    return _all(node, LayoutConstraint.FOLLOW)


def broadcast_constant(value: Value) -> bool:
    """True for a constant that may be reshaped to more axes, and for any value of one element."""
    quant = value.quant
    plain = quant is None or quant.params.per_tensor
    return value.rank == 0 or (value.is_constant and plain)


def _reshape(node: Node, ranks: Collection[int]) -> NodeConstraints:
    """Batch and channels kept: a follower. One order of elements: a free operand or result."""
    before, after = node.operand(0), node.output
    rest = [LayoutConstraint.FREE] * (len(node.inputs) - 1)
    if after.type.shape is None or sum(isinstance(e, str) for e in after.type.shape) > 1:
        return NodeConstraints((LayoutConstraint.AS_IS, *rest), (LayoutConstraint.AS_IS,))
    if before.rank in ranks and after.rank in ranks and _keeps_channels(before, after):
        return NodeConstraints((LayoutConstraint.FOLLOW, *rest), (LayoutConstraint.FOLLOW,))
    taken = (
        LayoutConstraint.FREE
        if before.rank in ranks and unmoved(before)
        else LayoutConstraint.AS_IS
    )
    given = (
        LayoutConstraint.FOLLOW
        if after.rank in ranks and unmoved(after)
        else LayoutConstraint.AS_IS
    )
    return NodeConstraints((taken, *rest), (given,))


def _keeps_channels(before: Value, after: Value) -> bool:
    """True where a reshape splits or joins spatial axes only; one symbolic batch stays itself."""
    a, b = before.type.shape, after.type.shape
    rest = static_shape(a and a[1:]), static_shape(b and b[1:])
    if a is None or b is None or rest[0] is None or rest[1] is None:
        return False
    return rest[0][0] == rest[1][0] and math.prod(rest[0]) == math.prod(rest[1])


def _transpose(node: Node, attributes: TransposeAttrs, ranks: Collection[int]) -> NodeConstraints:
    """A change of layout written as a node is none where the values are stored so."""
    rank = node.output.rank
    if rank is not None and rank in ranks:
        if attributes.perm == channels_last(rank):
            return NodeConstraints((LayoutConstraint.LAST,), (LayoutConstraint.AS_IS,))
        if attributes.perm == channels_first(rank):
            return NodeConstraints((LayoutConstraint.AS_IS,), (LayoutConstraint.LAST,))
    return _all(node, LayoutConstraint.AS_IS)


def _dropping(node: Node, axes: Collection[int], ranks: Collection[int]) -> NodeConstraints:
    """An operator after which the axes that are left lie as before, or channels-last again."""
    rank, left = node.operand(0).rank, node.output.rank
    if rank is None or rank not in ranks or left is None:
        return _all(node, LayoutConstraint.AS_IS)
    kept = [axis for axis in channels_last(rank) if axis not in axes]
    order = tuple(sorted(kept).index(axis) for axis in kept)
    rest = [LayoutConstraint.FREE] * (len(node.inputs) - 1)
    if order == tuple(range(left)):
        return NodeConstraints((LayoutConstraint.FREE, *rest), (LayoutConstraint.AS_IS,))
    if left in ranks and order == channels_last(left):
        return NodeConstraints((LayoutConstraint.FOLLOW, *rest), (LayoutConstraint.FOLLOW,))
    return _all(node, LayoutConstraint.AS_IS)


def _reduce(node: Node, attributes: ReduceAttrs, ranks: Collection[int]) -> NodeConstraints:
    if attributes.keepdims:
        return _all(node, LayoutConstraint.FOLLOW)
    return _dropping(node, attributes.axes, ranks)


def _squeeze(node: Node, attributes: AxesAttrs, ranks: Collection[int]) -> NodeConstraints:
    return _dropping(node, attributes.axes, ranks)


def _softmax(node: Node, attributes: SoftmaxAttrs, ranks: Collection[int]) -> NodeConstraints:
    del ranks
    return _all(
        node,
        LayoutConstraint.FOLLOW if len(attributes.axes) == 1 else LayoutConstraint.AS_IS,
    )


def _gather(node: Node, ranks: Collection[int]) -> NodeConstraints:
    del ranks
    side = LayoutConstraint.FOLLOW if node.operand(1).rank == 1 else LayoutConstraint.AS_IS
    return NodeConstraints((side, LayoutConstraint.FREE), (side,))


def _expand(node: Node, attributes: ExpandAttrs, ranks: Collection[int]) -> NodeConstraints:
    shape, rank = attributes.shape, node.operand(0).rank
    whole = shape is not None and rank in ranks and rank == len(shape)
    return _all(node, LayoutConstraint.FOLLOW if whole else LayoutConstraint.AS_IS)


def _plain_rows(record: type[AnyAttributes]) -> list[Row[AnyAttributes]]:
    """Returns the operators that hosts compute in any layout, not by the steps of a body."""
    found = (row for row in OPERATORS if row.attributes is record and row.body is None)
    return [cast("Row[AnyAttributes]", row) for row in found]


_RULES: Mapping[Operator, Callable[[Node, Collection[int]], NodeConstraints]] = {
    RESHAPE: _reshape,
    FLATTEN: _reshape,
    UNSQUEEZE: _reshape,
    GATHER: _gather,
    **dict((typed(SQUEEZE, _squeeze), typed(TRANSPOSE, _transpose), typed(EXPAND, _expand))),
    **dict(typed(row, _reduce) for row in _plain_rows(ReduceAttrs)),
    **dict(typed(row, _softmax) for row in _plain_rows(SoftmaxAttrs)),
}
