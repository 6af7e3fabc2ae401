"""Plain operators that take parts of values or put them together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.attribute_codecs import read_attributes
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Attributes, Operator
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, ValueType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    ClipAttrs,
    PadAttrs,
    ShapeAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
)
from qdqbridge.core.ops.conversion import CAST, QUANTIZE, REQUANTIZE
from qdqbridge.core.ops.elementwise import WHERE
from qdqbridge.core.ops.selection import GATHER, SLICE, within
from qdqbridge.core.ops.shape_values import SHAPE
from qdqbridge.core.ops.shapes import sliced
from qdqbridge.core.ops.table import MOVED_ALIKE
from qdqbridge.tvm.qnn.origin import Provenance, element, moved_params, tells_params
from qdqbridge.tvm.qnn.ranges import FAR, open_bounds
from qdqbridge.tvm.qnn.read.call import Call, Entry
from qdqbridge.tvm.qnn.read.parameters import holds
from qdqbridge.tvm.qnn.read.reading import Reading, Row, flat
from qdqbridge.tvm.qnn.read.rules.recorded import provenance_of_node

# ---- What the rows of data-movement operators share ----------------------------------------------


def moved(reading: Reading, call: Call, name: str, attributes: Attributes, *more: Entry) -> Value:
    """Adds data movement of argument 0; its result has the operand's quantization."""
    data = moved_operand(reading, call)
    operands = [data, *(reading.plain(entry) for entry in more)]
    return hinted(
        reading, call, reading.node(name, attributes, operands, type_like(data, call), call)
    )


def moved_operand(reading: Reading, call: Call) -> Value:
    """Returns argument 0 as an operator has it that moves or picks values."""
    return _narrow(call, per_tensor(reading, call.args[0]))


def _narrow(call: Call, value: Value, index: int = 0) -> Value:
    """Returns plain integers of a constant in the sub-byte type that a span gives them."""
    wanted = () if call.provenance is None else call.provenance.operands[index : index + 1]
    if value.constant is None or value.quant is not None or not (wanted and wanted[0]):
        return value
    storage = element(wanted[0])[0]
    if not holds(value.type.dtype, storage):
        return value
    stored = value.constant.numpy()
    if stored.min(initial=0) < storage.qmin or stored.max(initial=0) > storage.qmax:
        return value
    data = value.constant.map(lambda array: array.astype(storage.numpy), dtype=storage)
    return Value(TensorType(storage, data.shape), value.name, constant=data)


def hinted(reading: Reading, call: Call, value: Value, index: int = 0) -> Value:
    """Notes what the span says that moved integers mean, for want of a reader that says it."""
    provenance = call.provenance
    if value.quant is None and provenance is not None and tells_params(provenance, index):
        reading.hints[value] = moved_params(provenance, index)
    return value


def per_tensor(reading: Reading, entry: Entry) -> Value:
    """Returns an operand; as plain integers where its parameters vary along an axis."""
    value = reading.value(entry)
    if value.quant is not None and not value.quant.params.per_tensor:
        return reading.plain(value)
    return value


def type_like(data: Value, call: Call, index: int = 0) -> ValueType:
    """Returns the type of a data-movement operator's result."""
    shape = call.results[index].shape
    if data.quant is not None:
        return data.quant.with_shape(shape)
    return TensorType(data.type.dtype, shape)


# ---- Plain operators that take parts of values or put them together ------------------------------


def strided_slice(reading: Reading, call: Call) -> Value:
    """``strided_slice(x, begin, end, strides, axes)``."""
    data = reading.value(call.args[0])
    extents = call.stated(ShapeAttrs)
    if extents is not None and data.producer is not None and data.producer.op is SHAPE:
        return reading.node("Shape", extents, data.producer.inputs, type_like(data, call), call)
    shape = data.type.shape or ()
    begin, end = call.ints("begin"), call.ints("end")
    axes = call.get("axes")
    chosen = tuple(range(len(begin))) if axes is None else call.ints("axes")
    chosen = tuple(a % max(len(shape), 1) for a in chosen)
    steps = call.get("strides")
    strides = (1,) * len(begin) if not steps else call.ints("strides")
    strides = strides * len(begin) if len(strides) == 1 else strides
    if call.get("slice_mode", "end") == "size":
        end = tuple(b + s if s >= 0 else _END for b, s in zip(begin, end, strict=True))
    attributes = SliceAttrs(begin, end, chosen, strides)
    given = call.stated(SliceAttrs)
    if given is not None and _ranges(given, shape) == _ranges(attributes, shape):
        attributes = given
    blocks = reading.memory.get(("repeated", data))
    if blocks is not None and chosen == (blocks[1],) and begin == (0,) and strides == (1,):
        return _cut(reading, data, chosen[0], end[0])
    return moved(reading, call, "Slice", attributes)


