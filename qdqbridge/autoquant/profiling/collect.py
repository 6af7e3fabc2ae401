"""One pass over the data: every sample goes through the float model once, and is forgotten.

The float model is made ready first, so that what is seen is what is quantized.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.planning.batch_norms import FOLDS, without_layout
from qdqbridge.autoquant.profiling.control_flow import ModelRecipe, real_values, watched
from qdqbridge.autoquant.profiling.profile import (
    Profile,
    ProfileEntry,
    channel_axis,
    profile_id,
    sample_hash,
)
from qdqbridge.autoquant.profiling.samples import (
    GivenData,
    Sample,
    cut_along_examples,
    named_samples,
    open_samples,
    samples_of,
)
from qdqbridge.autoquant.profiling.stats import APART, HUGE, Measured, Running, TensorStats, running
from qdqbridge.autoquant.profiling.workers import MOST, Job, Team, TeamObserver, team_of
from qdqbridge.core.canonical.form import canonicalize
from qdqbridge.core.canonical.fusions import FUSIONS
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor, name_values, rewire
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import check_inputs
from qdqbridge.core.graph.printer import origin_of, tensor_id
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import CastAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs

_HUGE = math.ldexp(1.0, 100)
"""Magnitudes that stand for infinity, such as the lowest float32 in an attention mask."""
_SHOWN = 5
_TYPES = ("dtype", "to")
_PLAIN = (int, float, bytes, list)
_WITHOUT_TVM = 1 << 29
"""Elements that NumPy looks at while TVM would be loaded."""


Progress = Callable[[int, int], None]


class Data(Protocol):
    """Samples that can be gone through, any number of times."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sample]: ...


class Observer(Protocol):
    """Something that runs the float model and says what it saw of each tensor.

    Attributes:
        values: The tensors it looks at.
    """

    values: Sequence[Value]

    def observe(self, sample: Sample) -> None:
        """Looks at one sample."""
        ...

    def taken(self) -> Sequence[TensorStats]:
        """Returns the statistics of :attr:`values` over what was seen since, and starts anew."""
        ...


def prepared(graph: Graph) -> Graph:
    """Returns a copy of a float graph in which what inference computes twice is computed once.

    Batch normalizations and other maps per channel are folded into products, transposes of images
    that undo each other are left out, and a norm or activation that is written step by step is one
    operator, which is rounded once. The outputs stay what they were up to float rounding. Every
    value has a name of its own, by which a profile knows it.
    """
    ready = without_layout(graph, (*FOLDS, *FUSIONS))
    ready.notes = list(graph.notes)
    return name_values(ready)


def in_float32(graph: Graph) -> Graph:
    """Returns a graph that computes in float32 what it computed in half floats; itself if nothing.

    Its inputs and outputs stay what they are, and so does what operators without a row read and
    make whose attributes or bodies may say the type too: casts stand between.
    """
    if not any(map(_is_half, graph.values())):
        return graph
    own = copied(graph).graph
    own.canonical, editor = False, Editor(own)
    ends = [value for value in own.outputs if _is_half(value)]
    # Inside of their bodies half floats stay, so that their results are such.
    kept = [value for node in own.nodes if _says_types(node) for value in node.outputs]
    kept = [value for value in (*own.inputs, *kept) if _is_half(value)]
    halves = [value for value in own.values() if _is_half(value) and value not in set(kept)]
    narrow = {value: value.type.dtype for value in halves}
    for value in halves:
        value.type = TensorType(DType.FLOAT32, value.type.shape)
        if value.constant is not None:
            stored = value.constant
            value.constant, value.written = stored.map(_wide, dtype=DType.FLOAT32), None
    for node in own.nodes:
        cast = CAST.of(node)
        if cast is not None and node.output in narrow:
            node.attributes = CastAttrs(DType.FLOAT32)
    for value in kept:
        _cast(editor, value, DType.FLOAT32, [u for u in value.users if not _says_types(u[0])])
    # What reads a type that its attributes or bodies name gets the value narrowed again.
    for value, dtype in narrow.items():
        _cast(editor, value, dtype, [user for user in value.users if _says_types(user[0])])
    for slot, value in enumerate(own.outputs):
        if value in narrow and value in ends:
            own.outputs[slot] = _cast(editor, value, narrow[value], [])
    editor.finish()
    return name_values(canonicalize(own))


