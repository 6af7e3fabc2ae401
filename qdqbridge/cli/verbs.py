"""The verbs of the command line: each is a call or two of the pipeline, and its rendering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import App, Parameter
from numpy.typing import NDArray

import qdqbridge
from qdqbridge import pipeline
from qdqbridge.cli import arrays, output, render, render_checks
from qdqbridge.errors import InputDataError, QdqBridgeError, UnsupportedTargetError
from qdqbridge.graph.archive import write_arrays
from qdqbridge.graph.batches import Batch, batches, joined
from qdqbridge.graph.expose import intermediates
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.printer import text
from qdqbridge.report.compare import Comparison

if TYPE_CHECKING:
    from qdqbridge.onnx_io.profiles import Finding

app = App(
    name="qdqbridge",
    help="Quantized ONNX models in one canonical form: read, explain, run on TVM, write back.",
    version=qdqbridge.__version__,
    suppress_keyboard_interrupt=False,
)
Runner: TypeAlias = "Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]"
Model = Annotated[Path, Parameter(help="The ONNX file.")]
Data = Annotated[Path, Parameter(help="An .npz file with one array per model input.")]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON for programs.")]
Force = Annotated[bool, Parameter(negative=(), help="Overwrite existing files.")]
Out = Annotated[Path, Parameter(name=("--output", "-o"), help="The file to write.")]
MaybeOut = Annotated[Path | None, Parameter(name=("--output", "-o"), help="A file to write to.")]
BatchSize = Annotated[
    int | None, Parameter(help="Examples at once; by default what the model fixes, or all.")
]
Engine = Annotated[Literal["tvm", "interpreter", "onnxruntime"], Parameter(help="What runs it.")]
OurEngine = Annotated[
    Literal["tvm", "interpreter"] | None,
    Parameter(help="What is checked: by default tvm, with --local the interpreter."),
]
Reference = Annotated[
    str, Parameter(help="'onnxruntime', 'interpreter', or another ONNX file of the network.")
]
Local = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Run each node by the interpreter on the reference's operands; name causes.",
    ),
]
MaxLsb = Annotated[
    int | None, Parameter(help="Exit with 1 if stored integers differ by more anywhere.")
]
Everything = Annotated[
    bool, Parameter(name="--all", negative=(), help="List equal values as well.")
]
Target = Annotated[str, Parameter(help="The TVM target.")]
Check = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Say where and why the file (the one written, if any) would not fuse.",
    ),
]
Decomposed = Annotated[
    bool,
    Parameter(negative=(), help="Read fake-quantization in float arithmetic as Q and DQ."),
]


@app.command
def inspect(model: Model, /, *, decomposed: Decomposed = False, json: Json = False) -> None:
    """Show what a model holds: operators, quantization, interface, digest."""
    found = pipeline.inspect(model, decomposed=decomposed)
    if json:
        output.show_json(render.inspection_json(found))
    else:
        output.show(*render.inspection_parts(found))


@app.command
def canonicalize(
    model: Model,
    /,
    *,
    output_: MaybeOut = None,
    force: Force = False,
    decomposed: Decomposed = False,
    json: Json = False,
) -> None:
    """Print the canonical text form."""
    path = None if output_ is None else output.free(output_, force=force, model=model)
    graph = pipeline.load(model, decomposed=decomposed)
    if path is not None:
        path.write_text(text(graph), "utf-8")
        output.say(f"wrote {path}")
    if json:
        found = {"digest": graph.digest, "nodes": len(graph.nodes), "text": text(graph)}
        output.show_json({**found, "output": None if path is None else str(path)})
    elif path is None:
        output.show_text(text(graph))
    else:
        output.show_text(graph.digest)


@app.command
def explain(model: Model, /, *, decomposed: Decomposed = False, json: Json = False) -> None:
    """Say why nodes stayed float, and what was assumed."""
    notes = pipeline.explain(pipeline.load(model, decomposed=decomposed))
    if json:
        output.show_json({"notes": [render.note_json(note) for note in notes]})
    elif notes:
        output.show(render.notes_table(notes))
    else:
        output.show_text("nothing to explain: every node between quantized values is quantized")


@app.command
def run(
    model: Model,
    /,
    *,
    data: Data,
    output_: MaybeOut = None,
    engine: Engine = "tvm",
    target: Target = "llvm",
    batch_size: BatchSize = None,
    force: Force = False,
    decomposed: Decomposed = False,
    json: Json = False,
) -> None:
    """Run a model on data; show its outputs or write them to an .npz file."""
    path = output_
    if path is not None:
        output.free(path, force=force, model=model, data=data, suffix=".npz")
    graph = pipeline.load(model, decomposed=decomposed)
    inputs = arrays.read_inputs(data, graph.inputs)
    runner = _runner(engine, graph, model, target)
    fed: list[Batch] = []
    results: dict[str, list[NDArray[Any]]] = {name: [] for name in graph.output_names}
    with output.progress("batches") as report:
        for batch in batches(graph.inputs, inputs, batch_size):
            for name, array in runner(batch.inputs).items():
                results[name].append(array)
            fed.append(batch)
            report(len(fed), batch.count)
    whole = {name: joined(parts, fed, name) for name, parts in results.items()}
    if path is not None:
        write_arrays(path, whole)
        output.say(f"wrote {path}")
    if json:
        found = {"engine": engine, "batches": len(fed), "outputs": render.arrays_json(whole)}
        output.show_json({**found, "output": None if path is None else str(path)})
    else:
        output.show(render.arrays_table(whole))


def _runner(engine: str, graph: Graph, model: Path, target: str) -> Runner:
    """Returns a function from inputs by name to outputs by name."""
    if engine == "interpreter":
        return partial(pipeline.evaluate, graph)
    if engine == "onnxruntime":
        return partial(pipeline.session(model).run, names=graph.output_names)
    with output.status("compiling"):
        return pipeline.compile(graph, target).run


@app.command
def compare(
    model: Model,
    /,
    *,
    data: Data,
    reference: Reference = "onnxruntime",
    engine: OurEngine = None,
    local: Local = False,
    max_lsb: MaxLsb = None,
    everything: Everything = False,
    target: Target = "llvm",
    batch_size: BatchSize = None,
    decomposed: Decomposed = False,
    json: Json = False,
) -> int:
    """Compare a model with onnxruntime (graph optimizations off), value by value.

    Exits with 1 if --max-lsb is not kept, nothing could be compared, or --local finds a
    difference that rounding does not explain.
    """
    if local and engine == "tvm":
        return _usage(
            "--local runs each node by the interpreter, not by TVM",
            fix="leave --engine out; to check TVM, compare without --local, or with "
            "--reference interpreter",
        )
    graph = pipeline.load(model, decomposed=decomposed)
    inputs = arrays.read_inputs(data, graph.inputs)
    ours: pipeline.Side = graph
    if engine != "interpreter" and not local:
        with output.status("compiling"):
            ours = pipeline.compile(graph, target, expose=intermediates(graph))
    known: dict[str, pipeline.Side] = {"onnxruntime": model, "interpreter": graph}
    with output.progress("batches") as report:
        found = pipeline.compare(
            ours,
            known.get(reference, reference),
            inputs,
            local=local,
            batch_size=batch_size,
            progress=report,
        )
    if json:
        output.show_json(render.comparison_json(found))
    else:
        output.show(*render.comparison_parts(found, everything=everything))
    return _verdict(found, max_lsb)


def _usage(what: str, *, fix: str = "") -> int:
    from qdqbridge.cli.failures import USAGE, show

    show(QdqBridgeError(what, fix=fix))
    return USAGE


def _verdict(found: Comparison, max_lsb: int | None) -> int:
    from qdqbridge.cli.failures import DONE, NOT_MET

    if not found.values or found.unexplained:
        return NOT_MET
    if max_lsb is not None and found.max_lsb > max_lsb:
        output.say(f"--max-lsb {max_lsb} is not kept: the largest difference is {found.max_lsb}")
        return NOT_MET
    return DONE


@app.command
def export(
    model: Model,
    /,
    *,
    output_: MaybeOut = None,
    profile: Annotated[str, Parameter(help="Whose conventions to follow.")] = "ort",
    check: Check = False,
    force: Force = False,
    decomposed: Decomposed = False,
    json: Json = False,
) -> int:
    """Write a model in canonical spelling; --check says where a runtime would not fuse it.

    Exits with 1 if --check finds anything.
    """
    from qdqbridge.cli.failures import DONE, NOT_MET

    if output_ is None and not check:
        return _usage("give --output to write the model, or --check to look at it")
    found: dict[str, Any] = {}
    if output_ is not None:
        path = output.free(output_, force=force, model=model, suffix=".onnx")
        graph = pipeline.load(model, decomposed=decomposed)
        pipeline.save(graph, path, profile, overwrite=force)
        found = {"output": str(path), "profile": profile, "digest": graph.digest}
        if not json:
            output.show_text(str(path))
    findings = pipeline.check(output_ or model, profile) if check else []
    if json:
        output.show_json({**found, **(_checked_json(profile, findings) if check else {})})
    elif check:
        output.show(*render_checks.findings_parts(pipeline.profile(profile), findings))
    return NOT_MET if findings else DONE


def _checked_json(profile: str, findings: Sequence[Finding]) -> dict[str, Any]:
    return render_checks.findings_json(pipeline.profile(profile), findings)


@app.command
def diff(a: Model, b: Model, /, *, decomposed: Decomposed = False, json: Json = False) -> int:
    """Say where the canonical forms of two models differ.

    Exits with 1 if they do.
    """
    from qdqbridge.cli.failures import DONE, NOT_MET

    graphs = (pipeline.load(model, decomposed=decomposed) for model in (a, b))
    found = pipeline.diff(*graphs)
    if json:
        output.show_json(render_checks.differences_json(found))
    else:
        output.show(*render_checks.differences_parts(found))
    return NOT_MET if found else DONE


@app.command
def to_tvm(
    model: Model,
    /,
    *,
    output_: Out,
    params: Annotated[
        Path | None,
        Parameter(help="An .npz file for the constants of 64 KiB or more (.json and .py only)."),
    ] = None,
    target: Target = "llvm",
    force: Force = False,
    decomposed: Decomposed = False,
    json: Json = False,
) -> None:
    """Write a model for TVM: .json (Relax module), .py (TVMScript) or .so (compiled)."""
    path = output.free(output_, force=force, model=model)
    constants = None if params is None else output.free(params, force=force, model=model)
    _check_suffix(path, constants)
    graph = pipeline.load(model, decomposed=decomposed)
    with output.status("compiling"):
        number = pipeline.export_tvm(graph, path, target, params=constants)
    if constants is not None and not number:
        output.say(f"no constant has 64 KiB or more: {constants} is not written")
        constants = None
    if json:
        names = {"output": str(path), "params": None if constants is None else str(constants)}
        output.show_json({**names, "digest": graph.digest})
    else:
        output.show_text(str(path))


def _check_suffix(path: Path, params: Path | None) -> None:
    if path.suffix not in (".json", ".py", ".so"):
        raise UnsupportedTargetError(
            f"'{path.name}' has no known suffix", fix="end it in .json, .py or .so"
        )
    if params is not None and (params.suffix != ".npz" or params.resolve() == path.resolve()):
        raise InputDataError(
            "--params needs a file of its own that ends in .npz", why=f"it is '{params}'"
        )
    if path.suffix == ".so" and params is not None:
        raise UnsupportedTargetError(
            "a compiled module holds its constants itself", fix="leave --params out"
        )
