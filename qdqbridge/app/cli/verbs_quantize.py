"""The verb ``quantize``: a float model as a quantized one."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from qdqbridge.app import pipeline, quantizing, verdict
from qdqbridge.app.cli import output
from qdqbridge.app.cli.failures import DONE, NOT_MET, usage
from qdqbridge.app.cli.files import (
    AS_IT_IS,
    FOR_TVM,
    ONNX,
    Reading,
    check_extents,
    check_suffix,
    write_for_tvm,
)
from qdqbridge.app.cli.parameters import (
    ARITHMETIC,
    FORMATS,
    GOALS,
    MORE,
    SEARCH,
    Extents,
    Force,
    Json,
    Model,
    Variant,
    extents_of,
)
from qdqbridge.app.sources import TOSA_FILES
from qdqbridge.core.graph.atomic_write import bytes_written
from qdqbridge.core.graph.copying import with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.options import (
    ChooserName,
    FallbackFormat,
    PresetName,
    ProfileName,
    Requantize,
    TargetName,
    WeightFormat,
)

if TYPE_CHECKING:
    from qdqbridge.app.quantizing import Quantization
    from qdqbridge.autoquant.quantize import QuantizeOptions

_TFLITE = ".tflite"
T = TypeVar("T")
Data = Annotated[
    Path | None,
    Parameter(
        help="Calibration data: an .npz file, one array per input, examples along axis 0; or a "
        "folder of such files (without a batch axis, each is one run)."
    ),
]
Out = Annotated[
    Path,
    Parameter(
        name=("--output", "-o"),
        help="The file to write: .onnx or .tflite; or .json, .py, .so for TVM, .relay for TVM up "
        "to 0.19.",
    ),
]
QuantizedFor = Annotated[
    TargetName,
    Parameter(
        name="--target",
        help="Decides what is quantized, and in which formats. weight-only: activations stay "
        "float; dynamic, dynamic-rows: activations are quantized at run time.",
    ),
]
ProfileFile = Annotated[
    Path | None,
    Parameter(
        group=MORE,
        name="--profile",
        help="Statistics that 'qdqbridge profile' wrote for this model.",
    ),
]
ExportProfile = Annotated[
    ProfileName | None,
    Parameter(
        group=MORE,
        help="The profile of 'qdqbridge export' for the file; by default the target's.",
    ),
]
ChosenBy = Annotated[
    ChooserName | None,
    Parameter(
        group=FORMATS,
        name="--chooser",
        help="How activation ranges are chosen; by default several are tried.",
    ),
]
Weights = Annotated[
    WeightFormat | None,
    Parameter(
        group=FORMATS,
        name="--weights",
        help="Storage type of weights; by default the target's. mx…: microscaling, blocks of 32 "
        "that share a power-of-two scale.",
    ),
]
Block = Annotated[
    int | None,
    Parameter(
        group=FORMATS,
        name="--block",
        help="Block size of weight scales along the reduced axis, as 32.",
    ),
]
Formats = Annotated[
    tuple[str, ...],
    Parameter(
        group=FORMATS,
        name="--format",
        negative=(),
        help="PATTERN=FORMAT for the activations that matching nodes read: uint8, int8, uint16, "
        "int16, float8_e4m3fn, float8_e5m2, float, dynamic, dynamic-rows; repeatable.",
    ),
]
WeightFormats = Annotated[
    tuple[str, ...],
    Parameter(
        group=FORMATS,
        name="--weight-format",
        negative=(),
        help="PATTERN=FORMAT for the weights of matching nodes: int8, or int4/32 for blocks of 32; "
        "repeatable.",
    ),
]
Patterns = Annotated[
    tuple[str, ...],
    Parameter(
        group=FORMATS,
        name="--exclude",
        negative=(),
        help="A node, or a pattern of nodes, that stays float; repeatable.",
    ),
]
Only = Annotated[
    tuple[str, ...],
    Parameter(
        group=FORMATS,
        name="--only",
        negative=(),
        help="Quantize these nodes and no others: a name or pattern; repeatable.",
    ),
]
Repair = Annotated[
    str,
    Parameter(
        group=SEARCH,
        name="--repair",
        help="Repair steps to try; each is kept only where it helps: equalize,smooth,round,learn,"
        "bias; or none.",
    ),
]
MinSqnr = Annotated[
    float | None,
    Parameter(help="Give layers more bits until the outputs reach this SQNR, in dB."),
]
MaxDrop = Annotated[
    str | None,
    Parameter(
        help="Give layers more bits until at most this much top-1 is lost, as 0.5% or 0.005: of "
        "the accuracy with --labels, else of the agreement with the float model.",
    ),
]
Labels = Annotated[
    Path | None,
    Parameter(
        name="--labels",
        help="The right class of each example, .npy or .npz (the array 'labels' or 'y'): accuracy "
        "is printed and decides.",
    ),
]
MaxSize = Annotated[
    str | None,
    Parameter(
        group=GOALS,
        name="--max-size",
        help="Give as few layers as possible fewer bits until the file has this size: 8MB, 500KB, "
        "or bytes.",
    ),
]
Smallest = Annotated[
    bool,
    Parameter(
        group=GOALS,
        name="--smallest",
        negative=(),
        help="Choose bits per layer for the smallest file that meets --min-sqnr or --max-drop.",
    ),
]
MaxNodeTime = Annotated[
    str | None,
    Parameter(
        group=GOALS,
        name="--max-node-time",
        help="Change the bits of layers whose nodes take longer than this on --engine for one "
        "sample: 2ms, 500us.",
    ),
]
TimingEngine = Annotated[
    str,
    Parameter(
        group=GOALS,
        name="--engine",
        help="Where --max-node-time is measured: tvm, onnxruntime or openvino.",
    ),
]
Trials = Annotated[
    Path | None,
    Parameter(
        group=GOALS,
        name="--trials",
        help="A file that records the trials of --max-size, --smallest and --max-node-time; an "
        "interrupted search resumes from it.",
    ),
]
FallbackTo = Annotated[
    FallbackFormat,
    Parameter(
        group=GOALS,
        name="--fallback",
        help="What --min-sqnr and --max-drop try first for a layer.",
    ),
]
AccumulatorBits = Annotated[
    int | None,
    Parameter(
        group=ARITHMETIC,
        name="--accumulator-bits",
        help="Choose parameters so that accumulators of this width never overflow.",
    ),
]
AvoidPairs = Annotated[
    bool,
    Parameter(
        group=ARITHMETIC,
        name="--avoid-pairs",
        negative=(),
        help="Choose parameters so that 16-bit sums of two products (vpmaddubsw) never saturate.",
    ),
]
SumsOf = Annotated[
    Literal["any-input", "data"],
    Parameter(
        group=ARITHMETIC,
        name="--sums-of",
        help="Which accumulator sums must fit: those of any input, or of this data.",
    ),
]
Requantized = Annotated[
    Requantize | None,
    Parameter(
        group=ARITHMETIC,
        name="--requantize",
        help="How the hardware requantizes sums; parameters are chosen to suit it.",
    ),
]
Workers = Annotated[
    str | None,
    Parameter(
        group=SEARCH,
        name="--workers",
        help="Processes that try choosers and layers in parallel: a number, or 'ray'.",
    ),
]
Preset = Annotated[
    PresetName,
    Parameter(
        group=SEARCH,
        name="--preset",
        help="full: try choosers for single tensors and scaled channels always; fast: neither "
        "choosers nor repair but biases.",
    ),
]
Budget = Annotated[
    float,
    Parameter(
        group=SEARCH,
        name="--budget",
        help="Seconds after which nothing more is tried and the best so far is kept; a slow "
        "machine tries less in them.",
    ),
]
Verbose = Annotated[
    bool,
    Parameter(
        name=("--verbose", "-v"),
        negative=(),
        help="Also say why steps that were tried are not kept.",
    ),
]
Report = Annotated[Path | None, Parameter(help="Write an .html report of the quantization.")]


def quantize(
    model: Model,
    /,
    *,
    output_: Out,
    data: Data = None,
    target: QuantizedFor = "ort",
    profile: ProfileFile = None,
    export_profile: ExportProfile = None,
    chooser: ChosenBy = None,
    weights: Weights = None,
    block: Block = None,
    format_: Formats = (),
    weight_format: WeightFormats = (),
    accumulator_bits: AccumulatorBits = None,
    avoid_pairs: AvoidPairs = False,
    sums_of: SumsOf = "any-input",
    requantize: Requantized = None,
    workers: Workers = None,
    budget: Budget = 120.0,
    preset: Preset = "balanced",
    exclude: Patterns = (),
    only: Only = (),
    repair: Repair = "equalize,smooth,round,learn,bias",
    min_sqnr: MinSqnr = None,
    max_drop: MaxDrop = None,
    labels: Labels = None,
    max_size: MaxSize = None,
    smallest: Smallest = False,
    max_node_time: MaxNodeTime = None,
    engine: TimingEngine = "tvm",
    trials: Trials = None,
    fallback: FallbackTo = "int16",
    report: Report = None,
    variant: Variant = "canonical",
    extent: Extents = (),
    reading: Reading = AS_IT_IS,
    force: Force = False,
    verbose: Verbose = False,
    json: Json = False,
) -> int | None:
    """Quantize a float model by calibration data, and keep what helps its outputs.

    The interval after an SQNR is where that of other samples lies, 9 times in 10.
    """
    from qdqbridge.autoquant.planning.plan import format_of, weights_of
    from qdqbridge.autoquant.quantize import QuantizeOptions
    from qdqbridge.autoquant.search.search import Goal

    path = output.free(output_, force=force, model=model, data=data)
    check_suffix(path, (ONNX, _TFLITE, *TOSA_FILES, *FOR_TVM))
    if report is not None:
        output.free(report, force=force, model=model, data=data, suffix=".html")
    drop = None if max_drop is None else _share(max_drop)
    wanted = min_sqnr is not None or drop is not None
    if wanted:
        Goal(min_sqnr, drop)  # one that says nothing is refused before all the work
    size = None if max_size is None else _bytes(max_size)
    seconds = None if max_node_time is None else _seconds(max_node_time)
    small = size is not None or seconds is not None or smallest
    if smallest and not wanted:
        raise InputDataError(
            "nothing says how small the model may become", fix="give --min-sqnr or --max-drop"
        )
    if data is None and (profile is None or wanted or small or labels or report):
        fix = "give calibration data; a --profile does for ranges alone"
        return usage("--data is missing", fix=fix)
    if export_profile is not None:
        pipeline.export_profile(export_profile)
    options = QuantizeOptions(
        target=target, exclude=exclude, only=only, chooser=chooser, weights=weights, block=block,
        formats=_by_pattern(format_, format_of), repair=_parse_repair_steps(repair), budget=budget,
        weight_formats=_by_pattern(weight_format, weights_of), accumulator_bits=accumulator_bits,
        avoid_pairs=avoid_pairs, sums_of=sums_of, requantize=requantize, preset=preset,
        workers=int(workers) if workers is not None and workers.isdecimal() else workers,
    )  # fmt: skip
    if path.suffix == ONNX:
        _check_kernels(options, export_profile)
    write = partial(
        _write, profile=export_profile or options.described().profile, variant=variant,
        extents=extent,
    )  # fmt: skip
    with output.progress("quantizing") as progress:
        progress.trying(f"reading {model.name}", ["ranges", *options.repair])
        graph = reading.read(model)
        check_extents(path, graph, extent)
        made = quantizing.quantization(
            graph, data, options, profile=profile, labels=labels, progress=progress,
            warn=output.warn,
        )  # fmt: skip
    if small:
        with output.progress("looking for bits per layer") as progress:
            made = made.within(
                max_bytes=size, max_node_seconds=seconds, engine=engine, min_sqnr=min_sqnr,
                max_drop=drop, state=trials, progress=progress,
                sized=lambda graph: bytes_written(partial(write, graph=graph), path.name),
            )  # fmt: skip
    elif wanted:
        with output.progress("looking for layers that need more bits") as progress:
            made = made.meeting(
                min_sqnr=min_sqnr, max_drop=drop, fallback=fallback, progress=progress
            )
    with output.progress("writing") as progress:
        # Before anything is judged: the result of minutes of work is safe by then.
        write(path, made.graph)
        progress.trying("measuring the outputs", [])
        sizes = (model.stat().st_size if model.is_file() else None, path.stat().st_size)
        first = verdict.verdict(made, sizes=sizes)
    if report is not None:
        with output.progress("report") as progress:
            made.report(report, model=model.name, data=data.name if data else "", verdict=first,
                        progress=progress)  # fmt: skip
    facts = _facts(made, path, report, sizes)
    if json:
        output.show_json(facts)
    else:
        _show(made, facts, first, verbose=verbose, next_=_next(made, model, path, data))
    for warning in made.doubts():
        output.warn(warning)
    return NOT_MET if verdict.goal_met(made) is False else DONE


def _write(path: Path, graph: Graph, *, profile: Any, variant: Variant, extents: Extents) -> None:
    if path.suffix in (ONNX, _TFLITE, *TOSA_FILES):
        pipeline.save(with_numbers(graph, extents_of(extents)), path, profile, overwrite=True)
    else:
        write_for_tvm(graph, path, variant=variant, extents=extents)


def _check_kernels(options: QuantizeOptions, profile: str | None) -> None:
    """Refuses weights that the runtime of the file's profile has no kernel for."""
    target = options.described()
    newest = pipeline.export_profile(profile or target.profile).writing.newest
    formats = (target.weights, *options.weight_formats.values())
    if newest is None or not any(format.microscaled for format in formats):
        return
    raise UnsupportedTargetError(
        "onnxruntime loads no file with weights in an MX format",
        why=f"{newest.runtime} has no kernel of DequantizeLinear for scales of float8_e8m0fnu",
        fix="store blocks of another type (--weights float8_e4m3fn --block 32, or int4), or write "
        "for an engine that has MX formats (--export-profile portable)",
    )