def _is_half(value: Value) -> bool:
    """True for a tensor of half floats."""
    halves = (DType.FLOAT16, DType.BFLOAT16)
    return isinstance(value.type, TensorType) and value.type.dtype in halves


def _wide(array: NDArray[np.generic]) -> NDArray[np.generic]:
    return array.astype(np.float32)


def _says_types(node: Node) -> bool:
    """True for an operator without a row whose attributes may say what type it makes."""
    opaque = node.attributes
    if not isinstance(opaque, OpaqueAttrs):
        return False
    return any(n in _TYPES or not isinstance(v, _PLAIN) for n, v in opaque.stated().items())


def _cast(editor: Editor, value: Value, dtype: DType, readers: Sequence[tuple[Node, int]]) -> Value:
    """Makes ``readers`` read a value in another type, and returns it."""
    type_ = TensorType(dtype, value.type.shape)
    new = result(CAST, CastAttrs(dtype), [value], type_, name=value.name)
    for node, index in readers:
        rewire(node, index, new)
    editor.insert(new)
    return new


def check_float(graph: Graph) -> None:
    """Refuses a graph that is quantized already, at least in part.

    Raises:
        InputDataError: It holds quantized values or operators on integers.
    """
    found = [value.name for value in graph.values() if value.quant is not None]
    names = [node.name for node in graph.nodes if "Integer" in node.op.name]
    if found or names:
        raise InputDataError(
            "the model is quantized already",
            why=f"quantized: {listed(found or names)}",
            fix="give the float model that it was made from",
        )


def observable(graph: Graph) -> list[Value]:
    """Returns every float tensor that is computed or fed, in topological order."""
    return real_values(graph)


def _unseen(value: Value) -> ProfileEntry:
    """Returns the entry of a tensor that no sample was seen of."""
    operator, index = origin_of(value)
    return ProfileEntry(value.name, operator, index, value.type.shape, TensorStats())


class Recording:
    """An observer for any engine that returns tensors."""

    def __init__(
        self,
        values: Sequence[Value],
        run: Callable[[Sample], Sequence[Sequence[NDArray[Any]]]],
        *,
        histograms: bool = True,
        fast: bool | None = None,
    ) -> None:
        """Takes an engine.

        Args:
            values: The tensors that ``run`` returns.
            run: Runs the model on one sample; returns what each tensor holds: one array, and for
                tensors of bodies as many as the bodies run.
            histograms: Count values as well.
            fast: Compiled loops, or NumPy; by default NumPy until so much was seen that loading
                TVM pays, if it is installed. The statistics are the same.
        """
        self.values: Sequence[Value] = list(values)
        self._run, self._histograms = run, histograms
        self._left = _WITHOUT_TVM if fast is None else math.inf
        self._before: Sequence[TensorStats] = [TensorStats() for _ in self.values]
        self._running = self._empty(bool(fast))

    def _empty(self, fast: bool | None) -> list[Running]:
        histograms = self._histograms
        return [running(channel_axis(v), histogram=histograms, fast=fast) for v in self.values]

    def observe(self, sample: Sample) -> None:
        """Looks at one sample."""
        for arrays, tensor in zip(self._run(sample), self._running, strict=True):
            for array in arrays:
                tensor.add(array)
                self._left -= array.size
        # NumPy first: loading TVM takes longer than looking at a few samples.
        if self._left < 0:
            self._before, self._left = self.taken(), math.inf
            self._running = self._empty(None)

    def taken(self) -> Sequence[TensorStats]:
        """Returns the statistics over what was seen since, and starts anew."""
        pairs = zip(self._before, self._running, strict=True)
        found = [before.merged(tensor.taken()) for before, tensor in pairs]
        self._before = [TensorStats() for _ in self.values]
        return found


