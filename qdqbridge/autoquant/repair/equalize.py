"""Cross-layer equalization: factors per channel between products that leave the function as it is.

``relu(s * x) = s * relu(x)`` for ``s > 0``, so the results of one product may be divided by a
factor per channel that the next one's weights are multiplied with. With ``r1`` and ``r2`` the
largest weights of a channel on both sides, ``s = sqrt(r1 / r2)`` makes both equal
(Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019).
Repeated until nothing moves; through depthwise convolutions that gives every weight of a channel
the geometric mean of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.planning.constants import spanned
from qdqbridge.autoquant.planning.decide import Decision
from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.autoquant.planning.plan import Observed, QuantizationPlan
from qdqbridge.autoquant.planning.targets import U8
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.repair.gptq import columns
from qdqbridge.autoquant.repair.layers import (
    End,
    Norm,
    PathRefused,
    ProductLayer,
    Reach,
    Vector,
    layer_of,
    norm_of,
    reach,
)
from qdqbridge.core.graph.copying import Slot, with_constants
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import ClipAttrs
from qdqbridge.core.ops.dynamic import dynamic_codes, dynamic_parameters

TOLERANCE = 1e-6
"""Largest change of a logarithm at which factors count as settled; the usual 1e-3 leaves them
farther from the fixed point than float32 is exact."""
SWEEPS = 200
CONVERGED = 0.01
"""Channels whose logarithms differ by less are not worth touching."""


@dataclass(frozen=True, slots=True, eq=False)
class EqualizedLink:
    """A node whose result channels may be divided by factors, and what reads them.

    Attributes:
        source: A product, or a normalization.
        reach: What has to follow.
    """

    source: ProductLayer | Norm
    reach: Reach


@dataclass(frozen=True, slots=True, eq=False)
class EqualizedLinks:
    """What can be equalized in a graph.

    Attributes:
        links: In topological order.
        refused: By name of a product why its channels cannot be scaled.
    """

    links: Sequence[EqualizedLink]
    refused: Mapping[str, str]


def links(graph: Graph, seen: Mapping[str, TensorStats]) -> EqualizedLinks:
    """Returns the products whose channels can be scaled.

    Args:
        graph: A float graph.
        seen: Statistics by tensor name: they say which Clips never reach their bounds.
    """
    found: list[EqualizedLink] = []
    refused: dict[str, str] = {}
    for node in graph.nodes:
        layer = layer_of(node)
        if layer is None:
            continue
        try:
            found.append(EqualizedLink(layer, reach_of(graph.outputs, layer, seen)))
        except PathRefused as reason:
            refused[node.name] = str(reason)
    return EqualizedLinks(found, refused)


def reach_of(
    outputs: Iterable[Value], source: ProductLayer | Norm, seen: Mapping[str, TensorStats]
) -> Reach:
    """Returns what has to follow where the result channels of ``source`` are scaled.

    Raises:
        Refused: They cannot be.
    """
    bias = source.node.optional(2)
    if bias is not None and (
        bias.constant is None or bias.constant.size not in (1, source.outputs)
    ):
        raise PathRefused(f"the bias of {source.node.name!r} is not a vector of constants")
    found = reach(outputs, source.node.output, source.result_axis)
    if not found.ends:
        raise PathRefused("nothing reads it")
    for clip in found.clips:
        _check_inactive(clip, seen.get(clip.operand(0).name))
    return found


_LARGEST = float(np.finfo(np.float32).max)


def _check_inactive(clip: Node, stats: TensorStats | None) -> None:
    """Refuses a Clip with a bound that would have to differ from channel to channel."""
    attributes = clip.record(ClipAttrs)
    low, high = attributes.low, attributes.high
    free = low in (None, 0.0, -_LARGEST) and high in (None, _LARGEST)
    if free:
        return
    name = f"Clip {clip.name!r}"
    if stats is None or not stats.finite:
        raise PathRefused(f"{name} has bounds and nothing was seen of its operand")
    if high is not None and stats.maximum > high:
        raise PathRefused(f"{name} cuts what is above {high:g}")
    if low not in (None, 0.0) and stats.minimum < low:
        raise PathRefused(f"{name} cuts what is below {low:g}")


def factors(found: EqualizedLinks) -> dict[EqualizedLink, Vector]:
    """Returns by what to divide the channels of every link: 1 where one side has no weights."""
    peaks: dict[Node, Vector] = {}
    for link in found.links:
        if isinstance(link.source, ProductLayer):
            peaks.setdefault(link.source.node, link.source.peaks())
        for end in link.reach.ends:
            peaks.setdefault(end.layer.node, end.layer.peaks())
    total = {link: np.ones(link.source.outputs) for link in found.links}
    for _ in range(SWEEPS):
        moved = 0.0
        for link in found.links:
            step = _step(link, peaks)
            moved = max(moved, float(np.abs(np.log(step)).max(initial=0.0)))
            total[link] *= step
            _apply(link, step, peaks)
        if moved < TOLERANCE:
            break
    return total


def _step(link: EqualizedLink, peaks: Mapping[Node, Vector]) -> Vector:
    """Returns ``sqrt(r1 / r2)`` for the channels of one link."""
    first = peaks[link.source.node].max(axis=2, initial=0.0).reshape(-1)
    second = np.zeros_like(first)
    for end in link.reach.ends:
        peak = peaks[end.layer.node].max(axis=1, initial=0.0).reshape(-1)
        np.maximum.at(second, end.channels, peak)
    usable = (first > 0) & (second > 0) & np.isfinite(first) & np.isfinite(second)
    ratio = np.divide(first, second, out=np.ones_like(first), where=usable)
    return np.sqrt(ratio)


def _apply(link: EqualizedLink, step: Vector, peaks: Mapping[Node, Vector]) -> None:
    first = peaks[link.source.node]
    first /= step.reshape(first.shape[0], -1, 1)
    for end in link.reach.ends:
        second = peaks[end.layer.node]
        second *= step[end.channels].reshape(second.shape[0], 1, -1)


def rescaled(graph: Graph, scales: Mapping[EqualizedLink, Vector]) -> Graph:
    """Returns ``graph`` with the channels of links divided by ``scales``: the same function.

    Clips on the way that never reach their upper bound lose it.
    """
    results: dict[Node, Vector] = {}
    operands: dict[Node, Vector] = {}
    layers: dict[Node, ProductLayer] = {}
    constants: dict[Slot, NDArray[np.float32]] = {}
    attributes: dict[Node, Attributes] = {}
    for link, scale in scales.items():
        if isinstance(link.source, Norm):
            for index, value in list(enumerate(link.source.node.inputs))[1:3]:
                if value is not None:
                    constants[link.source.node, index] = _scaled_bias(
                        link.source.node, index, 1 / scale
                    )
        else:
            layers[link.source.node] = link.source
            results[link.source.node] = 1 / scale
        for end in link.reach.ends:
            layers[end.layer.node] = end.layer
            operands[end.layer.node] = scale[end.channels]
        for node, index, numbers in link.reach.constants:
            constants[node, index] = _added(node, index, scale[numbers])
        attributes |= {clip: _unbounded(clip) for clip in link.reach.clips}
    for node, layer in layers.items():
        rows = results.get(node, np.ones(layer.outputs))
        columns = operands.get(node, np.ones(layer.inputs))
        constants[node, 1] = layer.multiplied(rows, columns)
        bias = node.optional(2)
        if node in results and bias is not None:
            constants[node, 2] = _scaled_bias(node, 2, rows)
    return with_constants(graph, constants, attributes).graph


def _scaled_bias(node: Node, index: int, rows: Vector) -> NDArray[np.float32]:
    """Returns a bias times one factor per result channel."""
    bias = node.operand(index).constant
    assert bias is not None
    shape = bias.shape if bias.size == len(rows) else rows.shape
    wide = bias.numpy().astype(np.float64).reshape(-1) * rows
    return wide.reshape(shape).astype(np.float32)


def _added(node: Node, index: int, scale: Vector) -> NDArray[np.float32]:
    """Returns a constant that is added, divided by the factors of what it is added to."""
    old = node.operand(index).constant
    assert old is not None
    wide = old.numpy().astype(np.float64) / scale
    kept = tuple(  # factors differ along few axes: the others stay as long as they were
        slice(None)
        if a == 1 or (np.diff(wide, axis=i) != 0).any()
        else slice(0, _extent(old.shape, wide.ndim, i))
        for i, a in enumerate(wide.shape)
    )
    result = wide[kept].astype(np.float32)
    return result.reshape(old.shape) if result.size == old.size else result


def _extent(shape: tuple[int, ...], rank: int, axis: int) -> int:
    return ((1,) * (rank - len(shape)) + shape)[axis]


def _unbounded(clip: Node) -> ClipAttrs:
    attributes = clip.record(ClipAttrs)
    return replace(attributes, low=0.0 if attributes.low == 0.0 else None, high=None)


def scale_spread(scales: Mapping[EqualizedLink, Vector]) -> float:
    """Returns the largest ``|ln s|``: how far from equal the channels were."""
    return max((float(np.abs(np.log(s)).max(initial=0.0)) for s in scales.values()), default=0.0)


def equalized(graph: Graph, seen: Mapping[str, TensorStats]) -> tuple[Graph, str]:
    """Returns ``graph`` with the channels of linked products equalized, and what was done.

    The outputs stay what they were up to float rounding; see :func:`links` for ``seen``.
    """
    found = links(graph, seen)
    scales = factors(found)
    if not scales:
        reasons = "; ".join(sorted(set(found.refused.values()))) or "there are no products"
        return graph, f"no channels can be scaled: {reasons}"
    factor = np.exp(scale_spread(scales))
    if scale_spread(scales) < CONVERGED:
        return graph, f"channels of {len(scales)} products are equal already"
    outcome = (
        f"channels of {len(scales)} products divided by factors up to {factor:.3g}, which the next "
        "products take back"
    )
    return rescaled(graph, scales), outcome


# ---- smooth --------------------------------------------------------------------------------------
# SmoothQuant and AWQ: channels of activations are scaled, and the weights that read them back.
#
# A few channels of a transformer's activations are many times larger than the others and take the
# whole range. Dividing channel ``j`` by ``s_j = max|X_j|^a / max|W_j|^(1 - a)`` and multiplying the
# weights with it leaves the function as it is (Xiao et al., "SmoothQuant", 2022). Where activations
# stay real numbers only weights are rounded, and those that meet loud channels matter most: they
# get more of the codes by ``s_j = mean|X_j|^a`` (Lin et al., "AWQ", 2023). The factors are folded
# into the normalization or product in front; whatever reads the tensor has to follow. Formula and
# exponent are searched for each tensor, by the error of the products that read it.
#
# Elsewhere it is known to cost accuracy on some networks: it is kept only where it does not.


Array = NDArray[Any]
EXPONENTS = tuple(i / 10 for i in range(11))
SAMPLES = 32
POSITIONS = 1024
"""Columns of operands that are kept of each product for the search."""
ROWS = 256
"""Result channels of each group that the search looks at."""


@dataclass(slots=True, eq=False)
class ProductReader:
    """A product that reads a tensor, and what it was seen to read.

    Attributes:
        end: The product, and which channels of the source it reads.
        activations: How its operand will be stored, or read where nobody stores it.
        weights: How its weight will be.
        peaks: Largest magnitude of each channel of its operand.
        totals: Mean magnitude of each channel, added up over samples.
        columns: Some of what its weights are multiplied with, ``[groups, n, positions]``.
    """

    end: End
    activations: Format | Unstored
    weights: Format
    peaks: Vector
    totals: Vector
    columns: list[Array]


def smoothing(largest: Vector, weights: Vector, exponent: float) -> Vector:
    """Returns ``max|X|^a / max|W|^(1 - a)`` for each channel; 1 where one of both is 0."""
    usable = (largest > 0) & (weights > 0)
    x, w = np.where(usable, largest, 1.0), np.where(usable, weights, 1.0)
    return np.where(usable, x**exponent / w ** (1 - exponent), 1.0)


def activation_aware(means: Vector, exponent: float) -> Vector:
    """Returns ``mean|X|^a`` for each channel, up to a factor of all; 1 where it is 0."""
    return np.where(means > 0, means, 1.0) ** exponent


def smoothed(
    decision: Decision, samples: Samples, seen: Mapping[str, TensorStats]
) -> tuple[Graph, str]:
    """Returns the graph of a decision with smoothed activations, and what was done.

    Args:
        decision: Says what is quantized; not changed.
        samples: Calibration data.
        seen: Statistics by tensor name.
    """
    graph = decision.plan.graph
    found = _links(decision.plan, seen)
    _watch(graph, [r for readers in found.values() for r in readers], samples)
    scales: dict[EqualizedLink, Vector] = {}
    exponents: list[str] = []
    for link, readers in found.items():
        exponent, scale = best(readers, link.source.outputs)
        if exponent is not None:
            scales[link] = scale
            exponents.append(f"{exponent:g}")
    if not scales:
        return graph, f"none of {len(found)} tensors is better off"
    outcome = (
        f"channels of {len(scales)} of {len(found)} tensors scaled, which the weights that read "
        f"them take back (exponents {', '.join(exponents)})"
    )
    return rescaled(graph, scales), outcome


def best(readers: Sequence[ProductReader], channels: int) -> tuple[float | None, Vector]:
    """Returns the exponent with the least error, None where no smoothing has less, and factors."""
    largest, means, weights = np.zeros((3, channels))
    for reader in readers:
        np.maximum.at(largest, reader.end.channels, reader.peaks)
        np.maximum.at(means, reader.end.channels, reader.totals)
        own = reader.end.layer.peaks().max(axis=1, initial=0.0).reshape(-1)
        np.maximum.at(weights, reader.end.channels, own)
    products = [_SearchedProduct(reader) for reader in readers]

    def error(scale: Vector) -> float:
        return sum(product.error(scale) for product in products)

    one = np.ones(channels)
    choice: tuple[float | None, Vector] = (None, one)
    least = error(one)
    tried = [(exponent, smoothing(largest, weights, exponent)) for exponent in EXPONENTS]
    if any(reader.activations is Unstored.FLOAT for reader in readers):
        tried += [(exponent, activation_aware(means, exponent)) for exponent in EXPONENTS[1:]]
    for exponent, factors in tried:
        scale = factors / np.exp(np.log(factors).mean())
        found = error(scale)
        if found < least:
            least, choice = found, (exponent, scale)
    return choice


class _SearchedProduct:
    """A product with some of its results, by which factors are judged.

    Args:
        reader: The product, and what was noted of its operand.
    """

    def __init__(self, reader: ProductReader) -> None:
        self.reader, layer = reader, reader.end.layer
        grid = layer.grid(layer.weight)
        count = min(grid.shape[1], ROWS)
        picked = [i * grid.shape[1] // count for i in range(count)]
        self.grid = np.ascontiguousarray(grid[:, picked], np.float32)
        self.ends = grid.min(axis=(1, 3), initial=0.0), grid.max(axis=(1, 3), initial=0.0)
        self.x = np.concatenate(reader.columns, axis=2)
        self.wanted = self.grid.reshape(*self.grid.shape[:2], -1) @ self.x
        self.signal = float(np.sum(self.wanted**2, dtype=np.float64))

    def error(self, scale: Vector) -> float:
        """Returns noise to signal for channels of the source divided by ``scale``."""
        own = scale[self.reader.end.channels]
        groups, rows, inside, taps = self.grid.shape
        each = own.reshape(groups, 1, inside, 1).astype(np.float32)
        factor = np.repeat(each.reshape(groups, inside), taps, axis=1)[:, :, None]
        rounded = self._rounded(self.grid * each, own.reshape(groups, inside))
        read = _fake_quantize_smoothed(self.reader, self.x / factor, own)
        noise = self.wanted - rounded.reshape(groups, rows, -1) @ read
        return float(np.sum(noise**2, dtype=np.float64)) / self.signal if self.signal else 0.0

    def _rounded(self, grid: Array, scale: Array) -> Array:
        """Returns weights as they are stored; one range for all is that of all rows."""
        format, first = self.reader.weights, self.reader.end.layer.geometry.axis == 0
        if format.axis is None:
            low, high = (end * scale for end in self.ends)
            return _fake_quantize(grid, format.params(low.min(initial=0.0), high.max(initial=0.0)))
        split = grid if first else grid.transpose(0, 2, 1, 3)
        weight = split.reshape(-1, *split.shape[2:])  # as the operator has it, taps in one axis
        rounded = _fake_quantize(weight, spanned(weight, format)).reshape(split.shape)
        return rounded if first else rounded.transpose(0, 2, 1, 3)


def _fake_quantize_smoothed(reader: ProductReader, x: Array, scale: Vector) -> Array:
    """Returns what a product makes of its operand, whose channels are divided by ``scale``."""
    read = reader.activations
    if read is Unstored.FLOAT:
        return x
    if read is Unstored.DYNAMIC_ROWS:
        rows = x.transpose(0, 2, 1)
        scale, zero_point = dynamic_parameters(rows, rows=True)
        stored = (dynamic_codes(rows, scale, zero_point) - zero_point.astype(np.float32)) * scale
        return stored.transpose(0, 2, 1)
    high = float((reader.peaks / scale).max())
    low = -high if (x < 0).any() else 0.0
    format = read.per_tensor() if isinstance(read, Format) else U8
    return _fake_quantize(x, format.params(low, high))


def _fake_quantize(array: Array, params: QuantParams) -> Array:
    return dequantize(quantize(array, params), params).astype(np.float32, copy=False)


def _links(
    plan: QuantizationPlan, seen: Mapping[str, TensorStats]
) -> dict[EqualizedLink, list[ProductReader]]:
    """Returns what can be smoothed: all that read it are quantized products."""
    formats = {
        w.node: w.spec.format for w in plan.weights if w.index == 1 and isinstance(w.spec, Observed)
    }
    found: dict[EqualizedLink, list[ProductReader]] = {}
    for node in plan.graph.nodes:
        source = norm_of(node) or layer_of(node)
        if source is None:
            continue
        try:
            link = EqualizedLink(source, reach_of(plan.graph.outputs, source, seen))
        except PathRefused:
            continue
        readers = [_reader(plan, end, formats) for end in link.reach.ends]
        if all(readers):
            found[link] = [r for r in readers if r is not None]
    return found


def _reader(
    plan: QuantizationPlan, end: End, formats: Mapping[Node, Format]
) -> ProductReader | None:
    node = end.layer.node
    value, weights = node.operand(0), formats.get(node)
    spec = plan.specs[plan.root(value)] if value in plan.specs else None
    read = spec.format if isinstance(spec, Observed) else plan.unstored.get(node)
    if read is None or weights is None:
        return None
    peaks, totals = np.zeros((2, end.layer.inputs))
    return ProductReader(end, read, weights, peaks, totals, [])


def _watch(graph: Graph, readers: Sequence[ProductReader], samples: Samples) -> None:
    """Runs the float graph on a few samples and notes what the readers read."""
    from qdqbridge.targets.running import Runner

    if not readers:
        return
    values: list[Value] = [r.end.layer.node.operand(0) for r in readers]
    picked = np.linspace(0, len(samples) - 1, min(SAMPLES, len(samples))).astype(int)
    runner = Runner(graph, list(dict.fromkeys(values)))
    for i in picked:
        arrays = dict(zip(runner.values, runner.run(samples[int(i)]), strict=True))
        for reader, value in zip(readers, values, strict=True):
            _note(reader, arrays[value], -(-POSITIONS // len(picked)))


def _note(reader: ProductReader, array: Array, count: int) -> None:
    layer = reader.end.layer
    lines = np.abs(np.moveaxis(array, layer.operand_axis, 0).reshape(layer.inputs, -1))
    reader.peaks = np.maximum(reader.peaks, lines.max(axis=1, initial=0.0))
    reader.totals = reader.totals + lines.mean(axis=1, dtype=np.float64)
    x = columns(layer, array).astype(np.float32)
    step = max(1, x.shape[2] // count)
    reader.columns.append(x[:, :, ::step][:, :, :count])