_END = (1 << 63) - 1


def _ranges(attributes: SliceAttrs, shape: tuple[Any, ...]) -> list[Any]:
    found: list[Any] = []
    rows = zip(attributes.axes, attributes.starts, attributes.ends, attributes.steps, strict=True)
    for axis, start, end, step in rows:
        extent = shape[axis]
        if isinstance(extent, int):
            found.append((axis, sliced(extent, start, end, step)))
        else:
            before = (
                step < 0 and start <= max(end, -FAR) < 0
            )  # backwards from there is from the first
            found.append((axis, *open_bounds(0 if before else start, end, step), step))
    return found


def repeat(reading: Reading, call: Call) -> Value:
    """``repeat(constant, repeats, axis)``: scales of blocks, spread over their elements."""
    data = reading.value(call.args[0])
    if data.constant is None:
        return reading.unread(call, "it repeats elements of what is not constant")[0]
    count, axis = call.integer("repeats"), call.integer("axis")
    value = reading.constant(np.repeat(data.constant.numpy(), count, axis))
    reading.memory["repeated", value] = (data, axis, count)
    return value


def _cut(reading: Reading, data: Value, axis: int, end: int) -> Value:
    assert data.constant is not None
    array = data.constant.numpy().take(range(end), axis=axis)
    value = reading.constant(np.asarray(array, order="C"))
    reading.memory["repeated", value] = reading.memory["repeated", data]
    return value


def take(reading: Reading, call: Call) -> Value:
    """``take(x, indices, axis)``."""
    data, index = reading.value(call.args[0]), reading.plain(call.args[1])
    axis = call.get("axis")
    if axis is None:
        return reading.unread(call, "it takes from all axes at once")[0]
    attributes = AxisAttrs(int(axis) % max(data.rank or 0, 1))
    index = _original_gather_indices(reading, call, data, index, attributes.axis)
    index = _clip_or_wrap_indices(reading, call, data, index, attributes.axis)
    return moved(reading, call, "Gather", attributes, index)


def _original_gather_indices(
    reading: Reading, call: Call, data: Value, index: Value, axis: int
) -> Value:
    """Returns the indices as the span writes them: negative ones, and another element type.

    At run time, ONNX itself does what ``where(i < 0, i + extent, i)`` does for Relax.
    """
    provenance, node = call.provenance, index.producer
    if provenance is None or provenance.op != "Gather":
        return index
    if node is not None:
        return node.operand(2) if node.op is WHERE else index
    written = provenance.more.get("indices")
    extent = None if data.type.shape is None else data.type.shape[axis]
    if index.constant is None or written is None or not isinstance(extent, int):
        return index
    if index.constant.size != written["size"]:
        return index
    array = index.constant.numpy().astype(written["dtype"])
    # Emission counts negative indices from the front, since `take` would clip them to 0.
    array.reshape(-1)[written["negative"]] -= extent
    return reading.constant(array, index.name)


def _clip_or_wrap_indices(
    reading: Reading, call: Call, data: Value, index: Value, axis: int
) -> Value:
    """Returns indices in range where the call says that others are clipped or wrapped."""
    mode = str(call.get("mode") or "fast")
    if call.provenance is not None or mode not in ("clip", "wrap"):
        return index
    extent = None if data.type.shape is None else data.type.shape[axis]
    if not isinstance(extent, int):
        raise reading.refused("its indices are clipped or wrapped by an extent that is not known")
    if index.constant is not None:
        array = index.constant.numpy()
        # ONNX's Gather neither clips nor wraps: indices that are out of range are an error.
        inside = array.clip(0, extent - 1) if mode == "clip" else np.mod(array, extent)
        return index if np.array_equal(array, inside) else reading.constant(inside, index.name)
    if mode == "wrap":
        raise reading.refused("it wraps indices that are known at run time only")
    return reading.node("Clip", ClipAttrs(0.0, extent - 1.0), [index], index.type)


