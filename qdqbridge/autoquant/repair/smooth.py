"""SmoothQuant: part of the spread of activations is moved into the weights that read them.

A few channels of a transformer's activations are many times larger than the others and take the
whole range. Dividing channel ``j`` by ``s_j = max|X_j|^a / max|W_j|^(1 - a)`` and multiplying the
weights with it leaves the function as it is (Xiao et al., "SmoothQuant", 2022). The factors are
folded into the normalization or product in front; whatever reads the tensor has to follow. The
exponent is searched for each tensor, by the error of the products that read it.

Elsewhere it is known to cost accuracy on some networks: it is kept only where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.decide import Decision
from qdqbridge.autoquant.formats import Format
from qdqbridge.autoquant.plan import Observed, QuantizationPlan
from qdqbridge.autoquant.repair.equalize import EqualizedLink, reach_of, rescaled
from qdqbridge.autoquant.repair.gptq import columns
from qdqbridge.autoquant.repair.layers import Vector, layer_of, norm_of
from qdqbridge.autoquant.repair.paths import End, PathRefused
from qdqbridge.autoquant.samples import Samples
from qdqbridge.autoquant.stats import TensorStats
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.numerics import dequantize, quantize

Array = NDArray[Any]
EXPONENTS = tuple(i / 10 for i in range(11))
SAMPLES = 32
POSITIONS = 1024
"""Columns of operands that are kept of each product for the search."""


@dataclass(slots=True, eq=False)
class ProductReader:
    """A product that reads a tensor, and what it was seen to read.

    Attributes:
        end: The product, and which channels of the source it reads.
        activations: How its operand will be stored.
        weights: How its weight will be.
        peaks: Largest magnitude of each channel of its operand.
        columns: Some of what its weights are multiplied with, ``[groups, n, positions]``.
    """

    end: End
    activations: Format
    weights: Format
    peaks: Vector
    columns: list[Array]


def smoothing(largest: Vector, weights: Vector, exponent: float) -> Vector:
    """Returns ``max|X|^a / max|W|^(1 - a)`` for each channel; 1 where one of both is 0."""
    usable = (largest > 0) & (weights > 0)
    x, w = np.where(usable, largest, 1.0), np.where(usable, weights, 1.0)
    return np.where(usable, x**exponent / w ** (1 - exponent), 1.0)


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
    told = f"{len(scales)} of {len(found)} tensors, exponents {', '.join(exponents)}"
    return rescaled(graph, scales), told


def best(readers: Sequence[ProductReader], channels: int) -> tuple[float | None, Vector]:
    """Returns the exponent with the least error, None where no smoothing has less, and factors."""
    largest, weights = np.zeros(channels), np.zeros(channels)
    for reader in readers:
        np.maximum.at(largest, reader.end.channels, reader.peaks)
        own = reader.end.layer.peaks().max(axis=1, initial=0.0).reshape(-1)
        np.maximum.at(weights, reader.end.channels, own)
    one = np.ones(channels)
    choice: tuple[float | None, Vector] = (None, one)
    least = error(readers, one)
    for exponent in EXPONENTS:
        scale = smoothing(largest, weights, exponent)
        scale = scale / np.exp(np.log(scale).mean())
        found = error(readers, scale)
        if found < least:
            least, choice = found, (exponent, scale)
    return choice


def error(readers: Sequence[ProductReader], scale: Vector) -> float:
    """Returns noise to signal of all readers for channels divided by ``scale``."""
    return sum(_error(reader, scale[reader.end.channels]) for reader in readers)


def _error(reader: ProductReader, scale: Vector) -> float:
    layer = reader.end.layer
    x = np.concatenate(reader.columns, axis=2)
    grid = layer.grid(layer.weight.astype(np.float64))
    groups, rows, inside, taps = grid.shape
    wanted = grid.reshape(groups, rows, -1) @ x
    each = scale.reshape(groups, 1, inside, 1)
    factor = np.repeat(scale.reshape(groups, inside), taps, axis=1)[:, :, None]
    smaller, larger = x / factor, grid * each
    high = float((reader.peaks / scale).max())
    low = -high if (x < 0).any() else 0.0
    params = reader.activations.per_tensor().params(low, high)
    operand = _stored(smaller, params)
    peak = np.abs(larger).max(axis=(2, 3))
    if reader.weights.axis is None:
        peak = np.full_like(peak, peak.max())
    scales = reader.weights.per_tensor().params
    rounded = np.stack(
        [
            np.stack([_stored(larger[g, r], scales(-peak[g, r], peak[g, r])) for r in range(rows)])
            for g in range(groups)
        ]
    )
    got = rounded.reshape(groups, rows, -1) @ operand
    signal = float(np.sum(wanted**2))
    return float(np.sum((wanted - got) ** 2)) / signal if signal else 0.0


def _stored(array: Array, params: Any) -> Array:
    return dequantize(quantize(array, params), params, np.float64)


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
    value = end.layer.node.operand(0)
    spec = plan.specs[plan.root(value)] if value in plan.specs else None
    weights = formats.get(end.layer.node)
    if not isinstance(spec, Observed) or weights is None:
        return None
    return ProductReader(end, spec.format, weights, np.zeros(end.layer.inputs), [])


def _watch(graph: Graph, readers: Sequence[ProductReader], samples: Samples) -> None:
    """Runs the float graph on a few samples and notes what the readers read."""
    from qdqbridge.onnx_io.running import Runner

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
    lines = np.moveaxis(array, layer.operand_axis, 0).reshape(layer.inputs, -1)
    reader.peaks = np.maximum(reader.peaks, np.abs(lines).max(axis=1, initial=0.0))
    x = columns(layer, array.astype(np.float64))
    step = max(1, x.shape[2] // count)
    reader.columns.append(x[:, :, ::step][:, :, :count])
