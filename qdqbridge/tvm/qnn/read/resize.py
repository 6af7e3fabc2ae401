"""Resize, as the dialect calls it and as hosts call it on floats and stored integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.attribute_codecs import permuted_attributes, read_attributes
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow, Operator
from qdqbridge.core.graph.types import QuantType, TensorType, ValueType
from qdqbridge.core.layout import channels_first as first
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    DepthSpaceAttrs,
    PoolAttrs,
    ReduceAttrs,
    ResizeAttrs,
)
from qdqbridge.core.ops.build import inverse, permuted_shape
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.pooling import GLOBAL_POOLS
from qdqbridge.core.ops.resize import moves, with_defaults
from qdqbridge.core.ops.shapes import extents
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.tvm.qnn.origin import layout_of
from qdqbridge.tvm.qnn.ranges import ONE, data_letters
from qdqbridge.tvm.qnn.read import parameters
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.gather_concat import hinted, moved_operand, type_like
from qdqbridge.tvm.qnn.read.parameters import channels_first, laid_out
from qdqbridge.tvm.qnn.read.reader import CallReader, Ints, rows_of
from qdqbridge.tvm.qnn.read.reading import Reading, Row, tensor
from qdqbridge.tvm.qnn.read.rules.recorded import provenance_of_node
from qdqbridge.tvm.qnn.weights import axis_weights

# ---- rows over images that hosts have beside what emission writes: global pools and blocks -------


def in_layout(
    reader: CallReader, op: str, attributes_of: Callable[[Value, TensorType], Attributes]
) -> Value:
    """Returns ``op`` of operand 0 with channels first, brought back into the call's layout.

    Args:
        reader: The call.
        op: The row's name.
        attributes_of: Makes the attributes from the operand and the type of the result, both with
            channels first.
    """
    data, rank = reader.value(0), len(reader.result.shape or ())
    layout = reader.text("layout") or (data_letters(rank - 2) if 3 <= rank <= 5 else "")
    x, back = channels_first(reader.reading, data, layout, rank - 2)
    shape = (
        reader.result.shape if back is None else permuted_shape(reader.result.shape, inverse(back))
    )
    attributes = attributes_of(x, TensorType(reader.result.dtype, shape))
    provenance = reader.call.provenance
    if not _moves(op, attributes) or (provenance and not any(provenance.operands)):
        x = reader.plain(x)
    type_: ValueType = reader.result if x.quant is None else x.quant.with_shape(reader.result.shape)
    return laid_out(
        reader.reading, type_, back, lambda inner: reader.emit(op, [x], attributes, inner)
    )


def _moves(op: str, attributes: Attributes) -> bool:
    if isinstance(attributes, ResizeAttrs):
        return attributes.mode == "nearest"
    return op in ("GlobalMaxPool", "DepthToSpace", "SpaceToDepth")


def global_pool(op: str) -> Callable[[CallReader], Value]:
    """Returns the row of ``nn.global_{max,avg}_pool2d`` and of adaptive pools to 1x1."""

    def row(reader: CallReader) -> Value:
        def attributes(x: Value, y: TensorType) -> Attributes:
            del x
            if any(extent != 1 for extent in (y.shape or ())[2:]):
                raise reader.refusal("it pools to several elements, with windows of unequal size")
            return NO_ATTRIBUTES

        return in_layout(reader, op, attributes)

    return row


def blocks(op: str) -> Callable[[CallReader], Value]:
    """Returns the row of ``nn.depth_to_space(x; block_size, mode)`` and its inverse."""

    def row(reader: CallReader) -> Value:
        mode = reader.text("mode", "DCR") if op == "DepthToSpace" else "DCR"
        attributes = DepthSpaceAttrs(reader.integer("block_size"), mode)
        return in_layout(reader, op, lambda x, y: attributes)

    return row


def batch_flatten(reader: CallReader) -> Value:
    """``nn.batch_flatten(x)``."""
    return reader.emit("Flatten", [reader.value(0)], AxisAttrs(1))


ROWS: Mapping[str, Row] = rows_of({
    **{f"nn.global_avg_pool{n}d": global_pool("GlobalAveragePool") for n in (1, 2, 3)},
    **{f"nn.global_max_pool{n}d": global_pool("GlobalMaxPool") for n in (1, 2, 3)},
    **{f"nn.adaptive_avg_pool{n}d": global_pool("GlobalAveragePool") for n in (1, 2, 3)},
    **{f"nn.adaptive_max_pool{n}d": global_pool("GlobalMaxPool") for n in (1, 2, 3)},
    "nn.depth_to_space": blocks("DepthToSpace"),
    "nn.space_to_depth": blocks("SpaceToDepth"),
    "nn.batch_flatten": batch_flatten,
})  # fmt: skip


_UNSAID = {
    "method": "linear", "coordinate_transformation_mode": "half_pixel", "rounding_method": "",
    "cubic_exclude": False,
}  # fmt: skip
"""What calls of hosts need not state."""


# ---- the dialect's ------------------------------------------------------------------------------
def quantized_resize(rank: int) -> Row:
    """Returns the row of ``qnn.resize<rank>d`` (0: of any axes), of open floats too."""

    def read(reading: Reading, call: Call) -> Value:
        if call.provenance is not None and not any(call.provenance.operands):
            return _plain_resize(reading, call)
        (data,) = parameters.operands(reading, call, ONE)
        data, back = channels_first(reading, data, str(call.get("layout") or ""), rank)
        attributes = _call_attributes(call, data, rank, back)
        return laid_out(
            reading, _result_type(reading, call, data, attributes), back,
            lambda inner: reading.node("Resize", attributes, [data], inner, call),
        )  # fmt: skip

    return read


def _plain_resize(reading: Reading, call: Call) -> Value:
    """Returns the Resize of what is not quantized, of the value in front of a Cast of its own."""
    data = reading.plain(call.args[0])
    node = data.producer
    if node is not None and node.op is CAST and provenance_of_node(node) == call.provenance:
        data = node.operand(0)
    attributes = _call_attributes(call, data, 0, None)
    return reading.node("Resize", attributes, [data], tensor(call), call)


def _result_type(reading: Reading, call: Call, data: Value, attributes: ResizeAttrs) -> ValueType:
    if call.dtype.is_float:
        return tensor(call)
    params = parameters.result(reading, call, ONE)
    if moves(attributes):
        params = parameters.as_moved(params, data)
    return QuantType(params, call.result.shape)


def _call_attributes(
    call: Call, data: Value, rank: int, back: tuple[int, ...] | None
) -> ResizeAttrs:
    total = data.rank or 0
    lead = total - rank if rank else 0
    scales = tuple(float(s) for s in call.get("scales") or ())
    own = tuple(d if isinstance(d, int) else 0 for d in data.type.shape or ())
    sizes = (*own[:lead], *call.ints("size"))
    shown = read_attributes(ResizeAttrs, call.attrs, total, rank)
    shown |= {
        "scales": (*(1.0,) * lead, *scales) if scales else None,
        "sizes": None if scales else sizes,
        "exclude_outside": shown["exclude_outside"] and shown["mode"] == "cubic",
        "roi": _roi(call, total) if call.get("roi") else (),
    }
    return _as_written(call, ResizeAttrs(**shown), sizes, back)


def _as_written(
    call: Call, attributes: ResizeAttrs, sizes: tuple[int, ...], back: tuple[int, ...] | None
) -> ResizeAttrs:
    """Returns the recorded attributes where what a call does not show is all that differs."""
    given = call.stated(ResizeAttrs)
    if given is not None and back is not None:
        given = permuted(given, len(back))
    if given is None:
        return attributes
    same = (given.mode, given.coordinate_transformation_mode, given.scales) == (
        attributes.mode, attributes.coordinate_transformation_mode, attributes.scales,
    )  # fmt: skip
    wanted = given.sizes or sizes
    fits = all(a == b or not b for a, b in zip(wanted, sizes, strict=True))
    return given if same and fits else attributes


def _roi(call: Call, rank: int) -> tuple[float, ...]:
    """Returns ONNX's region of interest over all axes from that of the resized ones.

    The others are taken whole.
    """
    roi = tuple(float(entry) for entry in call.get("roi") or ())
    half = len(roi) // 2
    lead = rank - half
    return (*(0.0,) * lead, *roi[:half], *(1.0,) * lead, *roi[half:])


def permuted(attributes: ResizeAttrs, rank: int) -> ResizeAttrs:
    """Returns attributes of channels-last data as those of channels first."""
    found = permuted_attributes(attributes, first(rank))
    assert isinstance(found, ResizeAttrs)
    return found


# ---- the hosts' ---------------------------------------------------------------------------------
def resize(reader: CallReader) -> Value:
    """``image.resize{1,2,3}d(x; size, method, coordinate_transformation_mode, …)``."""
    return in_layout(reader, "Resize", lambda x, y: _resize_attributes(reader, x, y))


def _resize_attributes(reader: CallReader, x: Value, y: TensorType) -> ResizeAttrs:
    """Returns the attributes; the sizes as scales where those are whole numbers."""
    before, sizes = _resize_extents(reader, x, y)
    stated = {name: value for name, value in reader.call.attrs.items() if value is not None}
    shown = read_attributes(ResizeAttrs, _UNSAID | stated, len(sizes))
    if shown["mode"] not in ("nearest", "linear", "cubic"):
        raise reader.refusal(f"its method is {shown['mode']}")
    # Whole factors mean the same either way, and go on meaning it where extents change.
    whole = all(after % extent == 0 for after, extent in zip(sizes, before, strict=True))
    factors = tuple(float(after // extent) for after, extent in zip(sizes, before, strict=True))
    shown |= {
        "nearest_mode": _rounding(shown["nearest_mode"], shown["coordinate_transformation_mode"]),
        "scales": factors if whole else None,
        "sizes": None if whole else sizes,
        "cubic_coeff_a": reader.number("cubic_alpha", -0.75),
        "exclude_outside": shown["exclude_outside"] and shown["mode"] == "cubic",
        "extrapolation_value": reader.number("extrapolation_value"),
        "roi": _roi(reader.call, len(sizes)),
    }
    return _as_stated(reader, with_defaults(ResizeAttrs(**shown)), before, sizes)


def _resize_extents(reader: CallReader, x: Value, y: TensorType) -> tuple[Ints, Ints]:
    """Returns the extents before and after; one that is kept and known at run time only is 1."""
    pairs = tuple(zip(reader.shape(x), reader.shape(Value(y)), strict=True))
    kept = [a == b and isinstance(a, str) for a, b in pairs]
    # An axis that keeps its extent has the factor 1, whatever the extent is.
    known = [(1, 1) if same else pair for same, pair in zip(kept, pairs, strict=True)]
    whole = all(isinstance(a, int) and isinstance(b, int) and b % a == 0 for a, b in known)
    if any(kept) and not whole:
        raise reader.refusal("an extent is not known before the model runs")
    before, after = ([int(side) for side in sides] for sides in zip(*known, strict=True))
    return tuple(before), tuple(after)


def _rounding(stated: str, coordinates: str) -> str:
    """Returns ONNX's nearest mode; what is not stated depends on the coordinates in Relay."""
    word = stated or ("round" if coordinates == "align_corners" else "floor")
    return "round_prefer_ceil" if word == "round" else word


