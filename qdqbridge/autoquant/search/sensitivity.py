"""Which layers cost most, and what else could be decided for them: float, or more bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.scales import product_of, suited
from qdqbridge.autoquant.planning.decide import Decision, activations, decide, stored_integers
from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.autoquant.planning.plan import (
    Fixed,
    Observed,
    Overrides,
    QuantizationPlan,
    Weight,
    moves_only,
    plan,
)
from qdqbridge.autoquant.planning.targets import Target, Wide
from qdqbridge.autoquant.planning.units import Units
from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.autoquant.profiling.stats import TensorStats, comparable
from qdqbridge.autoquant.record import LayerError, WeightError
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.autoquant.simulation.metrics import Metrics, float_values
from qdqbridge.autoquant.simulation.teams import TrialTeam
from qdqbridge.core.canonical.clamps import bounds
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import computed, evaluate
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import QuantParams, TensorType

# ---- What else could be decided for a model: layers left float, or stored with more bits ---------


@dataclass(frozen=True, slots=True)
class Layer:
    """What computes between two roundings: a product with bias and clamp, or another operator.

    Attributes:
        nodes: Its nodes, in order.
    """

    nodes: tuple[Node, ...]

    @property
    def head(self) -> Node:
        """The node that gives it its name: a product where there is one."""
        products = (node for node in self.nodes if node.op.flow is Flow.ACCUMULATE)
        return next(products, self.nodes[0])

    @property
    def name(self) -> str:
        """The name of :attr:`head` in the file."""
        return self.head.name

    @property
    def kind(self) -> str:
        """The operator of :attr:`head`."""
        return self.head.op.name

    def __repr__(self) -> str:
        return f"Layer({self.kind} {self.name!r})"


def layers_of(plan: QuantizationPlan) -> list[Layer]:
    """Returns the layers that run on integers, in order."""
    units = Units(plan.graph.nodes, plan.graph.outputs, set(plan.rules))
    group: dict[Node, list[Node]] = {}
    for node in plan.graph.nodes:
        if node not in plan.rules:
            continue
        mine = [node]
        for _, value in node.data_operands():
            if value.producer in group and units.is_inside(value):
                # What stays inside of a unit has no rounding of its own to choose for.
                joined = group[value.producer]
                mine = joined if mine is joined else [*joined, *mine]
        for member in mine:
            group[member] = mine
    # Members share one list.
    unique = {id(nodes): nodes for nodes in group.values()}
    order = {node: index for index, node in enumerate(plan.graph.nodes)}
    found = [Layer(tuple(sorted(set(nodes), key=order.__getitem__))) for nodes in unique.values()]
    return sorted(found, key=lambda layer: order[layer.nodes[0]])


@dataclass(frozen=True, slots=True)
class LayerChange:
    """What a layer gets instead of what the target wants; it stays float without any format.

    Attributes:
        format: The format of what it reads and computes; None for the target's.
        reason: Why.
        weights: The format of its weights; None for the target's.
    """

    format: Format | None = None
    reason: str = "fallback"
    weights: Format | None = None

    @property
    def is_float(self) -> bool:
        """True where the layer stays float."""
        return self.format is None and self.weights is None

    def __str__(self) -> str:
        if self.is_float:
            return "float"
        own = [] if self.format is None else [str(self.format.storage)]
        return " and ".join(own + ([f"{self.weights.storage} weights"] if self.weights else []))


@dataclass(slots=True, eq=False)
class Variants:
    """Decisions next to one that was made.

    What a variant plans like the decision gets the decision's parameters, and its integers; only
    the rest is chosen anew.

    Attributes:
        base: The decision.
        target: The target it was made for.
        stats: Statistics of every float tensor of the graph.
        overrides: The overrides of its plan.
    """

    base: Decision
    target: Target
    stats: Mapping[Value, TensorStats]
    overrides: Overrides = field(default_factory=Overrides)
    _values: dict[tuple[object, ...], QuantParams] = field(init=False, repr=False)
    _weights: dict[tuple[object, ...], QuantParams] = field(init=False, repr=False)
    _stored: dict[tuple[Node, int], QuantParams] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        own = self.base.plan
        self._values = {
            _key(own, value, spec): self.base.values[value]
            for value, spec in own.specs.items()
            if isinstance(spec, Observed)
        }
        self._weights = {
            (weight.node, weight.index, weight.spec.format): params
            for weight, params in self.base.weights.items()
            if isinstance(weight.spec, Observed)
        }
        self._stored = {(w.node, w.index): params for w, params in self.base.weights.items()}

    @property
    def graph(self) -> Graph:
        """The float graph."""
        return self.base.plan.graph

    def overrides_for(self, changes: Mapping[Layer, LayerChange]) -> Overrides:
        """Returns the overrides with ``changes`` on top."""
        floats = dict(self.overrides.floats)
        formats = dict(self.overrides.formats)
        weights = dict(self.overrides.weights)
        for layer, change in changes.items():
            for node in layer.nodes:
                if change.is_float:
                    floats[node] = change.reason
                if change.format is not None:
                    formats[node] = change.format
                if change.weights is not None:
                    weights[node] = change.weights
        return replace(self.overrides, floats=floats, formats=formats, weights=weights)

    def plan_for(self, changes: Mapping[Layer, LayerChange]) -> QuantizationPlan:
        """Returns the plan with ``changes``."""
        own = plan(self.graph, self.target, self.overrides_for(changes))
        return replace(own, room=self.base.plan.room)

    def decision(self, changes: Mapping[Layer, LayerChange]) -> Decision:
        """Returns the decision with ``changes``; without any it is the base's."""
        if not changes:
            return self.base
        return self.decided(self.plan_for(changes))

    def decided(self, own: QuantizationPlan) -> Decision:
        """Returns a decision for a plan of the same graph."""
        result = Decision(own, bodies=self.base.bodies)
        roots = {value: own.root(value) for value in own.specs}
        found = {root: self._value(own, root) for root in dict.fromkeys(roots.values())}
        result.values = {value: found[root] for value, root in roots.items()}
        for weight in own.weights:
            params = self._weight(own, weight)
            if params is not None:
                result.weights[weight] = params
        # Before the weights are suited, which look at biases; again behind it, since a weight that
        # got other parameters has lost its correction.
        own.biases = self._biases(result)
        result.weights = suited(own, result.values, result.weights)
        self._carry_integers(result)
        own.biases = self._biases(result)
        return result

    def _biases(self, decision: Decision) -> dict[tuple[Node, int], NDArray[Any]]:
        """Returns the corrections of products whose weights are stored as in the base.

        They make up for what these weights lost; float ones and others have their own biases.
        """
        alike = {w.node for w, params in decision.weights.items() if self._known(w) == params}
        return {
            (bias.node, bias.index): self.base.plan.biases[bias.node, bias.index]
            for bias in decision.plan.weights
            if (bias.node, bias.index) in self.base.plan.biases and product_of(bias) in alike
        }

    def _known(self, weight: Weight) -> QuantParams | None:
        """Returns the base's parameters of a weight of another plan."""
        return self._stored.get((weight.node, weight.index))

    def _value(self, own: QuantizationPlan, value: Value) -> QuantParams:
        spec = own.specs[value]
        if isinstance(spec, Fixed):
            return spec.params
        assert isinstance(spec, Observed)
        key = _key(own, value, spec)
        # Of all variants together each choice is made once: hundreds of decisions differ in one
        # layer.
        if key not in self._values:
            alone = QuantizationPlan(self.graph, specs={value: spec})
            if value in own.joined:
                alone.joined = {value: own.joined[value]}
            self._values[key] = activations(alone, self.stats, self.target.chooser)[value]
        return self._values[key]

    def _weight(self, own: QuantizationPlan, weight: Weight) -> QuantParams | None:
        spec = weight.spec
        if not isinstance(spec, Observed):
            return spec.params if isinstance(spec, Fixed) else None
        key = (weight.node, weight.index, spec.format)
        if key not in self._weights:
            alone = QuantizationPlan(self.graph, weights=[weight])
            self._weights[key] = decide(alone, {}, self.target).weights[weight]
        return self._weights[key]

    def _carry_integers(self, decision: Decision) -> None:
        """Gives weights that are stored as in the base the base's integers."""
        known = {(w.node, w.index): array for w, array in self.base.integers.items()}
        for weight, params in decision.weights.items():
            found = known.get((weight.node, weight.index))
            if found is not None and self._known(weight) == params:
                decision.integers[weight] = found