def split(reading: Reading, call: Call) -> list[Value]:
    """``split(x, indices_or_sections, axis)``."""
    data = per_tensor(reading, call.args[0])
    axis = call.integer("axis", 0) % max(data.rank or 0, 1)
    sizes = [None if r.shape is None else r.shape[axis] for r in call.results]
    if any(not isinstance(size, int) for size in sizes):
        raise reading.refused("the extents of its parts are unknown")
    attributes = SplitAttrs(axis, tuple(s for s in sizes if isinstance(s, int)))
    types = [type_like(data, call, i) for i in range(len(call.results))]
    parts = reading.several("Split", attributes, [data], types, call)
    return [hinted(reading, call, part, i) for i, part in enumerate(parts)]


def pad(reading: Reading, call: Call) -> Value:
    """``nn.pad(x, pad_width, pad_mode, pad_value)``; a pad of integers is a stored integer."""
    data = per_tensor(reading, call.args[0])
    widths = tuple(int(w) for pair in call.attrs["pad_width"] for w in _pair(pair))
    begins, ends = widths[::2], widths[1::2]
    shown = read_attributes(PadAttrs, call.attrs, 0)
    mode: str = shown.get("mode", "constant")
    value: float = shown.get("value", 0.0) if mode == "constant" else 0.0
    type_ = type_like(data, call)
    if data.quant is not None and mode == "constant":
        code = np.asarray([value]).astype(data.type.dtype.numpy)
        # A ReLU's range may leave out the code of what is put around.
        params = _reaching(data.quant.params, int(code[0]))
        value = float(dequantize(code, params)[0])
        type_ = QuantType(params, type_.shape)
    attributes = PadAttrs((*begins, *ends), mode, value)
    return _uncropped(reading, call, data, attributes, type_)


def _reaching(params: QuantParams, code: int) -> QuantParams:
    """Returns parameters whose range has a code too: what is put around is not clamped."""
    return params.with_range(min(params.qmin, code), max(params.qmax, code))


def _pair(pair: Any) -> tuple[int, ...]:
    return (pair,) if isinstance(pair, int) else tuple(pair)


def _uncropped(
    reading: Reading, call: Call, data: Value, attributes: PadAttrs, type_: ValueType
) -> Value:
    """Joins a pad with what crops before it, or goes around more than once, as its span says."""
    given = call.stated(PadAttrs)
    if given is not None and given.mode == attributes.mode:
        value = attributes.value if given.mode == "constant" else given.value
        stated, (inner, around) = replace(given, value=value), _gone_around(data, given, attributes)
        node = inner.producer
        sources = [inner] if node is None or node.op is not SLICE else [inner, node.operand(0)]
        for source in sources:
            pairs = _pairs(given, source)
            cropped = any(min(pair) < 0 for pair in pairs)
            widths = tuple(
                0 if axis in around else max(pair[end], 0)
                for end in (0, 1)
                for axis, pair in enumerate(pairs)
            )
            if widths == attributes.pads and cropped == (source is not inner):
                return hinted(reading, call, reading.node("Pad", stated, [source], type_, call))
    value = reading.node("Pad", attributes, [data], type_, call)
    return hinted(reading, call, value)


def _gone_around(data: Value, given: PadAttrs, left: PadAttrs) -> tuple[Value, set[int]]:
    """Returns what is padded, and the axes that Gathers have padded, as Pad itself cannot."""
    rank, axes, node = len(given.pads) // 2, set[int](), data.producer
    while node is not None and node.op is GATHER:
        x, index, axis = node.operand(0), node.operand(1).constant, node.record(AxisAttrs).axis
        extent = x.type.shape[axis] if x.type.shape else None
        if index is None or not isinstance(extent, int) or any(left.pads[axis::rank]):
            break
        pads = [max(given.pads[axis], 0), max(given.pads[axis + rank], 0)]
        mode: Any = given.mode
        if not np.array_equal(index.numpy(), np.pad(np.arange(extent), pads, mode)):
            break
        axes.add(axis)
        data, node = x, x.producer
    return data, axes


def _pairs(given: PadAttrs, source: Value) -> list[tuple[int, int]]:
    """Returns what pads add to both ends of every axis, or crop of what there is."""
    rank = len(given.pads) // 2
    extents = source.type.shape or (None,) * rank
    pairs = zip(given.pads[:rank], given.pads[rank:], extents, strict=False)
    return [within(b, e, size) if isinstance(size, int) else (b, e) for b, e, size in pairs]


