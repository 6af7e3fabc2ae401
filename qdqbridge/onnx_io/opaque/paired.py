"""Operators without a row whose products of bytes lose something on simulated hardware.

onnxruntime computes them here, and loses nothing. Their integer sums are added here instead, with
what is lost. What follows the sums of QAttention and DynamicQuantizeLSTM is onnxruntime's own: it
runs an Attention or an LSTM of floats on them, whose weight is the identity (1.32,
``attention_quant.cc``, ``dynamic_quantize_lstm.cc``, ``uni_directional_lstm.cc``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.accumulator import Lost, exact_dtype, lost_of_bytes
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.core.ops.convolution import correlate
from qdqbridge.core.ops.dynamic import dynamic_codes, dynamic_parameters
from qdqbridge.core.ops.shapes import extents, padded, taps
from qdqbridge.onnx_io.codecs.view import NodeView
from qdqbridge.onnx_io.codecs.windows import kernel_of, window_of
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.runtime.products import PRODUCTS_OF_BYTES

Array = NDArray[Any]
Operands: TypeAlias = "Sequence[Array | None]"
RunNode: TypeAlias = "Callable[[NodeProto, int, Operands], Sequence[Array]]"
"""Runs a node, of a version of its domain, on operands."""
_LSTM_VERSION = 14


def multiplies_bytes(node: Node) -> bool:
    """Returns whether a node without a row has products of uint8 by int8 that can lose something.

    Of a ConvInteger these are uint8 weights by int8 data: its kernel multiplies weights by windows.
    """
    record = node.attributes
    if not isinstance(record, OpaqueAttrs):
        return False
    if (record.domain, record.op_type) not in _COMPUTED:
        return False
    operands = PRODUCTS_OF_BYTES[record.op_type]
    if node.operand(operands.signed[0][0]).type.dtype is not DType.INT8:
        return False
    unsigned = operands.unsigned
    return unsigned is None or node.operand(unsigned[0]).type.dtype is DType.UINT8


def computed_with_losses(node: Node, operands: Operands, run: RunNode) -> Sequence[Array] | None:
    """Returns the results of such a node where products of bytes lose something; None elsewhere.

    Args:
        operands: What it is given.
        run: Runs what follows the sums.
    """
    lost = lost_of_bytes(DType.UINT8, DType.INT8)
    if lost is None or not multiplies_bytes(node) or any(_nothing(each) for each in operands):
        return None
    record = node.record(OpaqueAttrs)
    return _COMPUTED[record.domain, record.op_type](record, operands, lost, run)


def _nothing(operand: Array | None) -> bool:
    return isinstance(operand, np.ndarray) and not operand.size


def _at(operands: Operands, index: int) -> Array | None:
    return operands[index] if index < len(operands) else None


def _array_of_operand(operands: Operands, index: int) -> Array:
    found = operands[index]
    assert found is not None
    return found


def _zero(point: Array | None) -> Array:
    """Returns a zero point as int32: one number, or one for each column."""
    if point is None:
        return np.zeros((), np.int32)
    return point.astype(np.int32).reshape(() if point.size == 1 else point.shape)


def _sums(codes: Array, zero: Array, weight: Array, weight_zero: Array, lost: Lost | None) -> Array:
    """Returns ``(codes - zero) @ (weight - weight_zero)`` with what is lost, as int64."""
    left, right = codes.astype(np.int32) - zero, weight.astype(np.int32) - weight_zero
    dtype = exact_dtype(left, right, weight.shape[-2])
    total = np.matmul(left.astype(dtype), right.astype(dtype)).astype(np.int64)
    return total if lost is None else total + lost(codes, weight)


# ---- products alone --------------------------------------------------------------------------


def _matmul_integer(
    record: OpaqueAttrs, operands: Operands, lost: Lost, run: RunNode
) -> Sequence[Array]:
    del record, run
    a, b = _array_of_operand(operands, 0), _array_of_operand(operands, 1)
    rows, columns = _zero(_at(operands, 2)), _zero(_at(operands, 3))
    if rows.ndim == 1:
        rows = rows[:, None]
    wide = [a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b]
    total = _sums(wide[0], rows, wide[1], columns, lost).astype(np.int32)
    vectors = ((a, -2), (b, -1))
    return [total.squeeze(tuple(axis for operand, axis in vectors if operand.ndim == 1))]


def _conv_integer(
    record: OpaqueAttrs, operands: Operands, lost: Lost, run: RunNode
) -> Sequence[Array]:
    """Every output channel is a row of codes, every window a column, its taps before its channels.

    Convolutions of one channel have no kernel of their own.
    """
    del run
    x, w = _array_of_operand(operands, 0), _array_of_operand(operands, 1)
    zero, weight_zero = _zero(_at(operands, 2)), _zero(_at(operands, 3))
    values = [Value(TensorType(DType.of(each.dtype), each.shape)) for each in (x, w)]
    view = NodeView(record.node.proto(), record.version, values)
    own = window_of(view, kernel_of(view, 1))
    window = own.strides, own.dilations, own.pads
    attrs = ConvAttrs(*window, group=view.int_("group", 1))
    out = extents(x.shape[2:], own.kernel, *window)
    left, right = x.astype(np.int32) - zero, w.astype(np.int32) - weight_zero
    dtype = exact_dtype(left, right, math.prod(w.shape[1:]))
    total = correlate(attrs, left.astype(dtype), right.astype(dtype)).astype(np.int64)
    around = padded(x, own.kernel, *window, out, int(zero))
    parts = (len(x), attrs.group, w.shape[1], math.prod(out))
    read = [view.reshape(parts) for _, view in taps(around, own.kernel, *window[:2], out)]
    terms = math.prod(w.shape[1:])
    columns = np.stack(read, axis=3).reshape(len(x), attrs.group, terms, parts[-1])
    missing = lost(w.reshape(attrs.group, -1, terms), columns)
    return [(total + missing.reshape(total.shape)).astype(np.int32)]


# ---- products inside -------------------------------------------------------------------------


def _attention(
    record: OpaqueAttrs, operands: Operands, lost: Lost, run: RunNode
) -> Sequence[Array]:
    x, w, bias, scale, factor = (_array_of_operand(operands, index) for index in range(5))
    total = _sums(x, _zero(_at(operands, 6)), w, _zero(_at(operands, 7)), lost)
    scales = (factor * scale.reshape(-1)[0]).reshape(() if factor.size == 1 else factor.shape)
    projected = total.astype(np.float32) * scales + bias
    own = record.node.proto()
    node = NodeProto(op_type="Attention", domain=record.domain, output=own.output)
    node.attribute.extend(a for a in own.attribute if a.name != "do_rotary")  # its kernel has none
    unit, none = np.eye(len(bias), dtype=np.float32), np.zeros_like(bias)
    return run(node, 1, [projected, unit, none, _at(operands, 5), _at(operands, 8)])


def _lstm(
    record: OpaqueAttrs, operands: Operands, lost: Lost, run: RunNode
) -> Sequence[Array] | None:
    """Goes through the steps: what a step gives is rounded for the next one.

    Both directions read and carry in one LSTM of one step, each its own part of what it is fed.
    """
    x, w, r = (_array_of_operand(operands, index) for index in range(3))
    steps, batch = x.shape[:2]
    directions, hidden = r.shape[:2]
    bias, lengths, first, cells, peepholes = (_at(operands, index) for index in range(3, 8))
    scales = [_array_of_operand(operands, index) for index in (8, 10)]
    zeros = [_array_of_operand(operands, index).astype(np.int32) for index in (9, 11)]
    lengths = np.full(batch, steps) if lengths is None else lengths
    most, signed = int(lengths.max()), w.dtype == np.int8

    def product(real: Array, which: int, direction: int) -> Array:
        weight = (w, r)[which][direction]
        scale, zero_point = dynamic_parameters(real, rows=False)
        codes = dynamic_codes(real, scale, zero_point)
        zero = zeros[which][direction].reshape(-1)[0]
        total = _sums(codes, zero_point, weight, zero, lost if signed else None)
        return total.astype(np.float32) * (scale.reshape(()) * scales[which][direction])

    own = record.node.proto()
    backwards = [False, True][:directions]
    if any(a.name == "direction" and a.s == b"reverse" for a in own.attribute):
        backwards = [True]
    turned = [_turned(x, lengths) if back else x for back in backwards]
    read = [
        product(each[:most].reshape(most * batch, -1), 0, direction).reshape(most, batch, -1)
        for direction, each in enumerate(turned)
    ]
    node = NodeProto(op_type="LSTM", output=["out_0", "", "out_2"])
    node.attribute.extend(own.attribute)
    unit = np.eye(4 * hidden * directions, dtype=np.float32).reshape(directions, 4 * hidden, -1)
    fixed = [unit, np.zeros((directions, 4 * hidden, hidden), np.float32), bias, None]
    h = np.zeros((directions, batch, hidden), np.float32) if first is None else first
    c = np.zeros_like(h) if cells is None else cells
    y = np.zeros((steps, directions, batch, hidden), np.float32)
    last, last_cells = np.zeros_like(h), np.zeros_like(h)
    for step in range(most):
        gates = [read[d][step] + product(h[d], 1, d) for d in range(directions)]
        fed = np.concatenate(gates, axis=-1)[None]
        if not np.isfinite(fed).all():  # 0 times an infinity is no 0
            return None
        made, c_made = run(node, _LSTM_VERSION, [fed, *fixed, None, c, peepholes])
        lasts = (lengths > step)[None, :, None]
        # what is carried behind the end of a sequence is rounded with the others
        h = np.where(lasts, made[0], 0 if own.output[0] else h)
        c = np.where(lasts, c_made, c)
        last, last_cells = np.where(lasts, made[0], last), np.where(lasts, c_made, last_cells)
        y[step] = np.where(lasts, made[0], 0)
    for direction, back in enumerate(backwards):
        if back:
            y[:, direction] = _turned(y[:, direction], lengths)
    results = y, last, last_cells
    return [each for each, name in zip(results, own.output, strict=False) if name]


def _turned(x: Array, lengths: Array) -> Array:
    """Returns sequences with their elements in the other order, what is behind their ends stays."""
    found = x.copy()
    for lane, length in enumerate(lengths):
        found[:length, lane] = x[:length, lane][::-1]
    return found


_MICROSOFT = "com.microsoft"
_Computed: TypeAlias = "Callable[[OpaqueAttrs, Operands, Lost, RunNode], Sequence[Array] | None]"
_COMPUTED: Mapping[tuple[str, str], _Computed] = MappingProxyType(
    {
        ("", "ConvInteger"): _conv_integer,
        ("", "MatMulInteger"): _matmul_integer,
        (_MICROSOFT, "QAttention"): _attention,
        (_MICROSOFT, "DynamicQuantizeLSTM"): _lstm,
    }
)