class Computed:
    """An observer whose engine computes the statistics itself: only these leave it."""

    def __init__(
        self, values: Sequence[Value], run: Callable[[Sample], Sequence[Sequence[NDArray[Any]]]]
    ) -> None:
        """Takes an engine.

        Args:
            values: The tensors that it looks at.
            run: Runs the model on one sample; gives keys, facts and perhaps tables of each tensor,
                see :mod:`qdqbridge.tvm.relax.profiling`.
        """
        self.values: Sequence[Value] = list(values)
        self._run = run
        self._running = [Measured(channel_axis(value)) for value in self.values]

    def observe(self, sample: Sample) -> None:
        """Looks at one sample."""
        for parts, tensor in zip(self._run(sample), self._running, strict=True):
            facts = parts[1].tolist()
            tensor.measured(parts[0], facts)
            for tables in parts[2:]:
                tensor.counted(tables, facts[3], facts[0])

    def taken(self) -> Sequence[TensorStats]:
        """Returns the statistics over what was seen since, and starts anew."""
        return [tensor.taken() for tensor in self._running]


def onnxruntime_observer(graph: Graph, *, histograms: bool = True, threads: int = 0) -> Observer:
    """Returns an observer that runs the model with onnxruntime.

    Raises:
        UnsupportedTargetError: onnxruntime cannot run the model.
    """
    execution = ModelRecipe.of(graph, threads=threads).execution()
    return Recording(watched(graph), execution.run, histograms=histograms)


def tvm_observer(graph: Graph, *, histograms: bool = True, target: Any = "llvm") -> Observer:
    """Returns an observer that runs the model with TVM, statistics and all.

    Raises:
        UnsupportedTargetError: TVM is not there, or cannot build the model.
    """
    from qdqbridge.tvm.relax.profiling import ProfilingModule

    values = observable(graph)
    watched = [(value, channel_axis(value)) for value in values]
    module = ProfilingModule(graph, watched, histograms=histograms, target=target)
    return Computed(values, module.run)


def collect(
    graph: Graph,
    samples: Data,
    observer: Observer,
    *,
    histograms: bool = True,
    start: Profile | None = None,
    checkpoint: Callable[[Profile], None] | None = None,
    interval: float = 5.0,
    progress: Progress | None = None,
) -> Profile:
    """Returns the profile of ``graph`` over ``samples``.

    Args:
        graph: A canonical float graph.
        samples: The data.
        observer: Runs the model; its values are among the observable ones of ``graph``.
        histograms: Whether the observer counts values.
        start: A profile of the first samples, made before; they are not run again.
        checkpoint: Called regularly with the partial profile, to save it.
        interval: Seconds between two such calls.
        progress: Called with the number of samples done, and of all.

    Raises:
        InputDataError: ``start`` is of another model or of other samples.
    """
    unseen = {profile_id(value): _unseen(value) for value in watched(graph)}
    total = Profile(graph.digest, histograms=histograms, tensors=unseen)
    remaining = iter(samples)
    if start is not None:
        total = _resumed(total, start, remaining)
    done, seen, data, saved = total.samples, 0, 0, time.monotonic()
    for sample in remaining:
        check_inputs(graph.inputs, sample)
        with cut_along_examples(graph.inputs):
            observer.observe(sample)
        data += sample_hash(sample)
        seen += 1
        if checkpoint is not None and time.monotonic() >= saved + interval:
            total, seen, data = _added(total, observer, seen, data), 0, 0
            checkpoint(total)
            saved = time.monotonic()
        done += 1
        if progress is not None:
            progress(done, len(samples))
    return _added(total, observer, seen, data)


