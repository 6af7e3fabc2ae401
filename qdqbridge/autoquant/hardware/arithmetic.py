"""Integer arithmetic that is not the numeric contract's: narrow accumulators, other roundings.

The contract adds products exactly and rounds once, half to even, in float32.
:class:`IntegerArithmetic` says what hardware does instead, and :func:`run` computes a graph so.
It is about products whose result is stored as integers, and all that TOSA rescales; everything else
keeps the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.products import Product, product_at, products
from qdqbridge.core.graph.batches import batches, concat_batch_results
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import check_inputs, computed
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.accumulator import Lost, leaves_int32, simulated
from qdqbridge.core.ops.dynamic import DYNAMIC_DENSE
from qdqbridge.errors import InputDataError
from qdqbridge.onnx_io.control_flow.bodies import is_control
from qdqbridge.onnx_io.opaque.paired import multiplies_bytes
from qdqbridge.onnx_io.runtime.products import Order, StoredWeights
from qdqbridge.onnx_io.runtime.products import lost as lost_in_pairs
from qdqbridge.tflite_io.arithmetic import double_round, fixed_point, in_float32, rounded_twice
from qdqbridge.tflite_io.litert import rescaled

Array = NDArray[Any]
Sums = NDArray[np.int64]
EXACT_BITS = 32
"""Bits of accumulators that are taken to hold every sum."""


class Overflow(Enum):
    """What becomes of a sum that its accumulator does not hold."""

    WRAPAROUND = "wraparound"
    """Its low bits are kept, as two's complement does."""
    SATURATION = "saturation"
    """Every addition stops at the largest or the smallest number: the bias first, then the terms
    in the order in which a kernel adds them."""


class Rescaling(Enum):
    """How a sum becomes a stored result."""

    HALF_EVEN = "half-even"
    """A float32 multiplier, rounded half to even: the numeric contract."""
    FIXED_POINT = "fixed-point"
    """TFLite's multiplier of 31 bits and a shift, each rounded."""
    DOUBLE_ROUND = "double-round"
    """TOSA's RESCALE, of every operator that has one: 31 bits and a shift, rounded half up."""
    TRUNCATION = "truncation"
    """A multiplier of 31 bits and a shift that drops what is below, towards minus infinity."""
    SHIFT = "shift"
    """A shift alone, rounded half up; a multiplier is taken as the nearest power of two."""


@dataclass(frozen=True, slots=True)
class IntegerArithmetic:
    """How products of integers are added and rounded.

    Attributes:
        accumulator_bits: Bits of the accumulator, in two's complement.
        overflow: What becomes of sums that it does not hold.
        pairs: In which order 8-bit kernels add neighbouring products with saturation to 16 bits
            first (``vpmaddubsw``, see :mod:`qdqbridge.onnx_io.runtime.products`); None for kernels
            that do not.
        requantize: How sums are rounded.
    """

    accumulator_bits: int = EXACT_BITS
    overflow: Overflow = Overflow.WRAPAROUND
    pairs: Order | None = None
    requantize: Rescaling = Rescaling.HALF_EVEN

    @property
    def narrow(self) -> bool:
        """True where a sum can be lost."""
        return self.accumulator_bits < EXACT_BITS or self.pairs is not None

    @property
    def near_contract(self) -> bool:
        """True where sums are exact and rounded to nearest: little but ties differs."""
        nearest = (Rescaling.HALF_EVEN, Rescaling.FIXED_POINT, Rescaling.DOUBLE_ROUND)
        return not self.narrow and self.requantize in nearest

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest number of an accumulator."""
        half = 1 << (self.accumulator_bits - 1)
        return -half, half - 1


CONTRACT = IntegerArithmetic()
"""The numeric contract's."""


