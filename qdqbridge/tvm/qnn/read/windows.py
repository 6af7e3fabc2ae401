"""Pools and reductions, of floats, of codes and of stored integers that are picked alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qdqbridge.core.graph.attribute_codecs import read_attributes
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow, Operator
from qdqbridge.core.graph.types import QuantType, ValueType
from qdqbridge.core.ops.attributes import PoolAttrs, ReduceAttrs
from qdqbridge.core.ops.pooling import GLOBAL_POOLS
from qdqbridge.core.ops.shapes import extents
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.tvm.qnn.read import parameters
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.data_movement import hinted, moved_operand, type_like
from qdqbridge.tvm.qnn.read.layout import channels_first, laid_out
from qdqbridge.tvm.qnn.read.reading import Reading, Row, tensor
from qdqbridge.tvm.qnn.signatures import ONE


@dataclass(frozen=True, slots=True)
class CallKind:
    """What calls of one kind compute on.

    Attributes:
        operand: Returns the operand of a call.
        result: Returns the type of its result, from the operand.
        host_name: The name of a row's call of this kind, with ``{rank}``; empty where it has none.
        moves: The result has the operand's quantization.
    """

    operand: Callable[[Reading, Call], Value]
    result: Callable[[Reading, Call, Value], ValueType]
    host_name: Callable[[Operator], str]
    moves: bool = False


FLOATS = CallKind(
    lambda reading, call: reading.plain(call.args[0]),
    lambda reading, call, data: tensor(call),
    lambda row: "" if row.flow is Flow.MOVE else row.tvm,
)
CODES = CallKind(
    lambda reading, call: parameters.operands(reading, call, ONE)[0],
    lambda reading, call, data: QuantType(parameters.result(reading, call, ONE), call.result.shape),
    lambda row: row.qnn and f"qnn.{row.qnn}",
)
PICKED = CallKind(
    moved_operand,
    lambda reading, call, data: type_like(data, call),
    lambda row: row.tvm if row.flow is Flow.MOVE else "",
    moves=True,
)
_KINDS = (FLOATS, CODES, PICKED)


def pool(row: Operator, rank: int, kind: CallKind) -> Row:
    """Returns the row of ``nn.max_pool<rank>d(x)``, ``qnn.avg_pool<rank>d(x, sx, zx, sy, zy)``."""

    def read(reading: Reading, call: Call) -> Value:
        data = kind.operand(reading, call)
        data, back = channels_first(reading, data, str(call.get("layout") or ""), rank)
        attributes = pool_attributes(call, rank, data)
        value = laid_out(
            reading, kind.result(reading, call, data), back,
            lambda inner: reading.node(row, attributes, [data], inner, call),
        )  # fmt: skip
        return hinted(reading, call, value) if kind.moves and back is None else value

    return read


def reduction(row: Operator, everywhere: Operator | None, kind: CallKind) -> Row:
    """Returns the row of ``mean``, ``qnn.sum``, ``max``; ``everywhere`` is its global pool."""

    def read(reading: Reading, call: Call) -> Value:
        data = kind.operand(reading, call)
        chosen, attributes = _reduced(call, data, row, everywhere)
        type_ = kind.result(reading, call, data)
        value = reading.node(chosen, attributes, [data], type_, call)
        return hinted(reading, call, value) if kind.moves else value

    return read


def pool_attributes(call: Call, rank: int, data: Value) -> PoolAttrs:
    """Returns the attributes of a pool; those its span records where the windows are the same.

    Args:
        call: The call.
        rank: Number of spatial axes.
        data: Its operand, channels first.
    """
    attributes = PoolAttrs(**read_attributes(PoolAttrs, call.attrs, rank + 2, rank))
    given = call.stated(PoolAttrs)
    if given is None or (given.kernel_shape, given.strides, given.dilations) != (
        attributes.kernel_shape, attributes.strides, attributes.dilations,
    ):  # fmt: skip
        return attributes
    if given.count_include_pad != attributes.count_include_pad and any(attributes.pads):
        return attributes
    same = given.pads == attributes.pads
    return given if same or _same_windows(given, attributes, data) else attributes


def _same_windows(given: PoolAttrs, stated: PoolAttrs, data: Value) -> bool:
    """True where the end pads that a call states stand for the ceil_mode of its span."""
    rank, sizes = len(given.kernel_shape), (data.type.shape or ())[2:]
    if not given.ceil_mode or given.pads[:rank] != stated.pads[:rank] or len(sizes) != rank:
        return False
    for axis, size in enumerate(sizes):
        if not isinstance(size, int):
            if stated.pads[rank + axis] - given.pads[rank + axis] != given.strides[axis] - 1:
                return False
            continue
        counts = [
            extents(
                [size], a.kernel_shape[axis : axis + 1], a.strides[axis : axis + 1],
                a.dilations[axis : axis + 1], a.pads[axis::rank], ceil_mode=a.ceil_mode,
            )
            for a in (given, stated)
        ]  # fmt: skip
        if counts[0] != counts[1]:
            return False
    return True


def _reduced(
    call: Call, data: Value, row: Operator, everywhere: Operator | None
) -> tuple[Operator, Attributes]:
    """Returns operator and attributes of a reduction, or of the global pool that it is."""
    rank, attributes = data.rank or 0, reduced_axes(call, data)
    said = everywhere is not None and (
        call.provenance is None or call.provenance.op == everywhere.name
    )
    spatial = rank > 2 and attributes.axes == tuple(range(2, rank))
    if everywhere is not None and said and spatial and attributes.keepdims:
        return everywhere, NO_ATTRIBUTES
    return row, attributes


def reduced_axes(call: Call, data: Value) -> ReduceAttrs:
    """Returns what a reduction reduces; every axis where it names none."""
    shown = {"axis": None, "keepdims": False, **call.attrs}
    return ReduceAttrs(**read_attributes(ReduceAttrs, shown, data.rank or 0))


def _reductions(kind: CallKind) -> dict[str, Row]:
    everywhere = {kind.host_name(row): row for row in GLOBAL_POOLS}
    rows = [row for row in OPERATORS if row.attributes is ReduceAttrs]
    names = {kind.host_name(row): row for row in rows}
    return {name: reduction(names[name], everywhere.get(name), kind) for name in names if name}


def _pools(kind: CallKind) -> dict[str, Row]:
    rows = [row for row in OPERATORS if row.attributes is PoolAttrs and kind.host_name(row)]
    return {
        kind.host_name(row).format(rank=rank): pool(row, rank, kind)
        for row in rows
        for rank in (1, 2, 3)
    }


WINDOWS: dict[str, Row] = {
    name: row for kind in _KINDS for name, row in (_pools(kind) | _reductions(kind)).items()
}
"""One row per pool and reduction, by Relay's name."""
