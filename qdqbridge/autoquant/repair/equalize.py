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

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.repair.layers import (
    Norm,
    PathRefused,
    ProductLayer,
    Reach,
    Vector,
    layer_of,
    reach,
)
from qdqbridge.core.graph.copying import Slot, with_constants
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.ops.attributes import ClipAttrs

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
    outcome = f"channels of {len(scales)} products divided by factors up to {factor:.3g}"
    return rescaled(graph, scales), outcome
