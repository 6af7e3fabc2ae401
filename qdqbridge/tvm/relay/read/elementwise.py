"""Rows of what only Relay writes so, element by element, and of what computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.ops.build import permuted_shape
from qdqbridge.tvm.qnn import read
from qdqbridge.tvm.qnn.read.call import Result
from qdqbridge.tvm.qnn.read.reader import CallReader, Read

_FAST = {"fast_tanh": "Tanh", "fast_exp": "Exp", "fast_erf": "Erf"}


def fast(reader: CallReader) -> Value:
    """``fast_<op>(x)``: an approximation of ``op`` that TVM's FastMath writes."""
    return reader.emit(_FAST[reader.name], [reader.real(0)])


def rsqrt(reader: CallReader) -> Value:
    """``1 / sqrt(x)``."""
    return reader.emit("Reciprocal", [reader.emit("Sqrt", [reader.real(0)])])


def prelu(reader: CallReader) -> Value:
    """``nn.prelu(x, slope; axis)``: a slope per channel."""
    x, slope = reader.real(0), reader.real(1)
    rank, axis = len(reader.shape(x)), reader.axis(default=1)
    if len(reader.shape(slope)) == 1 and axis != rank - 1:
        slope = reader.unsqueezed(slope, tuple(range(1, rank - axis)))
    return reader.emit("PRelu", [x, slope])


def on_channels(reader: CallReader) -> Read:
    """A norm whose channels may be on any axis: the shared row has them on axis 1."""
    x, axis = reader.real(0), reader.axis(default=1)
    rank, row = len(reader.shape(x)), read.ROWS[reader.name]
    if axis == 1 or rank < 2:
        return reader.shared()
    perm = (0, axis, *(i for i in range(1, rank) if i != axis))
    back = tuple(perm.index(i) for i in range(rank))
    first = Result(reader.call.result.dtype, permuted_shape(reader.call.result.shape, perm))
    args = (reader.transposed(x, perm, layout=True), *reader.call.args[1:])
    attrs, results = {**reader.call.attrs, "axis": 1}, (first, *reader.call.results[1:])
    found = row(reader.reading, replace(reader.call, args=args, attrs=attrs, results=results))
    values = found if isinstance(found, list) else [found]
    permuted = reader.transposed(reader.reading.value(values[0]), back, layout=True)
    return [permuted, *values[1:]] if isinstance(found, list) else permuted


def identity(reader: CallReader) -> Value:
    """Annotations and copies, which compute nothing."""
    return reader.value(0)


def filled(number: float) -> Callable[[CallReader], Value]:
    """Returns the row of a constant tensor of one number."""

    def row(reader: CallReader) -> Value:
        return reader.constant(np.full(reader.extents(), number, reader.result.dtype.numpy))

    return row


def full(reader: CallReader) -> Value:
    """``full(value; shape)``."""
    number = reader.array(0)
    if number is None:
        raise reader.refusal("its value is computed")
    return reader.constant(np.full(reader.extents(), number, reader.result.dtype.numpy))


ROWS: Mapping[str, Callable[[CallReader], Read]] = {
    **dict.fromkeys(_FAST, fast),
    "rsqrt": rsqrt,
    "nn.prelu": prelu,
    **dict.fromkeys(("nn.instance_norm", "nn.group_norm", "nn.batch_norm"), on_channels),
    "copy": identity,
    "annotation.cast_hint": identity,
    "annotation.stop_fusion": identity,
    "annotation.checkpoint": identity,
    "on_device": identity,
    "zeros": filled(0),
    "ones": filled(1),
    "full": full,
}
