"""How far every layer of a quantized graph is from the float one, on samples.

Twice for each layer: behind all the quantized layers before it (*accumulated*), and alone, fed with
the float tensors rounded once (*local*). A layer with a low accumulated figure and a high local one
only passes on what others did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.planning.decide import Decision, stored_integers
from qdqbridge.autoquant.planning.plan import moves_only
from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.autoquant.profiling.stats import comparable
from qdqbridge.autoquant.record import LayerError, WeightError
from qdqbridge.autoquant.simulation.metrics import float_values
from qdqbridge.core.canonical.clamps import bounds
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import computed, evaluate
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import TensorType

Array = NDArray[Any]
Progress = Callable[[int, int], None]
LIMIT = 32
"""Samples to measure on, where nothing else is said."""
_SUFFIX = "_quantized"


@dataclass(frozen=True, slots=True)
class Errors:
    """What was measured.

    Attributes:
        layers: In topological order; what only moves data is left out.
        samples: Number of samples run.
    """

    layers: tuple[LayerError, ...]
    samples: int


@dataclass(slots=True)
class _Tally:
    signal: float = 0.0
    noise: float = 0.0

    def add(self, real: Array, other: Array) -> None:
        wide, found = comparable(real, other)
        self.signal += float(np.sum(wide**2))
        self.noise += float(np.sum((wide - found) ** 2))

    @property
    def decibels(self) -> float:
        """SQNR; infinite without noise, NaN of a tensor that is zero."""
        return sqnr(self.signal, self.noise)


def sqnr(signal: float, noise: float) -> float:
    """Returns a ratio of powers in dB: infinite without noise, NaN where all is zero or NaN."""
    if math.isnan(noise) or math.isnan(signal) or (signal == 0 and noise == 0):
        return math.nan
    if noise == 0 or signal == 0:
        return math.inf if noise == 0 else -math.inf
    return 10 * (math.log10(signal) - math.log10(noise))


def errors(
    graph: Graph,
    quantized: Graph,
    samples: Samples,
    *,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Errors:
    """Returns the errors of ``quantized`` against ``graph``; values are matched by their names.

    Args:
        graph: The float graph that was quantized.
        quantized: The canonical quantized graph.
        samples: Inputs; some of them, spread evenly, are run.
        limit: How many to run at most.
        progress: Called with the batches done and their number.

    Raises:
        InputDataError: The samples do not fit the graph.
    """
    picked = spread(samples, limit)
    pieces = picked.batches(graph.inputs)
    walk = _ErrorWalk(quantized, matches(graph, quantized))
    reals = float_values(graph, walk.floats, pieces)
    for done, (piece, real) in enumerate(zip(pieces, reals, strict=True), 1):
        walk.run(piece, real)
        if progress is not None:
            progress(done, len(pieces))
    return Errors(walk.layers(), len(picked) * picked.step)


def spread(samples: Samples, limit: int) -> Samples:
    """Returns at most ``limit`` samples, spread evenly over all there are."""
    count = min(max(limit // samples.step, 1), len(samples))
    return samples.picked(np.linspace(0, len(samples) - 1, count).astype(int).tolist())


def matches(graph: Graph, quantized: Graph) -> dict[Value, Value]:
    """Returns the float counterpart of values of ``quantized``, in topological order.

    Args:
        graph: The float graph.
        quantized: What became of it; a stored value is called after the float one.
    """
    floats = {v.name: v for v in graph.values() if v.name and not v.is_constant and _is_real(v)}
    result: dict[Value, Value] = {}
    for value in (*quantized.inputs, *(v for node in quantized.nodes for v in node.outputs)):
        real = floats.get(value.name) or floats.get(value.name.removesuffix(_SUFFIX))
        if real is not None and value.rank in (None, real.rank):
            result[value] = real
    return result


def interval_read(value: Value) -> tuple[float, float]:
    """Returns what is left of ``value`` where a clamp alone reads it, also behind data movement."""
    while len(value.users) == 1:
        reader = next(iter(value.users))[0]
        interval = bounds(reader)
        if interval is not None:
            return interval
        if not moves_only(reader):
            break
        value = reader.output
    return -math.inf, math.inf


def _is_real(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


class _ErrorWalk:
    """Runs a quantized graph twice: as it is, and each node on the float graph's tensors."""

    def __init__(self, graph: Graph, matched: Mapping[Value, Value]) -> None:
        self.graph, self.matched = graph, matched
        self.floats = list(dict.fromkeys(matched.values()))
        self.kept = {value: interval_read(value) for value in self.floats}
        seen: set[Value] = set()
        self.tallies: dict[Value, tuple[_Tally, _Tally]] = {}
        for node in graph.nodes:
            for value in node.outputs:
                real = matched.get(value)
                if real is None or real in seen or node.op.flow is Flow.MOVE:
                    continue
                seen.add(real)
                self.tallies[value] = (_Tally(), _Tally())

    def run(self, inputs: Sample, reals: Mapping[Value, Array]) -> None:
        """Adds one batch."""
        _, values = evaluate(self.graph, inputs, wanted=self.tallies)
        for value, (accumulated, _) in self.tallies.items():
            self._compare(accumulated, value, reals, values[value])
        local: dict[Value, Array] = {v: np.asarray(inputs[v.name]) for v in self.graph.inputs}
        left = {value: len(value.users) for value in self.graph.values()}
        for node in self.graph.nodes:
            self._locally(node, local, reals)
            for value in node.inputs:
                if value is not None:
                    left[value] -= 1
                    if left[value] == 0:
                        local.pop(value, None)

    def _locally(self, node: Node, local: dict[Value, Array], reals: Mapping[Value, Array]) -> None:
        operands = [
            None if v is None else local[v] if v.constant is None else v.constant.numpy()
            for v in node.inputs
        ]
        results = computed(node, operands)
        for value, ours in zip(node.outputs, results, strict=False):
            local[value] = ours
            matched = self.matched.get(value)
            if matched is None or reals[matched].shape != ours.shape:
                continue
            real = reals[matched]
            if value in self.tallies:
                self._compare(self.tallies[value][1], value, reals, ours)
            local[value] = (
                real if value.quant is None else quantize(real, value.quant.params)
            ).astype(ours.dtype, copy=False)

    def _compare(
        self, tally: _Tally, value: Value, reals: Mapping[Value, Array], stored: Array
    ) -> None:
        """Adds to ``tally`` what readers see of ``value``, whose float numbers are in ``reals``."""
        matched = self.matched[value]
        low, high = self.kept[matched]
        tally.add(
            reals[matched].clip(low, high), _dequantize_for_error(value, stored).clip(low, high)
        )

    def layers(self) -> tuple[LayerError, ...]:
        """Returns the errors of all layers."""
        return tuple(
            LayerError(
                self.matched[value].name,
                "" if value.producer is None else value.producer.op.name,
                accumulated.decibels,
                local.decibels,
            )
            for value, (accumulated, local) in self.tallies.items()
        )


def _dequantize_for_error(value: Value, stored: Array) -> Array:
    return stored if value.quant is None else dequantize(stored, value.quant.params)


def weight_errors(decision: Decision) -> tuple[WeightError, ...]:
    """Returns how far the stored constants are from the float ones; biases are not among them."""
    result: list[WeightError] = []
    for weight, params in decision.weights.items():
        constant = weight.value.constant
        assert constant is not None
        real = constant.numpy().astype(np.float64)
        stored = stored_integers(weight, params, decision).numpy()
        difference = np.abs(dequantize(stored, params) - real)
        steps = difference / params.aligned(params.scale, real.shape).astype(np.float64)
        result.append(
            WeightError(
                weight.node.name,
                weight.node.op.name,
                weight.value.name,
                str(params.storage_dtype),
                params.scale.size,
                sqnr(float(np.sum(real**2)), float(np.sum(difference**2))),
                float(steps.max(initial=0.0)),
            )
        )
    return tuple(result)
