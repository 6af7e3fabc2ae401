"""The verbs of the command line: each is a call or two of the pipeline, and its rendering."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

from cyclopts import App, Parameter
from numpy.typing import NDArray

import qdqbridge
from qdqbridge.app import hosting, judging, pipeline
from qdqbridge.app.cli import (
    files,
    output,
    render,
    verbs_blame,
    verbs_byoc,
    verbs_environment,
    verbs_export,
    verbs_fix,
    verbs_profile,
    verbs_quantize,
    verbs_view,
)
from qdqbridge.app.cli.files import AS_IT_IS, Reading
from qdqbridge.app.cli.parameters import (
    COMPILED,
    EPILOGUE,
    FLOAT,
    HELP,
    HERE,
    QUANTIZED,
    Data,
    Extents,
    Force,
    Json,
    MaybeOut,
    Model,
    Target,
    Threads,
    extents_of,
)
from qdqbridge.app.pipeline import as_onnx
from qdqbridge.app.sources import is_onnx
from qdqbridge.core.graph.atomic_write import write_arrays, write_text
from qdqbridge.core.graph.batches import Batch, batches, concat_batch_results
from qdqbridge.core.graph.copying import with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.printer import text
from qdqbridge.errors import InputDataError
from qdqbridge.options import EngineName
from qdqbridge.targets.comparison.compare import Comparison, comparison_parts
from qdqbridge.targets.engines.kinds import ENGINES, OWN

app = App(
    name="qdqbridge",
    help="Quantized ONNX models in one canonical form: read, explain, run on TVM, write back.",
    version=qdqbridge.__version__,
    suppress_keyboard_interrupt=False,
    help_formatter=HELP,
    help_epilogue=EPILOGUE,
)
Runner: TypeAlias = "Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]"
BatchSize = Annotated[
    int | None, Parameter(help="Examples per run; by default the batch the model fixes, or all.")
]
AnyEngine = Annotated[
    Literal["tvm", "interpreter", EngineName], Parameter(help="What runs the model.")
]
CheckedEngine = Annotated[
    Literal["tvm", "interpreter", EngineName] | None,
    Parameter(
        help="What is compared with the reference; by default tvm. With --local: the engine whose "
        "operands and results are checked node by node; by default the reference's."
    ),
]
Reference = Annotated[
    str,
    Parameter(help="'onnxruntime', 'interpreter', an engine, or another ONNX file of the network."),
]
Local = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Run each node in the interpreter on the reference's own operands, and name the cause "
        "of each difference.",
    ),
]
Cache = Annotated[
    Path | None,
    Parameter(help="A folder that caches compiled models."),
]
ProfileKernels = Annotated[
    bool, Parameter(negative=(), help="Time every kernel on the first batch.")
]
MaxLsb = Annotated[
    int | None, Parameter(help="Exit with 1 if any stored integer differs by more than this.")
]
Everything = Annotated[
    bool, Parameter(name="--all", negative=(), help="List values without differences as well.")
]


@app.command(group=QUANTIZED, help_epilogue="")
def inspect(
    model: Model,
    /,
    *,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> None:
    """Show what a model holds: operators, quantization, interface, digest."""
    found = reading.inspect(model)
    if json:
        output.show_json(render.inspection_json(found))
    else:
        output.show(*render.inspection_parts(found))


@app.command(group=QUANTIZED, help_epilogue="")
def canonicalize(
    model: Model,
    /,
    *,
    output_: MaybeOut = None,
    force: Force = False,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> None:
    """Print the canonical text form."""
    path = None if output_ is None else output.free(output_, force=force, model=model)
    graph = reading.read(model)
    if path is not None:
        write_text(path, text(graph))
        output.say(f"wrote {path}")
    if json:
        found = {"digest": graph.digest, "nodes": len(graph.nodes), "text": text(graph)}
        output.show_json({**found, "output": None if path is None else str(path)})
    elif path is None:
        output.show_text(text(graph))
    else:
        output.show_text(graph.digest)


@app.command(group=QUANTIZED, help_epilogue="")
def explain(
    model: Model,
    /,
    *,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> None:
    """Say why nodes stayed float, and what was assumed while reading."""
    from qdqbridge.targets.profiles import products_in_pairs
    from qdqbridge.targets.profiles.ort.pairs import pairs_sentence

    graph, file = reading.read(model), reading.file(model)
    read = file if file is not None and is_onnx(file) else graph
    notes, pairs = pipeline.explain(graph), pairs_sentence(products_in_pairs(read))
    if pairs:
        output.say(pairs)
    if json:
        output.show_json({"notes": [render.note_json(note) for note in notes]})
    elif notes:
        output.show(render.notes_table(notes))
    else:
        output.show_text("nothing to explain: every node between quantized values is quantized")


@app.command(group=COMPILED, help_epilogue="")
def run(
    model: Model,
    /,
    *,
    data: Data,
    output_: MaybeOut = None,
    engine: AnyEngine = "tvm",
    target: Target = "host",
    threads: Threads = None,
    extent: Extents = (),
    batch_size: BatchSize = None,
    profile_kernels: ProfileKernels = False,
    cache: Cache = None,
    force: Force = False,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> None:
    """Run a model on data; show its outputs or write them to an .npz file."""
    path = output_
    if path is not None:
        output.free(path, force=force, model=model, data=data, suffix=".npz")
    graph = reading.read(model)
    graph = with_numbers(graph, extents_of(extent))
    inputs = files.read_inputs(data, graph.inputs)
    files.tell_misfits(graph, inputs)
    with ExitStack() as stack:
        kept = None if profile_kernels else cache  # a loaded library does not know its kernels
        runner = _runner(engine, graph, reading.file(model), target, threads, stack, kept)
        timed = _timed(runner, target) if profile_kernels else None
        fed, whole = _run_batches(runner, graph, inputs, batch_size)
    times = None if timed is None else timed(fed[0].inputs)
    if path is not None:
        write_arrays(path, whole)
        output.say(f"wrote {path}")
    if not json:
        tables = [] if times is None else [render.kernels_table(*times)]
        return output.show(render.arrays_table(whole), *tables)
    found = {"engine": engine, "batches": len(fed), "outputs": render.arrays_json(whole)}
    own = {} if times is None else render.kernels_json(*times)
    output.show_json({**found, **own, "output": None if path is None else str(path)})


def _run_batches(
    runner: Runner, graph: Graph, inputs: Mapping[str, NDArray[Any]], batch_size: int | None
) -> tuple[list[Batch], dict[str, NDArray[Any]]]:
    """Returns the batches that were fed, and the outputs of all of them together."""
    fed: list[Batch] = []
    results: dict[str, list[NDArray[Any]]] = {}
    with output.progress("batches") as report:
        for batch in batches(graph.inputs, inputs, batch_size):
            for name, array in _tensors(runner(batch.inputs)):
                results.setdefault(name, []).append(array)
            fed.append(batch)
            report(len(fed), batch.count)
    return fed, {name: concat_batch_results(parts, fed, name) for name, parts in results.items()}


def _tensors(results: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields tensors by name, those of a sequence by their places; what is absent is left out."""
    for name, result in results.items():
        if isinstance(result, list):
            elements = cast("list[NDArray[Any]]", result)
            yield from ((f"{name}[{place}]", each) for place, each in enumerate(elements))
        # An Optional without a value; an .npz file has nothing for that.
        elif result is not None:
            yield name, result


