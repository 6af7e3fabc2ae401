"""Where results and messages go: results to stdout, everything else to stderr."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from qdqbridge.control_characters import visible
from qdqbridge.core.arguments import path_of
from qdqbridge.core.graph.atomic_write import refused
from qdqbridge.errors import InputDataError, OutputExistsError, UnsupportedTargetError

# Standard streams that may be closed, broken, or of an encoding that lacks most characters.


def open_streams() -> None:
    """Opens what the shell closed (``>&-``) on the null device.

    Otherwise a model file would get the number of a standard stream, and messages be written
    into it.
    """
    handle = os.open(os.devnull, os.O_RDWR)
    while handle <= 2:
        handle = os.dup(handle)
    os.close(handle)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def any_text() -> None:
    """Lets standard streams take any text: what their encoding lacks is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence() -> None:
    """Sends what is left of the output to the null device, so that Python's exit can flush it."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
            continue
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(null, stream.fileno())
    os.close(null)


_PIPED_WIDTH = 160


class _Console(Console):
    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Escapes control characters in what is shown, after it was laid out; rich has its own."""
        return super()._render_buffer(
            each if each.control else Segment(visible(each.text), each.style) for each in buffer
        )

    def on_broken_pipe(self) -> None:
        """Lets the error out; rich would end the process with another code."""
        raise BrokenPipeError


def stdout() -> Console:
    """Returns the console for results; wide where they go to a file or a pipe."""
    return _Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def stderr() -> Console:
    """Returns the console for errors and progress."""
    return _Console(stderr=True, width=None if sys.stderr.isatty() else _PIPED_WIDTH)


def show(*parts: RenderableType) -> None:
    """Prints results for people."""
    console = stdout()
    for part in parts:
        console.print(part, highlight=False)


def tell(*parts: RenderableType) -> None:
    """Prints what was done, for people, beside the results: on standard error."""
    console = stderr()
    for part in parts:
        console.print(part, highlight=False)


def show_text(text: str) -> None:
    """Prints a text as it is, but for control characters."""
    text = visible(text)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def show_json(value: Mapping[str, Any]) -> None:
    """Prints a result for programs: one JSON object; infinities and NaN become null."""
    # A terminal of another encoding cannot print all names: escapes say the same to a program.
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    sys.stdout.write(json.dumps(_json_value(value), ensure_ascii=ascii_only, indent=2) + "\n")


def _json_value(value: Any) -> Any:
    # Python would write NaN and Infinity, which are no JSON and which other readers refuse.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def warn(message: str) -> None:
    """Prints a warning."""
    stderr().print(Text.assemble(("warning: ", "yellow"), message), soft_wrap=True)


def say(message: str) -> None:
    """Prints what was done."""
    stderr().print(Text(message, style="dim"), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Bar:
    """A progress bar, called with what is done, and of how much.

    Attributes:
        label: What it is.
        shown: The bar on the terminal.
        task: Its line.
    """

    label: str
    shown: Progress
    task: TaskID

    def __call__(self, done: int, total: int) -> None:
        """Shows how much is done."""
        self.shown.update(self.task, completed=done, total=total)

    def trying(self, what: str, left: Sequence[str]) -> None:
        """Shows what is tried now, and what then."""
        then = f", then {', '.join(left)}" if left else ""
        now = f"{self.label}: {what}{then}"
        if self.shown.disable:
            say(now)
        else:
            self.shown.update(self.task, description=now)
            self.shown.refresh()


@contextmanager
def progress(label: str) -> Generator[Bar, None, None]:
    """Shows a bar with the time taken and left; yields ``report(done, total)``.

    It is on stderr; where that is no terminal, a line for each thing that is tried.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = stderr()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield Bar(label, bar, bar.add_task(label, total=None))


@contextmanager
def status(label: str) -> Generator[None, None, None]:
    """Shows that something long is going on, where stderr is a terminal."""
    # Progress beside the results: what is piped on has only these.
    console = stderr()
    if not console.is_terminal:
        yield
        return
    with console.status(label):
        yield


def free(
    path: Path, *, force: bool, model: Path, data: Path | None = None, suffix: str = ""
) -> Path:
    """Returns ``path`` where it may be written.

    Args:
        path: The file to write.
        force: It may exist.
        model: A model that is read, and must not be replaced.
        data: A data file for which the same is true.
        suffix: What the name must end in.

    Raises:
        OutputExistsError: It exists and ``force`` is not given, or its folder does not exist.
        InputDataError: It is one of the files that are read.
        UnsupportedTargetError: It has another suffix.
    """
    for each in (path, model, *([] if data is None else [data])):
        path_of(each)
    if suffix and path.suffix != suffix:
        raise UnsupportedTargetError(
            f"'{path.name}' does not end in {suffix}", fix=f"end it in {suffix}"
        )
    for what, read in (("model", model), ("data", data)):
        if read is not None and _is_same_file(path, read):
            raise InputDataError(
                f"would overwrite the {what} that is read",
                where=str(path),
                fix="give another name; --force does not change this",
            )
    try:
        folder, there = path.is_dir(), path.exists()
    except OSError as error:  # a name that is too long
        raise refused(path, error) from error
    if folder or not path.parent.is_dir():
        raise OutputExistsError(
            f"'{path}' cannot be written",
            why="it is a folder" if folder else f"there is no folder '{path.parent}'",
            fix="give the name of a file in an existing folder",
        )
    if there and not force:
        raise OutputExistsError(f"'{path}' exists", fix="give another name, or --force")
    return path


def _is_same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:  # one of them is not there
        return False
