"""Relax modules as files."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import mmap
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import ir
from tvm_ffi.libinfo import include_paths

from qdqbridge.core.graph.atomic_write import write_text
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.errors import InputDataError, OutputFileError
from qdqbridge.tvm.qnn.emit.emitter import as_bytes, tvm_dtype
from qdqbridge.tvm.relax.kernels.codegen.processors import architecture_of, host_architecture

# ---- linking -------------------------------------------------------------------------------------
# The compiler that makes a library of code for a target: one that is given, or that is found.


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


OPTIONS = ("-O3", "-ffp-contract=off")
"""For the C of a code generator; TVM's own code is compiled by then. Compilers that optimize make a
product and a sum one instruction where a CPU has it, which rounds floats once instead of twice."""


def shared(command: Sequence[str]) -> Callable[..., None]:
    """Returns TVM's ``fcompile`` of a command."""

    def compile_shared(
        output: str, objects: Sequence[str], options: Sequence[str] = (), **_: Any
    ) -> None:
        sources = any(name.endswith((".c", ".cc")) for name in objects)  # of a code generator
        headers = [f"-I{include_path}" for include_path in include_paths()] if sources else []
        whole = [*command, *headers, *options, "-shared", "-fPIC", "-o", output, *objects]
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


# ---- Relax modules as files ----------------------------------------------------------------------


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
                library.export_library(
                    str(scratch), workspace_dir=folder, fcompile=how, options=list(OPTIONS)
                )
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


# ---- Arrays as TVM's tensors and back, without a copy where memory allows it ---------------------


Array = NDArray[Any]
ALIGNMENT = 64
"""Bytes; TVM's code reads tensors in vectors of this size."""


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns an array with uninitialized elements that TVM takes without a copy."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, memory, -_address(memory) % ALIGNMENT)


def lasting(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns an array as :func:`aligned` does, for weights that every run reads.

    Large ones lie in as many large pages as they fill, if the system has some left: what is read
    from one end to the other, as a weight that meets one row, is read up to a third faster from
    these (measured). The heap has small ones, which it hands out again.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LARGE or _IN_LARGE_PAGES is None:
        return aligned(shape, dtype)
    memory = mmap.mmap(-1, nbytes + _LARGE, _PRIVATE)
    start = -_address(np.frombuffer(memory, np.uint8)) % _LARGE
    with contextlib.suppress(OSError):  # a system without them
        memory.madvise(_IN_LARGE_PAGES, start, nbytes // _LARGE * _LARGE)
    return np.frombuffer(memory, np.uint8, nbytes, start).view(dtype).reshape(shape)


_LARGE = 1 << 21
"""Bytes of a large page of memory."""
_IN_LARGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


def handed_over(array: Array) -> bool:
    """True where TVM can read an input in the caller's memory.

    It has to lie in C order from a multiple of 64 bytes on and be writable (DLPack has no way to
    say that it is not), with an element type that DLPack and TVM have.
    """
    if array.dtype not in _PLAIN or not array.flags.carray:  # in C order, writable, aligned
        return False
    return _address(array) % ALIGNMENT == 0


PLAIN = frozenset(
    dtype for dtype in DType if dtype.numpy.kind in "iuf" and dtype.numpy.isbuiltin == 1
)
"""Element types that NumPy, DLPack and TVM have."""
_PLAIN = frozenset(dtype.numpy for dtype in PLAIN)


def _address(array: Array) -> int:
    return array.__array_interface__["data"][0]


def to_tensor(array: Array, device: Any) -> Any:
    """Returns an input as TVM holds it: a byte per element of a sub-byte type.

    What cannot be handed over is copied: by NumPy where DLPack has the type, since TVM's way takes
    ten times as long.
    """
    if not array.size:  # NumPy gives it strides that TVM does not take
        return tvm.runtime.empty(array.shape, tvm_dtype(DType.of(array.dtype)), device)
    if handed_over(array):
        return tvm.runtime.from_dlpack(array)
    if array.dtype not in _PLAIN:
        array = as_bytes(np.asarray(array, order="C"))
        array = array.astype(tvm_dtype(DType.of(array.dtype)), copy=False)
    if array.dtype not in _PLAIN:
        return tvm.runtime.tensor(array, device)
    copy = aligned(array.shape, array.dtype)
    np.copyto(copy, array)
    return tvm.runtime.from_dlpack(copy)


def to_array(tensor: Any) -> Array:
    """Returns a copy of a result."""
    if str(tensor.dtype).rstrip("0123456789") not in ("int", "uint", "float"):
        return tensor.numpy()
    return np.from_dlpack(tensor).copy()
