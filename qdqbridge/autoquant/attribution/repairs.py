"""Other ways to round one tensor, which are tried before they are proposed."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from glob import escape

import numpy as np

from qdqbridge.autoquant.attribution.correspondence import Correspondence, Rounded
from qdqbridge.autoquant.attribution.simulation import Change, rounding
from qdqbridge.autoquant.repair.equalize import EqualizedLink, reach_of, rescaled
from qdqbridge.autoquant.repair.layers import (
    Array,
    Norm,
    PathRefused,
    ProductLayer,
    Vector,
    layer_of,
    norm_of,
)
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.dynamic import DYNAMIC_DENSE
from qdqbridge.core.ops.dynamic import rounded as dynamically_rounded


@dataclass(frozen=True, slots=True)
class Repair:
    """Another way to round a tensor.

    Attributes:
        cost: What it takes: other numbers in the file, a scale per channel, 8 bits for fewer, 16,
            or floats.
        words: What it is called.
        change: What becomes of the tensor.
        option: The option of ``quantize`` that does it; empty where it does so by itself.
        format: What the option gives a node, as in ``=uint16``.
    """

    cost: int
    words: str
    change: Change
    option: str = ""
    format: str = ""


_NUMBERS, _CHANNELS, _BYTES, _WIDE, _FLOAT = range(5)
_BITS = 16
"""What a tensor gets that needs more bits."""
_BYTE = 8
_TAILS = (0.0, 1e-4, 1e-3)
"""Shares of an activation's elements that a range may leave out at each end."""


def repairs(rounded: Rounded, original: Array) -> Iterator[Repair]:
    """Yields repairs of one tensor, the cheapest first; the last one is to leave it float.

    Args:
        rounded: The tensor.
        original: What it holds in the float graph.
    """
    params = rounded.params
    if params is None and rounded.theirs.quant is not None:
        params = rounded.theirs.quant.params
    if params is not None and params.storage_dtype.is_integer and original.size:
        if rounded.kind == "activation" and params.per_tensor:
            yield from _of_activation(params, original)
        elif rounded.kind in ("weight", "constant"):
            yield from _of_weight(rounded, params, original)
        elif rounded.kind == "bias":
            words = "the float bias rounded to the accumulator's step"
            yield Repair(_NUMBERS, words, _nearest(rounded, params))
    elif rounded.their_node is not None and rounded.running is not None:
        dense = DYNAMIC_DENSE.of(rounded.their_node)
        if dense is not None and not dense.rows:
            rows = "a scale for every row"
            change = partial(dynamically_rounded, rows=True)
            yield Repair(_CHANNELS, rows, change, "--format", "=dynamic-rows")
    yield Repair(_FLOAT, "leave it float", lambda real: real, "--exclude")


def rounded_anew(rounded: Rounded, original: Array) -> Change:
    """Returns what becomes of a constant where its float original is rounded as usual.

    Args:
        rounded: The constant.
        original: What it holds in the float graph.
    """
    return next(each.change for each in repairs(rounded, original) if each.cost != _CHANNELS)


def options_of(repair: Repair, rounded: Rounded, reference: Graph) -> tuple[str, ...]:
    """Returns the options of ``quantize`` with which it does a repair.

    Args:
        repair: What is done.
        rounded: To which tensor.
        reference: The float graph as it was given, whose names the options have.
    """
    value = next((v for v in reference.values() if v.name and v.name == rounded.value.name), None)
    nodes: list[Node] = []
    if value is not None and rounded.running is None:
        made = value.producer is not None and repair.option == "--format"
        nodes = [value.producer] if made and value.producer else [n for n, _ in value.users]
    names = [node.name for node in nodes]
    if not names and rounded.their_node is not None:  # its constant was folded
        known = {name for node in reference.nodes for name in node.origin.nodes}
        names = [name for name in rounded.their_node.origin.nodes[:1] if name in known]
    patterns = dict.fromkeys(escape(name) for name in names if name)
    if not repair.option:
        return ()
    return tuple(part for each in patterns for part in (repair.option, f"{each}{repair.format}"))


