"""The bodies of If, Loop and Scan quantized: each is a float model of its own.

Its samples are what its runs are given when the whole model runs on the data, its statistics are
those of all its runs. Floats go in and out of it, so that what a Loop carries from step to step is
rounded by the step that reads it. What the whole model loses by it is measured in the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qdqbridge.autoquant.planning.decide import NewBodies
from qdqbridge.autoquant.planning.formats import Unstored
from qdqbridge.autoquant.planning.targets import PRODUCTS, Target
from qdqbridge.autoquant.profiling.collect import Data, observable
from qdqbridge.autoquant.profiling.control_flow import runs_of_bodies, watched
from qdqbridge.autoquant.profiling.profile import Profile
from qdqbridge.autoquant.profiling.samples import RunSamples, Sample, Samples
from qdqbridge.autoquant.quantize import Quantized, QuantizeOptions, matches, quantized
from qdqbridge.autoquant.repair.steps import StepRecord
from qdqbridge.autoquant.repair.sweep import FloatReference
from qdqbridge.autoquant.search.operator_choice import CHOICES, GAIN, chosen, with_fewer
from qdqbridge.autoquant.search.search import Climb, Reverted
from qdqbridge.autoquant.search.time_limit import (
    Clock,
    TimeLimit,
    slow_nodes,
    time_text,
    within_time,
)
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.errors import InputDataError, QdqBridgeError, UnsupportedModelError
from qdqbridge.onnx_io.control_flow.bodies import Body, bodies_in, parts, with_bodies
from qdqbridge.targets.profiles.export import exported_proto

STEP = "bodies"
"""The name of this step in records."""
SAMPLES, RUNS = 64, 256
"""Samples that are run to see what bodies are given, and how many runs of a body are held."""
_GOOD = 30.0
"""Outputs this close to the float model's, in dB, bear all integers that the target wants: what a
step of a loop loses adds up over its steps, and more so on other data."""
_WEIGHTS = "weights only"
_NEVER = "no sample takes this branch"


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedBody:
    """A body and what became of it.

    Attributes:
        made: How it was quantized; None where it stays float.
        reason: Why it does.
    """

    body: Body
    made: Quantized | None
    reason: str = ""

    @property
    def integers(self) -> int:
        """How many of its nodes are quantized, those in bodies inside it too."""
        if self.made is None:
            return 0
        return len(self.made.decision.plan.rules) + sum(b.integers for b in self.made.inside)

    @property
    def nodes(self) -> int:
        """How many nodes it has, those in bodies inside it too."""
        return len(self.body.graph.nodes) + sum(len(p.graph.nodes) for p in parts(self.body.graph))


def with_bodies_quantized(
    made: Quantized, data: Data | None, options: QuantizeOptions
) -> Quantized:
    """Returns a quantized model whose bodies are quantized as well.

    Args:
        made: The model, in which they are float.
        data: Samples of the model; None where there is only its profile.
        options: What the user wants, also of the bodies' nodes.
    """
    graph = made.decision.plan.graph
    found = bodies_in(graph)
    if not found:
        return made
    samples = None if data is None else spread(data, SAMPLES)
    runs = {} if samples is None else runs_of_bodies(graph, list(samples), RUNS)
    plain = with_these(made, _each(made, found, runs, options), options)
    if samples is None or not any(body.integers for body in plain.inside):
        return plain
    judge = FloatReference(graph, samples)
    before, start = judge.sqnr(made.graph), judge.sqnr(plain.graph)
    climb = Climb[tuple[str, Quantized]](lambda option: judge.sqnr(option[1].graph), start)
    for name, target in _fewer(options.described()):
        if climb.best >= _GOOD or before < climb.best + GAIN:
            break
        own = replace(options, target=target)
        climb.step((name, with_these(made, _each(made, found, runs, own), options)), GAIN)
    message, plain = climb.taken or ("as the target says", plain)
    best = climb.best
    count = f"{sum(b.integers for b in plain.inside)} of {sum(b.nodes for b in plain.inside)} nodes"
    record = StepRecord(STEP, True, f"{count} in bodies quantized, {message}", before, best)
    return replace(plain, repairs=(*plain.repairs, record))


def _fewer(target: Target) -> Sequence[tuple[str, Target]]:
    """Returns targets with fewer integers, for bodies that lose too much with the target's own."""
    products = CHOICES[1]
    few = with_fewer(target, products.name, products.rules(target.rules))
    weights = with_fewer(target, _WEIGHTS, PRODUCTS, activations=Unstored.FLOAT)
    return [(products.name, few), (_WEIGHTS, weights)]


