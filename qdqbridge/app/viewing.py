"""Pages that show models: the graph, and what compilers, engines and runs say of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from qdqbridge.app.pipeline import explain
from qdqbridge.app.sources import load_model
from qdqbridge.app.viewer import Document, Paint, document, document_of_two, page
from qdqbridge.app.viewer.paint import BAD, FAIR, GOOD, NEUTRAL, by_class, by_number
from qdqbridge.core.arguments import checked, path_of
from qdqbridge.core.graph.atomic_write import write_text
from qdqbridge.core.graph.batches import batches
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import check_inputs, evaluate_node

if TYPE_CHECKING:
    from qdqbridge.app.report.plots import Markup
    from qdqbridge.autoquant.attribution import Attribution, SuspectTensor
    from qdqbridge.targets.comparison.compare import Comparison
    from qdqbridge.targets.engines.kinds import EngineVerdict
    from qdqbridge.tvm.byoc.coverage import Coverage
    from qdqbridge.tvm.relax.kernel_times import NodeTimes

Array = NDArray[Any]
File: TypeAlias = "str | PathLike[str]"


@checked
def view(
    model: Graph | File,
    other: Graph | File | None = None,
    *,
    path: File | None = None,
    data: Mapping[str, Array] | None = None,
    paints: Sequence[Paint] = (),
    report: Markup | None = None,
) -> Document:
    """Writes a page that shows a model, or two models compared, and returns its contents.

    Args:
        model: A graph, or a file that is read and canonicalized.
        other: A second model; the page shows the differences.
        path: The ``.html`` file to write; it needs no server, no network and no other files.
        data: One array per graph input. The interpreter runs the first batch, and the page shows
            histograms of all values.
        paints: Further ways to colour nodes.
        report: What is shown beside the graph: :func:`qdqbridge.app.report.articles.blame_article`.

    Raises:
        InputDataError: The data does not fit the model.
        OutputFileError: The page cannot be written.
        QdqBridgeError: A file cannot be read.
    """
    graph, name = _load_named_graph(model)
    if other is None:
        recorded = {} if data is None else record(graph, data)
        made = document(
            graph, name, explain(graph), paints=paints, recorded=recorded, report=report
        )
    else:
        second, second_name = _load_named_graph(other)
        made = document_of_two(
            (graph, name, explain(graph)), (second, second_name, explain(second))
        )
    if path is not None:
        write_text(Path(path), page(made))
    return made


def _load_named_graph(model: Graph | File) -> tuple[Graph, str]:
    if isinstance(model, Graph):
        return model, model.name or "graph"
    path = path_of(model)
    return load_model(path), path.name


@checked
def record(graph: Graph, data: Mapping[str, Array]) -> dict[Value, Array]:
    """Returns the stored elements of every result, for the first batch of data.

    Raises:
        InputDataError: The data does not fit.
    """
    # One batch: the values of a run are all held, and a picture needs no more.
    first = next(iter(batches(graph.inputs, data, None)))
    values = dict(zip(graph.inputs, check_inputs(graph.inputs, first.inputs), strict=True))
    for node in graph.nodes:
        operands = [None if v is None else _constant_or_viewed(v, values) for v in node.inputs]
        values.update(zip(node.outputs, evaluate_node(node, operands), strict=False))
    return values


def _constant_or_viewed(value: Value, values: Mapping[Value, Array]) -> Array:
    return values[value] if value.constant is None else value.constant.numpy()


# ---- what others say ----------------------------------------------------------------------------


def coverage_paint(graph: Graph, found: Coverage) -> Paint:
    """Returns what a pattern table takes: a node is left where an operator of its result is."""
    left = {item.name: item for item in found.left}
    places = _producers(graph)
    said: dict[Node, tuple[str, str]] = dict.fromkeys(graph.nodes, ("taken", ""))
    for name, item in left.items():
        if name in places:
            said[places[name]] = (item.kind, f"{item.operator}: {'; '.join(item.reasons)}")
    tones = {
        "taken": GOOD, "refused": BAD, "no pattern": BAD, "read elsewhere": FAIR,
        "float": NEUTRAL, "plain integers": NEUTRAL,
    }  # fmt: skip
    return by_class("table", f"Taken by {found.table}", said, graph, tones)


def engine_paint(graph: Graph, found: EngineVerdict) -> Paint:
    """Returns what an engine takes, as far as its names are those of the file's nodes."""
    nodes = {name: node for node in graph.nodes for name in (node.name, *node.origin.nodes)}
    nodes.update({v.name: node for node in graph.nodes for v in node.outputs if v.name})
    said: dict[Node, tuple[str, str]] = {}
    for each in found.placements:
        node = nodes.get(each.node)
        # A node may be several in the engine: it is taken only where all of them are.
        if node is None or (node in said and said[node][0] == "left"):
            continue
        words = "; ".join(part for part in (each.place, each.why) if part)
        said[node] = ("taken" if each.taken else "left", words)
    title = f"Taken by {found.engine}"
    return by_class("engine", title, said, graph, {"taken": GOOD, "left": BAD})


