"""The float graph and the quantized one, side by side, from the inputs to the outputs, once.

Only what later nodes still read is kept. Someone may look at every node on the way and change what
is quantized there: everything behind it sees the change, so that errors are corrected where the
errors of what lies before are already in. One sweep costs two runs of every node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.advice.few_samples import HALVED
from qdqbridge.autoquant.advice.input_scale import before_bounds
from qdqbridge.autoquant.planning.decide import Decision, apply, stored_integers
from qdqbridge.autoquant.planning.formats import Unstored
from qdqbridge.autoquant.planning.plan import QuantizationPlan, Weight
from qdqbridge.autoquant.planning.unstored import RECURRENT
from qdqbridge.autoquant.profiling.samples import (
    RunSamples,
    Sample,
    Samples,
    batch_samples,
    cut_along_examples,
)
from qdqbridge.autoquant.profiling.stats import comparable
from qdqbridge.autoquant.search.tuning import ELEMENTS, spread
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import computed, evaluate
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.pooling import MAX_POOL
from qdqbridge.errors import QdqBridgeError, UnsupportedTargetError

Array = NDArray[Any]
Batches = Sequence[Array]
SAMPLES, BATCHES = 64, 4
MEMORY = 1 << 27
"""Bytes that the arrays around one node may take."""
_COSTLY = (Flow.ACCUMULATE, Flow.AVERAGE, Flow.ROUND)
_FEW = 1 << 22
"""Multiplications of a batch: with more a node is run by onnxruntime. A session takes some
milliseconds to make, in which NumPy runs the nodes of a small network."""


class Visitor(Protocol):
    """Somebody who changes what is quantized, node by node."""

    def weight(
        self, weight: Weight, real: Batches, operands: Batches
    ) -> tuple[Array, QuantParams] | None:
        """Returns other stored integers for a weight and their parameters; None to leave them.

        Args:
            weight: A weight with parameters, operand 1 of its node.
            real: What the float graph gives its node as operand 0, batch by batch.
            operands: What the quantized graph gives its node as operand 0, batch by batch.
        """
        ...

    def result(self, node: Node, real: Batches, quantized: Batches) -> Array | None:
        """Returns what to add to the quantized result of a node; None for nothing.

        Args:
            node: Any node with a result.
            real: Its first result in the float graph, batch by batch.
            quantized: The same in the quantized graph, before it is rounded.
        """
        ...


def sweep(
    decision: Decision,
    samples: Samples,
    visitor: Visitor,
    *,
    limit: int = SAMPLES,
    memory: int = MEMORY,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Leads ``visitor`` through the graph.

    Args:
        decision: What is quantized, and how.
        samples: The data.
        visitor: Changes it.
        limit: How many samples to carry along, at most.
        memory: Bytes that the arrays around one node may take; fewer samples are carried if need
            be.
        progress: Called with the number of nodes done, and of all.
    """
    graph = decision.plan.graph
    state = _State(decision, batches(graph.inputs, graph.values(), samples, limit, memory))
    nodes = graph.nodes
    for index, node in enumerate(nodes):
        state.step(node, visitor)
        if progress is not None:
            progress(index + 1, len(nodes))


