"""Rules for biases: an int32 constant in units of ``scale_x * scale_w``.

A float bias is part of the meaning. Integer engines round it to the units of the accumulator, which
moves a result, before that is rounded, by ``|bias - integer * scale_x * scale_w| / scale_y`` steps
of its own type: at most half of ``scale_x * scale_w / scale_y``, which is tiny in a well scaled
network and may be anything in another. Up to ``BIAS_MOVES`` steps (``ops/accumulator.py``) the
rounding is taken as a form of the same network, so that a file with a float bias and its twin
with an int32 one have one digest; beyond it the bias stays float, in the graph and in the digest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.linear import of_one_row_with_bias, with_added_bias
from qdqbridge.core.canonical.storage import mirror
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.graph.patterns import AnyOf, Part, PatternMatch
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.accumulator import BIAS_MOVES
from qdqbridge.core.ops.attributes import EpsilonAttrs
from qdqbridge.core.ops.build import constant, result, retyped
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.elementwise import ADD, DIV, MUL, SUB
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.core.ops.normalization import BATCH_NORMALIZATION
from qdqbridge.core.ops.table import PRODUCTS
from qdqbridge.core.rewrite import (
    Proposal,
    Reject,
    Replace,
    RuleContext,
    pattern_rule,
    replaced,
    rule,
    stored_behind,
)

_WITH_BIAS = tuple(row.name for row in PRODUCTS if row.bias)
_ULP = 2.0**-22
_LIMIT = 2**31 - 1
_CLOSE = 1e-2
"""The relative error that onnxruntime lets pass between the scale of a bias and its units."""


@rule("bias-of-zeros", *_WITH_BIAS)
def bias_of_zeros(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w, 0) -> Conv(x, w)``: no sum changes, but for the sign of one that is 0."""
    del context
    bias = node.optional(2)
    stored = None if bias is None else stored_behind(bias) or bias
    if stored is None or stored.constant is None or len(node.inputs) > 3:
        return None
    real = stored.quant is not None or stored.type.dtype.is_float
    if not real or np.any(_Written.of(stored).real()):
        return None
    return replaced(node, node.op, node.attributes, node.inputs[:2])


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
    # A float result keeps every bit of a float bias: rounding it would only lose some.
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
    # Writers that leave biases in floats give back the number that the file had.
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


_WITHOUT_BIAS = Part("product", (_WITH_BIAS, "x", "w"), sole=True)
_AS_VECTOR = Part("vector", ("Reshape", _WITHOUT_BIAS), sole=True)


