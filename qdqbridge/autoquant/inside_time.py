"""A limit of time inside the bodies of If, Loop and Scan: each is searched as a model of its own.

A node of a body may take as long in one run of the body as any other node. What a whole loop takes
is that of its steps, of which there may be any number: it is not limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qdqbridge.autoquant.inside import RUNS, SAMPLES, QuantizedBody, with_these
from qdqbridge.autoquant.profiling.control_flow import runs_of_bodies
from qdqbridge.autoquant.profiling.samples import RunSamples, Sample, Samples
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.search.search import Reverted
from qdqbridge.autoquant.search.time_limit import (
    Clock,
    TimeLimit,
    slow_nodes,
    time_text,
    within_time,
)
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.errors import InputDataError
from qdqbridge.onnx_io.control_flow.bodies import bodies_in


def bodies_within_time(
    made: Quantized, limit: TimeLimit, samples: Samples, clock: Clock, state: Path | None = None
) -> tuple[Quantized, list[Reverted]]:
    """Returns a model of whose bodies no node takes too long, and what their layers got for it.

    Args:
        made: The model, its bodies quantized as its target says.
        limit: What a node may take; the goal is that of the whole model.
        samples: What the model is run on to see what its bodies are given.
        clock: What runs a graph in the engine.
        state: A file of trials; each body has one of its own beside it.

    Raises:
        InputDataError: Some node takes too long whatever its layer gets, or is in a float body.
        UnsupportedTargetError: The engine cannot run a body by itself.
    """
    graph = made.decision.plan.graph
    found = bodies_in(graph)
    if not found:
        return made, []
    runs = runs_of_bodies(graph, list(spread(samples, SAMPLES)), RUNS)
    search = _BodySearch(replace(limit, goal=None), clock, state)
    known = {body.body.place: body for body in made.inside}
    bodies = {
        node: [
            search.within(known[b.place], runs.get(b.place, ())) for b in each if b.place in known
        ]
        for node, each in found.items()
    }
    return with_these(made, bodies, made.options), search.reverted


@dataclass(slots=True, eq=False)
class _BodySearch:
    limit: TimeLimit
    clock: Clock
    state: Path | None
    reverted: list[Reverted]

    def __init__(self, limit: TimeLimit, clock: Clock, state: Path | None) -> None:
        self.limit, self.clock, self.state, self.reverted = limit, clock, state, []

    def within(self, body: QuantizedBody, runs: Sequence[Sample]) -> QuantizedBody:
        """Returns a body without slow nodes; one that never runs takes no time."""
        if not runs:
            return body
        if body.made is None:
            self._check(body, runs[0])
            return body
        data, state = RunSamples.of_runs(runs), self._state(body.body.place)
        made, deeper = bodies_within_time(body.made, self.limit, data, self.clock, state)
        fallen = within_time(made, self.limit, data, self.clock, state=state)
        self.reverted += [*deeper, *fallen.reverted]
        return replace(body, made=replace(made, decision=fallen.decision, graph=fallen.graph))

    def _state(self, place: str) -> Path | None:
        if self.state is None:
            return None
        return self.state.with_name(f"{self.state.name}.{place.strip('/').replace('/', '.')}")

    def _check(self, body: QuantizedBody, run: Sample) -> None:
        slow = slow_nodes(body.body.graph, self.limit, run, self.clock)
        if slow:
            worst = f"{slow[0].operator} '{slow[0].node}' {time_text(slow[0].seconds)}"
            raise InputDataError(
                f"{len(slow)} nodes take longer than {time_text(self.limit.max_seconds)} on "
                f"{self.limit.engine} in a body that stays float",
                where=f"'{body.body.place}'",
                why=f"{worst}; {body.reason}",
                fix="allow more time, or cut these operators in the model",
            )
