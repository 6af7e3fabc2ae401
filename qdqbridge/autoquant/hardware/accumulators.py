"""What the products of a quantized graph ask of hardware: accumulator bits, saturation, dead codes.

Every term ``(x - zx) * (w - zw)`` of a dot product lies in an interval around zero, so that the
sums of all lower and of all upper ends bound every partial sum, in any order of additions.
Source of the bound: "A2Q: Accumulator-Aware Quantization with Guaranteed Overflow Avoidance",
arXiv 2308.13504. What 16-bit sums of two products do is in
:mod:`qdqbridge.onnx_io.runtime.products`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.products import Product, Seen, products
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.record import AccumulatorRow
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.onnx_io.runtime.products import FULL, Order, remedy, saturating

__all__ = [
    "CodeUsage",
    "ProductAccumulator",
    "accumulators",
    "bits_of",
    "bounds",
    "codes_used",
    "saturating",
]

WIDTH = 32
"""Bits of the accumulators that hardware has."""
_SUFFIX = "_quantized"


@dataclass(frozen=True, slots=True, eq=False)
class ProductAccumulator:
    """One product of a graph. Arrays have one entry for each output channel.

    Attributes:
        node: Its name.
        operator: Its operator.
        terms: Products in one sum.
        naive_bits: Bits by the widths of the types alone.
        smallest: The smallest partial sum of any input, the bias included.
        largest: The largest.
        bits: Bits of a two's complement accumulator that no input overflows.
        calibrated_bits: The same for inputs within the observed range; None where nothing is known.
        observed: The smallest and the largest sum that data gave; None without data.
        pairs: How many pairs of terms a kernel adds in 16 bits, per channel; 0 where none does.
        saturating_pairs: How many of them can saturate.
        calibrated_pairs: How many can for inputs within the observed range; None where nothing is
            known.
        remedy: By which factor the scale of the weights has to grow so that none saturates.
        dead_channels: Channels whose weights are all zero.
    """

    node: str
    operator: str
    terms: int
    naive_bits: int
    smallest: NDArray[np.int64]
    largest: NDArray[np.int64]
    bits: NDArray[np.int64]
    calibrated_bits: NDArray[np.int64] | None
    observed: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    pairs: int
    saturating_pairs: NDArray[np.int64]
    calibrated_pairs: NDArray[np.int64] | None
    remedy: NDArray[np.float64]
    dead_channels: tuple[int, ...]

    @property
    def observed_bits(self) -> NDArray[np.int64] | None:
        """Bits of the sums that data gave."""
        return None if self.observed is None else bits_of(*self.observed)

    def row(self) -> AccumulatorRow:
        """Returns the figures of the worst channel, for a table."""
        observed = None
        if self.observed is not None:
            observed = int(self.observed[0].min()), int(self.observed[1].max())
        risk = self.calibrated_pairs
        return AccumulatorRow(
            self.node,
            self.operator,
            len(self.bits),
            self.terms,
            self.naive_bits,
            int(self.bits.max()),
            _worst(self.calibrated_bits),
            _worst(self.observed_bits),
            observed,
            self.headroom,
            self.pairs * len(self.bits),
            int(self.saturating_pairs.sum()),
            None if risk is None else int(risk.sum()),
            int(np.count_nonzero(self.saturating_pairs)),
            float(self.remedy.max()),
            len(self.dead_channels),
        )

    @property
    def headroom(self) -> int:
        """Bits that an int32 accumulator has to spare; negative where it may overflow."""
        return WIDTH - int(self.bits.max(initial=1))


def _worst(bits: NDArray[np.int64] | None) -> int | None:
    return None if bits is None else int(bits.max())


@dataclass(frozen=True, slots=True)
class CodeUsage:
    """How an activation uses its codes.

    Attributes:
        name: The value's name.
        used: Number of codes between the smallest and the largest observed one.
        available: Number of codes of the type.
    """

    name: str
    used: int
    available: int


def accumulators(
    graph: Graph,
    stats: Mapping[str, TensorStats] | None = None,
    *,
    seen: Mapping[Node, Seen] | None = None,
    order: Order = "channels-last",
) -> list[ProductAccumulator]:
    """Returns what every product of quantized operands asks for.

    Args:
        graph: A canonical quantized graph.
        stats: What was seen of the float tensors, by name: a profile's.
        seen: What data did to this graph, which goes before ``stats``; see
            :func:`qdqbridge.autoquant.hardware.products.observe`.
        order: In which order a kernel adds the products of a convolution.
    """
    known, found = stats or {}, seen or {}
    return [_of_product(p, _range(p, known), found.get(p.node), order) for p in products(graph)]


def codes_used(graph: Graph, stats: Mapping[str, TensorStats]) -> list[CodeUsage]:
    """Returns how many of their codes the quantized activations use."""
    result: list[CodeUsage] = []
    for node in graph.nodes:
        for value in node.outputs:
            if value.quant is None or not value.quant.params.storage_dtype.is_integer:
                continue
            params, seen = value.quant.params, _stats(value, stats)
            if seen is not None and params.per_tensor:
                low, high = _observed(params, seen)
                result.append(CodeUsage(value.name, high - low + 1, params.qmax - params.qmin + 1))
    return result


def _of_product(
    product: Product, codes: tuple[int, int] | None, seen: Seen | None, order: Order
) -> ProductAccumulator:
    params, zero = product.params, int(product.params.zero_point)
    if seen is not None:
        codes = seen.low, seen.high
    smallest, largest = _bounds(product, (params.qmin - zero, params.qmax - zero))
    calibrated = None
    if codes is not None:
        calibrated = bits_of(*_bounds(product, (codes[0] - zero, codes[1] - zero)))
    pairs, saturated, calibrated_pairs, factor = _pairs(product, codes, order)
    return ProductAccumulator(
        product.node.name,
        product.node.op.name,
        product.terms,
        _naive(product),
        smallest,
        largest,
        bits_of(smallest, largest),
        calibrated,
        None if seen is None else (seen.smallest, seen.largest),
        pairs,
        saturated,
        calibrated_pairs,
        factor,
        _dead(product),
    )


def _naive(product: Product) -> int:
    reach = _largest(product.params) * _largest(product.other_params) * product.terms
    return int(bits_of(np.array([-1]), np.array([reach]))[0])


def _largest(params: QuantParams) -> int:
    ends = np.array([params.qmin, params.qmax]) - params.zero_point.reshape(-1, 1)
    return int(np.abs(ends).max())


def _bounds(
    product: Product, inputs: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the smallest and the largest partial sum of every channel."""
    below, above = product.bias
    if product.weights is None:
        params, zero = product.other_params, int(product.other_params.zero_point)
        factors = (min(inputs[0], 0), max(inputs[1], 0))
        others = (min(params.qmin - zero, 0), max(params.qmax - zero, 0))
        ends = [a * b for a in factors for b in others]
        low, high = (np.array([end * product.terms]) for end in (min(ends), max(ends)))
        return low + np.minimum(below, 0), high + np.maximum(above, 0)
    weights = product.centred
    smallest = bounds(weights, inputs, below)[0]
    largest = bounds(weights, inputs, above)[1]
    if product.axis is None:
        return smallest.min(keepdims=True), largest.max(keepdims=True)
    return smallest, largest