def _bytes(text: str) -> int:
    """Returns the bytes that ``8MB`` says; KB and MB are 1000 and 1,000,000 of them."""
    units = {"KB": 1000, "MB": 1_000_000, "B": 1}
    number, unit = next(
        ((text[: -len(u)], n) for u, n in units.items() if text.upper().endswith(u)), (text, 1)
    )
    try:
        return int(float(number) * unit)
    except (ValueError, OverflowError) as error:
        raise InputDataError(f"'{text}' is not a size", fix="write 8MB, 500KB, or bytes") from error


def _share(text: str) -> float:
    """Returns the share that ``0.5%`` or ``0.005`` says."""
    number, sign, rest = text.partition("%")
    try:
        found = float(number) / (100 if sign else 1)
    except ValueError as error:
        found, rest = 0.0, str(error)
    if rest:
        raise InputDataError(f"'{text}' is not a share", fix="write 0.5%, or 0.005")
    if found >= 1:
        raise InputDataError(
            f"a drop of '{text}' is all there is",
            why="a drop is a share of all examples: 1 is 100 %",
            fix="write 0.5% for half a percent, or 0.005" if sign else f"write {text}%",
        )
    return found


def _seconds(text: str) -> float:
    """Returns the seconds that ``2ms`` says."""
    units = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1.0}
    number, unit = next(
        ((text[: -len(u)], n) for u, n in units.items() if text.endswith(u)), ("", 1.0)
    )
    try:
        return float(number) * unit
    except ValueError as error:
        raise InputDataError(f"'{text}' is not a time", fix="write 2ms, 500us, or 0.1s") from error