def arithmetic_of(
    accumulator_bits: int = EXACT_BITS,
    overflow: str = Overflow.WRAPAROUND.value,
    *,
    pairs: bool = False,
    requantize: str = Rescaling.HALF_EVEN.value,
) -> IntegerArithmetic:
    """Returns an arithmetic by the names of its parts; pairs are added channels-last.

    Raises:
        InputDataError: There is no such arithmetic.
    """
    kinds = {"overflow": (overflow, Overflow), "requantize": (requantize, Rescaling)}
    for what, (name, known) in kinds.items():
        if name not in {each.value for each in known}:
            listed = ", ".join(each.value for each in known)
            raise InputDataError(f"there is no {what} '{name}'", fix=f"use one of {listed}")
    if not 2 <= accumulator_bits <= EXACT_BITS:
        raise InputDataError(
            f"accumulators of {accumulator_bits} bits are not simulated",
            fix=f"give 2 to {EXACT_BITS}",
        )
    order: Order | None = "channels-last" if pairs else None
    return IntegerArithmetic(accumulator_bits, Overflow(overflow), order, Rescaling(requantize))


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """What :func:`run` found.

    Attributes:
        outputs: By name, as they are stored.
        overflows: How many sums of each product were lost on the way; products without any are
            not listed.
    """

    outputs: Mapping[str, Array]
    overflows: Mapping[Node, int]


def run(
    graph: Graph,
    inputs: Mapping[str, Array],
    arithmetic: IntegerArithmetic,
    saturating: Mapping[str, StoredWeights] | None = None,
) -> Ran:
    """Runs ``graph`` with the arithmetic of some hardware.

    Args:
        graph: A canonical quantized graph.
        inputs: One array per input, by name; quantized inputs take stored integers.
        arithmetic: Of its products.
        saturating: Which products of a file have pairs that saturate, as :func:`without_vnni` takes
            them; None for those that the graph has where it is written.

    Raises:
        InputDataError: The inputs do not fit the graph.
        InvalidModelError: A node cannot be computed on them.
    """
    values: dict[Value, Array] = dict(
        zip(graph.inputs, check_inputs(graph.inputs, inputs), strict=True)
    )
    own = {product.node: product for product in products(graph)}
    lost: dict[Node, int] = {}
    pairs_alone = replace(arithmetic, pairs=None) == CONTRACT
    for node in graph.nodes:
        operands = [None if v is None else _constant_or_computed(v, values) for v in node.inputs]
        product = own.get(node)
        # Products with float results, or bounds of pairs alone, keep the contract's own path: the
        # same bits.
        if product is None or not _is_rounded(node) or pairs_alone:
            count = 0
            stored = None if saturating is None else _named(saturating, node)
            saturates = is_paired(node) if saturating is None else stored is not None
            if arithmetic.pairs is not None and saturates:
                results, count = in_pairs(node, operands, stored)
            else:
                results = _rescaled_or_computed(node, operands, arithmetic.requantize)
            if count:
                lost[node] = count
        else:
            x, other = (_constant_or_computed(v, values) for v in (product.x, product.other))
            sums, count = summed(product, x, other, arithmetic)
            results = [_requantized(product, sums, arithmetic.requantize)]
            if count:
                lost[node] = count
        values.update(zip(node.outputs, results, strict=False))
    pairs = zip(graph.output_names, graph.outputs, strict=True)
    return Ran({name: _constant_or_computed(value, values) for name, value in pairs}, lost)


def _rescaled_or_computed(
    node: Node, operands: Sequence[Array | None], requantize: Rescaling
) -> Sequence[Array]:
    result = rescaled(node, operands) if requantize is Rescaling.DOUBLE_ROUND else None
    return computed(node, operands) if result is None else [result]


def _constant_or_computed(value: Value, values: Mapping[Value, Array]) -> Array:
    return values[value] if value.constant is None else value.constant.numpy()


def _is_rounded(node: Node) -> bool:
    """True for a product whose result, and bias, are integers."""
    type_, bias = node.output.type, node.optional(2)
    known = bias is None or (bias.constant is not None and bias.quant is not None)
    return known and isinstance(type_, QuantType) and type_.params.per_tensor


# ---- pairs -----------------------------------------------------------------------------------


def is_paired(node: Node) -> bool:
    """Returns whether onnxruntime adds a node's products in pairs that saturate, without VNNI."""
    if node.op is DYNAMIC_DENSE:
        return node.operand(1).type.dtype is DType.INT8
    product = product_at(node)
    inside = is_control(node) or multiplies_bytes(node)
    return inside or (product is not None and product.paired)


def in_pairs(
    node: Node, operands: Sequence[Array | None], stored: StoredWeights | None = None
) -> tuple[Sequence[Array], int]:
    """Returns what a node gives whose pairs of products saturate, and how many sums lost something.

    Everything but the sums is the contract's, bit for bit: zero points, biases, floats and how
    results are rounded.

    Args:
        operands: What it is given, as it is stored.
        stored: How a file stores its weights, whose pairs saturate there; None for files that store
            them as the node has them.
    """
    count = 0
    lost = lost_in_pairs if stored is None or is_control(node) else _lost_of_file(node, stored)

    def counted(codes: Array, weights: Array) -> Array:
        nonlocal count
        found = lost(codes, weights)
        count += int(np.count_nonzero(found))
        return found

    with simulated(counted):
        results = computed(node, operands)
    return results, count


