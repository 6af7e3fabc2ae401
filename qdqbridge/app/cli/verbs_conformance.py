"""The verb ``conformance``: an engine on small models of which ONNX's text says what is right."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from qdqbridge.app.cli import output
from qdqbridge.app.cli.parameters import Json
from qdqbridge.options import EngineName

TestedEngine = Annotated[
    Literal[
        "interpreter",
        "tvm",
        "tvm-importer",
        "onnxruntime",
        "onnxruntime-basic",
        "onnx.reference",
        EngineName,
    ],
    Parameter(help="What runs the cases."),
]
Only = Annotated[str, Parameter(help="A part of the names of cases, or a pattern with *.")]


def conformance(
    *, engine: TestedEngine = "interpreter", only: Only = "*", json: Json = False
) -> int:
    """Run an engine on small models whose exact results ONNX's text says.

    Each case is equal, within the text's freedom, wrong, refused or crashed. Exits with 1 if any is
    wrong or crashed.
    """
    from qdqbridge.app.cli.failures import DONE, NOT_MET
    from qdqbridge.app.conforming import OUTCOMES, conform, engine_version

    with output.progress(f"running {engine}") as report:
        results = list(conform(engine, only, report))
    counts = Counter(result.outcome for result in results)
    if json:
        totals = {outcome: counts[outcome] for outcome in OUTCOMES}
        output.show_json(
            {
                "engine": engine,
                "version": engine_version(engine),
                "counts": totals,
                "cases": [asdict(each) for each in results],
            }
        )
        return NOT_MET if counts["wrong"] + counts["crashed"] else DONE
    table = Table("situation", *OUTCOMES, "first of them", box=None)
    for situation in dict.fromkeys(result.situation for result in results):
        own = [result for result in results if result.situation == situation]
        of = Counter(result.outcome for result in own)
        bad = [f"{r.name}: {r.cause}" for r in own if r.outcome in OUTCOMES[2:]]
        table.add_row(situation, *(str(of[o] or "") for o in OUTCOMES), *bad[:1])
    table.add_row("all", *(str(counts[outcome]) for outcome in OUTCOMES))
    output.show(table)
    return NOT_MET if counts["wrong"] + counts["crashed"] else DONE