def tile(reading: Reading, call: Call) -> Value:
    """``tile(x, reps)``."""
    data = reading.value(call.args[0])
    reps, rank = call.ints("reps"), data.rank or 0
    if len(reps) > rank and data.type.shape is not None:
        # ONNX's Tile wants one number for each axis; TVM's adds axes in front.
        lead = len(reps) - rank
        wide = replace(call.result, shape=(1,) * lead + data.type.shape)
        axes = AxesAttrs(tuple(range(lead)))
        inner = replace(call, results=(wide,), provenance=None)
        call = replace(call, args=(moved(reading, inner, "Unsqueeze", axes),))
    reps = (1,) * (rank - len(reps)) + reps
    return moved(reading, call, "Tile", TileAttrs(reps))


def _converted(reading: Reading, call: Call, values: list[Value]) -> Value | None:
    """Returns the Concat that rounds its operands into its own type, as its span says it does."""
    provenance = call.provenance
    if provenance is None or provenance.op != "Concat":
        return None
    operands = [_unconverted(reading, value, provenance) for value in values]
    quants = [v.quant.params for v in values if v.quant is not None]
    into = {v.quant.params for v, o in zip(values, operands, strict=True) if v.quant and o is not v}
    if len(into) != 1:
        return None
    (params,) = into
    if not all(params.same_mapping(other) for other in quants):  # their ranges may be narrower
        return None
    for i, (operand, value) in enumerate(zip(operands, values, strict=True)):
        if operand is value and value.quant is None:  # an input of a region, integers as they are
            operands[i] = reading.stored(value, params)
    axis = _joined_axis(call, values)
    type_ = QuantType(params, call.result.shape)
    return reading.node("Concat", AxisAttrs(axis), operands, type_, call)


def _joined_axis(call: Call, values: list[Value]) -> int:
    """Returns the axis by the operands; TVM may not even know the rank of the result."""
    return int(call.get("axis") or 0) % max(values[0].rank or 0, 1)


def _unconverted(reading: Reading, value: Value, provenance: Provenance) -> Value:
    """Returns what the recorded node's own conversions make ``value`` of."""
    node = value.producer
    while node is not None and provenance_of_node(node) == provenance:
        if node.op not in (QUANTIZE, REQUANTIZE, CAST):
            break
        value = node.operand(0)
        node = value.producer
    return value


def concatenate(reading: Reading, call: Call) -> Value:
    """``concatenate(data, axis)``; integers of one quantization stay so."""
    values = [reading.value(entry) for entry in flat(call.args)]
    written = _converted(reading, call, values)
    if written is not None:
        return written
    narrow = [_narrow(call, value, index) for index, value in enumerate(values)]
    if len({value.type.dtype for value in narrow}) == 1:
        values = narrow
    axis = _joined_axis(call, values)
    params = {v.quant.params.widened() for v in values if v.quant is not None}
    common = next(iter(params)) if len(params) == 1 else None
    span = call.provenance
    if common is not None and span is not None and tells_params(span, 0):
        said = moved_params(span, 0)
        common = common if said is not None and said.same_mapping(common) else None
    if common is None or not common.per_tensor:
        plain = [reading.plain(value) for value in values]
        type_: ValueType = TensorType(plain[0].type.dtype, call.result.shape)
        return hinted(reading, call, reading.node("Concat", AxisAttrs(axis), plain, type_, call))
    stored = [reading.stored(value, common) for value in values]
    quants = [v.quant.params for v in stored if v.quant is not None]
    same = common.with_range(min(q.qmin for q in quants), max(q.qmax for q in quants))
    type_ = QuantType(same, call.result.shape)
    return reading.node("Concat", AxisAttrs(axis), stored, type_, call)


def moved_alike(row: Operator) -> Row:
    """Returns the row of a data-movement operator that hosts have too."""

    def read(reading: Reading, call: Call) -> Value:
        given = read_attributes(row.attributes, call.attrs, reading.value(call.args[0]).rank or 0)
        return moved(reading, call, row.name, row.attributes(**given), *call.args[1:])

    return read


GATHER_CONCAT: dict[str, Row] = {
    **{row.tvm: moved_alike(row) for row in MOVED_ALIKE},
    "strided_slice": strided_slice,
    "take": take,
    "repeat": repeat,
    "split": split,
    "nn.pad": pad,
    "tile": tile,
    "concatenate": concatenate,
}
"""One row per plain operator that moves values, by Relay's name."""