def _lost_of_file(node: Node, stored: StoredWeights) -> Lost:
    """Returns what a file's own codes lose: other zero points, scales of the other sign."""
    weight = node.optional(1)
    quant = None if weight is None or not weight.is_constant else weight.quant
    if quant is None or quant.params.blocked:
        return lost_in_pairs
    own = quant.params.zero_point.astype(np.int64).reshape(-1)
    negative = quant.params.scale.astype(np.float64).reshape(-1) < 0
    points, flipped = stored.zero_point, stored.negative != negative
    # The file's codes are the graph's: nothing has to be translated.
    if not flipped.any() and (points == own).all():
        return lost_in_pairs

    def lost(codes: Array, weights: Array) -> Array:
        # channels of the result: groups and columns of a convolution, columns of a matrix
        channels = max(flipped.size, points.size, own.size)
        groups = channels // weights.shape[-1] if channels > 1 else 1
        sign, ours, theirs = (
            np.broadcast_to(each, channels).reshape(groups, 1, -1)
            for each in (np.where(flipped, -1, 1), own, points)
        )
        if weights.ndim == 2:
            sign, ours, theirs = sign[0], ours[0], theirs[0]
        return sign * lost_in_pairs(codes, sign * (weights - ours) + theirs)

    return lost


PAIRS = "pairs saturate (x86 without VNNI)"
"""A cause: what :func:`in_pairs` gives, bit for bit."""


def without_vnni(
    saturating: Mapping[str, StoredWeights], node: Node, operands: Sequence[Array | None]
) -> tuple[str, Sequence[Array]] | None:
    """Returns what onnxruntime gives without VNNI, where pairs saturate; None where none does.

    Args:
        saturating: What is multiplied so in its file:
            :func:`qdqbridge.onnx_io.runtime.products.saturating_products`.
        operands: What it is given, as it is stored.
    """
    stored = _named(saturating, node)
    if stored is None:
        return None
    results, count = in_pairs(node, operands, stored)
    return (PAIRS, results) if count else None


def _named(saturating: Mapping[str, StoredWeights], node: Node) -> StoredWeights | None:
    """Returns how the weights of a node are stored, if it is one of the named products."""
    weights = (value.name for value in node.inputs if value is not None and value.is_constant)
    names = (node.name, *weights, *(value.name for value in node.outputs))
    return next((saturating[name] for name in names if name in saturating), None)


WRAPPED = "sums beyond int32 wrap"
"""A cause: onnxruntime adds in 32 bits, the contract in as many as it takes."""


def beyond_int32(
    node: Node, operands: Sequence[Array | None], predicted: tuple[str, Sequence[Array]] | None
) -> tuple[str, Sequence[Array]] | None:
    """Returns what onnxruntime gives where sums and biases leave int32; None where none does.

    Args:
        operands: What it is given, as it is stored.
        predicted: What its own arithmetic gives elsewhere; None for the contract's.
    """
    product = product_at(node)
    if product is None or not _is_rounded(node) or not leaves_int32(node):
        return None
    swapped = product.other is node.operand(0)
    x, other = operands[int(swapped)], operands[int(not swapped)]
    assert x is not None and other is not None
    sums = product.accumulators(x, other)
    low, high = CONTRACT.limits
    leaves = (sums < low) | (sums > high)
    if not leaves.any():
        return None
    # Two's complement: what leaves at one end comes in at the other.
    wrapped = (sums - low) % (high - low + 1) + low
    usual = computed(node, operands)[0] if predicted is None else predicted[1][0]
    return WRAPPED, [np.where(leaves, _requantized(product, wrapped, CONTRACT.requantize), usual)]


