"""Relax modules as files."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm
from tvm import ir

from qdqbridge.core.graph.atomic_write import write_text
from qdqbridge.errors import OutputFileError
from qdqbridge.tvm.relax.linking import shared


def write_module(module: ir.IRModule, path: Path) -> None:
    """Writes a module: ``.json`` for TVM to load, ``.py`` (TVMScript) for people to read.

    TVMScript holds its constants as metadata; TVM reads it back where all extents are fixed.
    Loading the JSON needs ``import qdqbridge.tvm.relax.dialect`` first, which registers ``qnn.*``.

    Args:
        module: Any Relax module.
        path: Where to; its suffix says how.

    Raises:
        OutputFileError: The operating system refuses.
    """
    if path.suffix == ".py":
        text = module.script(show_meta=True) + "\n"  # the metadata holds the constants
    else:
        text = tvm.ir.save_json(module)
    write_text(path, text)


def write_library(
    library: Any, scratch: Path, nbytes: int, path: Path, command: Sequence[str] | None = None
) -> None:
    """Writes compiled code, without the warning that TVM prints for each of its constants.

    Args:
        library: What TVM compiled.
        scratch: Where to; the linker's files lie in a folder beside it meanwhile.
        nbytes: About what constants and code take in it.
        path: The file that it becomes, which errors name.
        command: What links it; None for the compiler of this machine.

    Raises:
        OutputFileError: The linker refuses.
        OSError: The operating system refuses.
    """
    with tempfile.TemporaryDirectory(
        prefix=f".{scratch.name[:80]}.", dir=scratch.parent, ignore_cleanup_errors=True
    ) as folder:
        _reserve(Path(folder) / "reserved", _COPIES * nbytes + _LEAST)
        try:
            with without_lines(b"Warning: Scope Saving"):
                how = None if command is None else shared(command)
                library.export_library(str(scratch), workspace_dir=folder, fcompile=how)
        except RuntimeError as error:  # the linker's words, behind those of TVM
            raise OutputFileError(
                "cannot link the library",
                where=str(path),
                why=_last_line(error),
                fix="check that a C compiler works, and the free space, also for temporary files; "
                "code for another machine takes its compiler (cc)",
            ) from error


_COPIES, _LEAST = 3, 2 << 20
"""Constants and code lie in two object files and in the library."""


def _reserve(path: Path, nbytes: int) -> None:
    """Sees whether there is space: LLVM ends the whole process where there is none."""
    block = bytes(1 << 20)
    with path.open("wb") as stream:
        for _ in range(-(-nbytes // len(block))):
            stream.write(block)
    path.unlink()


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Command line:")]
    return lines[-1][:300] if lines else type(error).__name__


_TURN = threading.RLock()


@contextmanager
def without_lines(noise: bytes) -> Generator[None, None, None]:
    """Holds back what is written to file descriptor 2, and leaves out the lines with ``noise``.

    The process has one such descriptor: one thread after another turns it aside.
    """
    with _TURN, tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if noise not in line:
                    os.write(2, line)