def _as_stated(
    reader: CallReader, attributes: ResizeAttrs, before: Ints, after: Ints
) -> ResizeAttrs:
    """Returns the attributes of the span's Resize where they give every axis the same weights."""
    provenance, given = reader.call.provenance, reader.call.stated(ResizeAttrs)
    if provenance is None or given is None or given.mode != attributes.mode:
        return attributes
    if layout_of(provenance) is not None:
        given = permuted(given, len(before))
    for axis, (length, size) in enumerate(zip(before, after, strict=True)):
        # Modes have many names for one computation: what they make of each element decides.
        a, b = (axis_weights(each, axis, length, size) for each in (given, attributes))
        if not np.array_equal(a, b):
            return attributes
    return given


def upsampling(reader: CallReader) -> Value:
    """``nn.upsampling(x; scale_h, scale_w, method, align_corners)``."""
    method = reader.text("method", "nearest_neighbor")
    mode = {"nearest_neighbor": "nearest", "bilinear": "linear"}.get(method)
    if mode is None:
        raise reader.refusal(f"its method is {method}")
    corners = "align_corners" if reader.flag("align_corners") else "half_pixel"
    coordinates = "asymmetric" if mode == "nearest" else corners
    rounding = "floor" if mode == "nearest" else "round_prefer_floor"
    scales = (1.0, 1.0, reader.number("scale_h", 1.0), reader.number("scale_w", 1.0))
    attributes = ResizeAttrs(mode, coordinates, rounding, scales, None)
    return in_layout(reader, "Resize", lambda x, y: attributes)


RESIZE: Mapping[str, Row] = {
    "qnn.resize": quantized_resize(0),
    **{f"qnn.resize{rank}d": quantized_resize(rank) for rank in (1, 2, 3)},
}
"""The dialect's rows."""

HOST_RESIZE: Mapping[str, Row] = rows_of({
    **{f"image.resize{rank}d": resize for rank in (1, 2, 3)},
    "nn.upsampling": upsampling,
})  # fmt: skip
"""Those of hosts, by Relay's names."""


# ---- Pools and reductions, of floats, of codes and of stored integers that are picked alike ------


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
