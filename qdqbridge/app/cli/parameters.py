"""Parameters that several verbs have, and help that fits one screen."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from cyclopts.help import DefaultFormatter

from qdqbridge.errors import InputDataError
from qdqbridge.options import RelayVariant

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions


# ---- helping -------------------------------------------------------------------------------------
# Help that fits one screen: further options are one line per group, unless ``--help-all`` asks.


ALL = "--help-all"
QUANTIZED = Group("I have a quantized model", sort_key=1)
FLOAT = Group("I have a float model", sort_key=2)
COMPILED = Group("I compile with TVM, or have an accelerator", sort_key=3)
HERE = Group("This installation", sort_key=4)
MORE = Group("Further options", sort_key=5)
READ = Group("How the model is read", sort_key=9)
FORMATS = Group("Formats: what is quantized, and how", sort_key=1)
GOALS = Group("Sizes and times", sort_key=2)
SEARCH = Group("Search", sort_key=3)
ARITHMETIC = Group("Hardware arithmetic", sort_key=4)
_FOLDED = frozenset(group.name for group in (MORE, READ, FORMATS, GOALS, SEARCH, ARITHMETIC))


class FoldedHelp:
    """Shows panels of help; what few need is folded to its names."""

    def __init__(self) -> None:
        self._everything = False
        self._shown = DefaultFormatter()

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Shows one panel."""
        if self._everything or str(panel.title) not in _FOLDED:
            self._shown(console, options, panel)
            return
        names = [_long(entry.names) for entry in panel.entries]
        console.print(f" {panel.title} ({ALL}): {', '.join(names)}", highlight=False, markup=False)

    @contextmanager
    def unfolded(self) -> Generator[None, None, None]:
        """Shows everything inside."""
        self._everything = True
        try:
            yield
        finally:
            self._everything = False


def _long(names: Sequence[str]) -> str:
    return next((name for name in names if name.startswith("--")), "")


HELP = FoldedHelp()
EPILOGUE = (
    f"qdqbridge COMMAND --help fits a screen; {ALL} shows every option.\n\n"
    "Exit codes: 0 done; 1 a threshold or a check is not met; 2 wrong usage; 3 the model, data or "
    "target is invalid or not supported; 70 a bug; 130 interrupted; 141 nobody reads the output."
)


# ---- Parameters that several verbs have ----------------------------------------------------------


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