def time_paint(graph: Graph, found: NodeTimes) -> Paint:
    """Returns how long the kernel runs that writes each node's result.

    Args:
        graph: The graph that was compiled.
        found: The times of a run (:func:`qdqbridge.tvm.relax.kernel_times.node_times`).
    """
    # Kernels are called after the tensor that they write; fused ones only have the names of the
    # file's nodes.
    names = {name: node for node in graph.nodes for name in node.origin.nodes}
    names |= _producers(graph)
    whole = sum(found.seconds.values()) + found.other
    numbers: dict[Node, float] = {}
    words: dict[Node, str] = {}
    for name, seconds in found.seconds.items():
        if name in names:
            numbers[names[name]] = seconds * 1e6
            words[names[name]] = f"{found.kernels[name]}: {seconds / whole:.1%} of a run"
    title = f"Time per kernel ({whole * 1e6:.0f} µs in all)"
    return by_number("time", title, numbers, graph, unit="µs", words=words)


def error_paint(graph: Graph, found: Comparison) -> Paint:
    """Returns how far each result is from the reference: noise over signal in dB."""
    places = _producers(graph)
    numbers: dict[Node, float] = {}
    words: dict[Node, str] = {}
    for each in found.values:
        node = places.get(each.name)
        if node is None:
            continue
        numbers[node] = _shown(each.sqnr_db)
        distance = f"{each.max_abs:.3g}" if each.max_lsb is None else f"{each.max_lsb} LSB"
        causes = ", ".join(each.causes)
        words[node] = f"at most {distance}, {each.mismatches} of {each.count}" + (
            f"; {causes}" if causes else ""
        )
    title = f"{found.a} against {found.b}"
    return by_number("error", title, numbers, graph, unit="dB", higher=True, words=words)


def damage_paint(graph: Graph, found: Attribution) -> Paint:
    """Returns what the worst tensor of each node does to the outputs, and why."""
    places = _producers(graph)
    named = {name: node for node in graph.nodes for name in (*node.origin.nodes, node.name)}
    numbers: dict[Node, float] = {}
    words: dict[Node, str] = {}
    for each in found.tensors:
        place = places.get(each.quantized_name) or named.get(each.place.name if each.place else "")
        if place is None or place in numbers:
            continue
        numbers[place] = _shown(each.alone_db)
        words[place] = _blamed(each)
    title = "Outputs where only this node's tensors are rounded"
    return by_number("damage", title, numbers, graph, unit="dB", higher=True, words=words)


def node_paints(graph: Graph, found: Attribution) -> tuple[Paint, ...]:
    """Returns what every node adds to the error of its operands, and what it inherits.

    Args:
        graph: The quantized graph.
        found: Whose fault its error is.
    """
    places = _producers(graph)
    added: dict[Node, float] = {}
    inherited: dict[Node, float] = {}
    words: dict[Node, str] = {}
    for each in found.nodes:
        node = places.get(each.tensor)
        if node is None:
            continue
        added[node] = _shown(each.added_db)
        inherited[node] = _shown(each.inherited_db)
        parts = ", ".join(f"{name} {db:.1f} dB" for name, db in each.parts.items())
        outputs = f"outputs {_shown(each.outputs_added_db):.1f} dB"
        words[node] = f"{outputs}; {parts}" if parts else outputs
    return (
        by_number("added", "Error that a node adds", added, graph,
                  unit="dB", higher=True, words=words),
        by_number("inherited", "Error that it inherits", inherited, graph, unit="dB", higher=True),
    )  # fmt: skip


def _producers(graph: Graph) -> dict[str, Node]:
    """Returns the node behind each value, by the value's name and those that outputs have."""
    found = {v.name: node for node in graph.nodes for v in node.outputs if v.name}
    outputs = zip(graph.output_names, graph.outputs, strict=True)
    return found | {name: v.producer for name, v in outputs if v.producer is not None}


def _blamed(each: SuspectTensor) -> str:
    said = f"{each.name}: {each.cause}"
    return f"{said}; {each.repair} gains {each.repair_db:.1f} dB" if each.repair else said


def _shown(db: float) -> float:
    return max(min(db, _EQUAL_DB), -_EQUAL_DB)


_EQUAL_DB = 150.0
"""What equal values are shown as: more than float32 can tell apart."""