def _dead(product: Product) -> tuple[int, ...]:
    if product.weights is None or product.axis is None:
        return ()
    return tuple(int(i) for i in np.flatnonzero(~product.centred.any(axis=1)))


def _pairs(
    product: Product, codes: tuple[int, int] | None, order: Order
) -> tuple[int, NDArray[np.int64], NDArray[np.int64] | None, NDArray[np.float64]]:
    """Returns the pairs, those that can saturate, those that can within ``codes``, the remedy."""
    none, ones = np.zeros(product.channels, np.int64), np.ones(product.channels)
    if not product.paired:
        return 0, none, none if codes is not None else None, ones
    rows, calibrated = product.in_order(order), None
    found, factor = saturating(rows, FULL), remedy(rows)
    if codes is not None:
        shift = 128 if product.params.storage_dtype.is_signed else 0
        zero = int(product.params.zero_point)  # what pads the borders
        calibrated = saturating(rows, (min(codes[0], zero) + shift, max(codes[1], zero) + shift))
    if product.axis is None:
        found, factor = found.sum(keepdims=True), factor.max(keepdims=True)
        calibrated = None if calibrated is None else calibrated.sum(keepdims=True)
    return product.terms // 2, found, calibrated, factor


def _stats(value: Value, stats: Mapping[str, TensorStats]) -> TensorStats | None:
    """Returns what was seen of a value, whose name says that it is the float one, rounded."""
    seen = stats.get(value.name) or stats.get(value.name.removesuffix(_SUFFIX))
    return None if seen is None or seen.minimum > seen.maximum else seen


def _range(product: Product, stats: Mapping[str, TensorStats]) -> tuple[int, int] | None:
    seen = _stats(product.x, stats)
    return None if seen is None else _observed(product.params, seen)


def _observed(params: QuantParams, seen: TensorStats) -> tuple[int, int]:
    """Returns the smallest and largest code of the observed range."""
    ends = np.array([seen.minimum, seen.maximum], np.float32)
    low, high = (int(code) for code in quantize(ends, params))
    return low, high


def bounds(
    weights: NDArray[np.int64], inputs: tuple[int, int], bias: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the smallest and largest partial sum of every channel.

    Args:
        weights: Centred weights, shape (channels, terms).
        inputs: Smallest and largest centred input code; zero is included.
        bias: One integer per channel.
    """
    low, high = min(inputs[0], 0), max(inputs[1], 0)
    positive = np.maximum(weights, 0).sum(axis=1)
    negative = np.minimum(weights, 0).sum(axis=1)
    smallest = positive * low + negative * high + np.minimum(bias, 0)
    largest = positive * high + negative * low + np.maximum(bias, 0)
    return smallest, largest


def bits_of(smallest: NDArray[Any], largest: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the bits of the narrowest two's complement type that holds both."""
    reach = np.maximum(largest, -1 - smallest).astype(object)
    return np.array([int(value).bit_length() + 1 for value in reach], np.int64)
