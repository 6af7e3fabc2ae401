"""Rules for biases: an int32 constant in units of ``scale_x * scale_w``.

A float bias is part of the meaning. Integer engines round it to the units of the accumulator, which
moves a result, before that is rounded, by ``|bias - integer * scale_x * scale_w| / scale_y`` steps
of its own type: at most half of ``scale_x * scale_w / scale_y``, which is tiny in a well scaled
network and may be anything in another. Up to ``BIAS_MOVES`` steps (``ops/accumulator.py``) the
rounding is taken as a form of the same network, so that a file with a float bias and its twin
with an int32 one have one digest; beyond it the bias stays float, in the graph and in the digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.linear import with_added_bias
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.graph.patterns import Part, PatternMatch
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.accumulator import BIAS_MOVES
from qdqbridge.core.ops.build import constant, retyped
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.core.ops.table import PRODUCTS
from qdqbridge.core.rewrite.rule import (
    Proposal,
    Reject,
    Replace,
    RuleContext,
    pattern_rule,
    rule,
    stored_behind,
)

_WITH_BIAS = tuple(row.name for row in PRODUCTS if row.bias)
_ULP = 2.0**-22
_LIMIT = 2**31 - 1
_CLOSE = 1e-2
"""The relative error that onnxruntime lets pass between the scale of a bias and its units."""


@rule("derived-bias", *_WITH_BIAS)
def derived_bias(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w, bias) -> Conv(x, w, int32 bias)`` in units of ``scale_x * scale_w``.

    An int32 bias that is in those units already is taken as it is. Any other constant is its
    float32 value ``bias``: it stays that where the result is float, and where rounding it would
    move the result by more than :data:`BIAS_MOVES` of its steps; else it becomes
    ``rint(bias / (scale_x * scale_w))``, divided in float64.
    """
    del context
    x, w, bias = node.operand(0).quant, node.operand(1).quant, node.optional(2)
    if x is None or w is None or bias is None:
        return None
    params = derived_params(node, x.params, w.params)
    if bias.quant is not None and bias.quant.params == params:
        return None
    stored = stored_behind(bias) or bias
    if stored.constant is None:
        return Reject("its bias is not constant", (bias.name,))
    written, y = _Written.of(stored), node.output.quant
    exact = written.in_units(params)
    if y is None and not exact:
        return None if bias.quant is None and bias.is_constant else _real_bias(node, written, bias)
    integers = written.integers(params)
    reason = None if exact or y is None else _reason(written, integers, params, y.params)
    if reason is not None:
        if bias.quant is None and bias.is_constant:
            return Reject(reason, (bias.name,))
        return _real_bias(node, written, bias, written.remarks(node, params, bias, rounded=False))
    assert integers is not None
    value = constant(Constant.of(integers), params, stored.name)
    value.written = None if exact else Constant.of(written.real())
    return _with_bias(node, value, written.remarks(node, params, bias, rounded=True))


def _real_bias(
    node: Node, written: _Written, bias: Value, remarks: tuple[Note, ...] = ()
) -> Replace:
    return _with_bias(node, constant(Constant.of(written.real()), None, bias.name), remarks)


def _with_bias(node: Node, bias: Value, remarks: tuple[Note, ...]) -> Replace:
    operands = [*node.inputs[:2], bias]
    value = retyped(node, operands, node.output.type, node.output.name)
    return Replace({node.output: value}, remarks)


def _reason(
    written: _Written,
    integers: NDArray[np.int32] | None,
    params: QuantParams,
    result: QuantParams,
) -> str | None:
    """Returns why a bias stays float though the result is rounded, None where it need not."""
    if integers is None:
        return "its bias does not fit int32 in units of scale_x * scale_w and stays float"
    rounded = integers * params.scale.astype(np.float64)
    distance = np.abs(written.real().astype(np.float64) - rounded).max(initial=0.0)
    smallest = float(result.scale.astype(np.float64).min())
    moved = float(distance) / (smallest * result.storage_dtype.step)
    if moved <= BIAS_MOVES:
        return None
    return (
        f"its bias stays float: rounded to units of scale_x * scale_w it would move the result "
        f"by {moved:.3g} LSB, more than {BIAS_MOVES:.3g}"
    )


def derived_params(node: Node, x: QuantParams, w: QuantParams) -> QuantParams:
    """Returns the type of an accumulator of ``node``: scale ``f32(sx * sw)``, zero point 0."""
    with np.errstate(over="ignore"):  # an infinite scale is refused where it is written
        scale = np.asarray(x.scale.astype(np.float32) * w.scale.astype(np.float32), np.float32)
    geometry = geometry_of(node)
    scale = scale if geometry is None else geometry.spread(scale)
    axis = 0 if scale.ndim else None
    return QuantParams(DType.INT32, scale, np.zeros(scale.shape, np.int32), axis=axis)


