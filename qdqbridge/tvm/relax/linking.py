"""The compiler that makes a library of code for a target: one that is given, or that is found."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qdqbridge.errors import InputDataError, OutputFileError
from qdqbridge.tvm.relax.kernels.codegen.cpu import architecture_of, host_architecture

Compiler = str | Sequence[str]
"""A command, with what goes before the files: ``clang --target=aarch64-linux-gnu``, say."""
_SECONDS = 600
"""What linking one library may take."""


def link_command(target: Any, cc: Compiler | None, path: Path) -> list[str] | None:
    """Returns the command that links code for a target; None for TVM's own choice.

    Args:
        target: A TVM target.
        cc: The command; None to find one where the target is another architecture than this one's.
        path: The library, which an error names.

    Raises:
        InputDataError: ``cc`` is no command.
        OutputFileError: There is none.
    """
    if cc is not None:
        command = _words(cc)
        if not command or shutil.which(command[0]) is None:
            raise OutputFileError(
                "cannot link the library", where=str(path), why=f"there is no command {cc!r}",
                fix="give the command of a C compiler as cc",
            )  # fmt: skip
        return command
    if architecture_of(target) == host_architecture():
        return None
    triple = str(target.attrs["mtriple"])
    found = next((command for command in _candidates(triple) if command is not None), None)
    if found is None:
        raise OutputFileError(
            "cannot link the library",
            where=str(path),
            why=f"there is no compiler for {triple}",
            fix=f"install one (Debian: gcc-{_debian(triple)}), or pip install 'qdqbridge[cross]', "
            "or name a command as cc",
        )
    return found


def _words(cc: Any) -> list[str]:
    try:
        words = shlex.split(cc) if isinstance(cc, str) else list(cc)
    except (TypeError, ValueError) as error:  # no sequence, or quotes that do not close
        raise _no_command(cc) from error
    if not all(isinstance(word, str) and word for word in words):
        raise _no_command(cc)
    return words


def _no_command(cc: Any) -> InputDataError:
    return InputDataError(
        f"cc is {cc!r}", fix="give the command of a C compiler, as a string or as its words"
    )


def _candidates(triple: str) -> list[list[str] | None]:
    """Returns commands for a triple, as such compilers are called; None for what is not there."""
    short = "-".join(part for part in triple.split("-") if part != "unknown")
    gcc = next((f"{name}-gcc" for name in (triple, short) if shutil.which(f"{name}-gcc")), None)
    clang = shutil.which("clang") and shutil.which("ld.lld")
    zig = importlib.util.find_spec("ziglang")
    return [
        [gcc] if gcc else None,
        # without the libraries of that system, which the program that loads it has
        ["clang", f"--target={triple}", "-fuse-ld=lld", "-nostdlib"] if clang else None,
        [sys.executable, "-m", "ziglang", "cc", "-target", short] if zig else None,
    ]


def _debian(triple: str) -> str:
    parts = [part for part in triple.split("-") if part != "unknown"]
    return "-".join(parts).replace("_", "-")


def shared(command: Sequence[str]) -> Callable[..., None]:
    """Returns TVM's ``fcompile`` of a command."""

    def compile_shared(output: str, objects: Sequence[str], **_: Any) -> None:
        whole = [*command, "-shared", "-fPIC", "-o", output, *objects]
        try:
            done = subprocess.run(
                whole, capture_output=True, text=True, errors="replace", check=False,
                timeout=_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{command[0]} did not end within {_SECONDS} seconds") from error
        if done.returncode:
            raise RuntimeError(done.stderr or f"{command[0]} ended with {done.returncode}")

    compile_shared.object_format = "o"  # pyright: ignore[reportFunctionMemberAccess]
    return compile_shared