def _of_activation(params: QuantParams, original: Array) -> Iterator[Repair]:
    finite = original[np.isfinite(original)]
    if not finite.size:
        return
    limits = params.storage_dtype
    whole = replace(params, qmin=limits.qmin, qmax=limits.qmax)
    for tail in _TAILS:
        low, high = (float(np.quantile(finite, q)) for q in (tail, 1 - tail))
        words = "the range of the data" if not tail else f"the range of {1 - 2 * tail:.2%} of it"
        span = f"{low:.6g} to {high:.6g}"
        yield Repair(_NUMBERS, f"{words}: {span}", rounding(_ranged(params, low, high)))
        if whole != params:  # a clamp has made the range narrower, which a wider one needs
            all_bits = f"{words} in all {limits.bits} bits: {span}"
            yield Repair(_NUMBERS, all_bits, rounding(_ranged(whole, low, high)))
    if limits.bits >= _BITS:
        return
    low, high = float(finite.min()), float(finite.max())
    wide = _ranged(replace(params, storage_dtype=DType.UINT16, qmin=0, qmax=65535), low, high)
    format = "=int16" if params.storage_dtype.is_signed else "=uint16"
    yield Repair(_WIDE, "16 bits", rounding(wide), "--format", format)


def _ranged(params: QuantParams, low: float, high: float) -> QuantParams:
    """Returns parameters of a range with 0 in it; symmetric where they were signed and so."""
    low, high = min(low, 0.0), max(high, 0.0)
    if int(params.zero_point) == 0 and params.qmin < 0:
        scale = max(-low / -params.qmin, high / params.qmax)
        zero = 0
    else:
        scale = (high - low) / (params.qmax - params.qmin)
        zero = round(params.qmin - low / scale) if scale else 0
    zero = min(max(zero, params.qmin), params.qmax)
    step = np.asarray(scale or 1.0, params.scale.dtype)
    return replace(params, scale=step, zero_point=np.asarray(zero, np.int32))


def _of_weight(rounded: Rounded, params: QuantParams, original: Array) -> Iterator[Repair]:
    own = _symmetric(original, params.qmax)
    if params.per_tensor:
        anew = "quantized anew, per tensor"
        yield Repair(_NUMBERS, anew, lambda real: _round_to_grid(real, own, params.qmax))
    axes = range(original.ndim) if original.ndim > 1 else ()
    best: tuple[float, int] | None = None
    for axis in axes:
        steps = _symmetric(original, params.qmax, axis)
        moved = _round_to_grid(original, steps, params.qmax) - original
        gap = float(np.square(moved, dtype=np.float64).sum())
        best = min(best or (gap, axis), (gap, axis))
    if best is not None:
        steps = _symmetric(original, params.qmax, best[1])
        words = f"per channel along axis {best[1]}" if params.per_tensor else "quantized anew"
        cost = _CHANNELS if params.per_tensor else _NUMBERS
        yield Repair(cost, words, lambda real: _round_to_grid(real, steps, params.qmax))
    if params.storage_dtype.bits < _BYTE and best is not None:
        bytes_ = _symmetric(original, 127, best[1])
        change = partial(_round_to_grid, step=bytes_, largest=127)
        yield Repair(_BYTES, "8 bits", change, "--weight-format", "=int8")
    if params.storage_dtype.bits < _BITS:
        wide = _symmetric(original, 32767)
        change = partial(_round_to_grid, step=wide, largest=32767)
        yield Repair(_WIDE, "16 bits", change, "--weight-format", "=int16")


def _symmetric(original: Array, largest: int, axis: int | None = None) -> Array:
    """Returns the steps of a symmetric range."""
    axes = None if axis is None else tuple(i for i in range(original.ndim) if i != axis)
    most = np.abs(original.astype(np.float64)).max(axis=axes, keepdims=True)
    return np.where(most > 0, most / max(largest, 1), 1.0)


def _round_to_grid(real: Array, step: Array, largest: int) -> Array:
    codes = np.clip(np.rint(real / step), -largest - 1, largest)
    return (codes * step).astype(real.dtype)


def _nearest(rounded: Rounded, params: QuantParams) -> Change:
    """A bias is stored in steps of the accumulator, which its weight and operand decide."""
    node = rounded.their_node
    scale = params.scale.astype(np.float64)
    if node is not None and len(node.inputs) > 1:
        pair = [v.quant.params.scale for v in node.inputs[:2] if v is not None and v.quant]
        if len(pair) == 2:
            scale = np.asarray(pair[0], np.float64) * np.asarray(pair[1], np.float64)

    def change(real: Array) -> Array:
        step = scale if scale.size in (1, real.size) else scale.max()
        return (np.rint(real / step.reshape(-1)) * step.reshape(-1)).astype(real.dtype)

    return change


