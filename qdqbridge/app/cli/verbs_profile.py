"""The verbs ``profile`` and ``accumulators``: statistics of float and of quantized models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qdqbridge.app import profiling
from qdqbridge.app.cli import files, output
from qdqbridge.app.cli.files import AS_IT_IS, Reading
from qdqbridge.app.cli.parameters import FLOAT, Force, Json, Model
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, UnsupportedModelError
from qdqbridge.options import ProfilingEngine

if TYPE_CHECKING:
    from qdqbridge.autoquant.hardware.products import ProductAccumulator
    from qdqbridge.autoquant.profiling.collect import BindingStatistics
    from qdqbridge.autoquant.profiling.profile import Profile
    from qdqbridge.autoquant.profiling.samples import Sample, Samples
    from qdqbridge.autoquant.record import AccumulatorRow


# ---- The verb ``profile``: statistics of every float tensor of a model, merged and looked up -----


ProfileData = Annotated[
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
    data: ProfileData,
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
    # Only when the whole is written: until then it is all that there is to resume.
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
    # Profiles know a digest of their data. Counts would be wrong, but ranges stay right: so no
    # error.
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


# ---- The verb ``accumulators``: what the products of a quantized model ask of hardware -----------


ProductData = Annotated[
    Path | None,
    Parameter(help="An .npz file with one array per model input; adds observed ranges and sums."),
]
Limit = Annotated[
    int, Parameter(help="The largest number of samples to run, spread evenly over the data.")
]
Pairs = Annotated[
    Literal["channels-last", "channels-first"],
    Parameter(help="The order in which a convolution kernel pairs its terms."),
]
MaxBits = Annotated[
    int | None, Parameter(help="Exit with 1 if any input can make an accumulator need more bits.")
]


_RUNS = 256
"""Runs of a body that are looked at, spread evenly over all that samples make."""


def accumulators(
    model: Model,
    /,
    *,
    data: ProductData = None,
    samples: Limit = 64,
    pairs: Pairs = "channels-last",
    max_bits: MaxBits = None,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> int:
    """Show how many accumulator bits integer products need, and where 16-bit pairs can saturate.

    Exits with 1 if --max-bits is exceeded.
    """
    from qdqbridge.app.cli.failures import DONE, NOT_MET
    from qdqbridge.autoquant.hardware.products import accumulators as found_in
    from qdqbridge.autoquant.hardware.products import dynamic_accumulators, observe
    from qdqbridge.autoquant.profiling.control_flow import has_bodies, runs_of_bodies
    from qdqbridge.onnx_io.control_flow.bodies import parts

    graph = reading.read(model)
    seen, count = None, 0
    runs: Mapping[str, Sequence[Sample]] = {}
    if data is not None:
        feeds = files.read_inputs(data, graph.inputs)
        pieces, count = _pieces(graph, feeds, samples)
        with output.progress("batches") as progress:
            seen = observe(graph, pieces, progress=progress)
        if has_bodies(graph):
            runs = runs_of_bodies(graph, list(pieces), _RUNS)
    found = found_in(graph, seen=seen, order=pairs) + dynamic_accumulators(graph)
    for body in parts(graph):
        given = runs.get(body.place)
        inside = None if given is None else observe(body.graph, given)
        rows = found_in(body.graph, seen=inside, order=pairs) + dynamic_accumulators(body.graph)
        found += [replace(row, node=body.named(row.node)) for row in rows]
    if not found:
        raise UnsupportedModelError(
            "the model has no product of integers",
            where=str(model),
            why="no Conv, ConvTranspose, Gemm or MatMul has two quantized operands, and no dynamic "
            "product a constant of integers",
            fix="give a quantized model; 'qdqbridge explain' says why nodes stayed float",
        )
    if json:
        rows = [_json(each) for each in found]
        output.show_json({"samples": count, "pairs": pairs, "products": rows})
    else:
        output.show(*_render_accumulators([each.row() for each in found], pairs))
    reach = max(int(each.bits.max()) for each in found)
    return NOT_MET if max_bits is not None and reach > max_bits else DONE


def _pieces(
    graph: Graph, feeds: Mapping[str, NDArray[Any]], limit: int
) -> tuple[Samples | Sequence[Sample], int]:
    """Returns what to run and how many examples that is; all at once where they cannot be cut."""
    from qdqbridge.autoquant.profiling.samples import Samples
    from qdqbridge.autoquant.search.sensitivity import some_of

    # Inputs of different numbers of examples are one run: nobody can say where to cut them.
    if len({array.shape[:1] for array in feeds.values()}) > 1:
        return [feeds], 1
    cut = some_of(Samples.of(graph.inputs, feeds), limit)
    return cut, len(cut) * cut.step


def _json(found: ProductAccumulator) -> dict[str, Any]:
    low, high = found.observed or (None, None)
    return {
        "node": found.node,
        "operator": found.operator,
        "channels": len(found.bits),
        "terms": found.terms,
        "naive_bits": found.naive_bits,
        "headroom": found.headroom,
        "bits": found.bits.tolist(),
        "smallest": found.smallest.tolist(),
        "largest": found.largest.tolist(),
        "calibrated_bits": _listed(found.calibrated_bits),
        "observed_bits": _listed(found.observed_bits),
        "observed_smallest": _listed(low),
        "observed_largest": _listed(high),
        "pairs": found.pairs,
        "saturating_pairs": found.saturating_pairs.tolist(),
        "calibrated_saturating_pairs": _listed(found.calibrated_pairs),
        "scale_factor": found.remedy.tolist(),
        "dead_channels": list(found.dead_channels),
    }


def _listed(array: Any) -> list[int] | None:
    return None if array is None else array.tolist()


def _render_accumulators(rows: Sequence[AccumulatorRow], order: str) -> list[RenderableType]:
    bits = _statistics_table("accumulator bits, worst channel", _BITS)
    for row in rows:
        low, high = row.observed or (None, None)
        bits.add_row(
            *_accumulator_row_cells(row),
            *map(str, (row.channels, row.dead_channels, row.terms, row.naive_bits, row.bits)),
            *map(_text, (row.calibrated_bits, row.observed_bits)),
            Text(str(row.headroom), style="bold red" if row.headroom < 0 else ""),
            *map(_text, (low, high)),
        )
    parts: list[RenderableType] = [bits]
    paired = [row for row in rows if row.pairs]
    if paired:
        parts.append(_pairs(paired, order))
    return parts


_BITS = (
    "channels", "dead", "terms", "types", "any input", "in range", "observed", "headroom",
    "smallest", "largest",
)  # fmt: skip
_PAIRS = ("pairs", "can saturate", "can, in range", "channels", "scale factor")


def _pairs(rows: Sequence[AccumulatorRow], order: str) -> Table:
    table = _statistics_table(
        f"sums of two products in 16 bits (vpmaddubsw), terms {order}", _PAIRS
    )
    for row in rows:
        factor = f"{row.remedy:.4f}" if row.remedy > 1 else "-"
        numbers = (row.pairs, row.saturating_pairs, row.calibrated_pairs, row.saturating_channels)
        table.add_row(*_accumulator_row_cells(row), *map(_text, numbers), factor)
    return table


def _statistics_table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("node", overflow="fold")
    table.add_column("operator", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _accumulator_row_cells(row: AccumulatorRow) -> tuple[Text, Text]:
    return Text(row.node), Text(row.operator)


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)
