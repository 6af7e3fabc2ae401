"""The verb ``partition``: what a backend's table takes of a model, what it leaves, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from csv import writer
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from qdqbridge.app import hosting
from qdqbridge.app.cli import output
from qdqbridge.app.cli.files import AS_IT_IS, Reading
from qdqbridge.app.cli.parameters import Extents, Json, extents_of
from qdqbridge.errors import QdqBridgeError

if TYPE_CHECKING:
    from qdqbridge.tvm.byoc.coverage import Coverage
    from qdqbridge.tvm.byoc.model import Partitioned

Dialect = Annotated[
    Literal["relax", "relay"],
    Parameter(help="Relax, or Relay (needs TVM 0.19 or older)."),
]
TableName = Annotated[
    str,
    Parameter(
        name="--table",
        help="'canonical', 'int8', 'per-tensor', your own as FILE.py:NAME (the file is run), or on "
        "Relay a table TVM ships, such as 'ethos-u'.",
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


Models = Annotated[
    tuple[Path, ...],
    Parameter(
        negative=(),
        help="Models: .onnx, .tflite, or Relax modules as .json or .py (TVMScript); "
        "several give a row each.",
    ),
]
Csv = Annotated[
    bool,
    Parameter(
        negative=(), help="Print a row for each model and reason, as comma-separated values."
    ),
]


def partition(
    model: Models,
    /,
    *,
    dialect: Dialect = "relax",
    table: TableName = "canonical",
    rewrite: DoRewrite = False,
    extent: Extents = (),
    csv: Csv = False,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> int:
    """Show what a backend's pattern table takes from models, what it leaves, and why.

    Exits with 1 if an operator on quantized values is left, with 3 if a model cannot be read; the
    others are shown all the same.
    """
    from qdqbridge.app.cli.failures import DONE, MODEL, NOT_MET, usage

    if csv and json:
        return usage("give --csv or --json")
    found: dict[str, Partitioned] = {}
    failed: dict[str, QdqBridgeError] = {}
    with output.progress("partitioning") as progress:
        for done, path in enumerate(model):
            progress(done, len(model))
            try:
                found[str(path)] = hosting.partition(
                    reading.read(path), table, dialect=dialect, rewrite=rewrite,
                    extents=extents_of(extent),
                )  # fmt: skip
            except QdqBridgeError as error:
                if len(model) == 1:
                    raise
                failed[str(path)] = error
    _show(found, failed, dialect=dialect, csv=csv, json=json)
    if failed:
        return MODEL
    return DONE if all(each.coverage.complete for each in found.values()) else NOT_MET


def _show(
    found: Mapping[str, Partitioned], failed: Mapping[str, QdqBridgeError], *, dialect: str,
    csv: bool, json: bool,
) -> None:  # fmt: skip
    if json:
        shown = {name: _json(each, dialect) for name, each in found.items()}
        shown |= {name: {"error": error.what} for name, error in failed.items()}
        alone = len(shown) == 1
        output.show_json(
            next(iter(shown.values()))
            if alone
            else {"models": [{"model": name, **each} for name, each in shown.items()]}
        )
        return
    if csv:
        rows = [("model", "operators", "taken", "left", "operator", "kind", "count", "reason")]
        for name, each in found.items():
            rows += _rows(name, each.coverage)
        rows += [(name, "", "", "", "", "error", "", error.what) for name, error in failed.items()]
        text = StringIO()
        writer(text, lineterminator="\n").writerows(rows)
        output.show_text(text.getvalue())
        return
    for name, each in found.items():
        head = [] if len(found) + len(failed) == 1 else [name]
        lines = [_rewrite_line(each) for each in each.rewrites]
        page = each.coverage.summary() if head else each.coverage.text()
        output.show_text("\n".join([*head, *lines, page]))
    for name, error in failed.items():
        output.show_text(f"{name}\n{error}")
    if len(found) > 1 and any(each.coverage.left for each in found.values()):
        output.show_text(_reasons_of_all(found))


def _rows(name: str, coverage: Coverage) -> list[tuple[Any, ...]]:
    """Returns a row for each reason why operators were left, or one that none is."""
    left = Counter((item.operator, item.kind, "; ".join(item.reasons)) for item in coverage.left)
    taken = coverage.operators - len(coverage.left)
    counts = (name, coverage.operators, taken, len(coverage.left))
    return [
        (*counts, operator, kind, count, reason)
        for (operator, kind, reason), count in left.most_common()
    ] or [(*counts, "", "", "", "")]


def _reasons_of_all(found: Mapping[str, Partitioned]) -> str:
    """Returns what is left in how many models, the most frequent first."""
    models: dict[tuple[str, str], set[str]] = {}
    counts = Counter[tuple[str, str]]()
    for name, each in found.items():
        for item in each.coverage.left:
            key = item.operator, "; ".join(item.reasons)
            models.setdefault(key, set()).add(name)
            counts[key] += 1
    lines = ["left outside, in all models"]
    for (operator, reason), count in counts.most_common():
        within = len(models[operator, reason])
        lines += [f"  {count:4}  {operator} (in {within} of {len(found)})", f"        {reason}"]
    return "\n".join(lines)


def _json(found: Partitioned, dialect: str) -> dict[str, Any]:
    rewrites = [_rewrite_json(each) for each in found.rewrites]
    return {"dialect": dialect, **found.coverage.json(), "rewrites": rewrites}


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