def _added(total: Profile, observer: Observer, samples: int, data: int) -> Profile:
    """Returns ``total`` with what the observer saw of so many further samples."""
    tensors = dict(total.tensors)
    for value, stats in zip(observer.values, observer.taken(), strict=True):
        key = profile_id(value)
        tensors[key] = replace(tensors[key], stats=tensors[key].stats.merged(stats))
    # A sum, so that parts of the data that others profile can be joined in any order.
    data = (total.data + data) % (1 << 256)
    return replace(total, samples=total.samples + samples, data=data, tensors=tensors)


def _resumed(nothing: Profile, start: Profile, samples: Iterator[Sample]) -> Profile:
    """Returns the profile to go on from; takes its samples off the iterator."""
    whole = nothing.merged(start)  # or it is of another model
    # Their hashes are computed, not their statistics: that is how it is known that they are the
    # same.
    first = [sample_hash(sample) for sample in islice(samples, start.samples)]
    if len(first) < start.samples or sum(first) % (1 << 256) != start.data:
        raise InputDataError(
            "the profile cannot be continued: it is of other data",
            why=f"it holds {start.samples} samples which are not the first ones given",
            fix="give the data it was begun with, or start anew",
        )
    return whole


# ---- what statistics are refused


def check_profile(profile: Profile, graph: Graph) -> None:
    """Refuses a profile that is not of ``graph``.

    Raises:
        InputDataError: It is of another model, or holds no sample.
    """
    if profile.model != graph.digest:
        raise InputDataError(
            "the profile is of another model",
            why=f"it is of the model with digest {profile.model[:12]}…, this one has "
            f"{graph.digest[:12]}…",
            fix="profile this model",
        )
    if not profile.samples:
        raise InputDataError("the profile holds no sample", fix="profile some data")


def check_complete(seen: Mapping[str, TensorStats], values: Iterable[Value]) -> None:
    """Refuses statistics that lack some of ``values``.

    Raises:
        InputDataError: A tensor is not known.
    """
    missing = [value.name for value in values if value.name not in seen]
    if missing:
        raise InputDataError(
            "the profile lacks tensors of the model",
            why=f"it does not know {missing[0]!r} and {len(missing) - 1} others",
            fix="profile the model file itself with this version",
        )


class NanError(InputDataError):
    """The float model computes NaN.

    Args:
        tensor: The first tensor that holds it.
        count: How often.
        why: Which others do.
        where: Which samples do it.
    """

    def __init__(self, tensor: str, count: int, why: str, where: str = "") -> None:
        self.tensor, self.count = tensor, count
        super().__init__(
            "the float model computes NaN on the data",
            where=f"tensor {tensor!r}, {'once' if count == 1 else f'{count} times'}{where}",
            why=why,
            fix="look at these samples and at the operator that makes that tensor",
        )

    def located(self, graph: Graph, samples: Iterable[Sample]) -> NanError:
        """Returns the error with the numbers of the samples that do it.

        Args:
            graph: The float graph.
        """
        from qdqbridge.targets.running import Runner

        made = {value.name: value for node in graph.nodes for value in node.outputs}
        runner = Runner(graph, [made[self.tensor]] if self.tensor in made else graph.outputs)
        found = [
            number
            for number, sample in enumerate(samples)
            if any(
                np.isnan(array).any()
                for array in (*sample.values(), *runner.run(sample))
                if array.dtype.kind == "f"
            )
        ]
        shown = named_samples(samples, found[:_SHOWN]) + (", …" if found[_SHOWN:] else "")
        several = "sample" if len(found) == 1 else f"{len(found)} samples,"
        where = f", in {several} {shown} (counted from 0)" if found else ""
        return NanError(self.tensor, self.count, self.why, where)


def check_numbers(seen: Mapping[Value, TensorStats]) -> None:
    """Refuses statistics with NaN in them.

    Raises:
        InputDataError: A tensor held NaN; the first ones in the order of the graph are named.
    """
    found = [(value.name, stats.nans) for value, stats in seen.items() if stats.nans]
    if found:
        name, count = found[0]
        infinite = [
            value.name
            for value, stats in seen.items()
            if stats.positive_infinities or stats.negative_infinities
        ]
        why = f"NaN in {len(found)} tensors: {listed([name for name, _ in found])}"
        if infinite:
            why += f"; infinities in {len(infinite)}: {listed(infinite)}"
        raise NanError(name, count, why)