def _runner(
    engine: str,
    graph: Graph,
    file: Path | None,
    target: str,
    threads: int | None,
    stack: ExitStack,
    cache: Path | None = None,
) -> Runner:
    """Returns a function from inputs by name to outputs by name."""
    if engine == "interpreter":
        return partial(pipeline.evaluate, graph)
    if engine == "onnxruntime":
        with as_onnx(file, graph) as written:
            return partial(pipeline.session(written).run, names=graph.output_names)
    if engine in ENGINES:
        judge = stack.enter_context(judging.opened(engine, file, graph))
        return partial(judge.run, names=graph.output_names)
    _say_what_is_open(graph)
    with output.status("compiling"):
        return hosting.compile(graph, target, threads=threads, cache=cache).run


def _say_what_is_open(graph: Graph) -> None:
    shapes = [value.type.shape or () for value in graph.inputs]
    # The leading dimension may stay open: kernels have a loop over it.
    names = dict.fromkeys(dim for shape in shapes for dim in shape[1:] if isinstance(dim, str))
    if names:
        numbers = " ".join(f"--extent {name}=…" for name in names)
        output.say(
            f"dimensions besides the batch are symbolic ({', '.join(names)}), so slower generic "
            f"loops run; for the fast kernels fix them: {numbers}"
        )


def _timed(runner: Runner, target: str) -> Callable[[Mapping[str, NDArray[Any]]], Any]:
    """Returns what times the kernels of a compiled model and measures the limit.

    Raises:
        InputDataError: Something else than TVM runs the model.
    """
    executable = getattr(runner, "__self__", None)
    if not hasattr(executable, "library"):
        raise InputDataError(
            "there are no kernels to profile",
            why="--profile-kernels times TVM's kernels, and another engine runs the model",
            fix="leave --engine out, or give --engine tvm",
        )
    return partial(_kernel_times, executable, target)


