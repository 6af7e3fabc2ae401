"""The dot products of a quantized graph: their integer weights as rows, their operands' types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.record import AccumulatorRow
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.accumulator import centered, integer_params
from qdqbridge.core.ops.attributes import ConvAttrs, GemmAttrs
from qdqbridge.core.ops.convolution import CONV, lost_in_sums
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE, DYNAMIC_DENSE, LAST_OF_BLOCK
from qdqbridge.core.ops.dynamic import OPERATORS as DYNAMIC_PRODUCTS
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.opaque.paired import multiplies_bytes
from qdqbridge.onnx_io.runtime.products import (
    FULL,
    PRODUCTS_OF_BYTES,
    Order,
    lost,
    remedy,
    saturating,
)

_PAIRED = (CONV, DENSE, GEMM, MATMUL)


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A node that sums products of integers.

    Attributes:
        x: The activation that is fed at run time.
        params: Its parameters.
        other: The other operand: a constant, or a second activation.
        other_params: Its parameters.
        weights: The constant as it is stored, one row of terms for each output channel; None for
            two activations.
        zero_points: Of each row, to be subtracted from it.
        bias: The smallest and the largest integer that is added, for each row.
        terms: Number of terms in one sum.
        axis: The axis of the result that numbers the channels; None where there is but one.
    """

    node: Node
    x: Value
    params: QuantParams
    other: Value
    other_params: QuantParams
    weights: NDArray[np.int64] | None
    zero_points: NDArray[np.int64]
    bias: tuple[NDArray[np.int64], NDArray[np.int64]]
    terms: int
    axis: int | None

    @property
    def channels(self) -> int:
        """Number of channels, each with figures of its own."""
        return 1 if self.axis is None else len(self.zero_points)

    @property
    def centred(self) -> NDArray[np.int64]:
        """The weights with their zero points removed."""
        assert self.weights is not None
        return self.weights - self.zero_points[:, None]

    def in_order(self, order: Order) -> NDArray[np.int64]:
        """Returns the stored weights, signed, in the order in which a kernel adds their products.

        Args:
            order: Which index of a convolution's terms runs fastest.
        """
        assert self.weights is not None
        signed = self.weights - (0 if self.other_params.storage_dtype.is_signed else 128)
        return self._ordered(signed, order)

    def places(self, order: Order) -> NDArray[np.int64]:
        """Returns where each weight of :meth:`in_order` lies in the constant, counted flat."""
        assert self.other.constant is not None
        shape = self.other.constant.shape
        index = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
        rows = _rows_per_output_channel(
            self.node, index, swapped=self.other is self.node.operand(0)
        )
        return self._ordered(rows, order)

    def _ordered(self, rows: NDArray[np.int64], order: Order) -> NDArray[np.int64]:
        kernel, geometry = self.other.constant, geometry_of(self.node)
        image = geometry is not None and geometry.image
        if order == "channels-first" or not image or kernel is None:
            return rows
        taps = int(np.prod(kernel.shape[2:], dtype=np.int64))
        split = rows.reshape(len(rows), -1, taps)
        return np.swapaxes(split, 1, 2).reshape(rows.shape)

    def unit(self, rank: int) -> NDArray[np.float64]:
        """Returns what 1 of a sum stands for, broadcastable against sums of a rank."""
        params = self.other_params
        scale = params.scale.astype(np.float64) * float(self.params.scale)
        if params.per_tensor or self.axis is None:
            return scale.reshape(-1)[:1].reshape((1,) * rank)
        shape = [1] * rank
        shape[self.axis] = self.channels
        return np.tile(scale, self.channels // scale.size).reshape(shape)

    @property
    def paired(self) -> bool:
        """True where a kernel without VNNI adds its products in pairs of 16 bits.

        Convolutions of one channel to one channel have a kernel of their own, which is exact, and
        so are products of unsigned weights and of two activations, which become unsigned both.
        """
        geometry = geometry_of(self.node)
        return (
            self.node.op in _PAIRED
            and self.weights is not None
            and self.other is not self.node.operand(0)
            and self.params.storage_dtype in (DType.INT8, DType.UINT8)
            and self.other_params.storage_dtype is DType.INT8
            and not (geometry is not None and geometry.alone(self.other.type.shape or (0, 0)))
        )

    def lost(self, x: NDArray[Any], other: NDArray[Any]) -> NDArray[np.int64] | int:
        """Returns what pairs that saturate add to the exact sums of a product that has them.

        Args:
            x: Stored codes of :attr:`x`.
            other: Stored codes of :attr:`other`.
        """
        attributes, up = self.node.attributes, 128 if self.params.storage_dtype.is_signed else 0
        codes = x.astype(np.int32) + up
        if isinstance(attributes, ConvAttrs):
            zero = int(self.params.zero_point) + up
            return lost_in_sums(attributes, codes, other, zero, lost)
        if isinstance(attributes, GemmAttrs):
            return lost(
                codes.T if attributes.trans_a else codes, other.T if attributes.trans_b else other
            )
        return lost(codes, other.T if self.node.op is DENSE else other)

    def accumulators(self, x: NDArray[Any], other: NDArray[Any]) -> NDArray[np.int64]:
        """Returns the exact integer sums for stored operands, the bias included.

        Args:
            x: Stored codes of :attr:`x`.
            other: Stored codes of :attr:`other`.
        """
        node, attributes = self.node, self.node.attributes
        if isinstance(attributes, GemmAttrs):
            attributes = replace(attributes, alpha=1.0, beta=1.0)
        found = {self.x: centered(x, self.params), self.other: centered(other, self.other_params)}
        operands: list[NDArray[Any] | None] = [
            found[node.operand(i)].astype(np.float64) for i in (0, 1)
        ]
        bias = _integer_bias(node)
        operands.append(None if bias is None else bias.astype(np.float64))
        return node.op.compute(attributes, operands)[0].astype(np.int64)


def products(graph: Graph) -> list[Product]:
    """Returns the nodes of a canonical graph that sum products of integers."""
    return [product for node in graph.nodes if (product := product_at(node)) is not None]


def product_at(node: Node) -> Product | None:
    """Returns a node as a product of integers; None where it is none."""
    if node.op.flow is not Flow.ACCUMULATE:
        return None
    a, b = node.operand(0), node.operand(1)
    swapped = a.is_constant and not b.is_constant
    x, w = (b, a) if swapped else (a, b)
    px, pw = integer_params(x.type), integer_params(w.type)
    if px is None or pw is None or not px.per_tensor or x.is_constant:
        return None
    if w.constant is None:
        terms = _terms(node, a, b)
        if not pw.per_tensor or terms is None:
            return None
        none = np.zeros(1, np.int64)
        return Product(node, x, px, w, pw, None, none, _bias_extremes(node, 1, None), terms, None)
    stored = w.constant.numpy().astype(np.int64)
    zero = np.broadcast_to(pw.aligned(pw.zero_point, stored.shape), stored.shape)
    rows, zeros = (
        _rows_per_output_channel(node, stored, swapped=swapped),
        _rows_per_output_channel(node, zero, swapped=swapped),
    )
    if (zeros != zeros[:, :1]).any() or not _scales_by_row(node, pw, stored, swapped=swapped):
        return None
    zero_points = zeros[:, 0].astype(np.int64)
    axis = _weight_channel_axis(node, w, swapped=swapped)
    bias = _bias_extremes(node, len(rows), axis)
    return Product(node, x, px, w, pw, rows, zero_points, bias, rows.shape[1], axis)


def _terms(node: Node, a: Value, b: Value) -> int | None:
    """Returns the length of the inner axis of a product of two activations."""
    attributes = node.attributes
    transposed = isinstance(attributes, GemmAttrs) and attributes.trans_a
    first = a.type.shape[-2 if transposed else -1] if a.type.shape else None
    if isinstance(first, int):
        return first
    transposed = isinstance(attributes, GemmAttrs) and attributes.trans_b
    inner = -1 if transposed or b.rank == 1 else -2
    second = b.type.shape[inner] if b.type.shape else None
    return second if isinstance(second, int) else None


def _rows_per_output_channel(node: Node, array: NDArray[Any], *, swapped: bool) -> NDArray[Any]:
    """Returns a weight as one row of terms for each output channel."""
    attributes, geometry = node.attributes, geometry_of(node)
    if geometry is not None and not swapped and (geometry.image or array.ndim == 2):
        return geometry.rows(array)
    if array.ndim == 1:
        return array.reshape(1, -1)
    transposed = isinstance(attributes, GemmAttrs) and (
        attributes.trans_a if swapped else attributes.trans_b
    )
    matrix = array if transposed != swapped else np.swapaxes(array, -1, -2)
    return matrix.reshape(-1, matrix.shape[-1])


def _scales_by_row(node: Node, params: QuantParams, stored: NDArray[Any], *, swapped: bool) -> bool:
    """True where every term of a sum has the same scale, as integer sums need it."""
    scale = np.broadcast_to(params.aligned(params.scale, stored.shape), stored.shape)
    rows = _rows_per_output_channel(node, scale, swapped=swapped)
    return bool((rows == rows[:, :1]).all())


def _weight_channel_axis(node: Node, w: Value, *, swapped: bool) -> int | None:
    geometry = geometry_of(node)
    if geometry is not None and geometry.image:
        return 1
    return None if w.rank != 2 else (-2 if swapped else -1)


def _integer_bias(node: Node) -> NDArray[Any] | None:
    bias = node.optional(2)
    if bias is None or bias.constant is None or bias.quant is None:
        return None
    return bias.constant.numpy()


def _bias_extremes(
    node: Node, rows: int, axis: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the smallest and the largest integer that is added to the sum of each row."""
    bias = _integer_bias(node)
    wide = np.zeros(1, np.int64) if bias is None else bias.astype(np.int64)
    if axis in (1, -1) and wide.ndim and wide.shape[-1] == rows:
        flat = wide.reshape(-1, rows)
        return flat.min(axis=0), flat.max(axis=0)
    return np.full(rows, wide.min(initial=0)), np.full(rows, wide.max(initial=0))


# ---- observed ------------------------------------------------------------------------------------
# What data does to the products of a quantized graph: the codes that come in, the sums they make.
#
# The interpreter runs the graph, so that the sums are those of every path that keeps the contract.


Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What came in and out of one product.

    Attributes:
        low: The smallest stored code of the activation.
        high: The largest.
        smallest: The smallest sum of each output channel, int64, the bias included.
    """

    low: int
    high: int
    smallest: NDArray[np.int64]
    largest: NDArray[np.int64]

    def merged(self, other: Seen) -> Seen:
        """Returns what both saw."""
        return Seen(
            min(self.low, other.low),
            max(self.high, other.high),
            np.minimum(self.smallest, other.smallest),
            np.maximum(self.largest, other.largest),
        )


def observe(
    graph: Graph, samples: Samples | Sequence[Sample], *, progress: Progress | None = None
) -> dict[Node, Seen]:
    """Returns what samples do to every product of integers.

    Args:
        graph: A canonical quantized graph.
        samples: Its inputs; or feedings, each as the graph takes it.
        progress: Called with the batches done and their number.

    Raises:
        InputDataError: The samples do not fit the graph.
    """
    found: dict[Node, Seen] = {}
    known = products(graph)
    wanted = list(dict.fromkeys(v for p in known for v in (p.x, p.other) if not v.is_constant))
    pieces = samples.batches(graph.inputs) if isinstance(samples, Samples) else samples
    for done, piece in enumerate(pieces, 1):
        _, values = evaluate(graph, piece, wanted=wanted)
        for product in known:
            seen = _seen(product, values)
            before = found.get(product.node)
            found[product.node] = seen if before is None else before.merged(seen)
        if progress is not None:
            progress(done, len(pieces))
    return found


def _seen(product: Product, values: dict[Value, NDArray[Any]]) -> Seen:
    x = values[product.x]
    constant = product.other.constant
    sums = product.accumulators(x, values[product.other] if constant is None else constant.numpy())
    others = None
    if product.axis is not None:
        axis = product.axis % sums.ndim
        others = tuple(i for i in range(sums.ndim) if i != axis)
    smallest, largest = sums.min(axis=others), sums.max(axis=others)
    return Seen(int(x.min()), int(x.max()), np.atleast_1d(smallest), np.atleast_1d(largest))


# ---- accumulators --------------------------------------------------------------------------------
# What the products of a quantized graph ask of hardware: accumulator bits, saturation, dead codes.
#
# Every term ``(x - zx) * (w - zw)`` of a dot product lies in an interval around zero, so that the
# sums of all lower and of all upper ends bound every partial sum, in any order of additions.
# Source of the bound: "A2Q: Accumulator-Aware Quantization with Guaranteed Overflow Avoidance",
# arXiv 2308.13504. What 16-bit sums of two products do is in
# :mod:`qdqbridge.onnx_io.runtime.products`.


WIDTH = 32
"""Bits of the accumulators that hardware has."""
_SUFFIX = "_quantized"


@dataclass(frozen=True, slots=True, eq=False)
class ProductAccumulator:
    """One product of a graph. Arrays have one entry for each output channel.

    Attributes:
        node: Its name.
        terms: Products in one sum.
        naive_bits: Bits by the widths of the types alone.
        smallest: The smallest partial sum of any input, the bias included.
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


# ---- Products of activations that are quantized while the model runs


_ALL_SIGNED = (-128, 127)
_DYNAMIC = ("ConvInteger", "MatMulInteger", "QAttention", "DynamicQuantizeLSTM")
"""Operators without a row that multiply bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class _DynamicFactors:
    """What such a product multiplies.

    Attributes:
        name: What it is called.
        stored: The constant, one row of terms for each sum that is added.
        centred: The same without its zero points.
        dtype: The type in which it is stored.
        codes: Smallest and largest activation without its zero point, for each end of what that
            may be.
        per_channel: How many rows, of blocks, one output channel has.
        signed_windows: In 16 bits are added the products of unsigned weights and signed windows.
    """

    name: str
    stored: NDArray[np.int64]
    centred: NDArray[np.int64]
    dtype: DType
    codes: tuple[tuple[int, int], ...]
    per_channel: int = 1
    signed_windows: bool = False


_ANY_ZERO = ((0, 255), (-255, 0))
"""Bytes whose zero point is one of their own numbers."""


def dynamic_accumulators(graph: Graph) -> list[ProductAccumulator]:
    """Returns the same of products by a constant whose activations are quantized when they run.

    What data do to them is not observed: their codes are all used by every input.

    Args:
        graph: A canonical graph.
    """
    return [
        _of_factors(node, factors) for node in graph.nodes for factors in _dynamic_factors(node)
    ]


def _dynamic_factors(node: Node) -> Iterator[_DynamicFactors]:
    if node.op in DYNAMIC_PRODUCTS:
        yield from _of_row(node)
    record = node.attributes
    if not isinstance(record, OpaqueAttrs) or record.op_type not in _DYNAMIC:
        return
    operands = PRODUCTS_OF_BYTES[record.op_type]
    image = record.op_type == "ConvInteger"  # which multiplies weights by windows
    data = operands.signed[0] if image else operands.unsigned
    weights = (operands.unsigned,) if image else operands.signed
    for pair in weights:
        weight = None if pair is None else node.optional(pair[0])
        if pair is None or weight is None or weight.constant is None:
            continue
        stored = weight.constant.numpy().astype(np.int64)
        zero = _constant_zero(node, pair[1])
        if zero is None:
            continue
        lined = zero.reshape(-1, *[1] * (stored.ndim - 1)) if image else zero[..., None, :]
        zero = zero.reshape(()) if zero.size == 1 else lined
        both = (stored, np.broadcast_to(stored - zero, stored.shape))
        rows = [a.reshape(len(a), -1) if image else _columns(a) for a in both]
        name = node.name if len(weights) == 1 else f"{node.name}, {weight.name}"
        codes = _ANY_ZERO if data is None else _centred_codes(node, data)
        yield _DynamicFactors(
            name, rows[0], rows[1], weight.type.dtype, codes, signed_windows=image
        )


def _of_row(node: Node) -> Iterator[_DynamicFactors]:
    weight = node.operand(1)
    if weight.constant is None or weight.quant is None:
        return
    params, stored = weight.quant.params, weight.constant.numpy()
    centred, codes, blocks = centered(stored, params).astype(np.int64), _ANY_ZERO, 1
    rows = [a.reshape(len(a), -1) for a in (stored.astype(np.int64), centred)]
    block = DYNAMIC_BLOCK_DENSE.of(node)
    if block is not None:
        size, terms = block.block_size, rows[0].shape[1]
        blocks, codes = -(-terms // size), ((-LAST_OF_BLOCK, LAST_OF_BLOCK),)
        room = [(0, 0), (0, blocks * size - terms)]
        rows = [np.pad(a, room).reshape(-1, size) for a in rows]
    yield _DynamicFactors(
        node.name, rows[0], rows[1], params.storage_dtype, codes, per_channel=blocks
    )


def _constant_zero(node: Node, index: int) -> NDArray[np.int64] | None:
    """Returns a zero point, 0 where it is left out; None where only the run knows it."""
    zero = node.optional(index)
    if zero is None:
        return np.zeros(1, np.int64)
    return None if zero.constant is None else np.atleast_1d(zero.constant.numpy()).astype(np.int64)


def _centred_codes(node: Node, data: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    zero, info = _constant_zero(node, data[1]), np.iinfo(node.operand(data[0]).type.dtype.numpy)
    if zero is None or not zero.size:
        return _ANY_ZERO
    return tuple((int(info.min) - int(z), int(info.max) - int(z)) for z in (zero.min(), zero.max()))


def _columns(matrix: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.swapaxes(matrix, -1, -2).reshape(-1, matrix.shape[-2])


def _of_factors(node: Node, factors: _DynamicFactors) -> ProductAccumulator:
    count, none = factors.per_channel, np.zeros(len(factors.centred), np.int64)
    ends = [bounds(factors.centred, codes, none) for codes in factors.codes]
    smallest = np.min([low for low, _ in ends], axis=0).reshape(-1, count).min(axis=1)
    largest = np.max([high for _, high in ends], axis=0).reshape(-1, count).max(axis=1)
    saturated, factor = none[: len(smallest)], np.ones(len(smallest))
    windows = factors.signed_windows
    paired = multiplies_bytes(node) or (node.op is DYNAMIC_DENSE and factors.dtype is DType.INT8)
    if paired:
        saturated = saturating(factors.stored, _ALL_SIGNED if windows else FULL)
        factor = np.where(saturated > 0, 2.0, 1.0) if windows else remedy(factors.stored)
    terms = factors.stored.shape[1]
    reach = max(abs(code) for pair in factors.codes for code in pair)
    whole = factors.stored - factors.centred
    of_type = (factors.dtype.qmin, factors.dtype.qmax)
    widest = max(int(np.abs(end - whole).max(initial=0)) for end in of_type)
    naive = bits_of(np.array([-1]), np.array([reach * widest * terms]))
    live = factors.centred.reshape(len(smallest), -1).any(axis=1)
    pairs, dead = terms // 2 if paired else 0, tuple(int(i) for i in np.flatnonzero(~live))
    return ProductAccumulator(
        factors.name, node.op.name, terms, int(naive[0]), smallest, largest,
        bits_of(smallest, largest), None, None, pairs, saturated, None, factor, dead,
    )  # fmt: skip


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
