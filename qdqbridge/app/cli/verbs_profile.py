"""The verb ``profile``: statistics of every float tensor of a model, merged and looked up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from qdqbridge.app import profiling
from qdqbridge.app.cli import output
from qdqbridge.app.cli.helping import FLOAT
from qdqbridge.app.cli.parameters import Force, Json, Model
from qdqbridge.app.cli.reading import AS_IT_IS, Reading
from qdqbridge.errors import InputDataError
from qdqbridge.options import ProfilingEngine

if TYPE_CHECKING:
    from qdqbridge.autoquant.profiling.profile import Profile
    from qdqbridge.autoquant.profiling.profile_map import BindingStatistics

Data = Annotated[
    Path,
    Parameter(
        help="An .npz file with one array per model input, examples along axis 0, or a folder of "
        "such files. For a model without a batch axis, each file is one run."
    ),
]
Out = Annotated[Path, Parameter(name=("--output", "-o"), help="The profile to write (.json).")]
Engine = Annotated[ProfilingEngine, Parameter(help="What runs the model.")]
Workers = Annotated[
    str | None, Parameter(help="Processes that share the work: a number, or 'ray'.")
]
Resume = Annotated[
    bool, Parameter(negative=(), help="Resume an interrupted run with the same --output.")
]
MinMaxOnly = Annotated[bool, Parameter(negative=(), help="Collect extremes only, no histograms.")]
Stage = Annotated[
    Literal["emitted", "folded", "channels-last", "mixed", "legalized", "fused", "fused-tir"],
    Parameter(help="The stage of TVM's standard pipeline."),
]
Threads = Annotated[int, Parameter(help="Threads of onnxruntime; 0 lets it choose.")]
Seconds = Annotated[float, Parameter(help="Seconds between saves of the partial profile.")]
FailOnNonfinite = Annotated[
    bool, Parameter(negative=(), help="Exit with 1 if any tensor holds NaN or infinities.")
]

app = App(name="profile", group=FLOAT, help_epilogue="")


@app.default
def profile(
    model: Model,
    /,
    *,
    data: Data,
    output_: Out,
    engine: Engine = "onnxruntime",
    min_max_only: MinMaxOnly = False,
    resume: Resume = False,
    engine_workers: Workers = None,
    threads: Threads = 0,
    save_every: Seconds = 5.0,
    fail_on_nonfinite: FailOnNonfinite = False,
    reading: Reading = AS_IT_IS,
    force: Force = False,
    json: Json = False,
) -> int:
    """Run a float model over data and write statistics of every float tensor.

    What there is after some seconds is saved beside the output; --resume goes on from there.
    """
    from qdqbridge.app.cli.failures import DONE, NOT_MET

    path = output.free(output_, force=force, model=model, data=data, suffix=".json")
    partial = profiling.partial_file(path)
    start = _start(partial, resume=resume)
    graph = reading.read(model)
    with output.progress("samples") as progress:
        found = profiling.profile(
            graph,
            data,
            engine=engine,
            histograms=not min_max_only,
            start=start,
            workers=_workers(engine_workers),
            threads=threads,
            checkpoint=lambda state: profiling.save_profile(state, partial),
            interval=save_every,
            progress=progress,
            warn=output.warn,
        )
    profiling.save_profile(found, path)
    partial.unlink(missing_ok=True)
    bad = _warn_of_nonfinite(found)
    _show(found, path, as_json=json)
    return NOT_MET if bad and fail_on_nonfinite else DONE


def _start(partial: Path, *, resume: bool) -> Profile | None:
    if not resume:
        return None
    if not partial.exists():
        output.say(f"there is no {partial.name} to go on from; starting with the first sample")
        return None
    start = profiling.load_profile(partial)
    output.say(f"going on after {start.samples} samples")
    return start


def _workers(text: str | None) -> int | Literal["ray"] | None:
    if text is None or text == "ray":
        return text
    if not text.isdecimal() or int(text) == 0:
        raise InputDataError(
            f"--engine-workers {text!r} is not a number of workers",
            fix="give a positive number, or 'ray'",
        )
    return int(text)


def _warn_of_nonfinite(profile: Profile) -> int:
    bad = [entry for entry in profile.tensors.values() if entry.stats.finite < entry.stats.count]
    for entry in bad:
        stats = entry.stats
        infinite = stats.positive_infinities + stats.negative_infinities
        output.warn(
            f"'{entry.name}' ({entry.operator or 'input'}) holds {stats.nans} NaN and "
            f"{infinite} infinities among {stats.count} values; they are in no other statistic"
        )
    return len(bad)


def _show(profile: Profile, path: Path, *, as_json: bool) -> None:
    found: dict[str, Any] = {
        "output": str(path),
        "samples": profile.samples,
        "tensors": len(profile.tensors),
        "model": profile.model,
        "data": f"{profile.data:064x}",
    }
    if as_json:
        output.show_json(found)
    else:
        output.show_text(f"{path}: {profile.samples} samples, {len(profile.tensors)} tensors")


@app.command
def merge(
    *profiles: Annotated[Path, Parameter(help="Profiles of one model over different data.")],
    output_: Out,
    force: Force = False,
    json: Json = False,
) -> int:
    """Merge several profiles of one model into one, as if profiled together."""
    from qdqbridge.app.cli.failures import DONE, usage

    if not profiles:
        return usage("there is no profile to merge: PROFILES is missing", fix="give at least one")
    path = output.free(output_, force=force, model=profiles[0], suffix=".json")
    shards = [profiling.load_profile(shard) for shard in profiles]
    if len({shard.data for shard in shards}) < len(shards):
        output.warn("two of these profiles are of the same data, which is now counted twice")
    found = profiling.merge_profiles(shards)
    profiling.save_profile(found, path)
    _show(found, path, as_json=json)
    return DONE


@app.command
def lookup(
    profile: Annotated[Path, Parameter(help="A profile of the model.")],
    model: Model,
    name: Annotated[
        str | None,
        Parameter(help="A variable of the module, or a tensor of the model; all if left out."),
    ] = None,
    /,
    *,
    stage: Stage = "emitted",
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> int:
    """Show which profile entries belong to which expressions of the Relax module.

    Exits with 1 if a call is tied to no tensor of the model.
    """
    from qdqbridge.app.cli.failures import DONE, NOT_MET

    with output.status("lowering"):
        graph = reading.read(model)
        found = profiling.find_in_profile(profile, graph, stage, name)
    if json:
        output.show_json({"stage": stage, "places": [_found_json(each) for each in found]})
    else:
        output.show(_found_table(found, stage))
    unknown = [each for each in found if each.relation == "unknown"]
    return NOT_MET if unknown else DONE


def _found_json(found: BindingStatistics) -> dict[str, Any]:
    return {
        "function": found.function,
        "variable": found.variable,
        "expression": found.expression,
        "relation": found.relation,
        "ids": found.ids,
        "tensors": [entry.name for entry in found.entries],
        "result": found.result,
    }


def _found_table(found: list[BindingStatistics], stage: str) -> Table:
    table = Table("function", "variable", "is", "tensors of the model", "range", title=stage)
    for each in found:
        names = "\n".join(entry.name for entry in each.entries)
        ranges = "\n".join(
            f"{entry.stats.minimum:.4g} … {entry.stats.maximum:.4g}" for entry in each.entries
        )
        cells = (each.function, each.variable, each.relation, names, ranges)
        table.add_row(*(Text(cell) for cell in cells))
    return table
