"""The verb ``blame``: which tensor of a quantized model loses the accuracy, why, and what helps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from qdqbridge import viewing
from qdqbridge.cli import arrays, output
from qdqbridge.cli.parameters import Extents, Force, Json, Model, extents_of
from qdqbridge.cli.reading import AS_IT_IS, Reading
from qdqbridge.graph.copying import with_numbers

if TYPE_CHECKING:
    from qdqbridge.attribution import Attribution, SuspectTensor

Quantized = Annotated[Path, Parameter(help="The quantized model that claims to be the first one.")]
Data = Annotated[Path, Parameter(help="An .npz file with one array per model input.")]
Samples = Annotated[int, Parameter(help="Examples of the data that are run, at most.")]
Repaired = Annotated[int, Parameter(help="For how many of the worst tensors repairs are tried.")]
Rows = Annotated[int, Parameter(help="Tensors that are listed.")]
Page = Annotated[
    Path | None, Parameter(name="--page", help="An .html page of the model, coloured by damage.")
]


def blame(
    reference: Model,
    quantized: Quantized,
    /,
    *,
    data: Data,
    samples: Samples = 64,
    repairs: Repaired = 5,
    rows: Rows = 10,
    page: Page = None,
    extent: Extents = (),
    force: Force = False,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> None:
    """Say which tensors of a quantized model lose the accuracy, why, and what was tried and helps.

    The first model is the float one; the second may come from any tool and have other names.
    """
    from qdqbridge.attribution import attribute

    path = None
    if page is not None:
        path = output.free(page, force=force, model=quantized, data=data, suffix=".html")
    extents = extents_of(extent)
    original = with_numbers(reading.read_any(reference), extents)
    theirs = with_numbers(reading.read_any(quantized), extents)
    inputs = arrays.read_inputs(data, original.inputs)
    few = {name: array[:samples] if array.ndim else array for name, array in inputs.items()}
    with output.progress("tensors") as report:
        found = attribute(original, theirs, few, repaired=repairs, progress=report)
    if path is not None:
        paints = (viewing.damage_paint(theirs, found),)
        viewing.view(theirs, path=path, paints=paints)
        output.say(f"wrote {path}")
    if json:
        output.show_json(_json(found))
    else:
        output.show(*_parts(found, rows))


def _json(found: Attribution) -> dict[str, Any]:
    return {
        "quantized_db": found.quantized_db,
        "simulated_db": found.simulated_db,
        "repaired_db": found.repaired_db,
        "aligned": found.aligned,
        "unknown": list(found.unknown),
        "tensors": [
            {
                "name": each.name, "quantized_name": each.quantized_name,
                "kind": each.kind, "node": each.node,
                "alone_db": each.alone_db, "added_db": each.added_db, "gain_db": each.gain_db,
                "cause": each.cause, "causes": dict(each.causes),
                "repair": each.repair, "repair_db": each.repair_db,
            }
            for each in found.tensors
        ],
    }  # fmt: skip


def _parts(found: Attribution, rows: int) -> list[Any]:
    table = Table(title="tensors, the worst first", title_justify="left")
    for head in ("tensor", "node", "cause"):
        table.add_column(head, overflow="fold")
    for head in ("own dB", "outputs dB", "gain dB"):
        table.add_column(head, justify="right")
    table.add_column("tried, and helps", overflow="fold")
    for each in found.tensors[:rows]:
        table.add_row(
            Text(each.name), Text(each.node), Text(_cause(each)), _number(each.added_db),
            _number(each.alone_db), f"{each.gain_db:+.1f}" if each.gain_db else "",
            Text(f"{each.repair} ({each.repair_db:+.1f} dB)" if each.repair else ""),
        )  # fmt: skip
    lines = [
        f"outputs: {_number(found.quantized_db)} dB of signal to noise; the tensors below explain "
        f"{_number(found.simulated_db)} dB; repaired as proposed, {_number(found.repaired_db)} dB",
        f"aligned: {found.aligned:.1%} of the quantized model's nodes",
    ]
    if found.unknown:
        named = ", ".join(found.unknown[:5])
        more = f" and {len(found.unknown) - 5} more" if len(found.unknown) > 5 else ""
        lines.append(f"nothing corresponds to {named}{more}: their errors are not looked at")
    return [Text("\n".join(lines)), table]


def _cause(each: SuspectTensor) -> str:
    share = each.causes.get(each.cause)
    return each.cause if share is None else f"{each.cause} ({share:.0%})"


def _number(db: float) -> str:
    return f"{db:.1f}" if math.isfinite(db) else ("equal" if db > 0 else "none")
