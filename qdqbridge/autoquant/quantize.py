"""The whole way from a float graph and data to a quantized graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from numpy.typing import NDArray

from qdqbridge.autoquant.advice.few_samples import different, untried, with_room
from qdqbridge.autoquant.calibration import Calibration
from qdqbridge.autoquant.choosers import CHOOSERS, Chooser
from qdqbridge.autoquant.hardware.arithmetic import CONTRACT, arithmetic_of
from qdqbridge.autoquant.hardware.pair_room import PairRoom
from qdqbridge.autoquant.planning.decide import Decision, apply, decide
from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.autoquant.planning.plan import Overrides, QuantizationPlan, in_blocks, plan
from qdqbridge.autoquant.planning.targets import TARGETS, WEIGHTS, Target
from qdqbridge.autoquant.profiling.collect import (
    Data,
    check_complete,
    check_float,
    check_numbers,
    check_profile,
    collect,
    observable,
    onnxruntime_observer,
    unusable,
)
from qdqbridge.autoquant.profiling.profile import Profile
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.workers import check_workers
from qdqbridge.autoquant.repair.steps import (
    CLOSE,
    DEFAULT,
    GRAPH_STEPS,
    TRYING_CHOOSERS,
    QuantizedState,
    Rounds,
    StepRecord,
    check_steps,
    is_closer,
    outdone,
    repaired,
    with_choosers_tried,
)
from qdqbridge.autoquant.repair.sweep import OtherScales
from qdqbridge.autoquant.search.tuning import shares_of_operations
from qdqbridge.autoquant.simulation import batches_of
from qdqbridge.autoquant.simulation.metrics import float_values
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.errors import InputDataError, UnsupportedModelError, UnsupportedTargetError

if TYPE_CHECKING:
    from qdqbridge.autoquant.inside import QuantizedBody

Progress = Callable[[int, int], None]
Arrays = Mapping[str, NDArray[Any]]
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "balanced": {},
        "full": {"thorough": True},
        "fast": {"tune": False, "chooser": "extrapolated", "repair": ("bias",)},
    }
)
"""What options are where a preset is named, and the user says nothing else of them."""


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """What a float model is quantized for, and what the user wants otherwise.

    Names of nodes may be patterns (``*`` and ``?``); they are looked for among the nodes' own names
    and their operators' (``Conv``).

    Attributes:
        target: What the result is for, by name (:mod:`qdqbridge.autoquant.planning.targets`) or
            described.
        exclude: Nodes that stay float.
        only: Nodes that are quantized, all others staying float; empty for all.
        fixed: Parameters of tensors by name, instead of a chooser's.
        formats: Formats of what nodes read and compute, or how products read what nobody stores.
        chooser: Parameters of activations: ``mse``, ``minmax``, ``percentile``,
            ``mean-of-maxima``, ``extrapolated``, ``kl``, or any function; None for the target's.
        weight_chooser: Parameters of weights; None for the target's.
        weights: How weights are stored, see :data:`WEIGHTS`; None for the target's type.
        block: So many neighbours along the terms of a sum have a scale of their own; None for a
            scale for each channel.
        weight_formats: Formats of the weights of nodes; their axis means what a target's means.
        repair: Steps to try on data, see :mod:`qdqbridge.autoquant.repair.steps`.
        tune: Try the target's further choosers on the data, see
            :mod:`qdqbridge.autoquant.search.tuning`; never against a chooser that the user names.
            With it, ranges from very few samples reach further than these.
        thorough: Try choosers tensor by tensor as well, and scaled channels however close the
            outputs are without.
        accumulator_bits: Bits of the sums of the hardware; None for the target's.
        avoid_pairs: Its kernels add pairs of products in 16 bits first, which must not saturate.
        sums_of: What must fit: the sums of ``any-input``, or those of the ``data``.
        requantize: How it rounds sums, None as the target does; see
            :class:`~qdqbridge.autoquant.hardware.arithmetic.Rescaling`.
        workers: A number of processes, or ``ray``, that try choosers and layers side by side;
            None for this process.
        budget: After so many seconds nothing more is tried, and the best so far is kept; what is
            found by then depends on the machine.
        preset: One of :data:`PRESETS`: ``balanced``, ``full``, which is thorough, or ``fast``,
            which tries nothing but biases.
    """

    target: str | Target = "ort"
    exclude: Sequence[str] = ()
    only: Sequence[str] = ()
    fixed: Mapping[str, QuantParams] = field(default_factory=dict[str, QuantParams])
    formats: Mapping[str, Format | Unstored] = field(
        default_factory=dict["str", "Format | Unstored"]
    )
    chooser: str | Chooser | None = None
    weight_chooser: str | Chooser | None = None
    weights: str | None = None
    block: int | None = None
    weight_formats: Mapping[str, Format] = field(default_factory=dict["str", "Format"])
    repair: Sequence[str] = DEFAULT
    tune: bool = True
    thorough: bool = False
    accumulator_bits: int | None = None
    avoid_pairs: bool = False
    sums_of: str = "any-input"
    requantize: str | None = None
    workers: int | str | None = None
    budget: float = 120.0
    preset: str = "balanced"

    def __post_init__(self) -> None:
        unsaid = {each.name: each.default for each in fields(self)}
        for name, value in _resolve_by_name("preset", self.preset, PRESETS).items():
            # What the user says counts, beside a preset as well.
            if getattr(self, name) == unsaid[name]:
                object.__setattr__(self, name, value)
        if self.workers is not None:
            check_workers(self.workers)
        if not self.budget >= 0:
            raise InputDataError(
                f"{self.budget} is no budget", fix="give seconds: 0 tries nothing, inf everything"
            )

    def described(self) -> Target:
        """Returns the target with the user's choosers and storage of weights.

        Raises:
            UnsupportedTargetError: A name stands for nothing.
        """
        target = _resolve_by_name("target", self.target, TARGETS)
        if self.chooser is not None:
            chooser = _resolve_by_name("chooser", self.chooser, CHOOSERS)
            # A chooser that is named is not competed with.
            target = replace(target, chooser=chooser, candidates=())
        if self.weight_chooser is not None:
            chooser = _resolve_by_name("chooser", self.weight_chooser, CHOOSERS)
            target = replace(target, weight_chooser=chooser)
        if self.weights is not None:
            target = _stored_as(target, _resolve_by_name("type of weights", self.weights, WEIGHTS))
        if self.block is not None:
            target = _in_blocks(target, self.block)
        _check_dynamic(target, self.formats.values())
        _check_floats(target)
        found = self._on_hardware(target)
        _check_sums(found, self.formats.values())
        return found

    @property
    def avoids_pairs_by(self) -> str:
        """What else makes files without pairs that saturate, on the command line."""
        stored = isinstance(self.described().activations, Format)
        return "--avoid-pairs" if stored else "stored activations (--target ort)"

    def _on_hardware(self, target: Target) -> Target:
        """Returns ``target`` with the arithmetic that the user says."""
        if self.accumulator_bits is None and not self.avoid_pairs and self.requantize is None:
            return target
        if self.sums_of not in ("any-input", "data"):
            raise UnsupportedTargetError(
                f"'{self.sums_of}' says no sums", fix="write any-input, or data"
            )
        own = target.arithmetic
        arithmetic = arithmetic_of(
            own.accumulator_bits if self.accumulator_bits is None else self.accumulator_bits,
            own.overflow.value,
            pairs=self.avoid_pairs or own.pairs is not None,
            requantize=self.requantize or own.requantize.value,
        )
        return replace(target, arithmetic=arithmetic, proven=self.sums_of == "any-input")

    def overrides(self, graph: Graph) -> Overrides:
        """Returns what the names mean in ``graph``.

        Raises:
            InputDataError: A name or pattern stands for nothing.
        """
        floats: dict[Node, str] = {}
        if self.only:
            kept = {node for pattern in self.only for node in _nodes(graph, pattern)}
            floats = {
                node: "the user quantizes others only" for node in graph.nodes if node not in kept
            }
        for pattern in self.exclude:
            floats |= dict.fromkeys(_nodes(graph, pattern), f"the user excludes {pattern!r}")
        values = {value.name: value for value in observable(graph)}
        unknown = sorted(set(self.fixed) - set(values))
        if unknown:
            raise InputDataError(
                "parameters are given for tensors that the model does not have",
                why=f"unknown: {', '.join(unknown)}",
                fix="give names of float tensors of the model; "
                "batch normalizations are folded first",
            )
        return Overrides(
            floats=floats,
            fixed={values[name]: params for name, params in self.fixed.items()},
            formats={n: f for pattern, f in self.formats.items() for n in _nodes(graph, pattern)},
            weights={
                n: f for pattern, f in self.weight_formats.items() for n in _nodes(graph, pattern)
            },
        )


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized graph and how it came about.

    Attributes:
        decision: The plan and the parameters it was given.
        profile: What was seen of the float model; where its channels were scaled, of the scaled
            model.
        target: What it is for, with the user's choosers and storage of weights.
        options: What the user asked for.
        repairs: What became of each step of repair.
        tuning: What became of trying other choosers; None where that was not asked for.
        original: The float graph as it was given; what outputs are compared with.
        unseen: Samples that nothing was chosen by; None where there were too few to leave some out.
        inside: What became of the bodies of If, Loop and Scan.
    """

    decision: Decision
    profile: Profile
    target: Target
    options: QuantizeOptions
    repairs: tuple[StepRecord, ...] = ()
    tuning: StepRecord | None = None
    original: Graph | None = None
    unseen: Samples | None = None
    inside: tuple[QuantizedBody, ...] = ()

    @property
    def graph(self) -> Graph:
        """The quantized graph, canonical; it takes longer to make than most decisions."""
        return self._applied  # protocols of type checkers know no cached property

    @cached_property
    def _applied(self) -> Graph:
        return apply(self.decision)


