"""Weights' scales that leave room for int32 biases, which count in units of ``scale_x * scale_w``.

A channel whose weights are tiny beside its bias gets units so fine that the bias does not fit
int32; its scale is raised until it does. A channel of zeros has no scale of its own: it takes one
that resolves its bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.arithmetic import Rescaling
from qdqbridge.autoquant.planning.plan import Derived, Fixed, QuantizationPlan, Weight
from qdqbridge.autoquant.profiling.masks import filled_by_masks
from qdqbridge.core.canonical.bias import derived_params
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.attributes import GemmAttrs
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.unary import CLIP, RELU

if TYPE_CHECKING:
    from qdqbridge.autoquant.planning.decide import Decision

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
