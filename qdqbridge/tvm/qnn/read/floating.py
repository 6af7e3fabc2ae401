"""Plain operators on floats, and the integer arithmetic that belongs to products."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.attribute_codecs import Holds, attribute_codecs_of, read_attributes
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow, Operator
from qdqbridge.core.graph.types import TensorType, static_shape
from qdqbridge.core.ops.attributes import (
    CastAttrs,
    EpsilonAttrs,
    GeluAttrs,
    ReshapeAttrs,
    ShapeAttrs,
)
from qdqbridge.core.ops.build import Perm
from qdqbridge.core.ops.conversion import CAST, DEQUANTIZE
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.table import BY_NAME, OPERATORS
from qdqbridge.core.ops.unary import LEAKY_RELU
from qdqbridge.tvm.qnn.read.call import Call, Entry
from qdqbridge.tvm.qnn.read.conversions import clip
from qdqbridge.tvm.qnn.read.parameters import channels_first, laid_out, weight_first
from qdqbridge.tvm.qnn.read.reading import Reading, Row, tensor
from qdqbridge.tvm.qnn.read.rounded import stated_operands
from qdqbridge.tvm.qnn.read.rules.recorded import provenance_of_node


def made(
    reading: Reading, call: Call, name: str, attributes: Attributes, operands: list[Value]
) -> Value:
    """Adds a node on plain operands."""
    return reading.node(name, attributes, operands, tensor(call), call)


def plain(name: str, attributes: Attributes = NO_ATTRIBUTES, count: int = 0) -> Row:
    """Returns the row of an operator whose arguments are the node's operands.

    Args:
        name: The graph's operator.
        count: How many operands it has; by default as many as its row says.
    """
    count = count or BY_NAME[name].arity

    def read(reading: Reading, call: Call) -> Value:
        if count and len(call.args) != count:
            raise reading.refused(f"it has {len(call.args)} arguments, and {name} has {count}")
        operands = [reading.plain(entry) for entry in call.args]
        return made(reading, call, name, attributes, operands)

    return read


def bias_add(reading: Reading, call: Call) -> Entry:
    """``nn.bias_add(data, bias, axis)``."""
    data, bias = call.args
    rank = len(call.result.shape or ())
    axis = call.integer("axis", 1) % max(rank, 1)
    return made(reading, call, "Add", NO_ATTRIBUTES, [
        reading.plain(data), _column(reading, reading.plain(bias), rank - 1 - axis)
    ])  # fmt: skip


def _column(reading: Reading, bias: Value, trailing: int) -> Value:
    if not trailing or bias.rank != 1:
        return bias
    extents = (bias.type.shape or (0,))[0]
    shape = (extents, *([1] * trailing))
    attributes = ReshapeAttrs((-1, *([1] * trailing)))
    return reading.node("Reshape", attributes, [bias], TensorType(bias.type.dtype, shape))


def cast(reading: Reading, call: Call) -> Entry:
    """``cast(x, dtype)``; a DQ or product of another float type ends with one."""
    data = reading.value(call.args[0])
    node, provenance = data.producer, call.provenance
    if provenance is not None and provenance_of_node(node) == provenance and node is not None:
        if len(node.outputs) > 1 and node.op.name == provenance.op and data.quant is None:
            return data  # a part of a Split is quantized from its own type
        product = node.op.flow is Flow.ACCUMULATE and node.op.name == provenance.op
        if node.op is DEQUANTIZE or (
            product and data.quant is None
        ):  # rows look for these behind what they read
            return reading.retyped(data, tensor(call), call)
    if provenance is None and data.type.dtype is call.dtype:
        return data
    attributes = CastAttrs(call.dtype)
    return made(reading, call, "Cast", attributes, [reading.plain(data)])


def power(reading: Reading, call: Call) -> Value:
    """``power(x, exponent)``; Casts of its own brought the operands to one type."""
    operands = [_uncast(reading, call, reading.plain(entry)) for entry in call.args]
    return made(reading, call, "Pow", NO_ATTRIBUTES, operands)


def _uncast(reading: Reading, call: Call, value: Value) -> Value:
    """Returns what a Cast reads that belongs to the same node of the graph as ``call``."""
    node = value.producer
    if node is None or node.op is not CAST or call.provenance is None:
        return value
    return node.operand(0) if provenance_of_node(node) == call.provenance else value


def convolution(rank: int, *, transpose: bool) -> Row:
    """Returns the row of ``nn.conv<rank>d`` or its transpose."""

    def read(reading: Reading, call: Call) -> Value:
        x = reading.plain(call.args[0])
        x, back = channels_first(reading, x, str(call.get("data_layout") or ""), rank)
        layout = str(call.get("kernel_layout") or "")
        kernel, _ = weight_first(reading, call, x, layout, rank, transpose=transpose)
        row = CONV_TRANSPOSE if transpose else CONV
        attributes = row.attributes(**read_attributes(row.attributes, call.attrs, rank + 2, rank))
        operands = [x, reading.plain(kernel.args[1])]
        return _in_layout(reading, call, row.name, attributes, operands, back)

    return read


def _in_layout(
    reading: Reading, call: Call, name: str, attributes: Attributes, operands: list[Value],
    back: Perm | None,
) -> Value:  # fmt: skip
    if back is None:
        return made(reading, call, name, attributes, operands)
    return laid_out(
        reading, tensor(call), back,
        lambda inner: reading.node(name, attributes, operands, inner, call),
    )  # fmt: skip


def of_row(row: Operator) -> Row:
    """Returns the row of an operator that TVM has too: its operands, and its attributes."""

    def read(reading: Reading, call: Call) -> Value:
        operands = stated_operands(call, [reading.plain(entry) for entry in call.args])
        rank = operands[0].rank or 0
        shown = {"axis": -1, **call.attrs, **_first_axis(reading, call, row, rank)}
        given = read_attributes(row.attributes, shown, rank)
        given |= {name: _float_attribute(call, name) for name in given if name in _floats(row)}
        return made(reading, call, row.name, row.attributes(**given), operands)

    return read


def _floats(row: Operator) -> list[str]:
    shown = attribute_codecs_of(row.attributes)
    return [name for name, codec in shown.items() if codec.kind is float]


def _first_axis(reading: Reading, call: Call, row: Operator, rank: int) -> dict[str, int]:
    """Returns the first axis of a row that works over the last ones; TVM lists them all."""
    shown = attribute_codecs_of(row.attributes).values()
    if all(codec.holds is not Holds.LAST_AXES for codec in shown):
        return {}
    axes = sorted(a % max(rank, 1) for a in call.ints("axis" if "axis" in call.attrs else "axes"))
    if axes != list(range(axes[0], rank)):
        raise reading.refused(f"it normalizes axes {axes} of {rank}")
    return {"axis": axes[0]}


def batch_norm(reading: Reading, call: Call) -> list[Value]:
    """``nn.batch_norm(x, gamma, beta, mean, var)``; a graph has only the first of its results."""
    if call.get("training"):
        raise reading.refused("it normalizes with the statistics of the batch (training=True)")
    x, gamma, beta, *statistics = (reading.plain(entry) for entry in call.args)
    gamma = gamma if call.get("scale", True) else _filled_like(reading, gamma, 1)
    beta = beta if call.get("center", True) else _filled_like(reading, beta, 0)
    rank = max(x.rank or 0, 1)
    axis = call.integer("axis", 1) % rank
    if axis not in (1, rank - 1):
        raise reading.refused(f"its channels are on axis {axis} of {rank}")
    layout = "" if axis == 1 else "N" + "DHW"[5 - rank :] + "C"
    x, back = channels_first(reading, x, layout, rank - 2)
    attributes = EpsilonAttrs(_float_attribute(call, "epsilon"))
    operands = [x, gamma, beta, *statistics]
    value = _in_layout(reading, call, "BatchNormalization", attributes, operands, back)
    return [value, *reading.unread(call, "it also returns statistics")[1:]]


def _filled_like(reading: Reading, value: Value, number: float) -> Value:
    extents = static_shape(value.type.shape)
    if extents is None:
        raise reading.refused("the number of its channels is unknown")
    return reading.constant(np.full(extents, number, value.type.dtype.numpy))


def _float_attribute(call: Call, name: str) -> float:
    """Returns a float attribute: as its span writes it where that is the same in float32."""
    value = float(np.float32(call.attrs[name]))
    given = None if call.provenance is None else call.provenance.attributes
    written = getattr(given, name, None)
    same = isinstance(written, float) and np.float32(written) == np.float32(value)
    return written if same and written is not None else value


# ---- shapes and constants ----------------------------------------------------------------------


def shape_of(reading: Reading, call: Call) -> Value:
    """``shape_of(x)`` as an int64 vector."""
    data = reading.value(call.args[0])
    rank = data.rank
    type_ = TensorType(DType.INT64, None if rank is None else (rank,))
    return reading.node("Shape", ShapeAttrs(), [data], type_, call)


def same(reading: Reading, call: Call) -> Value:
    """Calls that only change how a host holds extents: a vector is a vector."""
    return reading.value(call.args[0])


def filled(number: float) -> Row:
    """Returns the row of ``zeros_like`` and ``ones_like``: a constant where the shape is known."""

    def read(reading: Reading, call: Call) -> Value:
        shape = call.result.shape
        if shape is None or any(isinstance(dim, str) for dim in shape):
            return reading.unread(call, "its shape is not known")[0]
        known = tuple(dim for dim in shape if isinstance(dim, int))
        return reading.constant(np.full(known, number, call.dtype.numpy))

    return read


def _gelu(approximate: str) -> Row:
    return plain("Gelu", GeluAttrs(approximate))


FLOATING: dict[str, Row] = {
    **{row.tvm: plain(row.name) for row in OPERATORS if row.tvm and row.arity and not row.fields},
    **{row.tvm: of_row(row) for row in OPERATORS if row.tvm and row.flow is Flow.ROUND},
    "divide": plain("Div"),
    "power": power,
    "where": plain("Where", count=3),
    "matmul": plain("MatMul", count=2),
    "add": plain("Add"),
    "nn.bias_add": bias_add,
    "cast": cast,
    "clip": clip,
    "nn.leaky_relu": of_row(LEAKY_RELU),
    "nn.gelu": _gelu("none"),
    "nn.gelu_tanh": _gelu("tanh"),
    "nn.batch_norm": batch_norm,
    "shape_of": shape_of,
    "shape_to_tensor": same,
    "tensor_to_shape": same,
    "zeros_like": filled(0.0),
    "ones_like": filled(1.0),
    **{
        f"nn.conv{rank}d{suffix}": convolution(rank, transpose=bool(suffix))
        for rank in (1, 2, 3)
        for suffix in ("", "_transpose")
    },
}
"""One row per plain operator on floats, by Relay's name."""
