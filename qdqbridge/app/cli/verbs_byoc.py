"""The verb ``partition``: what a backend's table takes of a model, what it leaves, and why."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from qdqbridge.app import hosting
from qdqbridge.app.cli import output
from qdqbridge.app.cli.parameters import Extents, Json, Model, extents_of
from qdqbridge.app.cli.reading import AS_IT_IS, Reading

Dialect = Annotated[
    Literal["relax", "relay"],
    Parameter(help="Relax, or Relay (needs TVM 0.19 or older)."),
]
TableName = Annotated[
    str,
    Parameter(
        name="--table",
        help="'canonical', 'int8', 'per-tensor', or on Relay a table TVM ships, such as 'ethos-u'.",
    ),
]
DoRewrite = Annotated[
    bool,
    Parameter(
        name="--rewrite",
        negative=(),
        help="First rewrite the model towards the table: 8-bit types, softmax scales, clamps.",
    ),
]


def partition(
    model: Model,
    /,
    *,
    dialect: Dialect = "relax",
    table: TableName = "canonical",
    rewrite: DoRewrite = False,
    extent: Extents = (),
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> int:
    """Show what a backend's pattern table takes from a model, what it leaves, and why.

    Exits with 1 if an operator on quantized values is left.
    """
    from qdqbridge.app.cli.failures import DONE, NOT_MET

    graph = reading.read(model)
    with output.status("partitioning"):
        found = hosting.partition(
            graph, table, dialect=dialect, rewrite=rewrite, extents=extents_of(extent)
        )
    if json:
        rewrites = [_rewrite_json(each) for each in found.rewrites]
        output.show_json({"dialect": dialect, **found.coverage.json(), "rewrites": rewrites})
    else:
        lines = [_rewrite_line(each) for each in found.rewrites]
        output.show_text("\n".join([*lines, found.coverage.text()]))
    return DONE if found.coverage.complete else NOT_MET


def _rewrite_json(rewrite: Any) -> dict[str, Any]:
    return {
        "name": rewrite.name,
        "where": rewrite.where,
        "done": rewrite.done,
        "exactness": rewrite.exactness,
        "detail": rewrite.detail,
    }


def _rewrite_line(rewrite: Any) -> str:
    verb = "rewrote" if rewrite.done else "did not rewrite"
    return f"{verb} {rewrite.where} ({rewrite.name}, {rewrite.exactness}): {rewrite.detail}"