def batches(
    inputs: Sequence[Value], values: Iterable[Value], samples: Samples, limit: int, memory: int
) -> list[Sample]:
    """Returns samples, spread evenly, several at once where every input leaves axis 0 open."""
    largest = max((_bytes(v) for v in values if not v.is_constant), default=1)
    fitting = memory // (4 * samples.step * max(largest, 1))
    fitting = min(fitting, max(HALVED, ELEMENTS // max(samples.elements, 1)))
    count = int(min(limit, len(samples), max(fitting, 2 * BATCHES)))
    picked = [samples[int(i)] for i in np.linspace(0, len(samples) - 1, count)]
    shapes = [value.type.shape for value in inputs]
    if not samples.together or not all(shape and isinstance(shape[0], str) for shape in shapes):
        return picked
    each = max(1, -(-count // BATCHES))
    return [
        {name: np.concatenate([s[name] for s in picked[i : i + each]]) for name in picked[0]}
        for i in range(0, count, each)
    ]


def _bytes(value: Value) -> int:
    shape = value.type.shape or ()
    return 4 * int(np.prod([d if isinstance(d, int) else 1 for d in shape], dtype=np.int64))


@dataclass(slots=True, eq=False)
class _State:
    """The frontier: what later nodes still read."""

    decision: Decision
    inputs: Sequence[Sample]
    real: dict[Value, list[Array]] = field(default_factory=dict["Value", "list[Array]"])
    rough: dict[Value, list[Array]] = field(default_factory=dict["Value", "list[Array]"])
    rounded: dict[Value, list[Array]] = field(default_factory=dict["Value", "list[Array]"])
    left: dict[Value, int] = field(default_factory=dict["Value", "int"])
    weights: Mapping[tuple[Node, int], Weight] = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        graph = self.decision.plan.graph
        self.left = {value: len(value.users) for value in graph.values()}
        self.weights = {(w.node, w.index): w for w in self.decision.weights}
        for value in graph.inputs:
            arrays = [np.asarray(sample[value.name]) for sample in self.inputs]
            self._keep(value, arrays, arrays)

    def _keep(self, value: Value, real: list[Array], quantized: list[Array]) -> None:
        self.real[value], self.rough[value] = real, quantized
        params = self.decision.values.get(value)
        self.rounded[value] = quantized
        if params is not None:
            self.rounded[value] = [stored_and_read(a, params) for a in quantized]
            # Nobody reads it unrounded: activations of all samples are the most that is held.
            if not any(user in self.decision.plan.unrounded for user in value.users):
                self.rough[value] = []

    def step(self, node: Node, visitor: Visitor) -> None:
        constants = {i: self._constant(node, i, visitor) for i in range(len(node.inputs))}
        real = _executed(node, [self._operands(node, self.real)])[0]
        quantized = _executed(node, [self._quantized(node, constants)])[0]
        change = visitor.result(node, real[0], quantized[0]) if node.outputs else None
        if change is not None:
            quantized[0] = [array + change.astype(array.dtype) for array in quantized[0]]
        for i, value in enumerate(node.outputs[: len(real)]):
            self._keep(value, real[i], quantized[i])
        self._forget(node)

    def _constant(self, node: Node, index: int, visitor: Visitor) -> Array | None:
        """Returns a constant as the quantized graph has it."""
        weight = self.weights.get((node, index))
        if weight is None:
            return None
        found = None
        if index == 1 and node.op.flow is Flow.ACCUMULATE and not node.operand(0).is_constant:
            found = visitor.weight(weight, self.real[node.operand(0)], self._read(node, 0))
        if found is None:
            params = self.decision.weights[weight]
            found = stored_integers(weight, params, self.decision).numpy(), params
        return dequantize(*found)

    def _read(self, node: Node, index: int) -> list[Array]:
        value = node.operand(index)
        unrounded = (node, index) in self.decision.plan.unrounded
        return self.rough[value] if unrounded else self.rounded[value]

    def _operands(self, node: Node, kept: Mapping[Value, list[Array]]) -> list[list[Array | None]]:
        return [
            [None if v is None else _held(v, kept, batch) for v in node.inputs]
            for batch in range(len(self.inputs))
        ]

    def _quantized(
        self, node: Node, constants: Mapping[int, Array | None]
    ) -> list[list[Array | None]]:
        result: list[list[Array | None]] = []
        for batch in range(len(self.inputs)):
            row: list[Array | None] = []
            for index, value in enumerate(node.inputs):
                if value is None:
                    row.append(None)
                elif value.constant is not None:
                    changed = constants[index]
                    own = self.decision.plan.biases.get((node, index), value.constant.numpy())
                    row.append(own if changed is None else changed)
                else:
                    row.append(self._read(node, index)[batch])
            result.append(row)
        return result

    def _forget(self, node: Node) -> None:
        for value in node.inputs:
            if value is not None:
                self.left[value] -= 1
                # The last reader: only the frontier stays in memory, not the whole network.
                if not self.left[value]:
                    for kept in (self.real, self.rough, self.rounded):
                        kept.pop(value, None)


def _held(value: Value, kept: Mapping[Value, list[Array]], batch: int) -> Array:
    return kept[value][batch] if value.constant is None else value.constant.numpy()


def stored_and_read(array: Array, params: QuantParams) -> Array:
    """Returns the real numbers that remain of ``array`` after it was stored."""
    return dequantize(quantize(array, params), params)


def _executed(node: Node, runs: Sequence[list[list[Array | None]]]) -> list[list[list[Array]]]:
    """Returns for every run by result of the node its batches."""
    run = _engine(node, runs[0][0])
    return [[list(r) for r in zip(*(run(row) for row in rows), strict=True)] for rows in runs]


def _engine(
    node: Node, operands: Sequence[Array | None]
) -> Callable[[Sequence[Array | None]], Sequence[Array]]:
    """Returns what runs a node: onnxruntime where it costs something, else NumPy.

    Args:
        node: A node.
        operands: What it reads of one batch.
    """
    if node.op.flow in _COSTLY or node.op is MAX_POOL:
        found = _compiled(node) if _is_large(node, operands) else None
        if found is not None:
            return found
    return lambda operands: computed(node, operands)


def _is_large(node: Node, operands: Sequence[Array | None]) -> bool:
    """True where NumPy would take longer than it takes to make a session."""
    geometry = geometry_of(node) if node.op.flow is Flow.ACCUMULATE else None
    x, weight = (*operands, None)[:2]
    if x is None:
        return True
    if geometry is None or weight is None:
        return node.op.name in RECURRENT or x.size > _FEW
    extent = x.shape[1 if geometry.image else -1]
    rows = 1 if geometry.image else math.prod(weight.shape[:-2])
    return x.size // max(extent, 1) * (weight.size // max(rows, 1)) > _FEW


def _compiled(node: Node) -> Callable[[Sequence[Array | None]], Sequence[Array]] | None:
    from qdqbridge.targets.running import Runner

    inputs = [
        None if v is None else Value(v.type, f"operand_{i}") for i, v in enumerate(node.inputs)
    ]
    outputs = [Value(v.type, f"result_{i}") for i, v in enumerate(node.outputs)]
    alone = Node(node.op, node.attributes, inputs, outputs, node.origin)
    given = [v for v in inputs if v is not None]
    for value in given:
        value.users[alone, inputs.index(value)] = None
    alone.linked = True
    graph = Graph(given, outputs, [v.name for v in outputs], [alone], opset=0, canonical=True)
    try:
        runner = Runner(graph, outputs, optimized=False)
    except UnsupportedTargetError:
        return None

    def run(operands: Sequence[Array | None]) -> Sequence[Array]:
        feeds = {f"operand_{i}": np.asarray(a) for i, a in enumerate(operands) if a is not None}
        return runner.run(feeds)

    return run


# ---- What the float graph computes on a few samples, and how far other graphs are from that ------


Run = Callable[[Sample], Sequence[Array]]
JUDGING = 64
"""How many samples decide."""


class FloatReference:
    """Holds what the float graph computes on a few samples, and compares other graphs with it.

    Attributes:
        samples: The samples, spread evenly over all there are.
    """

    def __init__(
        self, graph: Graph, samples: Samples, limit: int = JUDGING, *, unbounded: bool = False
    ) -> None:
        """Runs the float graph.

        Args:
            graph: The float graph.
            samples: Calibration data.
            limit: How many samples to compare on.
            unbounded: Compare what is given to gates and shares that end the network, which
                saturate; only what stores no ranges computes that everywhere.
        """
        picked = np.linspace(0, len(samples) - 1, min(limit, len(samples))).astype(int)
        self.samples, self._unbounded = [samples[int(i)] for i in picked], unbounded
        run = self._runner(graph)
        with cut_along_examples(graph.inputs):
            self._wanted = [[a.astype(np.float64) for a in run(sample)] for sample in self.samples]

    def sqnr(self, graph: Graph) -> float:
        """Returns the output SQNR of ``graph`` in dB; of several outputs the mean noise counts."""
        return decibels(float(self.errors(graph).mean()))

    def errors(self, graph: Graph) -> Array:
        """Returns the noise of every sample as share of the mean power, outputs averaged."""
        run = self._runner(graph)
        noise = np.zeros((len(self.samples), len(self._wanted[0])))
        signal = np.zeros_like(noise)
        for k, (sample, wanted) in enumerate(zip(self.samples, self._wanted, strict=True)):
            for i, (got, want) in enumerate(zip(run(sample), wanted, strict=True)):
                real, other = comparable(want, got)
                noise[k, i], signal[k, i] = np.sum((other - real) ** 2), np.sum(real**2)
        power = signal.mean(axis=0)
        return (noise / np.where(power > 0, power, 1.0)).mean(axis=1)

    def _runner(self, graph: Graph) -> Run:
        outputs = graph.outputs
        return runner(graph, [before_bounds(v) for v in outputs] if self._unbounded else outputs)


class DecisionJudge:
    """Says how far decisions take the outputs from the float graph's, on a few samples.

    Decisions are simulated: to apply, write and load what each of them makes takes many times as
    long. One graph is compiled at a time, for a graph with scaled channels is another one.

    Attributes:
        samples: What is run.
        odd: Which of them have odd numbers among all.
    """

    def __init__(self, graph: Graph, samples: Samples) -> None:
        """Remembers what is asked.

        Args:
            graph: The float graph.
            samples: Calibration data; where they are many or large, some of them are run.
        """
        count = max(HALVED, min(2 * JUDGING, ELEMENTS // max(samples.elements, 1)))
        self._graph, self.samples = graph, spread(samples, count)
        picked = np.linspace(0, len(samples) - 1, len(self.samples)).astype(int)
        self.odd: NDArray[np.bool_] = picked % 2 == 1
        self._simulation: Simulation | None = None
        self._reference: FloatReference | None = None

    def errors(self, decision: Decision) -> Array:
        """Returns the noise of every sample as share of the mean power, outputs averaged."""
        if any(read is not Unstored.FLOAT for read in decision.plan.unstored.values()):
            if self._reference is None:  # scales of a run are not simulated
                self._reference = FloatReference(self._graph, self.samples, len(self.samples))
            return self._reference.errors(apply(decision))
        simulation = self.simulation(decision.plan)
        together = self.samples.step == 1 and _counts_examples(simulation.plan.graph)
        noise, signal = list[Array](), list[Array]()
        for wanted, found in zip(simulation.reference, simulation.run(decision), strict=True):
            pairs = [comparable(y, z) for y, z in zip(wanted, found, strict=True)]
            noise.append(np.stack([_squares(z - y, together) for y, z in pairs]))
            signal.append(np.stack([_squares(y, together) for y, _ in pairs]))
        power = np.concatenate(signal, axis=1).mean(axis=1, keepdims=True)
        return (np.concatenate(noise, axis=1) / np.where(power > 0, power, 1.0)).mean(axis=0)

    def sqnr(self, decision: Decision) -> float:
        """Returns the output SQNR in dB; of several outputs the mean noise counts."""
        return decibels(float(self.errors(decision).mean()))

    def simulation(self, plan: QuantizationPlan) -> Simulation:
        """Returns what decisions of ``plan`` are tried by, on :attr:`samples`."""
        known = self._simulation
        if known is None or known.plan.graph is not plan.graph:
            reference = None if known is None else known.reference
            batch = None if _counts_examples(plan.graph) else self.samples.step
            known = Simulation(plan, self.samples, reference=reference, batch=batch, parts=1)
            self._simulation = known
        return known


def _counts_examples(graph: Graph) -> bool:
    """True where axis 0 of all inputs and outputs numbers examples, of which there may be many."""
    extents = {(value.type.shape or (None,))[0] for value in (*graph.inputs, *graph.outputs)}
    return len(extents) == 1 and isinstance(extents.pop(), str)


def _squares(array: Array, together: bool) -> Array:
    """Returns the sum of squares of every example, or that of all there is."""
    return np.sum(array.reshape(len(array) if together else 1, -1) ** 2, axis=1)


def decibels(ratio: float) -> float:
    """Returns a ratio of noise to signal as dB; infinity where there is no noise."""
    if math.isnan(ratio):
        return -math.inf
    return math.inf if ratio == 0 else -10 * math.log10(ratio)


def runner(graph: Graph, values: Sequence[Value] | None = None) -> Run:
    """Returns what runs a graph: onnxruntime, or the interpreter where ONNX cannot express it.

    Args:
        graph: Any graph.
        values: What to return; None for its outputs.
    """
    from qdqbridge.targets.running import Runner

    wanted = graph.outputs if values is None else values
    try:
        return Runner(graph, wanted, optimized=False).run
    except UnsupportedTargetError:

        def interpreted(sample: Sample) -> list[Array]:
            found = evaluate(graph, sample, wanted=wanted)[1]
            return [found[value] for value in wanted]

        return interpreted


# ---- What repair costs data of other scales, where no range is stored that these would leave -----
# Weights alone fit data of any scale, and repair fits them to the data given. Behind inputs that
# are far too small only biases count, behind those that are far too large none does: what gains
# there may lose at the right scale.


SCALES = (1 / 256, 1 / 16, 16.0, 256.0)
"""Other scales of data: pixels as bytes or as shares, samples of sound as integers or as shares."""
MOST_LOST = 3.0
"""What all steps together may lose on data of another scale, in dB."""
MIXED = SAMPLES * 3 // 2
"""So many samples to learn from, of which every third is one of another scale."""
_ELSEWHERE, _NOISE, _EXACT = 16, 0.0, 120.0
"""So many samples tell what is lost elsewhere. Below so many dB there is nothing left to lose, and
what is closer than so many is exact."""


class OtherScales:
    """What all steps so far cost data of other scales, and whether one more may be kept.

    Args:
        graph: The float graph.
        samples: Calibration data.
    """

    def __init__(self, graph: Graph, samples: Samples) -> None:
        self._graph, self._samples = graph, spread(samples, _ELSEWHERE)
        self._references: dict[float, FloatReference] | None = None
        self._known: tuple[Graph | None, Mapping[float, float]] = (None, {})
        self._lost: Mapping[float, float] = {}

    @staticmethod
    def of(decision: Decision, samples: Samples) -> OtherScales | None:
        """Returns what judges repair of a decision; None where ranges are stored.

        Args:
            decision: That without repair.
            samples: Calibration data.
        """
        return None if decision.values else OtherScales(decision.plan.graph, samples)

    def refusal(self, before: Graph, after: Graph) -> str:
        """Returns why a step must not be kept, nothing where it may be; then its loss is noted.

        Args:
            before: The quantized graph without the step.
            after: With it.
        """
        graph, plain = self._known
        plain = plain if graph is before else self._sqnr(before)
        self._known, changed = (before, plain), self._sqnr(after)
        # All steps together: each of them might lose a little less than too much.
        lost = {f: self._lost.get(f, 0.0) + plain[f] - changed[f] for f in plain}
        worst = max(lost, key=lambda f: lost[f], default=1.0)
        if lost and lost[worst] > MOST_LOST:
            scale = f"{worst:g} times as large" if worst > 1 else f"divided by {1 / worst:g}"
            return f"it would lose {lost[worst]:.1f} dB on data {scale}"
        self._known, self._lost = (after, changed), lost
        return ""

    def among(self, samples: Samples) -> Samples:
        """Returns up to ``SAMPLES`` of them, behind each two the first at another scale.

        Halves of every second one have each sample and its copy together: what is learned from
        one half is judged by the other.

        Args:
            samples: Calibration data.
        """
        names, factors = _with_a_scale(self._samples), cycle(SCALES)
        runs: list[Sample] = []
        for index, sample in enumerate(spread(samples, SAMPLES)):
            runs.append(sample)
            if index % 2:
                runs.append(_scaled(runs[-2], names, next(factors)))
        return batch_samples(runs)

    def _sqnr(self, graph: Graph) -> Mapping[float, float]:
        """Returns dB by scale, from those of noise to those of what is exact."""
        found = {f: judge.sqnr(graph) for f, judge in self._judges().items()}
        return {f: min(max(db, _NOISE), _EXACT) for f, db in found.items()}

    def _judges(self) -> dict[float, FloatReference]:
        if self._references is None:
            self._references = {}
            names = _with_a_scale(self._samples)
            for factor in SCALES if names else ():
                runs = RunSamples.of_runs([_scaled(s, names, factor) for s in self._samples])
                try:
                    judge = FloatReference(self._graph, runs, unbounded=True)
                except QdqBridgeError:  # the model computes no such data
                    continue
                self._references[factor] = judge
        return self._references


def _with_a_scale(samples: Samples) -> list[str]:
    """Returns the inputs of real numbers; one with two values at most is a mask or a constant."""
    seen: dict[str, set[float]] = {}
    for sample in samples:
        for name, array in sample.items():
            if array.dtype.kind == "f" and len(seen.setdefault(name, set())) <= 2:
                seen[name].update(np.unique(array)[:3].tolist())
    return [name for name, values in seen.items() if len(values) > 2]


def _scaled(sample: Sample, names: Sequence[str], factor: float) -> Sample:
    return {n: a * a.dtype.type(factor) if n in names else a for n, a in sample.items()}
