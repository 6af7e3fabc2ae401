"""A profile of a model over some data, by whichever engine and however many processes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.collect import (
    Data,
    Observer,
    Progress,
    collect,
    observable,
    onnxruntime_observer,
    tvm_observer,
)
from qdqbridge.autoquant.profiling.control_flow import ModelRecipe, watched
from qdqbridge.autoquant.profiling.profile import Profile, channel_axis
from qdqbridge.autoquant.profiling.samples import samples_of
from qdqbridge.autoquant.profiling.streams import open_samples
from qdqbridge.autoquant.profiling.workers import MOST, Job, Team, TeamObserver, team_of
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, UnsupportedTargetError

Engine: TypeAlias = Literal["onnxruntime", "tvm"]
Workers: TypeAlias = "int | Literal['ray'] | None"
Arrays: TypeAlias = "Mapping[str, NDArray[Any]]"


def profile_model(
    graph: Graph,
    data: Arrays | Sequence[Arrays] | Path,
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
