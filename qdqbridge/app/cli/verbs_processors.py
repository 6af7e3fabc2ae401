"""The verb ``processors``: which classes of processors have kernels, and what a library needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from qdqbridge.app import hosting
from qdqbridge.app.cli import output
from qdqbridge.app.cli.parameters import Json

Library = Annotated[
    Path | None, Parameter(help="A compiled .so: what it needs is shown, and if this CPU has it.")
]


def processors(library: Library = None, /, *, json: Json = False) -> None:
    """Show the classes of processors that compiled models have kernels for, best ones first.

    The class of this machine is marked; other processors run kernels of LLVM's plain vectors.
    """
    if library is not None:
        found = hosting.library_needs(library)
        if json:
            output.show_json({"library": str(library), **found})
            return
        lacking = ", ".join(found["missing"])
        output.show_text(f"needs {', '.join(found['features'])}")
        output.show_text(f"this CPU lacks {lacking}" if lacking else "this CPU has all of it")
        return
    rows = hosting.processors()
    if json:
        output.show_json({"processors": rows})
        return
    table = Table("class", "here", "processors and their dot product", "LLVM's features", box=None)
    for row in rows:
        here = "yes" if row["host"] else ""
        table.add_row(row["name"], here, row["about"], " ".join(row["features"]))
    output.show(table)
