"""Rows of data-movement operators that only Relay has so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Origin, Value
from qdqbridge.core.graph.patterns import PatternMatch
from qdqbridge.core.graph.types import ValueType
from qdqbridge.core.layout import channels_first, channels_last
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    PadAttrs,
    ReshapeAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.build import permuted_shape
from qdqbridge.core.ops.data_movement import RESHAPE, TRANSPOSE
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.tvm.qnn.origin import converted, label, layout_of
from qdqbridge.tvm.qnn.read.accumulate import PRODUCT_BEHIND
from qdqbridge.tvm.qnn.read.call import Call, Entry, Result, constant_of
from qdqbridge.tvm.qnn.read.gather_concat import moved, per_tensor
from qdqbridge.tvm.qnn.read.parameters import transposed
from qdqbridge.tvm.qnn.read.reader import TO_FIRST, TO_LAST, WITHOUT_PROVENANCE, CallReader, Read
from qdqbridge.tvm.qnn.read.reading import Reading, Row, call_rule, flat
from qdqbridge.tvm.qnn.read.reshape import resolves
from qdqbridge.tvm.qnn.read.rules.recorded import provenance_of_node

# ---- What our own emission writes for tables and layouts, read back by what its spans say --------


_CONVOLUTIONS = ("Conv", "ConvTranspose")
_POOLS = ("GlobalAveragePool", "GlobalMaxPool")


@call_rule("needless-bias", (("add", "nn.bias_add"), PRODUCT_BEHIND, "bias"))
def needless_bias(reading: Reading, call: Call, match: PatternMatch) -> Value | None:
    """``add(product(x, w), 0) -> product(x, w)``: a table requires it, and no span names it."""
    provenance = call.provenance
    if provenance is None or len(provenance.operands) != 2:
        return None
    bias = constant_of(reading.value(match["bias"]))
    return None if bias is None or bias.any() else match["product"]


def channels_last_bias(row: Row) -> Row:
    """Returns ``row`` that reads what is added to a channels-last convolution as its bias."""

    def read(reading: Reading, call: Call) -> Entry:
        data, provenance = call.args[0], call.provenance
        if provenance is None or provenance.op not in _CONVOLUTIONS or not isinstance(data, Value):
            return row(reading, call)
        turn, bias = data.producer, reading.value(call.args[1])
        inner = None if turn is None or turn.op is not TRANSPOSE else turn.operand(0).producer
        if turn is None or inner is None or provenance_of_node(inner) != provenance:
            return row(reading, call)
        rank = len(call.result.shape or ())
        last = turn.attributes == TransposeAttrs(channels_last(rank))
        vector = bias.rank == 1 and bias.quant is None
        if not last or not vector or len(inner.inputs) != 2 or inner.op.name != provenance.op:
            return row(reading, call)
        operands = [*inner.inputs, bias]
        value = reading.node(inner.op, inner.attributes, operands, inner.output.type, call)
        return _laid_last(reading, value, data.type)

    return read


def channels_last_cast(row: Row) -> Row:
    """Returns ``row`` that reads a cast of a channels-last result as the node's own."""

    def read(reading: Reading, call: Call) -> Entry | list[Value]:
        data, rank = call.args[0], len(call.result.shape or ())
        turn = data.producer if isinstance(data, Value) else None
        if call.provenance is None or turn is None or rank < 3:
            return row(reading, call)
        inner = turn.operand(0).producer if turn.op is TRANSPOSE else None
        last = turn.attributes == TransposeAttrs(channels_last(rank))
        if inner is None or not last or provenance_of_node(inner) != call.provenance:
            return row(reading, call)
        shape = permuted_shape(call.result.shape, channels_first(rank))
        results = (Result(call.result.dtype, shape),)
        value = reading.value(
            flat([row(reading, replace(call, args=(inner.output,), results=results))])[0]
        )
        return _laid_last(reading, value, value.type.with_shape(call.result.shape))

    return read