def outputs_in_pairs(
    graph: Graph,
    data: Mapping[str, Array],
    saturating: Mapping[str, StoredWeights] | None = None,
) -> dict[str, Array]:
    """Returns the stored outputs where pairs saturate, by name; none of a model without such pairs.

    Args:
        graph: A canonical quantized graph.
        data: One array per input, of any number of examples.
        saturating: As :func:`run` takes it.

    Raises:
        InputDataError: The data does not fit.
    """
    some = any(map(is_paired, graph.nodes)) if saturating is None else bool(saturating)
    if not some:
        return {}
    pieces = list(batches(graph.inputs, data))
    hardware = arithmetic_of(pairs=True)
    ran = [run(graph, piece.inputs, hardware, saturating).outputs for piece in pieces]
    return {
        name: concat_batch_results([each[name] for each in ran], pieces, name)
        for name in graph.output_names
    }


# ---- sums ------------------------------------------------------------------------------------


def summed(
    product: Product, x: Array, other: Array, arithmetic: IntegerArithmetic
) -> tuple[Sums, int]:
    """Returns the sums of a product as hardware has them, and how many of them were lost.

    Args:
        x: Stored codes of its activation.
        other: Stored codes of its other operand.
        arithmetic: How they are added.
    """
    exact = product.accumulators(x, other)
    if not arithmetic.narrow:
        return exact, 0
    low, high = arithmetic.limits
    found, lost = exact, np.zeros(exact.shape, bool)
    if product.weights is not None:
        if arithmetic.pairs is not None and product.paired:
            moved = product.lost(x, other)
            found, lost = exact + moved, np.broadcast_to(moved != 0, exact.shape).copy()
        if arithmetic.overflow is Overflow.SATURATION and arithmetic.accumulator_bits < EXACT_BITS:
            added = _Added(product, x, other, arithmetic.pairs or "channels-last")
            found, lost = added.one_by_one(low, high)
    lost |= (found < low) | (found > high)
    return (found - low) % (high - low + 1) + low, int(lost.sum())


class _Added:
    """The sums of one product, term by term."""

    def __init__(self, product: Product, x: Array, other: Array, order: Order) -> None:
        self.product, self._x, self._other = product, x, other
        self._order: Order = order
        self._places = product.places(order)
        zero = product.other_params.aligned(product.other_params.zero_point, other.shape)
        self._nothing = np.array(np.broadcast_to(zero, other.shape), other.dtype)
        self.bias = product.accumulators(x, self._nothing)

    def _of(self, columns: slice) -> Sums:
        """Returns what some terms of every sum give, without the bias."""
        terms, places = self._nothing.copy(), self._places[:, columns]
        terms.flat[places] = self._other.flat[places]
        return self.product.accumulators(self._x, terms) - self.bias

    def one_by_one(self, low: int, high: int) -> tuple[Sums, NDArray[np.bool_]]:
        """Returns the sums with saturation at every step, and where it happened."""
        total = np.clip(self.bias, low, high)
        lost = total != self.bias
        for index in range(self._places.shape[1]):
            # Term by term in the order of the instruction: where a sum saturates depends on it.
            total = total + self._of(slice(index, index + 1))
            lost |= (total < low) | (total > high)
            total = np.clip(total, low, high)
        return total, lost


# ---- results ---------------------------------------------------------------------------------


def _requantized(product: Product, sums: Sums, requantize: Rescaling) -> Array:
    """Returns sums as the stored result."""
    result = product.node.output.type
    assert isinstance(result, QuantType)
    params = result.params
    real = product.unit(sums.ndim) / float(params.scale)
    scaled = _FORMULAS[requantize](sums, np.broadcast_to(real, sums.shape).astype(np.float64))
    stored = np.clip(scaled + int(params.zero_point), params.qmin, params.qmax)
    return stored.astype(params.storage_dtype.numpy)


def _truncated(sums: Sums, multiplier: NDArray[np.float64]) -> Sums:
    mantissa, shift = fixed_point(multiplier)
    return (sums * mantissa) >> (31 - shift)


def _shifted(sums: Sums, multiplier: NDArray[np.float64]) -> Sums:
    places = np.rint(-np.log2(multiplier)).astype(np.int64)
    right = np.maximum(places, 0)
    return np.where(
        right > 0, (sums + ((np.int64(1) << right) >> 1)) >> right, sums << np.maximum(-places, 0)
    )


_FORMULAS: Mapping[Rescaling, Callable[[Sums, NDArray[np.float64]], Sums]] = MappingProxyType(
    {
        Rescaling.HALF_EVEN: in_float32,
        Rescaling.FIXED_POINT: rounded_twice,
        Rescaling.DOUBLE_ROUND: double_round,
        Rescaling.TRUNCATION: _truncated,
        Rescaling.SHIFT: _shifted,
    }
)