def unusable(seen: Mapping[Value, TensorStats]) -> dict[Value, str]:
    """Returns the values that no range describes, and why."""
    result: dict[Value, str] = {}
    for value, stats in seen.items():
        if not stats.finite:
            result[value] = f"no sample put a finite number into {value.name!r}"
        elif stats.positive_infinities or stats.negative_infinities or stats.magnitude >= _HUGE:
            result[value] = f"{value.name!r} holds infinities, or numbers that stand for them"
        elif _is_filled(stats):
            result[value] = f"{value.name!r} holds what a mask fills in, far from all other values"
    return result


def _is_filled(stats: TensorStats) -> bool:
    """True where a mask makes the range, and no other values come near; 16 bits resolve -1e4."""
    if stats.magnitude < HUGE:
        return False
    histogram, far = stats.histogram, stats.magnitude
    sizes = np.abs(histogram.edges[:-1] + histogram.width / 2)
    between = (sizes > far / APART) & (sizes < far / 2)
    near = stats.zeros or histogram.counts[sizes <= far / APART].any()
    return bool(near) and not histogram.counts[between].any()


def listed(names: list[str]) -> str:
    """Returns names for a message, the first few of many."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


# ---- A profile of a model over some data, by whichever engine and however many processes ---------


Engine: TypeAlias = Literal["onnxruntime", "tvm"]
Workers: TypeAlias = "int | Literal['ray'] | None"


def profile_model(
    graph: Graph,
    data: GivenData | Path,
    *,
    engine: Engine = "onnxruntime",
    histograms: bool = True,
    start: Profile | None = None,
    workers: Workers = None,
    threads: int = 0,
    checkpoint: Callable[[Profile], None] | None = None,
    interval: float = 5.0,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Profile:
    """Returns what ``graph`` does on ``data``.

    Args:
        graph: A canonical float graph.
        data: Arrays with examples along axis 0, or an ``.npz`` file or a folder of such files,
            which are read sample by sample; or what each of several runs is given.
        engine: What runs the model.
        histograms: Count values as well, not only their extremes.
        start: A profile of the first samples, to go on from.
        workers: A number of processes, or ``ray``; with onnxruntime only.
        threads: Threads of onnxruntime; 0 lets it choose.
        checkpoint: Called regularly with the partial profile, to save it.
        interval: Seconds between two such calls.
        progress: Called with the number of samples done, and of all.
        warn: Called with assumptions that were made about the data.

    Raises:
        InputDataError: The data does not fit the model, or ``start`` is of another model or data.
        UnsupportedTargetError: The engine cannot run the model, or is not installed.
    """
    if not 0 <= threads <= MOST:
        raise InputDataError(
            f"{threads} is not a number of threads", fix=f"give a number up to {MOST}, 0 for any"
        )
    if not interval >= 0:
        raise InputDataError(
            f"{interval} is not a number of seconds", fix="give 0 or more between two savings"
        )
    if not observable(graph):
        raise InputDataError(
            "the model has no float tensor",
            why="there is nothing to profile",
            fix="profile the float model that this one was made from",
        )
    if isinstance(data, Path):
        samples: Data = open_samples(data, graph.inputs, warn)
    else:
        samples = samples_of(graph.inputs, data)
    with _observer(graph, engine, workers, histograms=histograms, threads=threads) as observer:
        return collect(
            graph,
            samples,
            observer,
            histograms=histograms,
            start=start,
            checkpoint=checkpoint,
            interval=interval,
            progress=progress,
        )


@contextmanager
def _observer(
    graph: Graph, engine: Engine, workers: Workers, *, histograms: bool, threads: int
) -> Generator[Observer, None, None]:
    if engine not in ("onnxruntime", "tvm"):
        raise UnsupportedTargetError(
            f"there is no engine {engine!r}", fix="use 'onnxruntime' or 'tvm'"
        )
    if engine == "tvm":
        if workers is not None:
            raise UnsupportedTargetError(
                "several processes run onnxruntime only",
                why="a module of TVM's is compiled in the process that runs it",
                fix="leave the workers out, or profile with onnxruntime",
            )
        yield tvm_observer(graph, histograms=histograms)
    elif workers is None:
        yield onnxruntime_observer(graph, histograms=histograms, threads=threads)
    else:
        team = _team(graph, workers, histograms=histograms, threads=threads or 1)
        try:
            yield TeamObserver(watched(graph), team)
        finally:
            team.close()


def _team(graph: Graph, workers: int | str, *, histograms: bool, threads: int) -> Team:
    axes = tuple(channel_axis(value) for value in watched(graph))
    job = Job(ModelRecipe.of(graph, threads=threads), axes, histograms)
    return team_of(job, workers)


# ---- profile map ---------------------------------------------------------------------------------
# Which entries of a profile belong to an expression of a module, at any stage of its lowering.


@dataclass(frozen=True, slots=True)
class BindingStatistics:
    """What a profile knows of one binding of a module.

    Attributes:
        function: The name of the function it stands in.
        variable: The name of its variable.
        expression: What is bound, in short.
        relation: ``is``, ``part``, ``holds`` or ``one of`` (see :mod:`qdqbridge.tvm.relax.links`);
            ``unknown`` where nothing ties it to the float model.
        ids: The profile ids.
        entries: What the profile has of them.
        result: The ids of what a call that ``holds`` tensors returns.
    """

    function: str
    variable: str
    expression: str
    relation: str
    ids: tuple[str, ...]
    entries: tuple[ProfileEntry, ...]
    result: tuple[str, ...] = ()


def lookup(
    profile: Profile, graph: Graph, stage: str, name: str | None = None
) -> list[BindingStatistics]:
    """Returns what ``profile`` knows of the bindings of a module.

    Args:
        profile: A profile of ``graph``.
        graph: A canonical float graph.
        stage: A stage of TVM's pipeline, see :data:`qdqbridge.tvm.relax.links.STAGES`.
        name: Only bindings of variables of this name, or of tensors of this name in the model.

    Raises:
        InputDataError: The profile is of another model, or there is nothing of that name.
        UnsupportedTargetError: There is no such stage, or TVM cannot express the graph.
    """
    from qdqbridge.tvm.relax.links import STAGES, tracked

    check_profile(profile, graph)
    if stage not in STAGES:
        raise UnsupportedTargetError(
            f"there is no stage {stage!r}", why=f"there are {', '.join(STAGES)}", fix="use one"
        )
    _, tracker = tracked(graph, STAGES[stage])
    found: list[BindingStatistics] = []
    for place in tracker.links.places:
        link = place.link
        ids = () if link is None else link.ids
        entries = tuple(profile.tensors[id_] for id_ in ids if id_ in profile.tensors)
        if name is not None and name != place.variable and name not in {e.name for e in entries}:
            continue
        relation = "unknown" if link is None else link.relation
        result = () if link is None else link.result
        text = "parameter" if place.expression is None else " ".join(str(place.expression).split())
        found.append(
            BindingStatistics(place.function, place.variable, text, relation, ids, entries, result)
        )
    if name is not None and not found:
        raise InputDataError(
            f"there is neither a variable nor a tensor called {name!r} at this stage",
            why="it may have been folded away, or is no float tensor",
            fix="leave the name out to see all of them",
        )
    return found


def ids_by_name(profile: Profile) -> Callable[[Value], str | None]:
    """Returns what looks up the id of a tensor of a graph made from the profiled one.

    Quantizing a graph keeps the names of its tensors but may change their operators; what has no
    name of a profiled tensor gets none.
    """
    known = {entry.name: id_ for id_, entry in profile.tensors.items()}

    def id_of(value: Value) -> str | None:
        exact = tensor_id(value)
        return exact if exact in profile.tensors else known.get(value.name)

    return id_of