def _key(own: QuantizationPlan, value: Value, spec: Observed) -> tuple[object, ...]:
    return (value, spec.format, *own.joined.get(value, ()))


_WIDE = {
    DType.INT8: DType.INT16, DType.UINT8: DType.UINT16,
    DType.INT4: DType.INT16, DType.UINT4: DType.UINT16,
}  # fmt: skip


def wider(format: Format | Unstored | None) -> Format | None:
    """Returns a format of integers in 16 bits; None where it has them, or is none."""
    if not isinstance(format, Format) or format.storage not in _WIDE:
        return None
    return replace(format, storage=_WIDE[format.storage])


def widened(target: Target) -> Format | None:
    """Returns the format of the target's activations in 16 bits; None where there is none."""
    return None if target.wide is Wide.ABSENT else wider(target.activations)


def narrowed(target: Target) -> Format | None:
    """Returns the format of the target's activations in 8 bits; None where they have them."""
    own = target.activations
    if not isinstance(own, Format) or own.storage not in (DType.INT16, DType.UINT16):
        return None
    return replace(own, storage=DType.INT8 if own.storage.is_signed else DType.UINT8)


def widened_weights(target: Target) -> Format | None:
    """Returns the format of the target's weights in 8 bits; None where they have them."""
    own = target.weights
    storage = DType.INT8 if own.storage.is_signed else DType.UINT8
    return None if own.storage.bits >= 8 else replace(own, storage=storage)


# ---- Which layers cost most: every layer quantized alone, and left float alone -------------------
# No labels are needed, and nothing is compiled: a layer is switched by flags of the simulated
# graph, and what lies before it is not run again.