def _parse_repair_steps(text: str) -> tuple[str, ...]:
    return tuple(step for step in text.split(",") if step and step != "none")


def _by_pattern(texts: Sequence[str], meaning: Callable[[str], T]) -> dict[str, T]:
    """Returns what ``PATTERN=FORMAT`` says, by pattern."""
    found: dict[str, T] = {}
    for text in texts:
        pattern, separator, name = text.rpartition("=")
        if not separator or not pattern:
            raise InputDataError(
                f"'{text}' names no nodes and format", fix="write PATTERN=FORMAT, as 'Conv=int8'"
            )
        found[pattern] = meaning(name)
    return found


def _show(
    made: Quantization,
    facts: Mapping[str, Any],
    first: Sequence[tuple[str, str]],
    *,
    verbose: bool,
    next_: str,
) -> None:
    """Prints how good it is, what became of the model, what was done, and what to do next."""
    from qdqbridge.autoquant.search.pair_cost import PAIRS

    table = Table(show_header=False, box=None)
    for name, sentence in first:
        table.add_row(name, Text(sentence))
    for name, (low, high) in facts["inputs"].items():
        table.add_row(
            "input",
            Text(f"{name}: {low:.4g} to {high:.4g} in these data; feed the same scale in use"),
        )
    for step in facts["repairs"] if facts["integer"] else ():  # of floats no step is left
        if step["step"] != PAIRS and (step["applied"] or verbose):  # the verdict tells of pairs
            kept = "kept" if step["applied"] else "not kept"
            table.add_row(step["step"], Text(f"{kept}: {step['outcome']}"))
    for point in facts["pareto"]:
        line = f"{point['size']:,} bytes, {point['sqnr_db']:.2f} dB, {point['milliseconds']:.3f} ms"
        if point["slowest_milliseconds"] is not None:
            line += f", {point['slowest_milliseconds']:.3f} ms the slowest node"
        table.add_row("curve", Text(f"{point['name']}: {line}"))
    left_out = f", {len(facts['left_out'])} left out to judge by" if facts["left_out"] else ""
    table.add_row("samples", Text(f"{facts['samples']} to choose by{left_out}"))
    for name in ("output", "digest"):
        table.add_row(name, Text(facts[name]))
    output.show(table)
    if next_:  # a command that is wrapped cannot be copied
        output.show_text(f" next        {next_}")


