"""Shapes that are computed at run time: targets of Reshape and Expand, lengths of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax, tirx

from qdqbridge.core.graph.graph import Node
from qdqbridge.tvm.qnn.emit.scope import Expr, unsupported

if TYPE_CHECKING:
    from qdqbridge.tvm.relax.emit.scope import RelaxScope

op: Any = relax.op


def run_time_extent(scope: RelaxScope, x: Expr, axis: int, dtype: str) -> Expr:
    """Returns the length of an axis as a scalar; a constant where it is known."""
    extent = x.ty.shape.values[axis]
    if isinstance(extent, int | tirx.IntImm):
        return scope.number(np.asarray(int(extent), dtype))
    picked = op.take(shape_vector(scope, x), scope.number(np.asarray([axis], np.int64)), axis=0)
    return scope.cast(scope.emit(op.squeeze(scope.emit(picked), [0])), dtype)


def run_time_reshape(scope: RelaxScope, node: Node, x: Expr, *, allow_zero: bool) -> list[Any]:
    """Returns the extents that operand 1 of a Reshape asks for: 0 copies one, -1 is what is left.

    Raises:
        UnsupportedTargetError: The rank of the result is not known.
    """
    target, rank = _target(scope, node)
    if not allow_zero:
        own = shape_vector(scope, x, rank)
        zero = scope.emit(op.equal(target, _number(scope, 0)))
        target = scope.emit(op.where(zero, own, target))
    left = scope.emit(op.equal(target, _number(scope, -1)))
    stated = scope.emit(op.prod(scope.emit(op.where(left, _number(scope, 1), target))))
    total = scope.emit(op.prod(shape_vector(scope, x)))
    some = scope.emit(op.maximum(stated, _number(scope, 1)))  # a division by 0 ends the process
    rest = scope.emit(op.floor_divide(total, some))
    return _matched(scope, node, scope.emit(op.where(left, rest, target)))


def run_time_broadcast(scope: RelaxScope, node: Node, x: Expr) -> list[Any]:
    """Returns the extents to which operand 1 of an Expand broadcasts ``x``.

    Raises:
        UnsupportedTargetError: The rank of the result is not known.
    """
    target, rank = _target(scope, node)
    have = len(x.ty.shape.values)
    own = shape_vector(scope, x)
    if have < rank:
        own = scope.emit(op.concat([scope.number(np.ones(rank - have, np.int64)), own], axis=0))
    if rank < have:
        target = scope.emit(
            op.concat([scope.number(np.ones(have - rank, np.int64)), target], axis=0)
        )
    single = scope.emit(op.equal(target, _number(scope, 1)))
    return _matched(scope, node, scope.emit(op.where(single, own, target)))


def _number(scope: RelaxScope, value: int) -> Expr:
    return scope.number(np.asarray(value, np.int64))


def _target(scope: RelaxScope, node: Node) -> tuple[Expr, int]:
    """Returns operand 1 and the number of its elements."""
    target = scope.value(node.operand(1))
    shape = target.ty.shape
    if shape is None or not shape.values or not isinstance(shape.values[0], int | tirx.IntImm):
        raise unsupported(node, "the rank of its result is known at run time only")
    return target, int(shape.values[0])


def shape_vector(scope: RelaxScope, x: Expr, count: int | None = None) -> Expr:
    """Returns the extents of ``x`` as an int64 vector: the first ``count``, or 1 beyond them."""
    rank = len(scope.extents(x))
    whole = scope.emit(op.shape_to_tensor(scope.emit(op.shape_of(x))))
    if count is None or count == rank:
        return whole
    if count < rank:
        return scope.emit(op.strided_slice(whole, axes=[0], begin=[0], end=[count]))
    return scope.emit(op.concat([whole, scope.number(np.ones(count - rank, np.int64))], axis=0))


def _matched(scope: RelaxScope, node: Node, target: Expr) -> list[Any]:
    """Returns the elements of an int64 vector as extents, bound to variables of the function."""
    count, shape = int(target.ty.shape.values[0]), node.output.type.shape
    names = shape or tuple(f"{node.output.name or 'extent'}_{i}" for i in range(count))
    extents: list[Any] = [name if isinstance(name, int) else scope.extent(name) for name in names]
    found = scope.emit(op.tensor_to_shape(target))
    scope.builder.match_cast(found, relax.ShapeType(extents))
    return extents