@dataclass(frozen=True, slots=True)
class _Written:
    """A bias as its file writes it: float, or integers with a scale of their own."""

    data: NDArray[Any]
    params: QuantParams | None

    @staticmethod
    def of(value: Value) -> _Written:
        assert value.constant is not None
        params = None if value.quant is None else value.quant.params
        return _Written(value.constant.numpy(), params)

    def integers(self, params: QuantParams) -> NDArray[np.int32] | None:
        if self.in_units(params):
            return self.data.astype(np.int32)
        divisor = params.scale.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            scaled = np.rint(self.real().astype(np.float64) / divisor)
        if not np.isfinite(scaled).all() or (np.abs(scaled) > _LIMIT).any():
            return None
        return scaled.astype(np.int32)

    def real(self) -> NDArray[Any]:
        """Returns the bias as the file's DequantizeLinear yields it, or as it is."""
        if self.params is None:
            return self.data
        return dequantize(self.data, self.params).astype(self.params.expressed_dtype.numpy)

    def remarks(
        self, node: Node, params: QuantParams, bias: Value, *, rounded: bool
    ) -> tuple[Note, ...]:
        """Returns a note where the file gives the bias a scale of its own (idioms C5, C6, C7)."""
        if self.params is None:
            return ()
        ratio = self.params.scale.astype(np.float64) / params.scale.astype(np.float64)
        if (np.abs(ratio - 1) <= _CLOSE).all():
            return ()
        low, high = float(ratio.min()), float(ratio.max())
        times = f"{low:.6g}" if high - low <= _CLOSE * high else f"{low:.3g} to {high:.3g}"
        done = "is rounded to those units" if rounded else "stays float"
        reason = (
            f"its bias has a scale of its own, {times} times scale_x * scale_w; its real value "
            f"{done}"
        )
        if high - low <= _CLOSE * high and node.origin.variant.startswith("Gemm"):
            reason += (
                ". A Gemm with that beta, quantized by onnxruntime, looks like this and has lost "
                "the factor"
            )
        return (Note("bias-scale", node.name, reason, (bias.name,)),)

    def in_units(self, params: QuantParams) -> bool:
        own = self.params
        if own is None or own.storage_dtype is not DType.INT32 or not own.symmetric:
            return False
        ratio = own.scale.astype(np.float64) / params.scale.astype(np.float64)
        return bool((np.abs(ratio - 1) <= _ULP).all())


@pattern_rule(
    "bias-from-add", ("Add", Part("product", (_WITH_BIAS, "x", "w"), sole=True), "addend")
)
def bias_from_add(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(MatMul(x, w), const) -> MatMul(x, w, const)``: there is no rounding between them."""
    del context
    product, w, addend = match.node("product"), match["w"], match["addend"]
    if product.output.quant is not None:  # it is rounded already
        return None
    if w.quant is None or not (match["x"].quant or product.op is DENSE):
        return None
    vector = _addend_as_bias(product, addend)
    if vector is not None:
        return with_added_bias(product, node, vector)
    if (stored_behind(addend) or addend).constant is None:
        return None  # two activations: a residual, not a bias
    return Reject(
        "an addend of an integer product is not a constant vector of its channels", (addend.name,)
    )


def _addend_as_bias(op: Node, addend: Value) -> Value | None:
    """Returns ``addend`` as a rank-1 bias of ``op``, None where it is none."""
    stored = stored_behind(addend) or addend
    shape, w, geometry = op.output.type.shape, op.operand(1).type.shape, geometry_of(op)
    if stored.constant is None or shape is None or w is None or geometry is None:
        return None
    if stored.quant is not None and stored.quant.params.blocked:
        return None
    channels = w[0] if geometry.axis == 0 else None  # what is added to others stays an Add
    axis = geometry.result_axis(len(shape))
    own = stored.constant.shape
    padded = (1,) * (len(shape) - len(own)) + own
    expected = tuple(channels if i == axis else 1 for i in range(len(shape)))
    if padded != expected or not isinstance(channels, int):
        return None
    params = None if stored.quant is None else stored.quant.params
    if params is not None and params.axis is not None:
        params = params.with_axis(0)
    return constant(
        stored.constant.map(lambda a: a.reshape(channels), shape=(channels,)), params, stored.name
    )
