"""The verb ``blame``: which tensor of a quantized model loses the accuracy, why, and what helps."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from qdqbridge.app import judging, pipeline, viewing
from qdqbridge.app.cli import files, output
from qdqbridge.app.cli.files import AS_IT_IS, Reading
from qdqbridge.app.cli.parameters import Extents, Force, Json, Model, extents_of
from qdqbridge.app.report.articles import blame_article, cause_of, gain_of, repair_of
from qdqbridge.app.sources import is_onnx
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError

if TYPE_CHECKING:
    from qdqbridge.autoquant.attribution import Attribution

LITERT, TOSA = "litert", "tosa"
Quantized = Annotated[
    Path | None,
    Parameter(help="The quantized version of the first model; leave it out to blame an engine."),
]
Runner = Annotated[
    str | None,
    Parameter(
        help="The runtime to examine, 'onnxruntime' or an engine: which of its kernels deviate "
        "from the numeric contract."
    ),
]
Data = Annotated[Path, Parameter(help="An .npz file with one array per model input.")]
Samples = Annotated[int, Parameter(help="The largest number of examples to run.")]
Repaired = Annotated[int, Parameter(help="How many of the worst tensors to try repairs for.")]
Rows = Annotated[int, Parameter(help="How many tensors to list.")]
Page = Annotated[
    Path | None,
    Parameter(name="--page", help="Write an .html page of the model, coloured by the damage."),
]
_HIGHER = 5
"""By how many decibels a goal is higher where no single repair helps."""
_LEAST_LOSS = 0.5
"""What pairs that saturate may cost, in dB, without a word."""


def blame(
    reference: Model,
    quantized: Quantized = None,
    /,
    *,
    data: Data,
    engine: Runner = None,
    samples: Samples = 64,
    repairs: Repaired = 5,
    rows: Rows = 10,
    page: Page = None,
    extent: Extents = (),
    force: Force = False,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> None:
    """Find the tensors of a quantized model that lose the accuracy, the cause, and what helps.

    The first model is the float one; the second may come from any tool and use other names. With
    one model and --engine: which nodes that engine computes differently from the contract.
    """
    from qdqbridge.autoquant.attribution import attribute, attribute_to_kernels
    from qdqbridge.onnx_io.runtime.products import saturating_products

    if samples < 1:
        raise InputDataError(
            f"--samples {samples} leaves no example to run", fix="give --samples 1 or more"
        )
    path = None
    if page is not None:
        path = output.free(page, force=force, model=quantized or reference, data=data,
                           suffix=".html")  # fmt: skip
    if quantized is None and engine is None:
        raise InputDataError(
            "one model has nothing to be blamed against",
            fix="give the float model and the quantized one, or --engine",
        )
    extents = extents_of(extent)
    file, original = quantized or reference, reading.read_any(reference)
    theirs = original if quantized is None else reading.read_any(file)
    original, theirs = _with_numbers(original, theirs, extents)
    inputs = files.read_inputs(data, original.inputs)
    files.tell_misfits(theirs, inputs)
    few = {name: array[:samples] if array.ndim else array for name, array in inputs.items()}
    with ExitStack() as stack:
        ran = None
        if engine in (LITERT, TOSA):  # of a file's outputs alone nobody could tell which kernel
            theirs, ran = pipeline.litert(theirs, engine=engine)
        elif engine is not None:
            ran = pipeline.engine_of(_runner(engine, reading.file(file), theirs, stack))
        if quantized is None and ran is not None:
            with output.status(f"running {ran.label}"):
                found = attribute_to_kernels(theirs, ran, few)
        else:
            report = stack.enter_context(output.progress("tensors"))
            own = reading.file(file)
            found = attribute(
                original, theirs, few, repaired=repairs, engine=ran, progress=report,
                saturating=None if own is None or not is_onnx(own) else saturating_products(own),
            )  # fmt: skip
    asked = quantized is not None and repairs > 0 and math.isfinite(found.quantized_db)
    next_ = _repaired(found, reference, file, data) if asked else []
    if path is not None:
        paints = (viewing.damage_paint(theirs, found), *viewing.node_paints(theirs, found))
        kernels = quantized is None
        lines = _kernel_lines(found) if kernels else [*_lines(found), *next_]
        article = blame_article(found, file.name, lines, kernels=kernels)
        viewing.view(theirs, path=path, paints=paints, report=article)
        output.say(f"wrote {path}")
    if json:
        output.show_json(_json(found))
    else:
        output.show(*(_kernel_parts if quantized is None else _render_attribution)(found, rows))
        output.show_text("\n".join(next_))  # a command that is wrapped cannot be copied


def _with_numbers(
    original: Graph, theirs: Graph, extents: Mapping[str, int]
) -> tuple[Graph, Graph]:
    """Returns both models, each with numbers for the extents that it leaves open.

    One of them may be written for fixed shapes; a name that neither has is refused.
    """
    if original is theirs:
        made = with_numbers(original, extents)
        return made, made
    known = [set(symbolic_extents(graph)) for graph in (original, theirs)]
    nobodys = {name: n for name, n in extents.items() if name not in known[0] | known[1]}
    first, second = (
        with_numbers(graph, {n: e for n, e in extents.items() if n in own} | nobodys)
        for graph, own in zip((original, theirs), known, strict=True)
    )
    return first, second


def _runner(engine: str, file: Path | None, graph: Graph, stack: ExitStack) -> pipeline.Side:
    if engine == "onnxruntime":
        return stack.enter_context(pipeline.as_onnx(file, graph))
    return stack.enter_context(judging.opened(engine, file, graph))


def _json(found: Attribution) -> dict[str, Any]:
    return {
        "quantized_db": found.quantized_db,
        "simulated_db": found.simulated_db,
        "repaired_db": found.repaired_db,
        "paired_db": found.paired_db,
        "aligned": found.aligned,
        "unknown": list(found.unknown),
        "engine": found.engine or None,
        "unseen": list(found.unseen),
        "left_out": list(found.left_out),
        "scaled": list(found.scaled),
        "options": list(found.options),
        "nodes": [
            {
                "name": each.name, "operator": each.operator, "tensor": each.tensor,
                "added_db": each.added_db, "inherited_db": each.inherited_db,
                "outputs_added_db": each.outputs_added_db,
                "outputs_inherited_db": each.outputs_inherited_db, "parts_db": dict(each.parts),
            }
            for each in found.nodes
        ],
        "tensors": [
            {
                "name": each.name, "quantized_name": each.quantized_name,
                "kind": each.kind, "node": each.node,
                "alone_db": each.alone_db, "added_db": each.added_db, "gain_db": each.gain_db,
                "cause": each.cause, "causes": dict(each.causes),
                "repair": each.repair, "repair_db": each.repair_db,
                "options": list(each.options),
            }
            for each in found.tensors
        ],
    }  # fmt: skip


def _render_attribution(found: Attribution, rows: int) -> list[Any]:
    table = Table(title="tensors, the worst first", title_justify="left")
    for head in ("tensor", "node", "cause"):
        table.add_column(head, overflow="fold")
    for head in ("own dB", "outputs dB", "gain dB"):
        table.add_column(head, justify="right")
    table.add_column("tried, and helps", overflow="fold")
    for each in found.tensors[:rows]:
        table.add_row(
            Text(each.name), Text(each.node), Text(cause_of(each)), _format_decibels(each.added_db),
            _format_decibels(each.alone_db), gain_of(each), Text(repair_of(each)),
        )  # fmt: skip
    return [Text("\n".join(_lines(found))), table, _nodes(found, rows)]


def _repaired(found: Attribution, model: Path, quantized: Path, data: Path) -> list[str]:
    """Returns what the proposed repairs give together, and the command that makes them."""
    told, options = ["qdqbridge", "quantize", str(model), "--data", str(data)], found.options
    said = (
        f"repaired so, all else as it is: {_format_decibels(found.repaired_db)} dB instead of "
        f"{_format_decibels(found.simulated_db)}. Quantize anew with these formats (and the "
        "--target that the file is for), and see what that gives:"
    )
    if not found.repaired:
        said = (
            "no repair of a single tensor brings the outputs closer: roundings make up for one "
            "another. A goal gives layers more bits until it is met (add the options that the file "
            "was made with):"
        )
        options = ("--min-sqnr", f"{math.floor(found.quantized_db) + _HIGHER}")
    made = quantized.with_name(f"{quantized.stem}_repaired.onnx")
    return [said, shlex.join([*told, *options, "-o", str(made)])]


def _lines(found: Attribution) -> list[str]:
    """Returns what is said of the outputs, and of what was not looked at."""
    lines = [
        f"outputs{_run_by(found)}: {_format_decibels(found.quantized_db)} dB of signal to noise; "
        f"the tensors below explain {_format_decibels(found.simulated_db)} dB",
        f"aligned: {found.aligned:.1%} of the quantized model's nodes",
    ]
    if found.paired_db is not None and found.quantized_db - found.paired_db > _LEAST_LOSS:
        lines.append(
            f"on x86 with AVX2 and without VNNI, where onnxruntime's pairs of products saturate: "
            f"{_format_decibels(found.paired_db)} dB, not "
            f"{_format_decibels(found.quantized_db)} (quantize with --avoid-pairs, for up to a bit "
            "of weights)"
        )
    if found.left_out:
        places = _listed([str(place) for place in found.left_out])
        lines.append(
            f"left out: {len(found.left_out)} of the samples, that hold NaN or of which the float "
            f"model makes no finite number (counted from 0: {places})"
        )
    if found.scaled:
        lines.append(
            f"channels of {len(found.scaled)} tensors were scaled, with the weights that read them "
            f"({_listed(found.scaled)}): errors are measured against the float model scaled alike"
        )
    if found.unknown:
        lines.append(
            f"nothing corresponds to {_listed(found.unknown)}: their errors are not looked at"
        )
    if found.unseen:
        lines.append(
            f"{found.engine} does not show {_listed(found.unseen)}: what is off there is counted "
            "behind them"
        )
    return lines


def _kernel_parts(found: Attribution, rows: int) -> list[Any]:
    """Returns what is said of two runtimes of one model."""
    lines = _kernel_lines(found)
    if not found.tensors:
        return [Text("\n".join(lines))]
    table = Table(title="nodes, the worst first", title_justify="left")
    for head in ("tensor", "node", "cause"):
        table.add_column(head, overflow="fold")
    for head in ("own dB", "outputs dB"):
        table.add_column(head, justify="right")
    for each in found.tensors[:rows]:
        table.add_row(
            Text(each.name), Text(each.node), Text(cause_of(each)), _format_decibels(each.added_db),
            _format_decibels(each.alone_db),
        )  # fmt: skip
    return [Text("\n".join(lines)), table]


def _kernel_lines(found: Attribution) -> list[str]:
    lines = [
        f"outputs of {found.engine} against the contract: "
        f"{_format_decibels(found.quantized_db)} dB of signal to noise; "
        f"the kernels below explain {_format_decibels(found.simulated_db)} dB",
    ]
    if found.unseen:
        lines.append(f"not shown by it: {_listed(found.unseen)}")
    if not found.tensors:
        lines.append("no kernel stores anything else")
    return lines


def _run_by(found: Attribution) -> str:
    return f" of {found.engine}" if found.engine else ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"


def _nodes(found: Attribution, rows: int) -> Table:
    """Returns the nodes that add most to the outputs' error."""
    table = Table(title="nodes, by what they add to the outputs' error", title_justify="left")
    for head in ("node", "what it adds, in dB"):
        table.add_column(head, overflow="fold")
    for head in ("adds dB", "inherits dB", "outputs: adds", "inherits"):
        table.add_column(head, justify="right")
    for each in sorted(found.nodes, key=lambda node: node.outputs_added_db)[:rows]:
        parts = ", ".join(f"{name} {_format_decibels(db)}" for name, db in each.parts.items())
        table.add_row(
            Text(f"{each.operator} {each.name}".strip()), Text(parts),
            _format_decibels(each.added_db),
            _format_decibels(each.inherited_db), _format_decibels(each.outputs_added_db),
            _format_decibels(each.outputs_inherited_db),
        )  # fmt: skip
    return table


def _format_decibels(db: float) -> str:
    return f"{db:.1f}" if math.isfinite(db) else ("equal" if db > 0 else "none")
