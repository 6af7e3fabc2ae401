"""Maxima, and clips of stored integers: they pick values, so quantization stays."""

from __future__ import annotations

from qdqbridge.core.graph.attribute_codecs import read_attributes
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import Flow, Operator
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import ClipAttrs, PoolAttrs
from qdqbridge.core.ops.conversion import REINTERPRET
from qdqbridge.core.ops.windows import extents
from qdqbridge.tvm.qnn.origin import element
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.data_movement import hinted, moved, per_tensor, type_like
from qdqbridge.tvm.qnn.read.layout import channels_first, laid_out
from qdqbridge.tvm.qnn.read.parameters import changed, holds
from qdqbridge.tvm.qnn.read.reading import Reading, Row
from qdqbridge.tvm.qnn.read.rounded import reduced, reductions


def max_pool(rank: int) -> Row:
    """Returns the row of ``nn.max_pool<rank>d``."""

    def read(reading: Reading, call: Call) -> Value:
        data = per_tensor(reading, call.args[0])
        data, back = channels_first(reading, data, str(call.get("layout") or ""), rank)
        attributes = pool_attributes(call, rank, data)
        value = laid_out(
            reading, type_like(data, call), back,
            lambda inner: reading.node("MaxPool", attributes, [data], inner, call),
        )  # fmt: skip
        return hinted(reading, call, value) if back is None else value

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
    rank = len(given.kernel_shape)
    sizes = [extent for extent in (data.type.shape or ())[2:] if isinstance(extent, int)]
    if not given.ceil_mode or given.pads[:rank] != stated.pads[:rank] or len(sizes) != rank:
        return False
    counts = [
        extents(sizes, a.kernel_shape, a.strides, a.dilations, a.pads, ceil_mode=a.ceil_mode)
        for a in (given, stated)
    ]
    return counts[0] == counts[1]


def extreme(row: Operator, everywhere: Operator | None) -> Row:
    """Returns the row of ``max`` and ``min`` along axes."""

    def read(reading: Reading, call: Call) -> Value:
        data = reading.value(call.args[0])
        chosen, attributes = reduced(call, data, row, everywhere)
        return moved(reading, call, chosen.name, attributes)

    return read


def clip(reading: Reading, call: Call) -> Value:
    """``clip(x, a_min, a_max)`` of floats, and of stored integers: a narrower range."""
    data = reading.value(call.args[0])
    low, high = float(call.attrs["a_min"]), float(call.attrs["a_max"])
    if data.type.dtype.is_float:
        attributes = ClipAttrs(low, high)
        return reading.node("Clip", attributes, [data], type_like(data, call), call)
    if data.quant is None:
        return _clip_of_integers(reading, call, low, high)
    params = data.quant.params
    qmin, qmax = max(int(low), params.qmin), min(int(high), params.qmax)
    storage = _stated_storage(call, data, qmin, qmax)
    if storage is not None and (params.per_tensor or (qmin, qmax) == (storage.qmin, storage.qmax)):
        type_ = QuantType(changed(params, storage, qmin, qmax), data.type.shape)
        return reading.retyped(data, type_, call)
    if not params.per_tensor:
        return _clip_of_integers(reading, call, low, high)
    return reading.narrowed(data, params.with_range(qmin, qmax), call)


def _clip_of_integers(reading: Reading, call: Call, low: float, high: float) -> Value:
    plain = reading.plain(call.args[0])
    value = reading.node("Clip", ClipAttrs(low, high), [plain], type_like(plain, call), call)
    return hinted(reading, call, value)


def _stated_storage(call: Call, data: Value, qmin: int, qmax: int) -> DType | None:
    """Returns the sub-byte type that a clamped result has where its span says so."""
    records = () if call.provenance is None else call.provenance.results
    if not records or not records[0] or data.producer is None:
        return None
    storage = element(records[0])[0]
    fits = holds(data.type.dtype, storage) and storage.qmin <= qmin and qmax <= storage.qmax
    return storage if fits and data.producer.op is not REINTERPRET else None


def _extremes(row: Operator) -> str:
    return row.tvm if row.flow is Flow.MOVE else ""


MAX_AND_CLIP: dict[str, Row] = {
    "clip": clip,
    **{name: extreme(row, whole) for name, row, whole in reductions(_extremes)},
    **{f"nn.max_pool{rank}d": max_pool(rank) for rank in (1, 2, 3)},
}
"""One row per plain operator that picks values, by Relay's name."""