def _each(
    made: Quantized,
    found: Mapping[Node, Sequence[Body]],
    runs: Mapping[str, Sequence[Sample]],
    options: QuantizeOptions,
) -> dict[Node, list[QuantizedBody]]:
    excluded = made.decision.plan.floats
    result: dict[Node, list[QuantizedBody]] = {}
    for node, bodies in found.items():
        whole = any(matches(node, pattern) for pattern in options.only)
        own = replace(options, only=()) if whole else options
        reason = ""
        if any(matches(node, pattern) for pattern in options.exclude):
            reason = excluded.get(node, "the user excludes it")
        result[node] = [_body(made, body, runs.get(body.place, ()), own, reason) for body in bodies]
    return result


def _body(
    made: Quantized,
    body: Body,
    runs: Sequence[Sample],
    options: QuantizeOptions,
    reason: str,
) -> QuantizedBody:
    graph, target = body.graph, options.described()
    own = options_inside(graph, options)
    if own is None:
        reason = reason or "the user quantizes others only"
    elif not target.arithmetic.near_contract:
        reason = reason or "nothing proves that sums in bodies fit the hardware's accumulators"
    if reason or own is None:
        return QuantizedBody(body, None, reason)
    profile = _profile(made.profile, graph)
    data = RunSamples.of_runs(runs) if runs else None
    seen = any(entry.stats.count for entry in profile.tensors.values())
    try:
        own, _ = chosen(graph, data, own)
        inner = quantized(graph, data, own, profile=profile, empty=True)
        # A body can have bodies.
        inner = with_bodies_quantized(inner, data, options)
    except QdqBridgeError as error:
        # A body that cannot be quantized stays float. That is no reason to refuse the model around
        # it.
        message = "; ".join(part for part in (error.what, error.why) if part)
        return QuantizedBody(body, None, message if seen else _NEVER)
    # Nothing became an integer: the float body is the same function, and it is shorter.
    if not inner.decision.plan.rules and not any(b.integers for b in inner.inside):
        message = "; ".join(sorted(set(inner.decision.plan.floats.values())))
        return QuantizedBody(body, None, message if seen or not graph.nodes else _NEVER)
    return QuantizedBody(body, inner)


def _profile(profile: Profile, graph: Graph) -> Profile:
    """Returns the part of a profile that is of a body."""
    names = {value.name for value in watched(graph)}
    tensors = {key: entry for key, entry in profile.tensors.items() if entry.name in names}
    return replace(profile, model=graph.digest, tensors=tensors)