def quantized(
    graph: Graph,
    data: Arrays | Data | None,
    options: QuantizeOptions,
    *,
    profile: Profile | None = None,
    progress: Progress | None = None,
    empty: bool = False,
    ready: Calibration | None = None,
) -> Quantized:
    """Quantizes ``graph`` but for the bodies in it, and returns what was decided as well.

    Args:
        graph: A canonical float graph; it is not changed.
        data: Samples, one array per input; where ``profile`` is given, they are for tuning and
            repair alone.
        options: What it is for, and what the user wants otherwise.
        profile: Statistics of the prepared graph made before.
        progress: Called with the steps done and their number.
        empty: Return the float graph where nothing in it can be quantized.
        ready: The graph and all that was seen of it, where it is tried more than once.

    Raises:
        InputDataError: The data or the profile does not belong to the graph, the graph is
            quantized already or computes NaN, or a name in the options stands for nothing.
        UnsupportedModelError: Nothing in the graph can be quantized.
        UnsupportedTargetError: There is no such target, chooser or type, or onnxruntime cannot run
            the float model.
    """
    target, repair = options.described(), options.repair
    check_float(graph)
    check_steps(repair)
    if profile is not None:
        check_profile(profile, graph)
    if ready is None:
        ready = Calibration.of(graph, _samples(graph.inputs, data), profile)
    # Outputs are compared with those of the model as it was given, and not of the one with folded
    # norms.
    original, graph, samples = ready.given, ready.graph, ready.data
    outset = plan(graph, target, options.overrides(graph))
    if not empty:
        check_plan(outset)
    target, repair, skipped = _suited(target, repair, samples if options.tune else None)
    tune = bool(options.tune and target.candidates)
    # Trying needs samples; and where nothing is quantized, every try gives the float model.
    if samples is None or not outset.rules:
        repair, tune = (), False
    rounds = Rounds(Rounds.of(repair, None).number + tune, progress)
    if ready.known is None:
        rounds.trying("ranges", [TRYING_CHOOSERS] * tune + list(repair))
    profile, few = ready.profile(rounds.next()), ready.few
    start = _plainly(graph, target, options, profile, few, empty=empty)
    start = replace(start, original=original)
    left = tuple(StepRecord(step, False, why) for step, why in skipped.items())
    if samples is None or few is None or not (repair or tune) or not start.decision.plan.rules:
        rounds.finish()
        return replace(start, repairs=left)

    def again(other: Graph, part: Samples | None) -> QuantizedState:
        observer = onnxruntime_observer(other)
        if part is not None:
            found = _plainly(other, target, options, collect(other, part, observer), part)
            return QuantizedState(found.decision, found.profile)
        seen = collect(other, samples, observer, progress=rounds.next())
        found = _plainly(other, target, options, seen, few)
        return QuantizedState(found.decision, found.profile)

    def with_choosers(
        state: QuantizedState, report: Progress | None
    ) -> tuple[QuantizedState, StepRecord]:
        seen, each = ready, options.thorough
        return with_choosers_tried(
            state, few, target, report, options.workers, seen, each=each, work=work
        )

    plain = QuantizedState(start.decision, start.profile)
    work, judge = ready.budget(options.budget), ready.judge
    scales = OtherScales.of(plain.decision, few)
    # Scaling changes the graph, and every range with it: it comes before ranges are chosen for
    # good.
    steps = [[s for s in repair if (s in GRAPH_STEPS) is scaling] for scaling in (True, False)]
    state, scaled = repaired(
        plain, few, again, steps[0], work, scales,
        lambda step, left: rounds.trying(step, [*left, *[TRYING_CHOOSERS] * tune, *steps[1]]),
        judge, math.inf if options.thorough or tuple(options.repair) != DEFAULT else CLOSE,
    )  # fmt: skip
    tuning = None
    if tune:
        rounds.trying(TRYING_CHOOSERS, steps[1])
        report = _in_units(rounds.next(), len(samples))
        state, tuning = with_choosers(state, report)
        # Scaled channels were kept for the first choosers. Other choosers may do better without
        # them: both ways are tried to the end.
        if any(step.applied for step in scaled):
            other = with_choosers(plain, None)
            if is_closer(other[1], tuning):
                (state, tuning), scaled = other, outdone(scaled)
                scales = OtherScales.of(plain.decision, few)
    state, rounded = repaired(state, few, again, steps[1], work, scales, rounds.trying, judge)
    rounds.finish()
    return replace(
        start,
        decision=state.decision,
        profile=state.profile,
        repairs=(*scaled, *rounded, *left),
        tuning=tuning,
    )


