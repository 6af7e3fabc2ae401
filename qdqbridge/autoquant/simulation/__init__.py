"""Trying parameters without compiling: the float model with every rounding switchable.

::

    simulation = Simulation(plan, samples)
    before = simulation.metrics(decision)
    after = simulation.metrics(other_decision)
    print(before.sqnr, after.sqnr, after.top1)

A decision that mentions only some values and weights rounds only these; the rest stays float. What
comes out is what ``apply(decision)`` computes, up to the order in which products are summed: there
integers are added, here the real numbers that they stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.planning.decide import Decision
from qdqbridge.autoquant.planning.plan import QuantizationPlan
from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.autoquant.simulation.engines import (
    Arrays,
    GraphPart,
    OnnxRuntime,
    SimulationEngine,
    engine_of,
    parts_of,
)
from qdqbridge.autoquant.simulation.graph import Feeds, Needs, Operand, SimulatedGraph, simulated
from qdqbridge.autoquant.simulation.metrics import (
    DivisibleMetric,
    Metric,
    Metrics,
    ReferenceScore,
    class_axes,
    concat_outputs,
    measured,
    outputs_of,
)
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.errors import InputDataError, UnsupportedTargetError

if TYPE_CHECKING:
    from qdqbridge.autoquant.simulation.teams import SentSimulation

Array = NDArray[Any]
Outputs = Sequence[Array]
_BATCH = 64
_ELEMENTS = 1 << 20
"""Elements of the inputs that are run at once, by default."""
_MEMORY = 1 << 29


class Simulation:
    """A model, samples, and what any decision does to the outputs.

    Attributes:
        plan: The plan that it was made for.
        values: What :meth:`run` returns.
        trials: How often all samples were run so far.
        compiled: How often the model was compiled: 1, and 1 more whenever a decision of another
            plan rounds what no plan before did.
    """

    def __init__(
        self,
        plan: QuantizationPlan,
        samples: Samples | Iterable[Sample],
        unseen: Samples | None = None,
        *,
        engine: SimulationEngine | str = "onnxruntime",
        also: Iterable[QuantizationPlan] = (),
        values: Sequence[Value] = (),
        metric: Metric | None = None,
        reference: Sequence[Outputs] | None = None,
        original: Graph | None = None,
        batch: int | None = None,
        parts: int = 0,
        memory: int = _MEMORY,
    ) -> None:
        """Compiles the simulated model.

        Args:
            plan: What may be rounded.
            samples: Inputs to try everything on; what is no ``Samples`` is run one by one.
            unseen: Further ones, which nothing was chosen by: metrics tell them apart.
            engine: ``onnxruntime``, ``tvm``, ``numpy``, ``exact`` (NumPy in float64), or one's own.
            also: Further plans of the same graph that decisions will be of.
            values: Values of the plan's graph to return, as they are computed, before their own
                rounding; by default the outputs, rounded where the decision says so.
            metric: A user's score of the outputs of all samples, the unseen ones first.
            reference: Outputs to compare with instead of the float model's, batch by batch: those
                of another simulation of the same samples.
            original: The float model whose outputs are compared with, where that is not the
                plan's graph: before batch normalizations were folded and channels scaled.
            batch: Examples that are run at once where the model leaves that open.
            parts: In how many parts the model is compiled (see :meth:`hold`); 0 for the engine's
                own number.
            memory: Bytes that :meth:`hold` may keep.

        Raises:
            UnsupportedTargetError: The engine cannot run the model.
        """
        self.plan, self._engine = plan, engine_of(engine)
        self._metrics: list[Metric] = [] if metric is None else [metric]
        if isinstance(metric, DivisibleMetric) and unseen is not None:
            self._metrics.append(metric.picked(range(len(unseen) * unseen.step)))
        self._count, self._memory, self._batch = parts or self._engine.parts, memory, batch
        self.trials, self.compiled = 0, 0
        self._asked = list(values)
        self.values = self._asked or list(plan.graph.outputs)
        # Unseen samples stand first, so that what is measured of a prefix of the batches is
        # measured of them.
        first = [] if unseen is None else batches_of(unseen, plan.graph, batch)
        self._batches, self._unseen = first + batches_of(samples, plan.graph, batch), len(first)
        self._needs = Needs.of((plan, *also))
        self._compile()
        self._reference: list[Outputs] | None = None if reference is None else list(reference)
        self._original = original
        self._scores: list[ReferenceScore] = []

    def on(self, samples: Samples) -> Simulation:
        """Returns the same compiled model with other samples to try everything on."""
        other = copy(self)
        other._batches, other._unseen = batches_of(samples, self.plan.graph, self._batch), 0
        other._reference, other._scores, other.trials = None, [], 0
        other.release()
        return other

    def _compile(self) -> None:
        self.compiled += 1
        self._held: list[Arrays] = []
        self._held_feeds: dict[Value, Array] = {}
        graph = simulated(self.plan.graph, self._needs)
        self._simulated: SimulatedGraph = graph
        self._wanted = [graph.values[v] for v in self._asked] or list(graph.graph.outputs)
        self._feeds = Feeds(graph)
        self._constants = {v: v.constant.numpy() for v in self._wanted if v.constant is not None}
        self._parts: list[GraphPart] = parts_of(
            graph.graph, self._wanted, self._engine, self._count
        )

    # ---- running ------------------------------------------------------------------------------

    def run(
        self, decision: Decision | None = None, constants: Mapping[Operand, Array] | None = None
    ) -> Iterator[Outputs]:
        """Yields :attr:`values` for one batch of samples after the other.

        Args:
            decision: What is rounded, and how; None rounds nothing.
            constants: Real numbers instead of those of the graph, by node and operand, for
                constants that the plan quantizes; biases are among them.

        Raises:
            InputDataError: The decision is of another graph.
            UnsupportedQuantization: It holds parameters that are not simulated.
        """
        feeds = self._prepared(decision, constants)
        first = self._unchanged(feeds)
        self.trials += 1
        for index, sample in enumerate(self._batches):
            held = index < len(self._held)
            start = first if held else 0
            arrays: Arrays = {**feeds, **(self._held[index] if held else self._inputs(sample))}
            for part in self._parts[start:]:
                part(arrays)
            yield [arrays[value] for value in self._wanted]

    def roundings(self, decision: Decision) -> dict[Value, Array]:
        """Returns every value that ``decision`` rounds as its readers get it, for one batch."""
        feeds = self._prepared(decision, None)
        arrays: Arrays = {**feeds, **self._inputs(self._batches[0])}
        places = [p for p in self._simulated.places if p.reader is None]
        outputs = [place.output for place in places]
        for part in parts_of(self._simulated.graph, outputs, self._engine, 1):
            part(arrays)
        return {p.value: arrays[p.output] for p in places if p.value in decision.values}

    def _inputs(self, sample: Sample) -> Arrays:
        return {v: np.asarray(sample[v.name]) for v in self._simulated.samples}

    def _prepared(
        self, decision: Decision | None, constants: Mapping[Operand, Array] | None
    ) -> dict[Value, Array]:
        decision = decision or Decision(QuantizationPlan(self.plan.graph))
        if decision.plan.graph is not self.plan.graph:
            raise InputDataError(
                "the decision is of another graph than the simulation",
                fix="make a new simulation of the graph that was decided about",
            )
        # Before the feeds are made: compiling anew gives them other inputs.
        self.cover((decision.plan,))
        return {**self._constants, **self._feeds.of(decision, constants)}

    def cover(self, plans: Iterable[QuantizationPlan]) -> None:
        """Compiles the model anew if decisions of ``plans`` could not be tried without.

        Args:
            plans: Plans of the same graph that decisions will be of.
        """
        needs = Needs.of(plans)
        if not self._needs.covers(needs):
            self._needs = self._needs.joined(needs)
            self._compile()

    def hold(self, decision: Decision | None = None) -> None:
        """Keeps what lies between the parts for ``decision``.

        A later decision then runs from the first part that it changes.

        Args:
            decision: Most decisions to come differ little from it; None for the float model.
        """
        feeds = self._prepared(decision, None)
        self._held, self._held_feeds, used = [], feeds, 0
        between = {value for part in self._parts for value in part.outputs}
        self.trials += 1
        for sample in self._batches:
            inputs = self._inputs(sample)
            arrays: Arrays = {**feeds, **inputs}
            for part in self._parts:
                part(arrays)
            kept = {value: arrays[value] for value in between}
            used += sum(array.nbytes for array in kept.values())
            # The batches that are held save their share; the others run from the begin.
            if used > self._memory:
                break
            self._held.append({**kept, **inputs})

    def release(self) -> None:
        """Forgets what :meth:`hold` keeps."""
        self._held, self._held_feeds = [], {}

    def _unchanged(self, feeds: Mapping[Value, Array]) -> int:
        """Returns how many parts give what is held."""
        if not self._held:
            return 0
        for index, part in enumerate(self._parts):
            # By identity: equal arrays are the same object as long as nobody chose anew, and
            # comparing them would read every weight.
            if any(v in feeds and feeds[v] is not self._held_feeds[v] for v in part.inputs):
                return index
        return len(self._parts)

    # ---- for workers ----------------------------------------------------------------------------

    def feeds_by_name(self, decision: Decision | None) -> dict[str, Array]:
        """Returns what the inputs that are no samples get for a decision; arrays may be shared."""
        return {value.name: array for value, array in self._prepared(decision, None).items()}

    def sent(self) -> SentSimulation:
        """Returns the simulation as it goes to other processes.

        Raises:
            UnsupportedTargetError: Its engine is not onnxruntime.
        """
        from qdqbridge.autoquant.simulation.teams import SentSimulation

        if not isinstance(self._engine, OnnxRuntime):
            raise UnsupportedTargetError(
                "workers run onnxruntime only", fix="simulate with onnxruntime, or without workers"
            )
        parts = tuple(
            (self._engine.recipe(part.graph), tuple(value.name for value in part.outputs))
            for part in self._parts
            if part.graph is not None
        )
        return SentSimulation(
            parts,
            self.feeds_by_name(None),
            tuple({v.name: np.asarray(s[v.name]) for v in self._simulated.samples}
                  for s in self._batches),
            tuple(value.name for value in self._wanted),
        )  # fmt: skip

    # ---- judging ------------------------------------------------------------------------------

    @property
    def reference(self) -> list[Outputs]:
        """The values of the float model, batch by batch; computed once."""
        if self._reference is None:
            original = self._original
            runs = self.run() if original is None else outputs_of(original, self._batches)
            self._reference = [list(outputs) for outputs in runs]
        return self._reference

    def metrics(
        self, decision: Decision | None = None, constants: Mapping[Operand, Array] | None = None
    ) -> Metrics:
        """Returns how far a decision takes :attr:`values` from the float model.

        Args:
            decision: As for :meth:`run`.
            constants: As for :meth:`run`.
        """
        return self.compared(self.run(decision, constants), self.reference)

    def compared(self, outputs: Iterable[Outputs], reference: list[Outputs]) -> Metrics:
        """Returns the metrics of outputs that come from elsewhere, a real quantized graph."""
        names = [value.name for value in self.values]
        if not self._asked:
            names = list(self.plan.graph.output_names)
        axes = class_axes(self.values)
        if not self._scores:
            parts = (reference, reference[: self._unseen])
            self._scores = [
                ReferenceScore(metric, float(metric(concat_outputs(names, part))))
                for metric, part in zip(self._metrics, parts, strict=False)
            ]
        return measured(names, reference, outputs, self._scores, self._unseen, axes)

    @property
    def batches(self) -> Sequence[Sample]:
        """The samples as they are run."""
        return self._batches


def batches_of(
    samples: Samples | Iterable[Sample], graph: Graph, batch: int | None = None
) -> list[Sample]:
    """Returns the samples, several at once where every input leaves axis 0 open.

    Args:
        samples: Samples; what is no ``Samples`` is left as it is.
        graph: What they are for.
        batch: How many examples at most; by default by their size.
    """
    if not isinstance(samples, Samples):
        return list(samples)
    if batch is None:
        batch = max(1, min(_BATCH, _ELEMENTS // max(samples.elements, 1)))
    return samples.batches(graph.inputs, batch)
