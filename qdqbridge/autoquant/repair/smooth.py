"""SmoothQuant and AWQ: channels of activations are scaled, and the weights that read them back.

A few channels of a transformer's activations are many times larger than the others and take the
whole range. Dividing channel ``j`` by ``s_j = max|X_j|^a / max|W_j|^(1 - a)`` and multiplying the
weights with it leaves the function as it is (Xiao et al., "SmoothQuant", 2022). Where activations
stay real numbers only weights are rounded, and those that meet loud channels matter most: they get
more of the codes by ``s_j = mean|X_j|^a`` (Lin et al., "AWQ", 2023). The factors are folded into
the normalization or product in front; whatever reads the tensor has to follow. Formula and exponent
are searched for each tensor, by the error of the products that read it.

Elsewhere it is known to cost accuracy on some networks: it is kept only where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from qdqbridge.autoquant.repair.equalize import EqualizedLink, reach_of, rescaled
from qdqbridge.autoquant.repair.gptq import columns
from qdqbridge.autoquant.repair.layers import End, PathRefused, Vector, layer_of, norm_of
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.dynamic import dynamic_codes, dynamic_parameters

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
    outcome = f"{len(scales)} of {len(found)} tensors, exponents {', '.join(exponents)}"
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