def _kernel_times(
    executable: Any, target: str, inputs: Mapping[str, NDArray[Any]]
) -> tuple[Any, float]:
    from qdqbridge.tvm.relax.kernel_times import kernel_times
    from qdqbridge.tvm.relax.kernels.codegen.processors import cpu_of, target_of
    from qdqbridge.tvm.relax.kernels.tiles.limit import limit

    resolved = target_of(target)
    with output.status("timing kernels"):
        return kernel_times(executable, inputs), limit(cpu_of(resolved), resolved)


@app.command(group=QUANTIZED, help_epilogue="")
def compare(
    model: Model,
    /,
    *,
    data: Data,
    reference: Reference = "onnxruntime",
    engine: CheckedEngine = None,
    local: Local = False,
    max_lsb: MaxLsb = None,
    everything: Everything = False,
    target: Target = "host",
    extent: Extents = (),
    batch_size: BatchSize = None,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> int:
    """Compare a model with onnxruntime (graph optimizations off), value by value.

    Exits with 1 if --max-lsb is not kept, nothing could be compared, or --local finds a
    difference that rounding does not explain.
    """
    from qdqbridge.app.cli.failures import usage

    if local and engine == "tvm":
        return usage(
            "--local runs each node in the interpreter, not on TVM",
            fix="leave --engine out; to check TVM, compare without --local, or with "
            "--reference interpreter",
        )
    graph = reading.read(model)
    graph = with_numbers(graph, extents_of(extent))
    inputs = files.read_inputs(data, graph.inputs)
    files.tell_misfits(graph, inputs)
    with ExitStack() as stack:
        sides = _ComparedSides(reading.file(model), graph, target, stack)
        theirs: pipeline.Side
        if local and engine in ("litert", "tosa"):  # their tensors are known of files we write
            ours, theirs = pipeline.litert(graph, engine=engine)
        elif local and engine is not None and engine in ENGINES:
            ours, theirs = graph, sides.of(engine)
        elif engine is not None and engine == reference:
            ours, theirs = sides.of(engine), graph  # with itself it would agree
        else:
            ours = graph if local else sides.of(engine or "tvm")
            theirs = sides.of(reference)
        found = pipeline.compare(
            ours,
            theirs,
            inputs,
            local=local,
            batch_size=batch_size,
            progress=stack.enter_context(output.progress("batches")),
        )
    if json:
        output.show_json(render.comparison_json(found))
    else:
        output.show(*comparison_parts(found, everything=everything))
    saturate = [side for side in (ours, theirs) if getattr(side, "own", None) is not None]
    # Free runs go their own ways after the first difference: only node by node is it known whose
    # fault it is.
    if saturate and not (local or found.equal):
        output.say("pairs of products saturate on its processor: --local counts what is theirs")
    return _verdict(found, max_lsb, explained=not local or engine not in ENGINES or engine in OWN)


@dataclass(frozen=True, slots=True)
class _ComparedSides:
    """What the sides of a comparison are called, and what they are of one model."""

    file: Path | None
    graph: Graph
    target: str
    stack: ExitStack

    def of(self, name: str) -> pipeline.Side:
        """Returns a side; any other name is that of a file."""
        if name == "onnxruntime":
            return self.stack.enter_context(as_onnx(self.file, self.graph))
        if name in ENGINES:
            return self.stack.enter_context(judging.opened(name, self.file, self.graph))
        if name == "interpreter":
            return self.graph
        if name != "tvm":
            return name
        with output.status("compiling"):
            return hosting.compile(self.graph, self.target, expose=self.graph.intermediates())


def _verdict(found: Comparison, max_lsb: int | None, *, explained: bool) -> int:
    """Returns the exit code; engines round in ways of their own, which only --max-lsb bounds."""
    from qdqbridge.app.cli.failures import DONE, NOT_MET

    if not found.values or (explained and (found.unexplained or found.misread)):
        return NOT_MET
    if max_lsb is not None and found.max_lsb > max_lsb:
        output.say(f"--max-lsb {max_lsb} is exceeded: the largest difference is {found.max_lsb}")
        return NOT_MET
    return DONE


for _verb in (
    verbs_export.export, verbs_fix.fix, verbs_export.diff, verbs_view.view, verbs_blame.blame,
    verbs_profile.accumulators,
):  # fmt: skip
    app.command(_verb, group=QUANTIZED, help_epilogue="")
app.command(verbs_quantize.quantize, group=FLOAT, help_epilogue="")
app.command(verbs_profile.app)
for _verb in (verbs_export.to_tvm, verbs_byoc.partition, verbs_environment.processors):
    app.command(_verb, group=COMPILED, help_epilogue="")
for _verb in (
    verbs_environment.doctor,
    verbs_environment.completion,
    verbs_environment.conformance,
):
    app.command(_verb, group=HERE, help_epilogue="")
