"""Layer, instance, group, RMS and batch normalization (inference)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import dequantize, exp32, quantize
from qdqbridge.core.graph.operator import Array, Flow, OnnxOp, Operands, Operator, Row, Types, typed
from qdqbridge.core.graph.patterns import AnyPattern, Pattern
from qdqbridge.core.graph.types import QuantType, ValueType
from qdqbridge.core.ops.accumulator import accumulation_dtype, centered, integer_params
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    EpsilonAttrs,
    GroupNormAttrs,
    NormAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.core.ops.bodies import Body, Open
from qdqbridge.core.ops.shapes import axes_fit, differ, known, vector_fits
from qdqbridge.core.ops.stored import optional, present


@dataclass(frozen=True, slots=True)
class NormalizedGroups:
    """Which elements an operator normalizes together: those of some of the last axes.

    Attributes:
        first: The first of these axes.
        groups: Into how many groups that axis is split; None where whole axes are normalized.
        channels: Whether gamma and beta have one entry per channel (axis 1).
        centred: False for RMS normalization, which subtracts no mean.
    """

    first: int
    groups: int | None = None
    channels: bool = False
    centred: bool = True

    def split(self, x: Array) -> Array:
        """Returns ``x`` with the axis of groups as two."""
        if self.groups is None:
            return x
        own, first = x.shape, self.first
        share = own[first] // self.groups
        return x.reshape(*own[:first], self.groups, share, *own[first + 1 :])

    def axes(self, split: Array) -> tuple[int, ...]:
        """Returns the axes of a split array that are normalized together."""
        return tuple(range(self.first + (self.groups is not None), split.ndim))

    def placed(self, vector: Array, rank: int) -> Array:
        """Returns gamma or beta as they are combined with elements of a rank."""
        return vector.reshape(-1, *([1] * (rank - 2))) if self.channels else vector

    def steps(self, epsilon: float, x: Pattern, over: ReduceAttrs) -> Pattern:
        """Returns ``x`` normalized over axes as a body."""
        centred = ("Sub", x, ("ReduceMean", x, over)) if self.centred else x
        return ("Div", centred, deviation(mean_square(centred, over), epsilon))


def mean_square(x: AnyPattern, *over: ReduceAttrs | dict[str, bool]) -> Pattern:
    """Returns the mean of squares over axes as a pattern; over any where none are given."""
    return ("ReduceMean", ("Mul", x, x), *over)


def deviation(variance: AnyPattern, epsilon: float | str = "#epsilon") -> Pattern:
    """Returns what all norms divide by, as a pattern."""
    return ("Sqrt", ("Add", variance, epsilon))


def _rows_body(groups_of: Callable[[NormAttrs], NormalizedGroups]) -> Body:
    """Returns the body of a norm over the last axes: the interpreter takes exact statistics."""

    def body(attributes: NormAttrs, shape: Open) -> Pattern:
        over = ReduceAttrs(tuple(range(attributes.axis, len(shape))))
        normal = groups_of(attributes).steps(attributes.epsilon, "a", over)
        return ("Add", ("Mul", normal, "b"), "c?")

    return body


def _instance_body(attributes: EpsilonAttrs, shape: Open) -> Pattern:
    over = ReduceAttrs(tuple(range(2, len(shape))))
    normal = INSTANCES.steps(attributes.epsilon, "a", over)
    return ("Add", ("Mul", normal, _column("b", shape)), _column("c", shape))


def _group_body(attributes: GroupNormAttrs, shape: Open) -> Pattern:
    rows = ("Reshape", "a", ReshapeAttrs((0, attributes.num_groups, -1)))
    groups = channel_groups(attributes.num_groups)
    normal = groups.steps(attributes.epsilon, rows, ReduceAttrs((2,)))
    # Only one may be open, which a Reshape finds by itself.
    extents = (extent if isinstance(extent, int) else -1 for extent in shape[1:])
    back = ("Reshape", normal, ReshapeAttrs((0, *extents)))
    return ("Add", ("Mul", back, _column("b", shape)), _column("c", shape))


def _batch_body(attributes: EpsilonAttrs, shape: Open) -> Pattern:
    # In onnxruntime's order: folded into one factor and one addend for each channel.
    scale = ("Mul", ("Div", 1.0, deviation("e", attributes.epsilon)), "b")
    shift = ("Sub", "c", ("Mul", "d", scale))
    return ("Add", ("Mul", "a", _column(scale, shape)), _column(shift, shape))


def _column(vector: Pattern, shape: Open) -> Pattern:
    """Returns a vector of the channels with an axis for each one behind them."""
    axes = tuple(range(1, len(shape) - 1))
    return ("Unsqueeze", vector, AxesAttrs(axes)) if axes else vector


def _layer_groups(attributes: NormAttrs) -> NormalizedGroups:
    return NormalizedGroups(attributes.axis)


def _rms_groups(attributes: NormAttrs) -> NormalizedGroups:
    return NormalizedGroups(attributes.axis, centred=False)


def _instance_groups(attributes: EpsilonAttrs) -> NormalizedGroups:
    del attributes
    return INSTANCES


def _group_groups(attributes: GroupNormAttrs) -> NormalizedGroups:
    return channel_groups(attributes.num_groups)


INSTANCES = NormalizedGroups(2, channels=True)
"""The pixels of each channel."""


def channel_groups(groups: int) -> NormalizedGroups:
    """Returns the channels in groups, with their pixels."""
    return NormalizedGroups(1, groups, channels=True)


def _scale_and_shift(t: Array, groups: NormalizedGroups, gamma: Array, beta: Array | None) -> Array:
    """Returns ``t * gamma + beta``, two operations in the dtype of ``t``, whose shape they keep."""
    placed = [
        np.broadcast_to(groups.placed(each.astype(t.dtype), t.ndim), t.shape)
        for each in (gamma, beta)
        if each is not None
    ]
    result = t * placed[0]
    return result if beta is None else result + placed[1]


def _real_normalization(groups: NormalizedGroups, x: Array, epsilon: float) -> Array:
    """Returns x normalized: statistics in float64, the elements in the dtype of ``x``."""
    if not x.size:
        return x  # rows of nothing have no mean
    shifted = groups.split(x)
    axes, wide = groups.axes(shifted), shifted.astype(accumulation_dtype(x))
    mean = wide.mean(axis=axes, keepdims=True) if groups.centred else np.zeros(())
    variance = np.square(wide - mean).mean(axis=axes, keepdims=True)
    inverse = 1.0 / np.sqrt(variance + epsilon)
    if groups.centred:
        shifted = shifted - mean.astype(x.dtype)
    return (shifted * inverse.astype(x.dtype)).reshape(x.shape)


def _exact_spread(codes: Array, groups: NormalizedGroups, count: int) -> tuple[Array, Array]:
    """Returns ``S1 / n`` and ``D = n * S2 - S1 * S1`` in float64, D rounded once."""
    largest = int(np.abs(codes).max(initial=0))
    # Exact in any case: beyond 62 bits Python's integers take over.
    wide: Any = np.int64 if (count * largest) ** 2 < 1 << 62 else object
    axes = groups.axes(codes)
    first = codes.sum(axis=axes, keepdims=True, dtype=np.int64)
    second = np.square(codes).sum(axis=axes, keepdims=True, dtype=np.int64)
    s1, s2 = first.astype(wide), second.astype(wide)
    spread = count * s2 - s1 * s1 if groups.centred else count * s2
    return first.astype(np.float64) / np.float64(count), spread.astype(np.float64)


def _integer_normalization(
    groups: NormalizedGroups, codes: Array, scale: float, epsilon: float
) -> Array:
    """Returns the normalized codes in float32, from exact integer statistics."""
    codes = groups.split(codes)
    count = int(np.prod([codes.shape[axis] for axis in groups.axes(codes)], dtype=np.int64))
    mean, spread = _exact_spread(codes, groups, count)
    sx = np.float64(scale)
    variance = spread / np.float64(count * count)
    variance = variance * (sx * sx)
    inverse = (sx / np.sqrt(variance + np.float64(np.float32(epsilon)))).astype(np.float32)
    shifted = codes.astype(np.float32)
    if groups.centred:
        shifted = shifted - mean.astype(np.float32)
    return shifted * inverse


def _norm_operand_float32(operand: Array, type_: ValueType | None) -> Array:
    """Returns a stored operand as float32."""
    if isinstance(type_, QuantType):
        return dequantize(operand, type_.params)
    return operand.astype(np.float32)


def _compute(groups_of: Any) -> Any:
    """Returns the ``compute`` of a normalization whose groups are ``groups_of(attributes)``."""

    def compute(attributes: Any, operands: Operands) -> tuple[Array, ...]:
        x, gamma = present(operands, 2)
        groups = groups_of(attributes)
        with np.errstate(all="ignore"):
            t = _real_normalization(groups, x, float(np.float32(attributes.epsilon)))
            return (_scale_and_shift(t, groups, gamma, optional(operands, 2)),)

    return compute


def _contract(groups_of: Any) -> Any:
    """Returns the contract of a normalization whose groups are ``groups_of(attributes)``."""

    def contract(
        attributes: Any, operands: Operands, types: Types, results: Types
    ) -> tuple[Array, ...] | None:
        params = integer_params(types[0])
        if params is None or not params.per_tensor:
            return None
        x, gamma = present(operands, 2)
        groups = groups_of(attributes)
        codes = centered(x, params).astype(np.int64)
        with np.errstate(all="ignore"):
            t = _integer_normalization(groups, codes, float(params.scale), attributes.epsilon)
            beta = optional(operands, 2)
            shift = None if beta is None else _norm_operand_float32(beta, types[2])
            y = _scale_and_shift(
                t.reshape(x.shape), groups, _norm_operand_float32(gamma, types[1]), shift
            )
        result = results[0]
        if isinstance(result, QuantType):
            return (quantize(y, result.params),)
        return (y if result is None else y.astype(result.dtype.numpy),)

    return contract


def _batch(attributes: EpsilonAttrs, operands: Operands) -> tuple[Array, ...]:
    x, gamma, beta, mean, variance = present(operands, 5)
    one, epsilon = x.dtype.type(1), x.dtype.type(np.float32(attributes.epsilon))
    with np.errstate(all="ignore"):
        inverse = one / np.sqrt(variance.astype(x.dtype) + epsilon)
        scale = inverse * gamma.astype(x.dtype)
        shift = beta.astype(x.dtype) - mean.astype(x.dtype) * scale
    column = (-1, *([1] * (x.ndim - 2)))
    return (x * scale.reshape(column) + shift.reshape(column),)


def _check_axis(node: Node, attributes: NormAttrs) -> Iterator[str]:
    x = node.operand(0)
    yield from axes_fit((attributes.axis,), x.rank)
    if attributes.epsilon < 0:
        yield f"epsilon is {attributes.epsilon}"
    for index, what in ((1, "the scale"), (2, "the bias")):
        value = node.optional(index)
        if value is None or value.rank is None or x.rank is None:
            continue
        # The scale is broadcast to the data, never the data to it: the result has the data's shape.
        if value.rank > x.rank:
            yield f"{what} has rank {value.rank}, the input only {x.rank}"
        for axis in range(1, min(value.rank, x.rank) + 1):
            if known(value, -axis) != 1 and differ(known(value, -axis), known(x, -axis)):
                yield f"axis {-axis} of {what} is {known(value, -axis)}, not {known(x, -axis)}"


def _check_channels(node: Node, attributes: EpsilonAttrs | GroupNormAttrs) -> Iterator[str]:
    x = node.operand(0)
    if x.rank is not None and x.rank < 2:
        yield f"the input has rank {x.rank}; it needs a batch and a channel axis"
        return
    if attributes.epsilon < 0:
        yield f"epsilon is {attributes.epsilon}"
    channels = known(x, 1)
    for index, what in enumerate(("the scale", "the bias", "the mean", "the variance"), 1):
        yield from vector_fits(node.optional(index), channels, what)
    if (
        isinstance(attributes, GroupNormAttrs)
        and channels is not None
        and (attributes.num_groups < 1 or channels % attributes.num_groups)
    ):
        yield f"{attributes.num_groups} groups do not divide the {channels} channels"


_INTEGER = (
    "c = x - zx; exact S1 = sum c, S2 = sum c*c, {d}; in float64 mean = S1/n, "
    "v = f64(D)/f64(n*n) * (sx*sx), r = sx / sqrt(v + eps); in float32 "
    "t = {t} * f32(r); y = quantize(t * gamma + beta). "
)
_AGAINST = (
    "Against onnxruntime 1.31, which sums in float32: 0 of 430,000 8-bit results differ; 16-bit "
    "ones with a scale of 2**-12 in 1 of 5,000 by 1 LSB, next to a midpoint. "
)
_CENTRED = _INTEGER.format(d="D = n*S2 - S1*S1", t="(f32(c) - f32(mean))") + _AGAINST

_EPSILON = {"epsilon": 1e-5}
_ALONG = {"axis": -1, **_EPSILON}
_WIDE = {"stash_type": (1, "it does not compute in float32")}
_INFERENCE = {
    "training_mode": (0, "it is in training mode"),
    "spatial": (1, "it normalizes every position on its own (spatial=0)"),
}

LAYER_NORMALIZATION = Row(
    name="LayerNormalization",
    onnx=(OnnxOp(name="LayerNormalization", since=17, defaults=_ALONG, fixed=_WIDE),),
    flow=Flow.ROUND,
    attributes=NormAttrs,
    body=_rows_body(_layer_groups),
    compute=_compute(_layer_groups),
    contract=_contract(_layer_groups),
    check=_check_axis,
    qnn="layer_norm",
    tvm="nn.layer_norm",
    numerics=_CENTRED,
)
RMS_NORMALIZATION = Row(
    name="RMSNormalization",
    onnx=tuple(
        OnnxOp(name=name, since=23, defaults=_ALONG, fixed=_WIDE, read_only=name[0] == "S")
        for name in ("RMSNormalization", "SimplifiedLayerNormalization")
    ),
    flow=Flow.ROUND,
    attributes=NormAttrs,
    body=_rows_body(_rms_groups),
    compute=_compute(_rms_groups),
    contract=_contract(_rms_groups),
    check=_check_axis,
    qnn="rms_norm",
    numerics=_INTEGER.format(d="D = n*S2", t="f32(c)") + _AGAINST,
)
INSTANCE_NORMALIZATION = Row(
    name="InstanceNormalization",
    onnx=(OnnxOp(name="InstanceNormalization", defaults=_EPSILON),),
    flow=Flow.ROUND,
    attributes=EpsilonAttrs,
    body=_instance_body,
    compute=_compute(_instance_groups),
    contract=_contract(_instance_groups),
    check=_check_channels,
    qnn="instance_norm",
    tvm="nn.instance_norm",
    numerics=_CENTRED,
)
GROUP_NORMALIZATION = Row(
    name="GroupNormalization",
    onnx=(OnnxOp(name="GroupNormalization", since=21, defaults=_EPSILON, fixed=_WIDE),),
    flow=Flow.ROUND,
    attributes=GroupNormAttrs,
    body=_group_body,
    compute=_compute(_group_groups),
    contract=_contract(_group_groups),
    check=_check_channels,
    qnn="group_norm",
    tvm="nn.group_norm",
    numerics=_CENTRED + "Scale and bias have one entry per channel (opset 21).",
)
BATCH_NORMALIZATION = Row(
    name="BatchNormalization",
    onnx=(OnnxOp(name="BatchNormalization", defaults=_EPSILON, fixed=_INFERENCE),),
    flow=Flow.ROUND,
    attributes=EpsilonAttrs,
    body=_batch_body,
    compute=_batch,
    check=_check_channels,
    qnn="batch_norm",
    tvm="nn.batch_norm",
    numerics="In float32: i = 1 / sqrt(var + eps), a = i * gamma, b = beta - mean * a, "
    "y = quantize(x * a + b), x dequantized. Against onnxruntime 1.31: 0 of 430,000 results "
    "differ, not even in the bits of float ones.",
)

_GROUPS = dict((
    typed(LAYER_NORMALIZATION, lambda node, a: _layer_groups(a)),
    typed(RMS_NORMALIZATION, lambda node, a: _rms_groups(a)),
    typed(INSTANCE_NORMALIZATION, lambda node, a: _instance_groups(a)),
    typed(GROUP_NORMALIZATION, lambda node, a: _group_groups(a)),
))  # fmt: skip


GROUPED = frozenset(_GROUPS)
"""Norms whose statistics are those of groups of elements."""


def groups_of(node: Node) -> NormalizedGroups:
    """Returns which elements a normalization (no batch norm) normalizes together."""
    return _GROUPS[node.op](node)


# ---- Softmax and LogSoftmax over one or several axes ---------------------------------------------


_FRACTION = 2.0**40
"""Exponentials are summed as exact multiples of 2**-40, so that no order matters."""


def _exponentials(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Returns ``d = x - max``, ``exp(d)`` and its sum in float64; NaN where max is not finite."""
    top = x.max(axis=axes, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        difference = x - top
        if x.dtype == np.float64:
            powers = np.exp(difference)
            return difference, powers, powers.sum(axis=axes, keepdims=True)
        powers = exp32(difference)
        fixed = np.rint(powers.astype(np.float64) * _FRACTION).astype(np.int64)
    total = fixed.sum(axis=axes, keepdims=True, dtype=np.int64) / _FRACTION
    return difference, powers, np.where(np.isfinite(top), total, np.nan)


def _wide(x: Array) -> Array:
    return x if x.dtype == np.float64 else x.astype(np.float32)


def _softmax(attributes: SoftmaxAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    wide = _wide(x)
    _, powers, total = _exponentials(wide, attributes.axes)
    return ((powers / total.astype(wide.dtype)).astype(x.dtype),)


def _log_softmax(attributes: SoftmaxAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    wide = _wide(x)
    difference, _, total = _exponentials(wide, attributes.axes)
    return ((difference - np.log(total).astype(wide.dtype)).astype(x.dtype),)


def _centred_below(over: ReduceAttrs) -> Pattern:
    """Returns ``x - max(x)``, of which no exponential overflows."""
    return ("Sub", "x", ("ReduceMax", "x", over))


def _softmax_body(attributes: SoftmaxAttrs, shape: Open) -> Pattern:
    del shape
    over = ReduceAttrs(attributes.axes)
    powers = ("Exp", _centred_below(over))
    return ("Div", powers, ("ReduceSum", powers, over))


def _log_softmax_body(attributes: SoftmaxAttrs, shape: Open) -> Pattern:
    del shape
    over = ReduceAttrs(attributes.axes)
    difference = _centred_below(over)
    return ("Sub", difference, ("Log", ("ReduceSum", ("Exp", difference), over)))


def _check_softmax(node: Node, attributes: SoftmaxAttrs) -> Iterator[str]:
    if not attributes.axes:
        yield "no axis is given"
    yield from axes_fit(attributes.axes, node.operand(0).rank)


_NUMERICS = (
    "d = x - max(x) in float32; e = exp32(d) (graph/numerics.py); S = sum of rint(f64(e) * 2**40) "
    "as int64; {}. "
)

SOFTMAX = Row(
    name="Softmax",
    onnx=(OnnxOp(name="Softmax", defaults={"axes": -1}),),
    flow=Flow.ROUND,
    attributes=SoftmaxAttrs,
    body=_softmax_body,
    compute=_softmax,
    check=_check_softmax,
    qnn="softmax",
    tvm="nn.softmax",
    interval=(0.0, 1.0),
    numerics=_NUMERICS.format("y = quantize(e / f32(f64(S) * 2**-40))")
    + "Against onnxruntime 1.31: 0 of 1,100,000 8-bit results differ; 16-bit ones with a scale of "
    "2**-15 in 1 of 23,000 by 1 LSB, next to a midpoint (its exponential is another one). "
    "Its fused QLinearSoftmax (1.32, optimizations on) multiplies with the whole part of the "
    "scale's reciprocal: 254 for 1 in the float32 next to 1/255, 255 in the one below, where 1 of "
    "48,000 results differs.",
)
LOG_SOFTMAX = Row(
    name="LogSoftmax",
    onnx=(OnnxOp(name="LogSoftmax", defaults={"axes": -1}),),
    flow=Flow.ROUND,
    attributes=SoftmaxAttrs,
    body=_log_softmax_body,
    compute=_log_softmax,
    check=_check_softmax,
    qnn="log_softmax",
    tvm="nn.log_softmax",
    numerics=_NUMERICS.format("y = quantize(d - f32(log(f64(S) * 2**-40)))")
    + "Against onnxruntime 1.31: 0 of 1,100,000 8-bit results differ; 16-bit ones in 1 of 46,000 "
    "by 1 LSB, next to a midpoint.",
)


NORMS = (
    LAYER_NORMALIZATION,
    RMS_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    GROUP_NORMALIZATION,
    BATCH_NORMALIZATION,
)
OVER_ROWS = (LAYER_NORMALIZATION, RMS_NORMALIZATION)
"""Norms over the last axes, whose gamma and beta broadcast to a row."""
OVER_CHANNELS: frozenset[Operator] = frozenset(NORMS).difference(OVER_ROWS)
"""Norms with one gamma and beta per channel, which is axis 1."""
SOFTMAXES = (SOFTMAX, LOG_SOFTMAX)
OPERATORS = (*NORMS, *SOFTMAXES)