def _next(made: Quantization, model: Path, path: Path, data: Path | None) -> str:
    """Returns what to do next, as a command: to find what loses the accuracy, or to run it."""
    from qdqbridge.app.cli.verbs_environment import has_host

    if data is None or path.suffix != ONNX:
        return ""
    if verdict.is_good(made):
        told = ["qdqbridge", "compare", str(path), "--data", str(data)]
        if not has_host("relax"):
            return f"{shlex.join([*told, '--engine', 'interpreter'])} runs it in onnxruntime"
        return f"{shlex.join(told)} runs it on TVM and onnxruntime"
    told = ["qdqbridge", "blame", str(model), str(path), "--data", str(data)]
    return f"{shlex.join(told)} says which layers lose what is lost"


def _ranges(made: Quantization) -> dict[str, tuple[float, float]]:
    """Returns what the data had of every input of real numbers: data of another scale fit badly."""
    seen = made.made.profile.by_name()
    found = {value.name: seen[value.name] for value in made.original.inputs if value.name in seen}
    return {name: (each.minimum, each.maximum) for name, each in found.items() if each.finite}


def _facts(
    made: Quantization, path: Path, report: Path | None, sizes: tuple[int | None, int]
) -> dict[str, Any]:
    from qdqbridge.autoquant.planning.plan import Fixed, Shared

    found, tuning, shown = made.fallback, made.made.tuning, made.delivered()
    decision = made.made.decision if found is None else found.decision
    specs = list(decision.plan.specs.values())
    steps = [*made.made.repairs, *([] if tuning is None else [tuning])]
    reasons, scores = verdict.floats(made), made.scores()
    return {
        "output": str(path),
        "report": None if report is None else str(report),
        "digest": made.graph.digest,
        "bytes": sizes[1],
        "bytes_before": sizes[0],
        "samples": made.made.profile.samples,
        "inputs": _ranges(made),
        "metric": None if scores is None else [s and asdict(s) for s in scores],
        "sqnr": None if shown is None else shown.expected,
        "sqnr_likely": None if shown is None else shown.likely,
        "sqnr_measured": None if shown is None else shown.metrics.sqnr,
        "top1": None if shown is None else shown.metrics.top1,
        "judged_on": None if shown is None else shown.where,
        "left_out": list(made.left_out),
        "sqnr_all": None if shown is None else shown.everything.sqnr,
        "top1_all": None if shown is None else shown.everything.top1,
        "outputs": [] if shown is None else [asdict(each) for each in shown.outputs],
        "integer": verdict.integers(made),
        "float": len(reasons),
        "goal": None if made.goal is None else str(made.goal),
        "goal_met": verdict.goal_met(made),
        "split": [asdict(each) for each in verdict.split_products(made)],
        "fixed": sum(isinstance(spec, Fixed) for spec in specs),
        "shared": sum(isinstance(spec, Shared) for spec in specs),
        "reasons": reasons,
        "repairs": [
            {"step": s.step, "applied": s.applied, "outcome": s.outcome, "before": s.before,
             "after": s.after}
            for s in steps
        ],
        "pareto": [] if found is None else [asdict(point) for point in found.pareto],
        "reverted": [] if found is None else [
            {"layer": r.layer.name, "to": r.to, "reason": r.reason} for r in found.reverted
        ],
    }  # fmt: skip