def channels_last_pool(row: Row) -> Row:
    """Returns ``row`` that reads a reduction of the middle axes as the global pool of its span."""

    def read(reading: Reading, call: Call) -> Entry:
        data, rank = reading.value(call.args[0]), len(call.result.shape or ())
        provenance, middle = call.provenance, tuple(range(1, rank - 1))
        if provenance is None or provenance.op not in _POOLS or not call.get("keepdims", False):
            return row(reading, call)
        if tuple(sorted(axis % rank for axis in call.ints("axis"))) != middle:
            return row(reading, call)
        first = channels_first(rank)
        inner = replace(
            call,
            args=(transposed(reading, data, first), *call.args[1:]),
            attrs={**call.attrs, "axis": tuple(range(2, rank))},
            results=(Result(call.result.dtype, permuted_shape(call.result.shape, first)),),
        )
        value = reading.value(row(reading, inner))
        return _laid_last(reading, value, value.type.with_shape(call.result.shape))

    return read


# ---- reshapes that a layout plan rewrote -------------------------------------------------------

Extents = tuple[int, ...]


def spread(reading: Reading, call: Call) -> Value | None:
    """Reads a reshape of channels-last values as the node of the file that its span names.

    Returns:
        Its result; None where there is no such record, or where the node would not be the same
        reshape between two changes of the layout.
    """
    provenance = call.provenance
    layout = None if provenance is None else layout_of(provenance)
    if (
        provenance is None
        or layout is None
        or provenance.op not in ("Reshape", "Flatten", "Unsqueeze")
    ):
        return None
    data = per_tensor(reading, call.args[0])
    before, after = _static(data.type.shape), _static(call.result.shape)
    if before is None or after is None or not _same_order(before, after, layout):
        return None
    x = transposed(reading, data, channels_first(len(before))) if layout[0] else data
    target = permuted_shape(after, channels_first(len(after))) if layout[1] else after
    attributes = provenance.attributes
    if attributes is None or target != _shaped(attributes, _static(x.type.shape) or (), target):
        return None
    inner = replace(call, args=(x,), results=(Result(call.result.dtype, target),))
    value = moved(reading, inner, provenance.op, attributes)
    if not layout[1]:
        return value
    return _laid_last(reading, value, value.type.with_shape(after))


def _laid_last(reading: Reading, value: Value, type_: ValueType) -> Value:
    """Returns a channels-first result as the host has it, by a transpose that says so."""
    turn = TransposeAttrs(channels_last(value.rank or 0))
    last = reading.node("Transpose", turn, [value], type_)
    if last.producer is not None:
        last.producer.origin = Origin(variant=TO_LAST)
    return last


def _static(shape: object) -> Extents | None:
    fixed = isinstance(shape, tuple) and all(isinstance(extent, int) for extent in shape)
    return shape if fixed else None  # type: ignore[return-value] # integers


def _same_order(before: Extents, after: Extents, layout: tuple[bool, bool]) -> bool:
    """True where both layouts of operand and result hold elements in one order."""
    sides = [shape for shape, last in zip((before, after), layout, strict=True) if last]
    if any(len(shape) < 3 for shape in sides):
        return False
    if all(shape[-1] == 1 or set(shape[1:-1]) == {1} for shape in sides):
        return True
    return all(layout) and before[0] == after[0] and before[-1] == after[-1]


def _shaped(attributes: object, shape: Extents, target: object) -> object:
    """Returns the shape that a Reshape, Flatten or Unsqueeze gives; ``target`` if a Reshape can."""
    if isinstance(attributes, ReshapeAttrs):
        return target if resolves(attributes, shape, target) else None  # type: ignore[arg-type]
    if isinstance(attributes, AxisAttrs):
        axis = attributes.axis
        return math.prod(shape[:axis]), math.prod(shape[axis:])
    if not isinstance(attributes, AxesAttrs):
        return None
    rest = list(shape)
    for axis in sorted(attributes.axes):
        rest.insert(axis, 1)
    return tuple(rest)


# ---- Rows of data-movement operators that only Relay has so --------------------------------------


Array: TypeAlias = "NDArray[Any]"


def layout_transform(reader: CallReader) -> Value:
    """``layout_transform(x; src_layout, dst_layout)`` between layouts of the same axes."""
    source, target = reader.text("src_layout"), reader.text("dst_layout")
    if sorted(source) != sorted(target):
        raise reader.refusal(f"{source} to {target} is a blocked layout")
    return reader.transposed(reader.value(0), tuple(source.index(axis) for axis in target))


def reshape(reader: CallReader) -> Read:
    """``reshape(x; newshape)``: nothing at all where x has that shape, as importers write it."""
    value = reader.value(0)
    if reader.call.provenance is None and value.type.shape == reader.result.shape:
        return value
    found = _stacked(reader, value) or spread(reader.reading, reader.call)
    return _perhaps_layout(reader) if found is None else found


