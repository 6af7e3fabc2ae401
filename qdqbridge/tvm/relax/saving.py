"""Executables as files: a shared library that says at its end whose it is.

The file is a library that TVM loads by itself. Behind its last byte lie, for us, the interface of
the model as JSON, the digest of all before, and a mark; the loader of the operating system does
not look there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tvm

from qdqbridge.core.graph.atomic_write import placed
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.errors import InputDataError, ModelFileError, UnsupportedTargetError
from qdqbridge.tvm.relax.files import without_lines, write_library
from qdqbridge.tvm.relax.kernels.codegen.processors import (
    WRITTEN,
    architecture_of,
    cpu_features,
    host_architecture,
    host_target,
)

# ---- Which instructions compiled code may hold, and whether this CPU has them --------------------


_ARCHITECTURES = frozenset({"aarch64", "x86_64"})
_HABITS = frozenset({"branchfusion", "ermsb", "fsrm", "macrofusion", "nopl", "vzeroupper"})
"""How LLVM likes to write code for a CPU; every CPU runs it."""
_NEVER_WRITTEN = frozenset(
    {
        "cldemote",
        "clflushopt",
        "clwb",
        "clzero",
        "el2vmsa",
        "el3",
        "enqcmd",
        "ete",
        "fsgsbase",
        "hreset",
        "invpcid",
        "kl",
        "movdir64b",
        "movdiri",
        "mwaitx",
        "pconfig",
        "perfmon",
        "pku",
        "prefetchi",
        "ptwrite",
        "rdpid",
        "rdpru",
        "rtm",
        "serialize",
        "sgx",
        "shstk",
        "trbe",
        "tsxldtrk",
        "uintr",
        "usermsr",
        "waitpkg",
        "wbnoinvd",
        "widekl",
        "xsave",
        "xsavec",
        "xsaveopt",
        "xsaves",
    }
)
"""Instructions of operating systems and of programs that ask for them by name."""


def features_of(target: Any) -> list[str]:
    """Returns LLVM's names of the architecture and instruction sets of code for a target.

    Names with hyphens are LLVM's habits, but for those of AMX. What else LLVM knows of a model of
    Arm are instructions of operating systems, and versions of the architecture.

    Args:
        target: A TVM target of kind ``llvm``.
    """
    names, architecture = cpu_features(target), architecture_of(target)
    if architecture == "aarch64":
        return sorted({architecture, *(names & WRITTEN)})
    written = {name for name in names if "-" not in name or name.startswith("amx-")}
    return sorted({architecture, *written} - _HABITS - _NEVER_WRITTEN)


def missing_features(features: Iterable[str]) -> list[str]:
    """Returns which names of :func:`features_of` this CPU has not."""
    return sorted(set(features) - set(features_of(host_target())))


def need_features(features: Iterable[str], where: str = "") -> None:
    """Requires that this CPU has instruction sets: without them the process would end.

    Args:
        features: Names of :func:`features_of`.
        where: The file that holds the code, if any.

    Raises:
        UnsupportedTargetError: It has not all of them.
    """
    missing = missing_features(features)
    machines = sorted(_ARCHITECTURES & set(missing))
    if missing:
        raise UnsupportedTargetError(
            "this CPU cannot run the library" if where else "this CPU cannot run the executable",
            where=where,
            why=f"it is {host_architecture()}, and the code is for {machines[0]}"
            if machines
            else f"it has no {', '.join(missing[:6])}",
            fix="compile the model for the target 'host', or run it where it was compiled for",
        )


# ---- Executables as files: a shared library that says at its end whose it is ---------------------


SUFFIX = ".so"
_MARK = b"qdqbridge library 1\n"
_LENGTH, _DIGEST = 8, 32
_END = _LENGTH + _DIGEST + len(_MARK)
_DTYPES = {dtype.label: dtype for dtype in DType}


def write(
    library: Any, path: Path, nbytes: int, interface: dict[str, Any],
    command: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Writes a library and what :func:`read` is to find, replacing an existing file.

    Args:
        library: What TVM compiled.
        path: The file; it ends in ``.so``.
        nbytes: About what constants and code take in it.
        interface: Of :func:`interface_of`.
        command: What links it; None for the compiler of this machine.

    Raises:
        InputDataError: The name does not end so.
        OutputFileError: The operating system or the linker refuses.
    """
    need_suffix(path)
    text = json.dumps(interface).encode()
    with placed(path) as scratch:
        write_library(library, scratch, nbytes, path, command)
        with scratch.open("ab") as stream:
            stream.write(text + len(text).to_bytes(_LENGTH, "little"))
        digest = _digest(scratch, scratch.stat().st_size)
        with scratch.open("ab") as stream:
            stream.write(digest + _MARK)