Progress = Callable[[int, int], None]
_FLOAT = LayerChange(None, "only one layer is looked at")


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """What one layer costs.

    Attributes:
        alone: The outputs where nothing but this layer is quantized.
        without: The outputs where everything but this layer is; None where that was not tried.
    """

    layer: Layer
    alone: Metrics
    without: Metrics | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """All layers, the most costly one first.

    Attributes:
        everything: The outputs where every layer is quantized.
        layers: By what they cost alone.
    """

    everything: Metrics
    layers: Sequence[Sensitivity]

    def by_gain(self) -> list[Sensitivity]:
        """Returns the layers by what is gained when only they stay float."""
        known = [entry for entry in self.layers if entry.without is not None]
        return sorted(known, key=lambda entry: _cost(entry.without or self.everything))

    def __str__(self) -> str:
        rows = [f"all layers: {_said(self.everything)}"]
        for entry in self.layers:
            more = "" if entry.without is None else f", all others {_said(entry.without)}"
            row = f"{entry.layer.kind} '{entry.layer.name}': alone {_said(entry.alone)}{more}"
            rows.append(row)
        return "\n".join(rows)


def sensitivity(
    variants: Variants,
    simulation: Simulation,
    *,
    layers: Collection[Layer] | None = None,
    without: bool = True,
    workers: int | str | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Returns what each layer costs.

    Args:
        variants: The decision to look at.
        simulation: A simulation of its graph.
        layers: Which ones; by default all.
        without: Try each layer float alone as well, which takes as long again.
        workers: A number of processes, or ``ray``, that try layers side by side.
        progress: Called with the number of trials done, and of all.
    """
    chosen = list(layers_of(variants.base.plan) if layers is None else layers)
    everyone = layers_of(variants.base.plan)
    total, done = len(chosen) * (2 if without else 1), 0

    def counted(metrics: Metrics) -> Metrics:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)
        return metrics

    singles = {layer: variants.decision(only(everyone, [layer])) for layer in chosen}
    # All trials at once, so that the model is compiled once and not for each.
    simulation.cover([decision.plan for decision in singles.values()])
    everything = simulation.metrics(variants.base)
    alone = dict(
        zip(singles, tried(simulation, singles.values(), None, workers, counted), strict=True)
    )
    others: Mapping[Layer, Metrics] = {}
    if without:
        rest = {layer: variants.decision({layer: _FLOAT}) for layer in chosen}
        simulation.cover([decision.plan for decision in rest.values()])
        others = dict(
            zip(
                rest, tried(simulation, rest.values(), variants.base, workers, counted), strict=True
            )
        )
    simulation.release()
    found = [Sensitivity(layer, alone[layer], others.get(layer)) for layer in chosen]
    return Ranking(everything, sorted(found, key=lambda entry: _cost(entry.alone), reverse=True))


def tried(
    simulation: Simulation,
    decisions: Iterable[Decision],
    near: Decision | None,
    workers: int | str | None,
    counted: Callable[[Metrics], Metrics],
) -> Iterator[Metrics]:
    """Yields the metrics of decisions, in order.

    Args:
        simulation: It covers them.
        decisions: What is tried.
        near: What most of them differ little from; None for the float model.
        workers: Who tries them; None for this process.
        counted: Called with each result.
    """
    if workers is None:
        simulation.hold(near)
        for decision in decisions:
            yield counted(simulation.metrics(decision))
        return
    with TrialTeam([simulation], workers) as team:
        for outputs in team.outputs([(simulation, decision) for decision in decisions]):
            yield counted(simulation.compared(outputs, simulation.reference))


def only(everyone: Collection[Layer], kept: Collection[Layer]) -> dict[Layer, LayerChange]:
    """Returns the changes that leave all layers float but some."""
    return {layer: _FLOAT for layer in everyone if layer not in kept}


def _cost(metrics: Metrics) -> tuple[float, float]:
    """Returns what is sorted by: the user's metric where there is one, then the error."""
    return (metrics.drop if metrics.score is not None else 0.0, metrics.nmse)


def _said(metrics: Metrics) -> str:
    parts = [f"{metrics.sqnr:.2f} dB"]
    if metrics.score is not None:
        parts.append(f"metric {metrics.score:.6g}")
    if metrics.top1 is not None:
        parts.append(f"top-1 {100 * metrics.top1:.2f} %")
    return ", ".join(parts)


# ---- How far every layer of a quantized graph is from the float one, on samples ------------------
# Twice for each layer: behind all the quantized layers before it (*accumulated*), and alone, fed
# with the float tensors rounded once (*local*). A layer with a low accumulated figure and a high
# local one only passes on what others did.


Array = NDArray[Any]
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
    picked = some_of(samples, limit)
    pieces = picked.batches(graph.inputs)
    walk = _ErrorWalk(quantized, matches(graph, quantized))
    reals = float_values(graph, walk.floats, pieces)
    for done, (piece, real) in enumerate(zip(pieces, reals, strict=True), 1):
        walk.run(piece, real)
        if progress is not None:
            progress(done, len(pieces))
    return Errors(walk.layers(), len(picked) * picked.step)


def some_of(samples: Samples, limit: int) -> Samples:
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