def with_these(
    made: Quantized, found: Mapping[Node, Sequence[QuantizedBody]], options: QuantizeOptions
) -> Quantized:
    """Returns a model with these bodies.

    Args:
        made: The model.
        found: The bodies of its nodes, quantized or not.
        options: What the user wants.
    """
    decision = replace(made.decision, bodies={})
    plan = decision.plan
    plan = decision.plan = replace(plan, floats=dict(plan.floats))
    profile = options.described().profile
    inside: list[QuantizedBody] = []
    for node, tried in found.items():
        bodies = tried
        changed = {b.body: b.made.graph for b in bodies if b.made is not None}
        try:
            attributes, operands = (
                with_bodies(node, changed, lambda body, opset: exported_proto(body, profile, opset))
                if changed
                else (None, ())
            )
        except QdqBridgeError as error:
            bodies = [QuantizedBody(b.body, None, error.what) for b in bodies]
            attributes, operands = None, ()
        inside += bodies
        if attributes is not None:
            places = frozenset(body.place for body in changed)
            decision.bodies[node] = NewBodies(attributes, tuple(operands), places)
            count = f"{sum(b.integers for b in bodies)} of {sum(b.nodes for b in bodies)}"
            plan.floats[node] = f"floats go in and out; inside it {count} nodes are quantized"
    return replace(made, decision=decision, inside=tuple(inside))


# ---- what names mean inside and outside


def options_inside(graph: Graph, options: QuantizeOptions) -> QuantizeOptions | None:
    """Returns what the user wants of a body; None where it is to stay float.

    Args:
        graph: The body.
        options: What is wanted of the model.
    """

    def here(pattern: str) -> bool:
        return any(matches(node, pattern) for node in graph.nodes)

    deep = [graph, *(part.graph for part in parts(graph))]

    def below(pattern: str) -> bool:
        return any(matches(node, pattern) for each in deep for node in each.nodes)

    only = [pattern for pattern in options.only if here(pattern)]
    exclude = [pattern for pattern in options.exclude if here(pattern)]
    if options.only and not only:
        if not any(map(below, options.only)):
            return None
        exclude = [*exclude, "*"]
    names = {value.name for value in observable(graph)}
    return replace(
        options,
        only=only,
        exclude=exclude,
        fixed={name: params for name, params in options.fixed.items() if name in names},
        formats={p: f for p, f in options.formats.items() if here(p)},
        weight_formats={p: f for p, f in options.weight_formats.items() if here(p)},
    )


def options_outside(graph: Graph, options: QuantizeOptions) -> QuantizeOptions:
    """Returns what the user wants of a model but for what is said of nodes in bodies alone.

    Args:
        graph: The model.
        options: What is wanted of it all.
    """
    bodies = list(parts(graph))
    inner = [node for body in bodies for node in body.graph.nodes]
    tensors = {value.name for body in bodies for value in observable(body.graph)}

    def inside_only(pattern: str) -> bool:
        outside = any(matches(node, pattern) for node in graph.nodes)
        return not outside and any(matches(node, pattern) for node in inner)

    only = [pattern for pattern in options.only if not inside_only(pattern)]
    exclude = [pattern for pattern in options.exclude if not inside_only(pattern)]
    if options.only and not only:
        exclude = [*exclude, "*"]
    return replace(
        options,
        only=only,
        exclude=exclude,
        fixed={name: params for name, params in options.fixed.items() if name not in tensors},
        formats={p: f for p, f in options.formats.items() if not inside_only(p)},
        weight_formats={p: f for p, f in options.weight_formats.items() if not inside_only(p)},
    )


def check_anything(made: Quantized) -> None:
    """Refuses a model of which nothing could be quantized, inside bodies or outside.

    Raises:
        UnsupportedModelError: The message says why.
    """
    if made.decision.plan.rules or any(body.integers for body in made.inside):
        return
    reasons = {*made.decision.plan.floats.values()}
    reasons |= {f"{body.body.place}: {body.reason}" for body in made.inside if body.reason}
    raise UnsupportedModelError(
        "nothing in the model can be quantized",
        why="; ".join(sorted(reasons)) or "it has no operator that computes",
        fix="choose another target, or exclude less",
    )


# ---- inside time ---------------------------------------------------------------------------------
# A limit of time inside the bodies of If, Loop and Scan: each is searched as a model of its own.
#
# A node of a body may take as long in one run of the body as any other node. What a whole loop
# takes is that of its steps, of which there may be any number: it is not limited.


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
        return replace(body, made=replace(made, decision=fallen.decision))

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