def _stacked(reader: CallReader, value: Value) -> Value | None:
    """Returns ``Dense(x)`` for ``reshape(Dense(reshape(x)))``: Relay's products have two axes."""
    node = value.producer
    if reader.call.provenance is not None or node is None or node.op is not DENSE:
        return None
    flat = node.operand(0).producer
    if flat is None or flat.op is not RESHAPE or flat.origin.variant != WITHOUT_PROVENANCE:
        return None
    x, shape = flat.operand(0), reader.result.shape
    if x.type.shape is None or shape is None or x.type.shape[:-1] != shape[:-1]:
        return None
    if x.type.shape[-1:] != (node.operand(0).type.shape or ())[-1:]:
        return None
    operands = [x, *node.inputs[1:]]
    type_ = value.type.with_shape(shape)
    return reader.reading.node(node.op, node.attributes, operands, type_, reader.call)


def transpose(reader: CallReader) -> Read:
    """``transpose(x; axes)``; around a convolution that TVM computes channels-first, a layout."""
    provenance, rank = reader.call.provenance, len(reader.result.shape or ())
    if (
        provenance is not None
        and provenance.op in ("Conv", "ConvTranspose")
        and layout_of(provenance) is not None
    ):
        perm = reader.ints("axes")
        if rank > 2 and perm in (channels_first(rank), channels_last(rank)):
            return reader.transposed(reader.value(0), perm, layout=True)
    return _perhaps_layout(reader)


def _perhaps_layout(reader: CallReader) -> Read:
    """Reads a call and marks its node where nothing says that a model had it."""
    value, last = reader.shared(), converted(reader.call.name)
    if reader.call.provenance is None and isinstance(value, Value) and value.producer is not None:
        node = value.producer
        node.origin = replace(node.origin, variant=WITHOUT_PROVENANCE)
        if last is not None:
            node.origin = Origin(variant=TO_LAST if last else TO_FIRST)
            value.name = label(value.name)
    return value


def stack(reader: CallReader) -> Value:
    """``stack((x…); axis)``."""
    axis = reader.axis(default=0, rank=len(reader.result.shape or ()))
    parts = [reader.unsqueezed(reader.plain(value), (axis,)) for value in reader.values(0)]
    return reader.emit("Concat", parts, AxisAttrs(axis))


def take(reader: CallReader) -> Read:
    """``take(x, indices; axis, mode)``; without axis from the flattened tensor.

    Constant indices beyond the ends are what ``mode`` makes of them; others are taken to be within.
    """
    x, axis = reader.value(0), reader.call.attrs.get("axis")
    rank = len(reader.shape(x))
    extent = int(np.prod(reader.static(x))) if axis is None else reader.shape(x)[int(axis) % rank]
    indices = reader.array(1)
    if isinstance(extent, int) and indices is not None:
        inside = _inside(indices, extent, reader.text("mode", "clip"))
        if not np.array_equal(inside, indices):
            operands = (x, reader.constant(inside))
            reader = replace(reader, call=replace(reader.call, args=operands))
    if axis is not None:
        return reader.shared()
    flat = reader.reshaped(x, (extent,))
    return reader.emit("Gather", [flat, reader.real(1)], AxisAttrs(0))


def _inside(indices: Array, extent: int, mode: str) -> Array:
    """Returns indices as Relay reads them; ``fast`` promises that they are within."""
    if mode == "wrap" and extent:
        return indices % extent
    return indices.clip(0, max(extent - 1, 0)) if mode == "clip" else indices


def mirror_pad(reader: CallReader) -> Value:
    """``nn.mirror_pad(x; pad_width, mode=REFLECT)``."""
    mode = reader.text("mode", "SYMMETRIC")
    if mode != "REFLECT":
        raise reader.refusal(f"its mode is {mode}")
    pairs: Sequence[Sequence[int]] = reader.call.attrs["pad_width"]
    widths = [int(pair[side]) for side in (0, 1) for pair in pairs]
    return reader.emit("Pad", [reader.value(0)], PadAttrs(tuple(widths), "reflect"))


ROWS: Mapping[str, Callable[[CallReader], Read]] = {
    "reshape": reshape,
    "transpose": transpose,
    "layout_transform": layout_transform,
    "stack": stack,
    "take": take,
    "nn.mirror_pad": mirror_pad,
}
