"""Scales of weights that suit arithmetic: sums and biases that fit, multipliers as shifts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.arithmetic import CONTRACT, IntegerArithmetic, Rescaling
from qdqbridge.autoquant.hardware.products import bounds
from qdqbridge.autoquant.planning.plan import Derived, Fixed, QuantizationPlan, Weight
from qdqbridge.autoquant.profiling.stats import filled_by_masks
from qdqbridge.core.canonical.bias import derived_params
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import GemmAttrs
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.unary import CLIP, RELU
from qdqbridge.onnx_io.runtime.products import FULL, MARGIN, saturating

if TYPE_CHECKING:
    from qdqbridge.autoquant.planning.decide import Decision


# ---- biases --------------------------------------------------------------------------------------
# Weights' scales that leave room for int32 biases, which count in units of ``scale_x * scale_w``.
#
# A channel whose weights are tiny beside its bias gets units so fine that the bias does not fit
# int32; its scale is raised until it does. A channel of zeros has no scale of its own: it takes one
# that resolves its bias.


ROOM = 2.0**31 - 2.0**24
"""The largest bias in its units: what products add must fit as well."""
_ENDS = (ADD, RELU, CLIP)
_MAXIMUM = 2.0**31 - 1
_FINE = 2.0**23
"""The bias of a channel without weights, in its units: exact in float32."""


def with_room_for_biases(
    plan: QuantizationPlan,
    values: Mapping[Value, QuantParams],
    weights: Mapping[Weight, QuantParams],
) -> dict[Weight, QuantParams]:
    """Returns ``weights`` with scales raised where a bias would not fit.

    Args:
        plan: What is stored; derived constants are biases.
        values: Parameters of activations.
        weights: Parameters of constants.
    """
    result = dict(weights)
    stored = {weight.node: weight for weight in weights if weight.index == 1}
    for bias in plan.weights:
        product = product_of(bias) if isinstance(bias.spec, Derived) else None
        weight = None if product is None else stored.get(product)
        if product is None or weight is None or isinstance(weight.spec, Fixed):
            continue
        if weights[weight].blocked or not weights[weight].storage_dtype.is_integer:
            continue  # such sums are of real numbers, and their biases as well
        x = values.get(product.operand(0))
        real = plan.bias(bias)
        if x is not None and real is not None:
            wide = np.abs(real.astype(np.float64).reshape(-1))
            filled = filled_by_masks(real)
            if filled is not None:  # they stay real numbers
                wide[filled.reshape(-1)] = 0
            result[weight] = _raised(weight, result[weight], x, wide)
    return result


def product_of(bias: Weight) -> Node | None:
    """Returns the product that a bias is added to: its own node, or the one before an Add."""
    if bias.node.op.flow is Flow.ACCUMULATE:
        return bias.node
    producers = (value.producer for _, value in bias.node.data_operands())
    return next((p for p in producers if p and p.op.flow is Flow.ACCUMULATE), None)


def stored_bias(
    bias: Weight, decision: Decision, real: NDArray[Any]
) -> tuple[NDArray[np.int32], QuantParams] | None:
    """Returns a bias as whole numbers of ``scale_x * scale_w``, and its parameters.

    Args:
        bias: A weight that is derived.
        decision: The parameters of its product's operands.
        real: Its real numbers, of the shape that the constant has.

    Returns:
        None where its product does not run on integers, where int32 does not hold it, and where
        the plan leaves it a real number.
    """
    product = product_of(bias)
    if product is None or (decision.plan.float_biases and not is_rounded(product, decision)):
        return None
    x = decision.values.get(product.operand(0))
    w = next((p for k, p in decision.weights.items() if k.node is product and k.index == 1), None)
    if x is None or w is None or w.blocked or not x.per_tensor:
        return None
    if not (x.storage_dtype.is_integer and w.storage_dtype.is_integer):
        return None  # their sums are floats
    gemm = product.attributes
    if isinstance(gemm, GemmAttrs) and (gemm.alpha, gemm.beta) != (1.0, 1.0):
        return None
    units = derived_params(product, x, w)
    scale = units.scale.astype(np.float64)
    if scale.ndim and real.size != scale.size:
        return None
    wanted = real.reshape(-1).astype(np.float64) + half_a_step(product, decision)
    integers = np.rint(wanted / scale)
    if not np.isfinite(integers).all() or (np.abs(integers) > _MAXIMUM).any():
        return None
    if units.axis is not None:
        units = units.with_axis(next((i for i, n in enumerate(real.shape) if n > 1), real.ndim - 1))
    return integers.astype(np.int32).reshape(real.shape), units


def half_a_step(product: Node, decision: Decision) -> float:
    """Returns what a bias adds so that hardware rounds that drops what is below a step."""
    if decision.plan.arithmetic.requantize is not Rescaling.TRUNCATION:
        return 0.0
    made = stored_result(product, decision.plan, decision.values)
    return 0.0 if made is None else 0.5 * float(made.scale)


def is_rounded(product: Node, decision: Decision) -> bool:
    """True where a sum is rounded before anything but its bias or a clamp reads it."""
    return stored_result(product, decision.plan, decision.values) is not None


def stored_result(
    product: Node, plan: QuantizationPlan, values: Mapping[Value, QuantParams]
) -> QuantParams | None:
    """Returns the parameters that a sum is rounded to behind its bias and clamps; None for none."""
    value = product.output
    while value not in values:
        if len(value.users) != 1:
            return None
        reader, index = next(iter(value.users))
        if reader.op not in _ENDS or reader not in plan.rules:
            return None
        if reader.op is ADD and not reader.operand(1 - index).is_constant:
            return None
        value = reader.output
    return values[value]


def _raised(weight: Weight, params: QuantParams, x: QuantParams, bias: NDArray[Any]) -> QuantParams:
    """Returns parameters whose units hold ``bias``, the magnitudes of a bias per channel."""
    unit = float(x.scale)
    scale = params.scale.astype(np.float64)
    if params.axis is None:
        needed = np.asarray(bias.max(initial=0.0) / (unit * ROOM))
        own = np.asarray(_peaks(weight, None))
        idle = np.asarray(bias.max(initial=0.0) / (unit * _FINE))
    else:
        count = len(scale)
        groups = (
            bias.reshape(-1, count) if bias.size % count == 0 else np.full((1, count), bias.max())
        )
        peak = groups.max(axis=0)
        needed, own, idle = peak / (unit * ROOM), _peaks(weight, params.axis), peak / (unit * _FINE)
    # A scale of 1 where there is nothing would make units of a bias as coarse as the operand's.
    scale = np.where((own == 0) & (idle > 0), idle, scale)
    raised = np.asarray(np.maximum(scale, needed), np.float32)
    return params if np.array_equal(raised, params.scale) else replace(params, scale=raised)


def _peaks(weight: Weight, axis: int | None) -> NDArray[Any]:
    assert weight.value.constant is not None
    array = np.abs(weight.value.constant.numpy())
    if axis is None:
        return np.asarray(array.max(initial=0.0))
    return array.max(axis=tuple(i for i in range(array.ndim) if i != axis), initial=0.0)


# ---- scales --------------------------------------------------------------------------------------
# Scales of weights that suit a target's arithmetic: sums that fit, multipliers that are shifts.
#
# A sum of ``x * w`` lies between the sums of the lower and of the upper ends of its terms, whatever
# the input and the order (:func:`qdqbridge.autoquant.hardware.products.bounds`). A channel
# whose ends do not fit its accumulator gets a larger scale, and with it smaller integers, until
# they do.


Real = NDArray[np.float64]
_STEPS = 24
_MOST = 2.0**24


def suited(
    plan: QuantizationPlan,
    values: Mapping[Value, QuantParams],
    weights: Mapping[Weight, QuantParams],
) -> dict[Weight, QuantParams]:
    """Returns ``weights`` with scales that leave room for biases and suit the target's arithmetic.

    Args:
        plan: What is quantized, and for which arithmetic.
        values: Parameters of activations.
        weights: Parameters of constants.
    """
    result = with_room_for_biases(plan, values, weights)
    if plan.room is not None:
        for weight, params in result.items():
            # Operand 0 may be a constant too, but pairs are added of what operand 1 holds.
            if weight.index == 1 and not isinstance(weight.spec, Fixed):
                x = None if weight.node in plan.unstored else values.get(weight.node.operand(0))
                result[weight] = plan.room.raised(weight.node, params, x)
    arithmetic = plan.arithmetic
    biases = {product_of(w): plan.bias(w) for w in plan.weights if isinstance(w.spec, Derived)}
    for weight, params in result.items() if arithmetic != CONTRACT else ():
        x = values.get(weight.node.operand(0)) if weight.index == 1 else None
        if x is None or isinstance(weight.spec, Fixed) or params.blocked or not params.symmetric:
            continue
        rows = _accumulator_rows(weight, x, params, arithmetic, biases.get(weight.node))
        if rows is None:
            continue
        scale = params.scale.astype(np.float64).reshape(-1)
        if arithmetic.narrow:
            least = plan.least_scales.get(weight.node.name)
            scale = rows.fitting(scale) if least is None else np.maximum(scale, least)
        made = stored_result(weight.node, plan, values)
        # Last: where sums have to fit, it only makes scales larger, and what fits goes on to fit.
        if arithmetic.requantize is Rescaling.SHIFT and made is not None:
            scale = rows.shifts(scale, float(made.scale) / rows.unit)
        found = np.asarray(scale, np.float32).reshape(params.scale.shape)
        result[weight] = replace(params, scale=found)
    return result


@dataclass(frozen=True, slots=True)
class _Rows:
    """A float weight as rows of terms, its bias, and what it is multiplied with.

    Attributes:
        rows: Shape (channels, terms), in the order in which a kernel adds them.
        bias: One real number for each channel.
        params: How the weight is stored, but for its scale.
        codes: The smallest and the largest centred code of the activation.
        unit: The activation's scale.
        unsigned: The smallest and the largest code as unsigned bytes.
        paired: Whether 8-bit kernels add such products in pairs.
        arithmetic: The target's.
    """

    rows: Real
    bias: Real
    params: QuantParams
    codes: tuple[int, int]
    unit: float
    unsigned: tuple[int, int]
    paired: bool
    arithmetic: IntegerArithmetic

    def fitting(self, scale: Real) -> Real:
        """Returns scales, raised where some input makes a sum that is lost."""
        lost = ~self._hold(scale)
        if not lost.any():
            return scale
        raised = scale.copy()
        raised[lost] = self._of(lost)._raised(scale[lost])
        return raised

    def _of(self, scales: NDArray[np.bool_]) -> _Rows:
        """Returns the rows that some of the scales belong to."""
        chosen = np.tile(scales, len(self.rows) // len(scales))
        return replace(self, rows=self.rows[chosen], bias=self.bias[chosen])

    def _raised(self, scale: Real) -> Real:
        """Returns the smallest scales above ``scale`` of which all hold."""
        low = high = np.ones(len(scale))
        while not (held := self._hold(scale * high)).all() and high.max() < _MOST:
            low, high = np.where(held, low, high), np.where(held, high, high * 2)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            held = self._hold(scale * middle)
            low, high = np.where(held, low, middle), np.where(held, middle, high)
        return scale * (high * MARGIN)

    def _hold(self, scale: Real) -> NDArray[np.bool_]:
        """Returns for each scale whether no input makes a sum that is lost."""
        wide = np.tile(scale, len(self.rows) // len(scale)).astype(np.float32).astype(np.float64)
        stored = self._stored(wide)
        bias = self.bias / (self.unit * wide)
        bias = np.sign(bias) * np.ceil(np.abs(bias) + 1)  # float32 units round otherwise
        smallest, largest = bounds(stored, self.codes, bias.astype(np.int64))
        low, high = self.arithmetic.limits
        holds = (smallest >= low) & (largest <= high)
        if self.arithmetic.pairs is not None and self.paired:
            holds &= saturating(stored, self.unsigned) == 0
        each: NDArray[np.bool_] = np.asarray(holds).reshape(-1, len(scale))
        return np.logical_and.reduce(each, axis=0)

    def _stored(self, wide: Real) -> NDArray[np.int64]:
        found = np.rint(self.rows / wide[:, None])
        return np.clip(found, self.params.qmin, self.params.qmax).astype(np.int64)

    def shifts(self, scale: Real, step: float) -> Real:
        """Returns scales that are ``step`` times a power of two.

        Of the two neighbours that with the smaller error of the weights; the larger one where
        sums have to fit.
        """
        above = step * np.exp2(np.ceil(np.log2(scale / step) - 1e-6))
        if self.arithmetic.narrow:
            return above
        return np.where(self._error(above / 2) < self._error(above), above / 2, above)

    def _error(self, scale: Real) -> Real:
        wide = np.tile(scale, len(self.rows) // len(scale))
        each = np.sum((self._stored(wide) * wide[:, None] - self.rows) ** 2, axis=1)
        return each.reshape(-1, len(scale)).sum(axis=0)


def _accumulator_rows(
    weight: Weight,
    x: QuantParams,
    params: QuantParams,
    arithmetic: IntegerArithmetic,
    bias: NDArray[Any] | None,
) -> _Rows | None:
    """Returns a weight as rows; None for several matrices, and for what is not a product."""
    node, constant, geometry = weight.node, weight.value.constant, geometry_of(weight.node)
    if constant is None or geometry is None or node.op.flow is not Flow.ACCUMULATE:
        return None
    array = constant.numpy().astype(np.float64)
    if not (geometry.image or array.ndim == 2):
        return None
    rows = geometry.rows(array)
    if geometry.image and arithmetic.pairs != "channels-first":
        taps = int(np.prod(array.shape[2:], dtype=np.int64))
        rows = np.swapaxes(rows.reshape(len(rows), -1, taps), 1, 2).reshape(rows.shape)
    zero, shift = int(x.zero_point), 128 if x.storage_dtype.is_signed else 0
    low, high = (min(max(code + shift, FULL[0]), FULL[1]) for code in (x.qmin, x.qmax))
    paired = x.storage_dtype.bits <= 8 and not geometry.alone(array.shape)
    codes, added = (x.qmin - zero, x.qmax - zero), _bias_per_channel(bias, len(rows))
    return _Rows(rows, added, params, codes, float(x.scale), (low, high), paired, arithmetic)


def _bias_per_channel(bias: NDArray[Any] | None, channels: int) -> Real:
    """Returns what is added to each channel of a product; its magnitude where that varies."""
    if bias is None:
        return np.zeros(channels)
    real = bias.astype(np.float64).reshape(-1)
    return real if real.size == channels else np.full(channels, np.abs(real).max(initial=0.0))