@pattern_rule("bias-from-add", ("Add", AnyOf((_WITHOUT_BIAS, _AS_VECTOR)), "addend"))
def bias_from_add(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(MatMul(x, w), const) -> MatMul(x, w, const)``: there is no rounding between them.

    So where the product of a vector, which is that of a row, becomes a vector again.
    """
    del context
    product, w, addend = match.node("product"), match["w"], match["addend"]
    if product.output.quant is not None:  # it is rounded already
        return None
    if w.quant is None or not (match["x"].quant or product.op is DENSE):
        return None
    vector = _addend_as_bias(product, addend)
    if "vector" in match.values:
        return of_one_row_with_bias(product, match.node("vector"), node, vector)
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


# ---- Float affine maps per channel behind an integer product, folded into its scales and bias
# (B6)
#
# Quantization-aware training writes ``Conv -> Div -> Add -> BatchNormalization -> Relu -> Q``:
# the convolution's float result is scaled and shifted per channel before it is rounded. The real
# numbers are those of a convolution whose weight's scales are multiplied and whose bias absorbs
# the rest; the weight's integers stay (mirrored where a factor is negative). What moves are
# float32 roundings, so it is an option: a file written from the result does not give the
# original's every bit.

Array: TypeAlias = NDArray[Any]
AFFINE = (ADD, SUB, MUL, DIV, BATCH_NORMALIZATION)
_PRODUCTS = (CONV, CONV_TRANSPOSE, DENSE)
_MOST = 16
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class AffineChain:
    """A product with quantized operands and the affine nodes behind its float result, in order.

    ``y -> y * factor + offset`` for each channel, in float64.
    """

    product: Node
    nodes: tuple[Node, ...]
    factor: Array
    offset: Array

    def listed(self) -> str:
        """Returns the affine nodes in words."""
        return ", ".join(f"{node.op.name} '{node.name}'" for node in self.nodes)


@rule("fold-affine", *AFFINE)
def fold_affine(node: Node, context: RuleContext) -> Proposal:
    """``BatchNormalization(Add(Conv(x, w, b))) -> Conv(x, w * factor, b * factor + offset)``.

    Only with the option ``fold_affine``. The last of several affine nodes folds them all, so that
    scales and bias are rounded to float32 once.
    """
    chain = chain_behind(node, context.is_output)
    if chain is None:
        return None
    product = chain.product
    weight = _rescaled_weight(chain)
    if isinstance(weight, Reject):
        return weight
    bias = _folded_affine_bias(chain)
    if isinstance(bias, Reject):
        return bias
    operands = [product.operand(0), weight, *([] if bias is None else [bias])]
    origin = product.origin
    for step in chain.nodes:
        origin = origin.joined(step.origin)
    name, type_ = node.output.name, node.output.type
    value = result(product.op, product.attributes, operands, type_, origin, name)
    reason = (
        f"{chain.listed()} folded into the scales of its weight and its bias; results may differ "
        "from the file's where its float32 roundings decide"
    )
    note = Note("fold-affine", product.name, reason, tuple(n.name for n in chain.nodes))
    return Replace({node.output: value}, (note,))


def chain_behind(last: Node, is_output: Callable[[Value], bool]) -> AffineChain | None:
    """Returns the chain that ends with ``last``; None where there is none, or where it goes on.

    Args:
        last: Any node.
        is_output: Whether a value leaves the graph.
    """
    nodes: list[Node] = []
    current = last
    while current.op in AFFINE and len(nodes) < _MOST:
        nodes.append(current)
        source = _data(current)
        product = None if source is None else source.producer
        if source is None or product is None or is_output(source) or len(source.users) != 1:
            return None
        if source.quant is not None:  # a rounding in between is one of the file's
            return None
        if product.op in _PRODUCTS:
            return _chain(product, tuple(reversed(nodes)), is_output)
        current = product
    return None


def _chain(
    product: Node, nodes: tuple[Node, ...], is_output: Callable[[Value], bool]
) -> AffineChain | None:
    x, w = product.operand(0).quant, product.operand(1)
    if x is None or w.quant is None or w.constant is None or w.quant.params.blocked:
        return None
    geometry, w = geometry_of(product), product.operand(1).constant
    assert geometry is not None and w is not None
    rank = product.output.rank or len(w.shape)
    channels, axis = geometry.channels(w.shape), geometry.result_axis(rank)
    factor, offset = np.ones(channels), np.zeros(channels)
    for node in nodes:
        step = _step(node, channels, axis)
        if step is None:
            return None
        factor, offset = factor * step[0], offset * step[0] + step[1]
    readers = list(nodes[-1].output.users)
    if len(readers) == 1 and not is_output(nodes[-1].output):
        behind = readers[0][0]
        if behind.op in AFFINE and _step(behind, channels, axis) is not None:
            return None  # that one folds this one too
    return AffineChain(product, nodes, factor, offset)


def _data(node: Node) -> Value | None:
    """Returns the one operand of an affine node that is not constant."""
    operands = [v for v in node.inputs if v is not None and not _is_real(v)]
    return operands[0] if len(operands) == 1 else None


def _is_real(value: Value) -> bool:
    """True for what :func:`_float_affine_constant` returns, without looking for it."""
    stored = stored_behind(value) or value
    is_number = stored.quant is not None or stored.type.dtype.is_float
    return stored.constant is not None and is_number


def _float_affine_constant(value: Value) -> Array | None:
    """Returns a float constant, dequantized where it is stored."""
    stored = stored_behind(value) or value
    if stored.constant is None:
        return None
    array = stored.constant.numpy()
    if stored.quant is not None:
        return dequantize(array, stored.quant.params, np.float64)
    return array.astype(np.float64) if stored.type.dtype.is_float else None


def _step(node: Node, channels: int, axis: int) -> tuple[Array, Array] | None:
    """Returns factor and offset of one node, None where it is no map per channel."""
    rank = node.output.rank
    if node.op is BATCH_NORMALIZATION:
        return _batch(node, channels) if axis == 1 and node.inputs[0] is _data(node) else None
    data = _data(node)
    if data is None or rank is None or len(node.inputs) != 2:
        return None
    first = node.inputs[0] is data
    number = _channel_factors(node.operand(1 if first else 0), channels, axis, rank)
    if number is None or not np.isfinite(number).all():
        return None
    one, zero = np.ones(()), np.zeros(())
    with np.errstate(divide="ignore", over="ignore"):
        if node.op is MUL:
            return number, zero
        if node.op is DIV:
            # A number divided by the data is no factor of it.
            return (one / number, zero) if first else None
        if node.op is ADD:
            return one, number
        return (one, -number) if first else (-one, number)


def _batch(node: Node, channels: int) -> tuple[Array, Array] | None:
    read = (None if v is None else _float_affine_constant(v) for v in node.inputs[1:5])
    numbers = [n for n in read if n is not None and n.shape == (channels,)]
    if len(numbers) != 4:
        return None
    gamma, beta, mean, var = numbers
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = gamma / np.sqrt(var + node.record(EpsilonAttrs).epsilon)
    return factor, beta - mean * factor


def _channel_factors(value: Value, channels: int, axis: int, rank: int) -> Array | None:
    """Returns a constant as one number per channel, or as one for all."""
    array = _float_affine_constant(value)
    if array is None or array.ndim > rank:
        return None
    if array.size == 1:
        return array.reshape(())
    padded = (1,) * (rank - array.ndim) + array.shape
    wanted = tuple(channels if i == axis else 1 for i in range(rank))
    return array.reshape(channels) if padded == wanted else None


def _rescaled_weight(chain: AffineChain) -> Value | Reject:
    """Returns the weight with its scales multiplied; its integers are mirrored at most."""
    w, x = chain.product.operand(1), chain.product.operand(0)
    assert w.quant is not None and w.constant is not None and x.quant is not None
    params = w.quant.params
    if params.expressed_dtype is not DType.FLOAT32:
        return _refused(chain, f"its scales are {params.expressed_dtype}: products would round")
    factor = _per_weight(chain)
    if factor is None:
        return _refused(chain, "the groups of a transposed convolution have other factors")
    with np.errstate(over="ignore", under="ignore"):
        scale = (params.scale.astype(np.float64) * factor).astype(np.float32)
        units = np.abs(scale) * x.quant.params.scale.astype(np.float32)
        largest = np.abs(scale) * np.float32(max(-params.qmin, params.qmax))
    sound = np.isfinite(largest) & (np.minimum(np.abs(scale), units) >= _TINY)
    if not sound.all():
        worst = float(np.asarray(factor)[~sound].flat[0]) if factor.ndim else float(factor)
        return _refused(chain, f"a factor of {worst:.6g} leaves no usable scale")
    found = mirror(w.constant, _scaled(params, scale, chain.product))
    if found is None:
        return _refused(chain, "a factor is negative, and a weight has no mirror image in its type")
    return constant(*found, w.name)


def _refused(chain: AffineChain, reason: str) -> Reject:
    names = tuple(node.name for node in chain.nodes)
    return Reject(f"{chain.listed()} cannot be folded: {reason}", names, chain.product)


def _per_weight(chain: AffineChain) -> Array | None:
    """Returns the factors along the weight's own axis of results, a scalar where all are equal."""
    factor, geometry = chain.factor, geometry_of(chain.product)
    assert geometry is not None
    if factor.size and (factor == factor[0]).all():
        return factor[0]
    tiles = factor.reshape(geometry.tiles, -1)
    return tiles[0] if (tiles == tiles[0]).all() else None


def _scaled(params: QuantParams, scale: Array, product: Node) -> QuantParams:
    if scale.ndim == 0:
        return replace(params, scale=scale)
    geometry = geometry_of(product)
    assert geometry is not None
    zero_point = np.broadcast_to(params.zero_point, scale.shape)
    return replace(params, scale=scale, zero_point=zero_point, axis=geometry.axis)


def _folded_affine_bias(chain: AffineChain) -> Value | Reject | None:
    own = chain.product.optional(2)
    real = np.zeros(()) if own is None else _float_affine_constant(own)
    if real is None:
        return _refused(chain, "the product's bias is not constant")
    total = (real * chain.factor + chain.offset).astype(np.float32)
    if own is None and not total.any():
        return None
    if not np.isfinite(total).all():
        return _refused(chain, "the bias that results is not finite")
    name = f"{chain.product.name}_bias" if own is None else own.name
    return constant(Constant.of(total), None, name)
