"""The verb ``view``: a page that shows a model, or two beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from numpy.typing import NDArray

from qdqbridge.app import hosting, judging, pipeline, viewing
from qdqbridge.app.cli import files, output
from qdqbridge.app.cli.files import AS_IT_IS, Reading
from qdqbridge.app.cli.parameters import Extents, Force, Json, Model, extents_of
from qdqbridge.app.viewer import (
    Document,
    Paint,
    document,
    document_of_two,
    model_explorer_text,
    node_data_texts,
    page,
    with_metadata,
)
from qdqbridge.app.viewer.document import NO_DIGEST
from qdqbridge.core.graph.atomic_write import write_text
from qdqbridge.core.graph.batches import batches
from qdqbridge.core.graph.copying import with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError
from qdqbridge.options import EngineName
from qdqbridge.targets.engines.kinds import ENGINES

Other = Annotated[Path | None, Parameter(help="A second model; the page shows what differs.")]
Page = Annotated[Path, Parameter(name=("--output", "-o"), help="The .html file to write.")]
Data = Annotated[
    Path | None,
    Parameter(help="An .npz file with one array per model input; adds histograms of a run."),
]
TableName = Annotated[
    str | None, Parameter(name="--table", help="Colour nodes by what a pattern table takes.")
]
Engine = Annotated[EngineName | None, Parameter(help="Colour nodes by what an engine takes.")]
Reference = Annotated[
    str | None,
    Parameter(
        help="Colour nodes by their error against 'onnxruntime', an engine, or another file."
    ),
]
Timed = Annotated[
    bool,
    Parameter(
        name="--profile-kernels",
        negative="",
        help="Colour nodes by the time of their kernels, compiled by TVM for this machine.",
    ),
]
Explorer = Annotated[
    Path | None,
    Parameter(
        help="Also write a .json for Google's Model Explorer, with a file of node data for each "
        "colouring beside it."
    ),
]
Annotated_ = Annotated[
    Path | None,
    Parameter(
        name="--netron",
        help="Also write the model as an .onnx file whose node metadata holds what the page says, "
        "for Netron. The digest is unchanged.",
    ),
]


def view(
    model: Model,
    other: Other = None,
    /,
    *,
    output_: Page,
    data: Data = None,
    table: TableName = None,
    engine: Engine = None,
    reference: Reference = None,
    profile_kernels: Timed = False,
    model_explorer: Explorer = None,
    netron: Annotated_ = None,
    extent: Extents = (),
    force: Force = False,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> None:
    """Write a page that shows a model in any browser: graph, types, histograms, colours.

    With two models it shows both, what corresponds and what differs.
    """
    path = output.free(output_, force=force, model=model, data=data, suffix=".html")
    explorer = _free(model_explorer, model, data, ".json", force=force)
    annotated = _free(netron, model, data, ".onnx", force=force)
    if annotated is not None and other is not None:
        raise InputDataError("two models are no one .onnx file", fix="leave --netron out")
    graph = with_numbers(reading.read_any(model), extents_of(extent))
    if other is not None:
        if data is not None or table or engine or reference or profile_kernels:
            raise InputDataError(
                "two models are coloured by what differs",
                fix="leave --data, --table, --engine, --reference and --profile-kernels out, or "
                "give one model",
            )
        theirs = with_numbers(reading.read_any(other), extents_of(extent))
        shown = document_of_two(
            _graph_with_explanation(graph, model), _graph_with_explanation(theirs, other)
        )
    else:
        inputs = None if data is None else files.read_inputs(data, graph.inputs)
        with ExitStack() as stack:
            judged = _Judged(reading.file(model), graph, inputs, stack)
            paints = tuple(judged.paints(table, engine, reference, timed=profile_kernels))
        recorded = None if inputs is None else viewing.record(graph, inputs)
        name, notes = model.name, pipeline.explain(graph)
        shown = document(graph, name, notes, paints=paints, recorded=recorded)
    texts = {} if explorer is None else _for_model_explorer(explorer, shown, model, force=force)
    for file, text in {path: page(shown), **texts}.items():
        write_text(file, text)
        output.say(f"wrote {file}")
    if annotated is not None:
        pipeline.save(with_metadata(graph, shown), annotated, overwrite=force)
        output.say(f"wrote {annotated}")
    if json:
        output.show_json(_summary(shown, path, explorer, list(texts)[1:], annotated))


def _free(
    path: Path | None, model: Path, data: Path | None, suffix: str, *, force: bool
) -> Path | None:
    if path is None:
        return None
    return output.free(path, force=force, model=model, data=data, suffix=suffix)


def _for_model_explorer(
    path: Path, shown: Document, model: Path, *, force: bool
) -> dict[Path, str]:
    """Returns the files to write: the graph, and for each colour node data beside it."""
    data = {
        output.free(
            path.with_suffix(f".{name}.json"), force=force, model=model, suffix=".json"
        ): text
        for name, text in node_data_texts(shown).items()
    }
    return {path: model_explorer_text(shown), **data}


def _graph_with_explanation(graph: Graph, path: Path) -> tuple[Graph, str, Any]:
    return graph, path.name, pipeline.explain(graph)


def _summary(
    shown: Document, path: Path, explorer: Path | None, beside: Sequence[Path],
    annotated: Path | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "output": str(path),
        "model_explorer": None if explorer is None else str(explorer),
        "node_data": [str(each) for each in beside],
        "netron": None if annotated is None else str(annotated),
        "nodes": [len(graph["nodes"]) for graph in shown.graphs],
        "digests": [
            None if graph["digest"].startswith(NO_DIGEST) else graph["digest"]
            for graph in shown.graphs
        ],
        "differences": len(shown.differences),
        "colours": [paint["name"] for paint in shown.graphs[0]["paints"]],
    }


class _Judged:
    """What others say of one model."""

    def __init__(
        self,
        file: Path | None,
        graph: Graph,
        inputs: dict[str, NDArray[Any]] | None,
        stack: ExitStack,
    ) -> None:
        self.file, self.graph, self.inputs, self.stack = file, graph, inputs, stack

    def paints(
        self, table: str | None, engine: str | None, reference: str | None, *, timed: bool
    ) -> Iterator[Paint]:
        """Yields the colours that were asked for."""
        if timed:
            yield self._time()
        if reference is not None:
            yield self._error(reference)
        if engine is not None:
            with output.status(f"asking {engine}"):
                opened = self.stack.enter_context(judging.opened(engine, self.file, self.graph))
                yield viewing.engine_paint(self.graph, opened.taken())
        if table is not None:
            with output.status("partitioning"):
                found = hosting.partition(self.graph, table)
            yield viewing.coverage_paint(self.graph, found.coverage)

    def _time(self) -> Paint:
        if self.inputs is None:
            raise InputDataError(
                "--profile-kernels needs data to run the model on", fix="give --data x.npz"
            )
        # TVM is an extra: without it the page is written without these colours.
        from qdqbridge.tvm.relax.kernel_times import node_times

        # Kernels are timed by the shapes that the model has: one batch says as much as all.
        first = next(iter(batches(self.graph.inputs, self.inputs)))
        with output.status("compiling"):
            executable = hosting.compile(self.graph)
        with output.status("timing kernels"):
            return viewing.time_paint(self.graph, node_times(executable, first.inputs))

    def _error(self, reference: str) -> Paint:
        if self.inputs is None:
            raise InputDataError(
                "--reference needs data to run the model on", fix="give --data x.npz"
            )
        with output.progress("batches") as report:
            found = pipeline.compare(
                self.graph, self._side(reference), self.inputs, local=True, progress=report
            )
        return viewing.error_paint(self.graph, found)

    def _side(self, name: str) -> pipeline.Side:
        if name == "onnxruntime":
            return self.stack.enter_context(pipeline.as_onnx(self.file, self.graph))
        if name in ENGINES:
            return self.stack.enter_context(judging.opened(name, self.file, self.graph))
        return name
