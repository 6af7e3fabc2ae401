"""Compiled models on disk: what was compiled once is loaded the next time.

An entry is the library that ``Executable.save`` writes, under a name that is a hash of everything
its code follows from: the graph with its weights and names, the target, the kernels, the threads,
and the versions of what compiles. Entries are written beside their place and moved there: readers
see them whole or not at all, and writers may be several. The library knows its own checksum; one
that is damaged, or of another CPU, is compiled anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

import tvm

import qdqbridge
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import OutputFileError, QdqBridgeError
from qdqbridge.tvm.relax.executable import Executable, compile_relax, load_executable, thread_count
from qdqbridge.tvm.relax.instructions import features_of
from qdqbridge.tvm.relax.kernels.codegen.cpu import target_of

_LOGGER = logging.getLogger(__name__)


def cached(
    folder: Path, graph: Graph, target: Any, *, kernels: str = "fast", threads: int | None = None
) -> Executable:
    """Returns an executable from ``folder``, else one that is compiled and kept there.

    Args:
        folder: Made where there is none. What lies in it is run: nobody else should write there.
        graph: As for ``build``.
        target: A TVM target, its string or dictionary form, or ``host``.
        kernels: As for ``build``.
        threads: As for ``build``.

    Raises:
        OutputFileError: There is no such folder, and it cannot be made.
        QdqBridgeError: As ``build``.
    """
    threads = thread_count(threads)
    path = folder / f"{key_of(graph, target, kernels, threads)}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFileError(
            "cannot make the folder of the cache",
            where=str(folder),
            why=error.strerror or str(error),
            fix="give another folder",
        ) from error
    if path.exists():
        try:
            return load_executable(path)
        except QdqBridgeError as error:
            _LOGGER.warning("the cache's %s is compiled anew: %s", path.name, error.what)
    made = compile_relax(graph, target, kernels=kernels, threads=threads)
    try:
        made.save(path)
    except QdqBridgeError as error:  # a full disk, or another architecture: it runs all the same
        _LOGGER.warning("what was compiled is not kept: %s", error.what)
    return made


def key_of(graph: Graph, target: Any, kernels: str, threads: int) -> str:
    """Returns a name for what is compiled of ``graph`` by these versions on this machine."""
    resolved = target_of(target)
    facts = [
        graph.digest, str(resolved), ",".join(sorted(features_of(resolved))), kernels, str(threads),
        *(f"{value.name}:{value.type}" for value in graph.inputs),
        *graph.output_names,
        *versions(),
    ]  # fmt: skip
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:40]


@cache
def versions() -> tuple[str, ...]:
    """Returns what says which code compiles: TVM's version, and this package's files."""
    root = Path(qdqbridge.__file__).parent
    files = hashlib.sha256()
    for folder, names, found in os.walk(root):
        names.sort()
        for name in sorted(found):
            if name.endswith(".py"):
                state = (Path(folder) / name).stat()
                files.update(f"{folder}/{name}:{state.st_size}:{state.st_mtime_ns}\n".encode())
    return (
        str(tvm.__version__), str(tvm.support.libinfo().get("LLVM_VERSION")), files.hexdigest(),
    )  # fmt: skip