# ---- rescaling -----------------------------------------------------------------------------------
# Channels that a quantizer has scaled: factors of one node's results that the next ones take back.
#
# Cross-layer equalization, SmoothQuant and AWQ write other weights that are the same function.
# Where the quantized weights are those of the float model times one factor for every row and
# column, within what rounding does to them, the float model is given the factors as well: what is
# left is rounding.


_SWEEPS = 100
_SETTLED = 1e-7
"""Largest change of a logarithm in a sweep at which factors count as found."""
_SMALLEST = 0.02
"""Logarithm of the largest factor below which nothing was scaled: rounding moves as much."""
_EXPLAINED = 0.25
"""The share of the weights' error that may be left for the factors to be believed."""


def rescaled_as(found: Correspondence) -> tuple[Graph, tuple[str, ...]] | None:
    """Returns the float graph with its channels scaled as the quantized one has them.

    With it the names of the tensors whose channels these are; None where none are.

    Args:
        found: What corresponds.
    """
    theirs = {each.value: each.replaced for each in found.rounded if each.replaced is not None}
    links = [link for link in _links(found.reference) if _is_known(link, theirs)]
    if not links:
        return None
    logs = _ChannelFactors(links, theirs, found.nodes.forward).solved()
    scales = {link: np.exp(log) for link, log in logs.items() if np.abs(log).max() > _SMALLEST}
    if not scales:
        return None
    graph = rescaled(found.reference, scales)
    made = dict(zip(found.reference.nodes, graph.nodes, strict=True))
    believed = {
        link: scale for link, scale in scales.items() if _is_explained(link, scale, made, theirs)
    }
    if not believed:
        return None
    graph = graph if len(believed) == len(scales) else rescaled(found.reference, believed)
    return graph, tuple(link.source.node.output.name for link in believed)


def _is_explained(
    link: EqualizedLink, scale: Vector, made: Mapping[Node, Node], theirs: Mapping[Value, Array]
) -> bool:
    """True where the weights that read the channels are much nearer with the factors."""
    before, after = 0.0, 0.0
    for end in link.reach.ends:
        other, layer = theirs.get(end.layer.node.operand(1)), layer_of(made[end.layer.node])
        if other is not None and layer is not None:
            without = layer.multiplied(np.ones(layer.outputs), 1 / scale[end.channels])
            before += _distance(without, other)
            after += _distance(layer.weight, other)
    return after < _EXPLAINED * before


def _links(graph: Graph) -> list[EqualizedLink]:
    found: list[EqualizedLink] = []
    for node in graph.nodes:
        source = norm_of(node) or layer_of(node)
        if source is None:
            continue
        try:
            found.append(EqualizedLink(source, reach_of(graph.outputs, source, {})))
        except PathRefused:
            continue
    return found


def _is_known(link: EqualizedLink, theirs: Mapping[Value, Array]) -> bool:
    """True where a weight that reads the channels is another one in the quantized graph."""
    return any(end.layer.node.operand(1) in theirs for end in link.reach.ends)


def _distance(a: Array, b: Array) -> float:
    """Returns the power of a difference over that of what it is a difference to."""
    wide = a.astype(np.float64)
    signal = float(np.square(wide).sum())
    return float(np.square(b - wide).sum()) / signal if signal else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Ratio:
    """Logarithms of a weight's ratios, each with how much it tells: the power of the float weights.

    Attributes:
        power: Of each row and column of a group, over its taps, as parts of the largest one.
        unit: The largest one: weights of 1e-25 have none that a float32 holds.
        rows: The sums over columns of the logarithms times the powers, and of the powers.
        columns: Such sums over rows.
    """

    power: Array
    unit: float
    rows: tuple[Array, Array]
    columns: tuple[Array, Array]