def copy(source: Path, path: Path) -> None:
    """Writes a copy of what :func:`write` has written, replacing an existing file.

    Args:
        source: The library.
        path: The file; it ends in ``.so``.

    Raises:
        InputDataError: The name does not end so.
        ModelFileError: ``source`` is not there any more, or damaged.
        OutputFileError: The operating system refuses.
    """
    need_suffix(path)
    try:
        _checked(source)
    except OSError as error:
        raise _unreadable(source, error.strerror or str(error)) from error
    with placed(path) as scratch:
        shutil.copyfile(source, scratch)


def need_suffix(path: Path) -> None:
    """Refuses a name that does not end in ``.so``.

    Raises:
        InputDataError: It does not.
    """
    if path.suffix != SUFFIX:
        raise InputDataError(
            "cannot save the executable",
            where=str(path),
            why="it is written as a library",
            fix=f"choose a name that ends in {SUFFIX}",
        )


def read(path: Path) -> tuple[Graph, Any, int]:
    """Returns the interface as a graph without nodes, the loaded library, and its threads.

    Raises:
        ModelFileError: The file cannot be read, is not such a library, or is damaged.
        UnsupportedTargetError: This CPU has not the instructions that it was compiled for.
    """
    found = _interface(path)
    need_features(found["features"], str(path))
    inputs, outputs = ([_value(entry) for entry in found[end]] for end in ("inputs", "outputs"))
    graph = Graph(inputs, outputs, [value.name for value in outputs], [], found["name"])
    try:
        with without_lines(b"Warning: Scope Loaded"):  # one for each constant
            library = tvm.runtime.load_module(str(path.resolve()))
    except Exception as error:  # whatever TVM or the loader raises
        raise _unreadable(path, str(error).strip().splitlines()[-1]) from error
    return graph, library, int(found["threads"])


def features_in(path: Path) -> list[str]:
    """Returns which instruction sets a library needs; see :func:`features_of`.

    Raises:
        ModelFileError: The file cannot be read, is not such a library, or is damaged.
    """
    return list(_interface(path)["features"])


def _interface(path: Path) -> dict[str, Any]:
    try:
        return _checked(path)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error


def interface_of(graph: Graph, target: Any, threads: int) -> dict[str, Any]:
    """Returns what a library says of itself: names, types, extents, threads, instructions."""
    outputs = zip(graph.output_names, graph.outputs, strict=True)
    return {
        "name": graph.name,
        "inputs": [_entry(value.name, value) for value in graph.inputs],
        "outputs": [_entry(name, value) for name, value in outputs],
        "threads": threads,
        "features": features_of(target),
    }


def _entry(name: str, value: Value) -> dict[str, Any]:
    shape = value.type.shape
    return {
        "name": name,
        "dtype": value.type.dtype.label,
        "shape": None if shape is None else list(shape),
    }


def _value(entry: dict[str, Any]) -> Value:
    shape = entry["shape"]
    type_ = TensorType(_DTYPES[entry["dtype"]], None if shape is None else tuple(shape))
    return Value(type_, entry["name"])


def _checked(path: Path) -> dict[str, Any]:
    """Returns the interface of a file whose digest is right."""
    size = path.stat().st_size
    if size < _END:
        raise _unreadable(path, "it is not a library that an executable was saved to")
    with path.open("rb") as stream:
        stream.seek(size - _END)
        end = stream.read(_END)
        length = int.from_bytes(end[:_LENGTH], "little")
        if not end.endswith(_MARK) or length > size - _END:
            raise _unreadable(path, "it is not a library that an executable was saved to")
        stream.seek(size - _END - length)
        text = stream.read(length)
    if _digest(path, size - _DIGEST - len(_MARK)) != end[_LENGTH : _LENGTH + _DIGEST]:
        raise _unreadable(path, "its bytes are not those that were written")
    return json.loads(text)


def _digest(path: Path, count: int) -> bytes:
    """Returns the SHA-256 of the first bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while count and (block := stream.read(min(count, 1 << 20))):
            digest.update(block)
            count -= len(block)
    return digest.digest()


def _unreadable(path: Path, why: str) -> ModelFileError:
    return ModelFileError(
        "cannot load the executable",
        where=str(path),
        why=why,
        fix="save it again with Executable.save",
    )
