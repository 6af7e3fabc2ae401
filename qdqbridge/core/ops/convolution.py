"""Conv and ConvTranspose: 1-D, 2-D and 3-D, grouped, dilated, with uneven padding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import (
    Array,
    Attributes,
    Flow,
    OnnxOp,
    Operands,
    Row,
    Types,
    WeightGeometry,
)
from qdqbridge.core.ops.accumulator import (
    Lost,
    accumulation_dtype,
    centered,
    exact_dtype,
    finished,
    integer_params,
    lost_of_bytes,
    with_bias,
)
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs
from qdqbridge.core.ops.shapes import (
    differ,
    extents,
    known,
    padded,
    per_channel,
    per_tensor,
    span,
    spatial_lengths,
    taps,
    vector_fits,
)
from qdqbridge.core.ops.stored import optional, present


def correlate(attrs: ConvAttrs, x: Array, w: Array) -> Array:
    """Returns the convolution sums of ``x[N, C, S…]`` with ``w[O, C/group, K…]``."""
    kernel, group, batch = w.shape[2:], attrs.group, x.shape[0]
    out = extents(x.shape[2:], kernel, attrs.strides, attrs.dilations, attrs.pads)
    around = padded(x, kernel, attrs.strides, attrs.dilations, attrs.pads, out, 0)
    weights = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    size = int(np.prod(out, dtype=np.int64))
    total = np.zeros((batch, *weights.shape[:2], size), x.dtype)
    for tap, view in taps(around, kernel, attrs.strides, attrs.dilations, out):
        columns = view.reshape(batch, group, w.shape[1], size)
        matrix = weights[(..., *tap)]
        # Depthwise: a product of matrices with one term each is slow for what is one
        # multiplication.
        total += matrix * columns if w.shape[1] == 1 else np.matmul(matrix, columns)
    return total.reshape(batch, w.shape[0], *out)


def lost_in_sums(attrs: ConvAttrs, codes: Array, w: Array, outside: int, lost: Lost) -> Array | int:
    """Returns what a simulated kernel adds to the sums of :func:`correlate`.

    A convolution is a product of matrices whose inner axis runs over channels first, then over
    taps. Sums over the taps of one channel each have a kernel of their own, which is exact.

    Args:
        attrs: Of the convolution.
        codes: Stored activations.
        w: Stored weights.
        outside: The code that lies around the image.
        lost: What is added to a product of matrices.
    """
    kernel, group, batch = w.shape[2:], attrs.group, codes.shape[0]
    if _geometry(attrs).alone(w.shape):
        return 0
    out = extents(codes.shape[2:], kernel, attrs.strides, attrs.dilations, attrs.pads)
    around = padded(codes, kernel, attrs.strides, attrs.dilations, attrs.pads, out, outside)
    size, terms = math.prod(out), math.prod(w.shape[1:])
    views = [v for _, v in taps(around, kernel, attrs.strides, attrs.dilations, out)]
    columns = np.stack([v.reshape(batch, group, w.shape[1], size) for v in views], axis=2)
    rows = w.reshape(group, w.shape[0] // group, w.shape[1], len(views))
    found = lost(
        np.swapaxes(columns.reshape(batch, group, terms, size), 2, 3),
        rows.transpose(0, 3, 2, 1).reshape(group, terms, -1),
    )
    return np.swapaxes(found, 2, 3).reshape(batch, w.shape[0], *out)


def scattered(attrs: ConvTransposeAttrs, x: Array, w: Array) -> Array:
    """Returns the transposed convolution sums of ``x[N, C, S…]`` with ``w[C, O/group, K…]``."""
    kernel, group, rank = w.shape[2:], attrs.group, x.ndim - 2
    full = [
        (size - 1) * attrs.strides[i] + span(kernel[i], attrs.dilations[i])
        for i, size in enumerate(x.shape[2:])
    ]
    room = [extent + attrs.output_padding[i] for i, extent in enumerate(full)]
    channels = w.shape[1] * group
    total = np.zeros((x.shape[0], channels, *room), x.dtype)
    columns = x.reshape(x.shape[0], group, x.shape[1] // group, math.prod(x.shape[2:]))
    weights = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    for tap, view in taps(total, kernel, attrs.strides, attrs.dilations, x.shape[2:]):
        matrix = np.swapaxes(weights[(..., *tap)], 1, 2)
        part = matrix * columns if matrix.shape[2] == 1 else np.matmul(matrix, columns)
        np.add(view, part.reshape(x.shape[0], channels, *x.shape[2:]), out=view)
    crop = tuple(slice(attrs.pads[i], room[i] - attrs.pads[i + rank]) for i in range(rank))
    return total[(slice(None), slice(None), *crop)]


def _geometry(attrs: ConvAttrs | ConvTransposeAttrs) -> WeightGeometry:
    if isinstance(attrs, ConvAttrs):
        return WeightGeometry(0, attrs.group, image=True)
    return WeightGeometry(1, attrs.group, attrs.group, image=True)


def _column(vector: Array, rank: int) -> Array:
    return vector.reshape(-1, *([1] * (rank - 2)))


def _conv(attrs: ConvAttrs, operands: Operands) -> tuple[Array, ...]:
    x, w = present(operands, 2)
    dtype = accumulation_dtype(x)
    total = correlate(attrs, x.astype(dtype), w.astype(dtype))
    return (_plus_bias(total, optional(operands, 2)).astype(x.dtype),)


def _conv_transpose(attrs: ConvTransposeAttrs, operands: Operands) -> tuple[Array, ...]:
    x, w = present(operands, 2)
    dtype = accumulation_dtype(x)
    total = scattered(attrs, x.astype(dtype), w.astype(dtype))
    return (_plus_bias(total, optional(operands, 2)).astype(x.dtype),)


def _plus_bias(total: Array, bias: Array | None) -> Array:
    return total if bias is None else total + _column(bias.astype(total.dtype), total.ndim)


def _contract(
    attrs: ConvAttrs | ConvTransposeAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    geometry = _geometry(attrs)
    px, pw = integer_params(types[0]), integer_params(types[1])
    if px is None or pw is None or not px.per_tensor or pw.axis not in (None, geometry.axis):
        return None
    x, w = present(operands, 2)
    cx, cw = centered(x, px), centered(w, pw)
    dtype = exact_dtype(cx, cw, geometry.terms(w.shape))
    cx, cw = cx.astype(dtype), cw.astype(dtype)
    total = correlate(attrs, cx, cw) if isinstance(attrs, ConvAttrs) else scattered(attrs, cx, cw)
    # Exact up to here in whatever type was fastest; biases of 32 bits may leave it.
    total = total.astype(np.int64)
    lost = lost_of_bytes(px.storage_dtype, pw.storage_dtype)
    if lost is not None and isinstance(attrs, ConvAttrs):
        total += lost_in_sums(attrs, x, w, int(px.zero_point), lost)
    scale = np.asarray(px.scale.astype(np.float32) * pw.scale.astype(np.float32), np.float32)
    scale = _column(geometry.spread(scale), x.ndim) if scale.ndim else scale
    bias = optional(operands, 2)
    column = None if bias is None else _column(bias, x.ndim)
    total, real = with_bias(total, scale, column, types[2] if bias is not None else None)
    return (finished(total, scale, real, results[0]),)


def _check_common(
    node: Node, lists: Sequence[tuple[str, Sequence[int], int, int]], axis: int
) -> Iterator[str]:
    x, w = node.operand(0), node.operand(1)
    if x.rank is not None and x.rank < 3:
        yield f"the input has rank {x.rank}; it needs a batch, a channel and a spatial axis"
        return
    if x.rank is not None and w.rank is not None and x.rank != w.rank:
        yield f"the weight has rank {w.rank} and the input {x.rank}"
    rank = x.rank or w.rank
    if rank is not None:
        yield from spatial_lengths(rank - 2, lists)
    yield from per_tensor(node, 0, "the input")
    yield from per_channel(node, 1, axis, "the weight")


def _check_conv(node: Node, attrs: ConvAttrs) -> Iterator[str]:
    yield from _check_common(
        node,
        (
            ("strides", attrs.strides, 1, 1),
            ("dilations", attrs.dilations, 1, 1),
            ("pads", attrs.pads, 2, 0),
        ),
        _geometry(attrs).axis,
    )
    channels, out = known(node.operand(0), 1), known(node.operand(1), 0)
    per_group = known(node.operand(1), 1)
    if attrs.group < 1:
        yield f"group is {attrs.group}"
        return
    if channels is not None and channels % attrs.group:
        yield f"group {attrs.group} does not divide the {channels} input channels"
    elif per_group is not None and differ(channels, per_group * attrs.group):
        yield f"the weight takes {per_group} x {attrs.group} channels, the input has {channels}"
    if out is not None and out % attrs.group:
        yield f"group {attrs.group} does not divide the {out} output channels"
    yield from vector_fits(node.optional(2), out, "the bias")


def _check_conv_transpose(node: Node, attrs: ConvTransposeAttrs) -> Iterator[str]:
    yield from _check_common(
        node,
        (
            ("strides", attrs.strides, 1, 1),
            ("dilations", attrs.dilations, 1, 1),
            ("pads", attrs.pads, 2, 0),
            ("output_padding", attrs.output_padding, 1, 0),
        ),
        _geometry(attrs).axis,
    )
    channels, per_group = known(node.operand(0), 1), known(node.operand(1), 1)
    if attrs.group < 1:
        yield f"group is {attrs.group}"
        return
    if differ(known(node.operand(1), 0), channels):
        yield f"the weight takes {known(node.operand(1), 0)} channels, the input has {channels}"
    elif channels is not None and channels % attrs.group:
        yield f"group {attrs.group} does not divide the {channels} input channels"
    out = None if per_group is None else per_group * attrs.group
    yield from vector_fits(node.optional(2), out, "the bias")


_NUMERICS = (
    "acc = exact sum of (x - zx)(w - zw) + bias_int32; y = sat(rint(f32(acc) * M) + zy), "
    "M = f32(f32(sx * sw) / sy) per output channel. Float result: f32(acc) * f32(sx * sw). "
    "Float bias b: quantize(f32(acc) * f32(sx * sw) + b); reading makes it bias_int32 = "
    "rint(b / (sx * sw)) where that moves y, before it is rounded, by 1/16 LSB at most. "
    "onnxruntime 1.32 with graph optimizations does so to every float bias. Float compute: sums in "
    "float64, rounded once. "
)

CONV = Row(
    name="Conv",
    onnx=(OnnxOp(name="Conv", defaults={"group": 1}, first=("group",)),),
    flow=Flow.ACCUMULATE,
    attributes=ConvAttrs,
    compute=_conv,
    contract=_contract,
    check=_check_conv,
    weight=lambda attributes, rank: _geometry(attributes),
    bias=True,
    qnn="conv{rank}d",
    tvm="nn.conv{rank}d",
    numerics=_NUMERICS + "SAME never crops; onnxruntime 1.32 shifts windows smaller than their "
    "stride. Against onnxruntime 1.31: its fused QLinearConv differs in 0 of "
    "1,160,000 results, its float kernel in 10 of 2,600,000 by 1 LSB, each a midpoint within the "
    "error of its float32 sum.",
)
CONV_TRANSPOSE = Row(
    name="ConvTranspose",
    onnx=(OnnxOp(name="ConvTranspose", defaults={"group": 1}, first=("group",)),),
    flow=Flow.ACCUMULATE,
    attributes=ConvTransposeAttrs,
    compute=_conv_transpose,
    contract=_contract,
    check=_check_conv_transpose,
    weight=lambda attributes, rank: _geometry(attributes),
    bias=True,
    qnn="conv{rank}d_transpose",
    tvm="nn.conv{rank}d_transpose",
    numerics=_NUMERICS.replace("channel.", "channel (weight axis 1, repeated for each group).", 1)
    + "SAME crops to the input times the stride and never widens, as ONNX's shape inference and "
    "onnxruntime 1.32; ONNX's text widens where the kernel is smaller than the stride. "
    "Against onnxruntime 1.31, which has no integer kernel: its float kernel differs in 14 of "
    "340,000 results by 1 LSB, each a midpoint within the error of its float32 sum.",
)


# ---- causal convolution --------------------------------------------------------------------------
# The causal convolution of state-space models (``com.microsoft``), which keeps its last inputs.


ACTIVATIONS = ("none", "silu", "swish")


@dataclass(frozen=True, slots=True)
class CausalConvAttrs(Attributes):
    """CausalConvWithState over one axis.

    Attributes:
        activation: none, or silu (swish) behind it.
        dilation: How far the taps lie apart.
    """

    activation: str = "none"
    dilation: int = 1


def _causal(a: CausalConvAttrs, operands: Operands) -> tuple[Array, ...]:
    """See the contract of the row."""
    x, weight = present(operands, 2)
    bias, past = optional(operands, 2), optional(operands, 3)
    taps, length = weight.shape[2], x.shape[2]
    reach = (taps - 1) * a.dilation
    before = np.zeros((*x.shape[:2], reach), x.dtype) if past is None else past
    whole = np.concatenate([before, x], axis=2)
    kind = np.float32 if x.dtype.itemsize < 4 else x.dtype
    total: Array = np.zeros(x.shape, kind)
    for tap in range(taps):
        begin = tap * a.dilation
        total = total + whole[:, :, begin : begin + length] * weight[:, 0, tap, None].astype(kind)
    if bias is not None:
        total = total + bias[:, None].astype(kind)
    if a.activation != "none":
        total = total / (1 + np.exp(-total))
    return total.astype(x.dtype), whole[:, :, length:]


def _check_causal_conv(node: Node, a: CausalConvAttrs) -> Iterator[str]:
    if a.activation not in ACTIVATIONS:
        yield f"its activation is {a.activation}"
    if a.dilation < 1:
        yield f"its dilation is {a.dilation}"
    if len(node.inputs) < 2 or None in node.inputs[:2]:
        yield "it needs data and a weight"
    elif differ(known(node.operand(0), 1), known(node.operand(1), 0)):
        yield "its weight has another number of channels than its data"
    if len(node.outputs) > 2:
        yield f"it has {len(node.outputs)} results, and gives 2"


CAUSAL_CONV = Row(
    name="CausalConvWithState",
    flow=Flow.FLOAT,
    attributes=CausalConvAttrs,
    compute=_causal,
    check=_check_causal_conv,
    apart=True,
    numerics="y[t] = sum of w[j] * x[t - (taps - 1 - j) * dilation] + b per channel, of the state "
    "and x; the new state is the last of both. Float32. Against onnxruntime 1.32 on 200 random "
    "nodes: at most 2e-6 off.",
)


CONVOLUTIONS = (CONV, CONV_TRANSPOSE)
OPERATORS = (*CONVOLUTIONS, CAUSAL_CONV)
