"""Parameters that several verbs have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qdqbridge.app.cli.helping import MORE
from qdqbridge.errors import InputDataError
from qdqbridge.options import RelayVariant

Model = Annotated[
    Path,
    Parameter(help="The model: .onnx, .tflite, or a Relax module as .json or .py (TVMScript)."),
]
Data = Annotated[
    Path, Parameter(help="An .npz file with one array per model input; examples along axis 0.")
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print machine-readable JSON.")]
Force = Annotated[bool, Parameter(negative=(), help="Overwrite existing files.")]
Out = Annotated[Path, Parameter(name=("--output", "-o"), help="The file to write.")]
MaybeOut = Annotated[Path | None, Parameter(name=("--output", "-o"), help="A file to write to.")]
Target = Annotated[
    str,
    Parameter(
        help="The TVM target, or a machine and its CPU such as aarch64-linux-gnu/neoverse-n1; "
        "'host' is this machine's CPU."
    ),
]
Threads = Annotated[
    int | None,
    Parameter(help="Worker threads; by default TVM_NUM_THREADS, or half of the machine's."),
]
Variant = Annotated[
    RelayVariant,
    Parameter(
        group=MORE, help="For .relay output: the dialect variant, by whose pattern tables match it."
    ),
]
Extents = Annotated[
    tuple[str, ...],
    Parameter(
        name="--extent",
        negative=(),
        help="Fixes an extent, as in batch=1; repeatable.",
    ),
]


def extents_of(texts: Sequence[str]) -> dict[str, int]:
    """Returns extents by name.

    Raises:
        InputDataError: A text is not of the form ``batch=1``.
    """
    found: dict[str, int] = {}
    for text in texts:
        name, sign, number = text.partition("=")
        if not (name and sign and number.isdecimal()):
            raise InputDataError(
                f"--extent {text!r} is not of the form NAME=NUMBER", fix="write it as batch=1"
            )
        found[name] = int(number)
    return found
