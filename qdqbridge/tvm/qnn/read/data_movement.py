"""What the rows of data-movement operators share."""

from __future__ import annotations

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import TensorType, ValueType
from qdqbridge.tvm.qnn.origin import element, moved_params, tells_params
from qdqbridge.tvm.qnn.read.call import Call, Entry
from qdqbridge.tvm.qnn.read.parameters import holds
from qdqbridge.tvm.qnn.read.reading import Reading


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


def _narrow(call: Call, value: Value) -> Value:
    """Returns plain integers of a constant in the sub-byte type that a span gives them."""
    wanted = () if call.provenance is None else call.provenance.operands
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