def _samples(inputs: Sequence[Value], data: Arrays | Data | None) -> Data | None:
    """Returns arrays by name as samples; samples as they are."""
    if data is None or not isinstance(data, Mapping):
        return data
    return Samples.of(inputs, cast("Arrays", data))


def _suited(
    target: Target, repair: Sequence[str], samples: Data | None
) -> tuple[Target, Sequence[str], dict[str, str]]:
    """Returns what is right for so few samples, and what is not tried and why.

    Of enough of them, or without a look at them, all stays as it is.
    """
    if samples is None:
        return target, repair, {}
    unlike = different(samples)
    skipped = untried(repair, target, unlike)
    kept = [step for step in repair if step not in skipped]
    return with_room(target, unlike, len(samples) / max(unlike, 1)), kept, skipped


def _in_units(progress: Progress | None, units: int) -> Progress | None:
    """Returns a callback that tells of so many units, whatever it is called with."""
    if progress is None:
        return None
    return lambda done, total: progress(done * units // max(total, 1), units)


def _plainly(
    graph: Graph,
    target: Target,
    options: QuantizeOptions,
    profile: Profile,
    samples: Samples | None,
    *,
    empty: bool = False,
) -> Quantized:
    """Quantizes a prepared graph without repair; choosers may look at samples.

    What reads or makes a tensor that no range describes stays float.
    """
    seen = profile.by_name()
    check_complete(seen, observable(graph))
    overrides = options.overrides(graph)
    while True:
        planned = plan(graph, target, overrides)
        stats = {value: seen[value.name] for value in planned.observed()}
        check_numbers(stats)
        unfit = unusable(stats)
        if not unfit:
            break
        # Anew, since a node that stays float moves quantization to others.
        overrides = replace(overrides, floats={**nodes_around(unfit), **overrides.floats})
    if target.avoided_pairs is not None and target.arithmetic == CONTRACT:
        planned.room = _pair_room(target, planned, profile, samples)
    ends = (*graph.inputs, *graph.outputs)  # a target may need no range at all
    check_numbers({value: seen[value.name] for value in ends if value.name in seen})
    if not empty:
        check_plan(planned)
    decision = decide(planned, stats, target, samples)
    return Quantized(decision, profile, target, options)


def _pair_room(
    target: Target, plan: QuantizationPlan, profile: Profile, samples: Samples | None
) -> PairRoom:
    """Returns what keeps pairs from saturating; what ends in floats may be added in two parts."""
    graph, shares = plan.graph, shares_of_operations(plan.graph, profile)
    # ConvInteger's products of unsigned data by signed weights do not saturate.
    running = frozenset(
        n.name
        for n, read in plan.unstored.items()
        if read is not Unstored.FLOAT and n.op in (GEMM, DENSE, MATMUL)
    )
    ends = {n.name for n in plan.rules if n.op in (GEMM, DENSE) and n.output not in plan.specs}

    def look(values: Sequence[Value]) -> Iterable[Mapping[Value, NDArray[Any]]]:
        assert samples is not None
        return float_values(graph, values, batches_of(samples, graph))

    sees = None if samples is None else look
    free = {name: share for name, share in shares.items() if name in ends - running}
    assert target.avoided_pairs is not None
    own, names = profile.by_name(), target.saturating
    return PairRoom(target.avoided_pairs, own, profile.samples, graph, sees, free, running, names)


def check_plan(plan: QuantizationPlan) -> None:
    """Refuses a plan that quantizes nothing.

    Raises:
        UnsupportedModelError: No node runs on integers; the message says why.
    """
    if plan.rules:
        return
    raise UnsupportedModelError(
        "nothing in the model can be quantized",
        why="; ".join(sorted(set(plan.floats.values()))) or "it has no operator that computes",
        fix="choose another target, or exclude less",
    )


def nodes_around(values: Mapping[Value, str]) -> dict[Node, str]:
    """Returns the nodes that have to stay float for ``values`` not to be rounded, and why.

    Data-movement operators are passed through: what they move would be quantized otherwise.
    """
    result: dict[Node, str] = {}
    pending = list(values.items())
    while pending:
        value, reason = pending.pop()
        for node in _neighbours(value):
            if node in result:
                continue
            result[node] = reason
            if node.op.flow is Flow.MOVE:
                pending += [(v, reason) for v in (node.operand(0), *node.outputs)]
    return result


def _neighbours(value: Value) -> Iterable[Node]:
    if value.producer is not None:
        yield value.producer
    yield from (node for node, _ in value.users)


# ---- what names stand for


def _resolve_by_name(kind: str, name: Any, known: Mapping[str, Any]) -> Any:
    """Returns what ``name`` stands for; what is not a name stands for itself."""
    if not isinstance(name, str):
        return name
    if name not in known:
        raise UnsupportedTargetError(
            f"there is no {kind} '{name}'", why=f"there are {', '.join(known)}", fix="use one"
        )
    return known[name]


def _stored_as(target: Target, weights: Format) -> Target:
    """Returns ``target`` with another storage type for weights, per channel where it had that."""
    format = replace(weights, axis=target.weights.axis)
    rules = tuple(
        rule
        if rule.weights is None
        else replace(rule, weights=replace(format, axis=rule.weights.axis))
        for rule in target.rules
    )
    return replace(target, weights=format, rules=rules)


def _in_blocks(target: Target, block: int) -> Target:
    """Returns ``target`` with weights in blocks of so many."""
    rules = tuple(
        rule if rule.weights is None else replace(rule, weights=in_blocks(rule.weights, block))
        for rule in target.rules
    )
    return replace(target, weights=in_blocks(target.weights, block), rules=rules)


def _check_dynamic(target: Target, formats: Iterable[Format | Unstored]) -> None:
    """Refuses weights that no dynamically quantized product has."""
    reads = [target.activations, *(r.operands for r in target.rules), *formats]
    dynamic = any(read in (Unstored.DYNAMIC, Unstored.DYNAMIC_ROWS) for read in reads)
    own = target.weights
    if dynamic and (own.block is not None or own.storage.bits != 8 or own.is_float):
        raise UnsupportedTargetError(
            f"activations that are quantized while the model runs meet weights of {own}",
            why="such products are of 8-bit integers with a scale for each channel or one for all",
            fix="store weights as int8 or uint8 without blocks, or only weights (weight-only)",
        )


def _check_sums(target: Target, formats: Iterable[Format | Unstored]) -> None:
    """Refuses what is said of the sums of integers where no integers that are known are added."""
    if target.arithmetic == CONTRACT:
        return
    reads = [target.activations, *(r.operands for r in target.rules if r.quantized), *formats]
    if any(read in (Unstored.DYNAMIC, Unstored.DYNAMIC_ROWS) for read in reads):
        why = "activations are quantized while the model runs, so that nothing is known of its sums"
    elif any(isinstance(read, Format) and read.is_float for read in reads):
        why = "its products add floats"
    elif target.activations is Unstored.FLOAT:
        why = "it stores weights alone, and its products add floats"
    else:
        return
    raise UnsupportedTargetError(
        f"target {target.name} has no sums of integers to choose parameters for",
        why=why,
        fix="leave accumulators, pairs and rescaling out, or use a target of stored integers",
    )


def _check_floats(target: Target) -> None:
    """Refuses weights that are floats beside activations that are integers."""
    own = target.activations
    if target.weights.is_float and isinstance(own, Format) and not own.is_float:
        raise UnsupportedTargetError(
            f"activations of {own} meet weights of {target.weights}",
            why="no kernel multiplies integers and floats",
            fix="use the target float8, or weight-only; or store weights as integers",
        )


def _nodes(graph: Graph, pattern: str) -> list[Node]:
    found = [node for node in graph.nodes if matches(node, pattern)]
    if not found:
        raise InputDataError(
            f"no node is called {pattern!r}",
            why="a wish that concerns nothing is a mistake",
            fix="qdqbridge inspect MODEL shows the operators; names may hold * and ?",
        )
    return found


def matches(node: Node, pattern: str) -> bool:
    """True where a name or pattern means a node."""
    return any(fnmatchcase(name, pattern) for name in (*node.origin.nodes, node.op.name))
