"""The dot products of a quantized graph: their integer weights as rows, their operands' types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.accumulator import centered, integer_params
from qdqbridge.core.ops.attributes import ConvAttrs, GemmAttrs
from qdqbridge.core.ops.convolution import CONV, lost_in_sums
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.onnx_io.runtime.products import Order, lost

_PAIRED = (CONV, DENSE, GEMM, MATMUL)


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A node that sums products of integers.

    Attributes:
        node: The node.
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
        largest: The largest.
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
