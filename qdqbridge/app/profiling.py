"""Profiles of float models: what the verb ``profile`` is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from qdqbridge.app.pipeline import load
from qdqbridge.core.arguments import checked, need_tvm, path_of
from qdqbridge.core.graph.graph import Graph
from qdqbridge.options import ProfilingEngine

if TYPE_CHECKING:
    from qdqbridge.autoquant.profiling.collect import BindingStatistics
    from qdqbridge.autoquant.profiling.profile import Profile
    from qdqbridge.autoquant.profiling.samples import GivenData

File: TypeAlias = "str | PathLike[str]"


@checked
def profile(
    model: Graph | File,
    data: GivenData | File,
    *,
    engine: ProfilingEngine = "onnxruntime",
    histograms: bool = True,
    start: Profile | File | None = None,
    workers: int | Literal["ray"] | None = None,
    threads: int = 0,
    checkpoint: Callable[[Profile], None] | None = None,
    interval: float = 5.0,
    progress: Callable[[int, int], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Profile:
    """Runs a float model over data and returns the statistics of every float tensor.

    Every sample is run once and on its own, so that the result does not depend on how the data
    is split: merging the profiles of shards gives the same profile, byte for byte.

    Args:
        model: A canonical float graph, or the file of one.
        data: One array per input with examples along axis 0; an ``.npz`` file of such arrays, or a
            folder of such files, which are read sample by sample; or the inputs of each run, as a
            list or generator of mappings, of lists of arrays or of the only input's arrays, or, for
            a model without a batch axis, one file per run.
        engine: What runs the model. With ``tvm`` statistics are computed in the compiled module.
        histograms: Collect histograms as well as extremes.
        start: A profile of the first samples, or its file, to continue from.
        workers: A number of processes that share the work, or ``ray``; with onnxruntime only.
        threads: Threads of onnxruntime; 0 lets it choose.
        checkpoint: Called regularly with the partial profile, to save it.
        interval: Seconds between two such calls.
        progress: Called with the number of samples done, and of all.
        warn: Called with assumptions that were made about the data.

    Raises:
        InputDataError: The data does not fit the model, or ``start`` is of another model or data.
        UnsupportedTargetError: The engine cannot run the model, or is not installed.
    """
    from qdqbridge.autoquant.profiling.collect import in_float32, profile_model

    return profile_model(
        in_float32(graph_of(model)),
        path_of(data) if isinstance(data, (str, PathLike)) else data,
        engine=engine,
        histograms=histograms,
        start=load_profile(start) if isinstance(start, (str, PathLike)) else start,
        workers=workers,
        threads=threads,
        checkpoint=checkpoint,
        interval=interval,
        progress=progress,
        warn=warn,
    )


def graph_of(model: Graph | File) -> Graph:
    """Returns a graph, read from its file where a path is given.

    Raises:
        QdqBridgeError: As :func:`qdqbridge.load`.
    """
    return load(model) if isinstance(model, (str, PathLike)) else model


@checked
def load_profile(path: File) -> Profile:
    """Reads a profile.

    Raises:
        InputDataError: The file cannot be read or is not a profile.
    """
    from qdqbridge.autoquant.profiling.profile import read_profile

    return read_profile(path_of(path))


@checked
def save_profile(profile: Profile, path: File) -> None:
    """Writes a profile atomically, replacing an existing file.

    Raises:
        OutputFileError: The operating system refuses.
    """
    from qdqbridge.autoquant.profiling.profile import profile_text
    from qdqbridge.core.graph.atomic_write import write_text

    write_text(path_of(path), profile_text(profile))


@checked
def merge_profiles(profiles: Sequence[Profile | File]) -> Profile:
    """Merges profiles of one model over different samples; their order does not matter.

    Raises:
        InputDataError: There is none, one cannot be read, or they are of different models.
    """
    from qdqbridge.autoquant.profiling.profile import merge

    return merge(load_profile(p) if isinstance(p, (str, PathLike)) else p for p in profiles)


@checked
def find_in_profile(
    profile: Profile | File, model: Graph | File, stage: str = "emitted", name: str | None = None
) -> list[BindingStatistics]:
    """Says which entries of a profile belong to the expressions of a Relax module.

    Args:
        profile: A profile of ``model``, or its file.
        model: A canonical float graph, or the file of one.
        stage: ``emitted``, ``folded``, ``channels-last``, ``mixed``, ``legalized``, ``fused`` or
            ``fused-tir``: where in TVM's standard pipeline.
        name: Only bindings of variables, or of tensors of the model, of this name.

    Raises:
        InputDataError: The profile is of another model, or there is nothing of that name.
        UnsupportedTargetError: There is no such stage, or TVM is not installed.
    """
    from qdqbridge.autoquant.profiling.collect import in_float32, lookup

    need_tvm()
    found = load_profile(profile) if isinstance(profile, (str, PathLike)) else profile
    return lookup(found, in_float32(graph_of(model)), stage, name)


def partial_file(path: Path) -> Path:
    """Returns where a profile is kept while it is made."""
    return path.with_name(path.name + ".partial")