class _ChannelFactors:
    """Logarithms of the factors, by least squares over all weights that they have moved.

    The ratio of two weights is the factor of its column over that of its row; so every factor is
    the mean of what rows of its source and columns of its readers say, the others being known.
    A weight of a node to which none corresponds says nothing.
    """

    def __init__(
        self, links: list[EqualizedLink], theirs: Mapping[Value, Array], known: Container[Node]
    ) -> None:
        self.theirs, self.known = theirs, known
        self.ratios: dict[Node, _Ratio] = {}
        self.logs = {link: np.zeros(link.source.outputs) for link in links}
        self.rows: dict[Node, EqualizedLink] = {}
        self.columns: dict[Node, tuple[EqualizedLink, Array]] = {}
        self.exact: dict[EqualizedLink, Vector] = {}
        for link in links:
            self.rows[link.source.node] = link
            if isinstance(link.source, ProductLayer):
                self._note(link.source)
            else:
                self._note_norm(link, link.source)
            for end in link.reach.ends:
                self.columns[end.layer.node] = link, end.channels
                self._note(end.layer)

    def _note(self, layer: ProductLayer) -> None:
        node = layer.node
        if node in self.ratios or node not in self.known:
            return
        own = layer.grid(layer.weight)
        other = self.theirs.get(node.operand(1))
        new = own if other is None else layer.grid(other)
        # Rows and columns are compared by what their codes have in common, taps added up.
        inner, power = (
            np.einsum("grct,grct->grc", own, each, dtype=np.float64) for each in (new, own)
        )
        usable = (inner > 0) & (power > 0)
        mean = np.log(np.divide(inner, power, out=np.ones_like(inner), where=usable))
        power[~usable] = 0.0
        mean *= power
        rows, columns = ((mean.sum(axis), power.sum(axis)) for axis in (2, 1))
        unit = float(power.max(initial=0.0)) or 1.0
        self.ratios[node] = _Ratio((power / unit).astype(np.float32), unit, rows, columns)

    def _note_norm(self, link: EqualizedLink, norm: Norm) -> None:
        """A norm's constants are mostly floats: they say the factors as they are."""
        gamma = norm.node.operand(1)
        other, data = self.theirs.get(gamma), gamma.constant
        if data is None or norm.node not in self.known:
            return
        own = data.numpy().astype(np.float64)
        new = own if other is None else np.asarray(other, np.float64).reshape(own.shape)
        usable = own * new > 0
        if usable.all():
            self.exact[link] = np.log(own / new)

    def solved(self) -> dict[EqualizedLink, Vector]:
        """Returns the logarithm of what each channel of a link is divided by."""
        for link, log in self.exact.items():
            self.logs[link] = log
        for _ in range(_SWEEPS):
            moved = 0.0
            for link, before in self.logs.items():
                if link in self.exact:
                    continue
                after = self._step(link)
                moved = max(moved, float(np.abs(after - before).max(initial=0.0)))
                self.logs[link] = after
            if moved < _SETTLED:
                break
        return self.logs

    def _step(self, link: EqualizedLink) -> Vector:
        total, weight = np.zeros((2, link.source.outputs))
        ratio = self.ratios.get(link.source.node)
        if ratio is not None:
            said, powers = ratio.rows
            total += (self._incoming(link.source.node, ratio) - said).reshape(-1)
            weight += powers.reshape(-1)
        for end in link.reach.ends:
            ratio = self.ratios.get(end.layer.node)
            if ratio is not None:
                said, powers = ratio.columns
                said = said + self._outgoing(end.layer.node, ratio)
                np.add.at(total, end.channels, said.reshape(-1))
                np.add.at(weight, end.channels, powers.reshape(-1))
        return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)

    def _incoming(self, node: Node, ratio: _Ratio) -> Array | float:
        """Returns the logarithms of a weight's columns, added up with their powers."""
        if node not in self.columns:
            return 0.0
        link, channels = self.columns[node]
        groups, _, inside = ratio.power.shape
        logs = self.logs[link][channels].reshape(groups, inside)
        return np.einsum("grc,gc->gr", ratio.power, logs) * ratio.unit

    def _outgoing(self, node: Node, ratio: _Ratio) -> Array | float:
        """Returns those of a weight's rows, by which it is divided."""
        if node not in self.rows:
            return 0.0
        groups, rows, _ = ratio.power.shape
        logs = self.logs[self.rows[node]].reshape(groups, rows)
        return np.einsum("grc,gr->gc", ratio.power, logs) * ratio.unit
