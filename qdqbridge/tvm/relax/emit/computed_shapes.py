"""Shapes that are computed at run time: targets of Reshape and Expand, lengths of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax, tirx

from qdqbridge.core.graph.graph import Node
from qdqbridge.tvm.qnn.emit.emitter import Expr, unsupported

if TYPE_CHECKING:
    from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter

op: Any = relax.op


def run_time_extent(emitter: RelaxEmitter, x: Expr, axis: int, dtype: str) -> Expr:
    """Returns the length of an axis as a scalar; a constant where it is known."""
    extent = x.ty.shape.values[axis]
    if isinstance(extent, int | tirx.IntImm):
        return emitter.number(np.asarray(int(extent), dtype))
    picked = op.take(shape_vector(emitter, x), emitter.number(np.asarray([axis], np.int64)), axis=0)
    return emitter.cast(emitter.emit(op.squeeze(emitter.emit(picked), [0])), dtype)


def run_time_reshape(emitter: RelaxEmitter, node: Node, x: Expr, *, allow_zero: bool) -> list[Any]:
    """Returns the extents that operand 1 of a Reshape asks for: 0 copies one, -1 is what is left.

    Raises:
        UnsupportedTargetError: The rank of the result is not known.
    """
    target, rank = _shape_operand_and_rank(emitter, node)
    if not allow_zero:
        own = shape_vector(emitter, x, rank)
        zero = emitter.emit(op.equal(target, _int64_scalar(emitter, 0)))
        target = emitter.emit(op.where(zero, own, target))
    left = emitter.emit(op.equal(target, _int64_scalar(emitter, -1)))
    stated = emitter.emit(op.prod(emitter.emit(op.where(left, _int64_scalar(emitter, 1), target))))
    total = emitter.emit(op.prod(shape_vector(emitter, x)))
    some = emitter.emit(
        op.maximum(stated, _int64_scalar(emitter, 1))
    )  # a division by 0 ends the process
    rest = emitter.emit(op.floor_divide(total, some))
    return _matched(emitter, node, emitter.emit(op.where(left, rest, target)))


def run_time_broadcast(emitter: RelaxEmitter, node: Node, x: Expr) -> list[Any]:
    """Returns the extents to which operand 1 of an Expand broadcasts ``x``.

    Raises:
        UnsupportedTargetError: The rank of the result is not known.
    """
    target, rank = _shape_operand_and_rank(emitter, node)
    have = len(x.ty.shape.values)
    own = shape_vector(emitter, x)
    if have < rank:
        own = emitter.emit(op.concat([emitter.number(np.ones(rank - have, np.int64)), own], axis=0))
    if rank < have:
        target = emitter.emit(
            op.concat([emitter.number(np.ones(have - rank, np.int64)), target], axis=0)
        )
    single = emitter.emit(op.equal(target, _int64_scalar(emitter, 1)))
    return _matched(emitter, node, emitter.emit(op.where(single, own, target)))


def _int64_scalar(emitter: RelaxEmitter, value: int) -> Expr:
    return emitter.number(np.asarray(value, np.int64))


def _shape_operand_and_rank(emitter: RelaxEmitter, node: Node) -> tuple[Expr, int]:
    """Returns operand 1 and the number of its elements."""
    target = emitter.value(node.operand(1))
    shape = target.ty.shape
    if shape is None or not shape.values or not isinstance(shape.values[0], int | tirx.IntImm):
        raise unsupported(node, "the rank of its result is known at run time only")
    return target, int(shape.values[0])


def shape_vector(emitter: RelaxEmitter, x: Expr, count: int | None = None) -> Expr:
    """Returns the extents of ``x`` as an int64 vector: the first ``count``, or 1 beyond them."""
    rank = len(emitter.extents(x))
    whole = emitter.emit(op.shape_to_tensor(emitter.emit(op.shape_of(x))))
    if count is None or count == rank:
        return whole
    if count < rank:
        return emitter.emit(op.strided_slice(whole, axes=[0], begin=[0], end=[count]))
    return emitter.emit(op.concat([whole, emitter.number(np.ones(count - rank, np.int64))], axis=0))


def _matched(emitter: RelaxEmitter, node: Node, target: Expr) -> list[Any]:
    """Returns the elements of an int64 vector as extents, bound to variables of the function."""
    count, shape = int(target.ty.shape.values[0]), node.output.type.shape
    names = shape or tuple(f"{node.output.name or 'extent'}_{i}" for i in range(count))
    extents: list[Any] = [name if isinstance(name, int) else emitter.extent(name) for name in names]
    found = emitter.emit(op.tensor_to_shape(target))
    emitter.builder.match_cast(found, relax.ShapeType(extents))
    return extents
