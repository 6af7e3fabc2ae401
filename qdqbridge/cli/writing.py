"""What the suffix of a file to write says, and writing it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqbridge import hosting
from qdqbridge.arguments import need_relay, need_tvm
from qdqbridge.cli.parameters import extents_of
from qdqbridge.errors import InputDataError, UnsupportedTargetError

if TYPE_CHECKING:
    from qdqbridge.graph.graph import Graph

ONNX, LIBRARY, RELAY = ".onnx", ".so", ".relay"
FOR_TVM = (".json", ".py", LIBRARY, RELAY)


def check_suffix(path: Path, suffixes: Sequence[str]) -> None:
    """Refuses a file whose suffix says nothing, or what cannot be written here.

    Raises:
        UnsupportedTargetError: It has none of ``suffixes``, or TVM is not there to write it.
    """
    if path.suffix not in suffixes:
        raise UnsupportedTargetError(
            f"'{path.name}' has no known suffix",
            fix=f"end it in {', '.join(suffixes[:-1])} or {suffixes[-1]}",
        )
    if path.suffix == RELAY:
        need_relay()
    elif path.suffix in FOR_TVM:
        need_tvm()


def check_extents(path: Path, graph: Graph, extents: Sequence[str]) -> None:
    """Refuses to begin where Relay would want numbers for symbolic extents at the end.

    Raises:
        InputDataError: One is missing, or is no number.
    """
    known = extents_of(extents)
    shapes = [value.type.shape or () for value in graph.inputs]
    open_ = sorted({d for shape in shapes for d in shape if isinstance(d, str)} - set(known))
    if path.suffix == RELAY and open_:
        raise InputDataError(
            "Relay wants numbers for symbolic extents",
            why=f"the model's inputs leave open: {', '.join(open_)}",
            fix=" ".join(f"--extent {name}=1" for name in open_),
        )


def write_for_tvm(
    graph: Graph,
    path: Path,
    *,
    target: str = "llvm",
    params: Path | None = None,
    spelling: str = "canonical",
    extents: Sequence[str] = (),
) -> int:
    """Writes a graph for TVM, replacing a file; returns the number of constants in ``params``.

    Raises:
        QdqBridgeError: TVM cannot express the graph, or the file cannot be written.
    """
    if path.suffix != RELAY:
        return hosting.export_tvm(graph, path, target, params=params)
    hosting.export_relay(graph, path, spelling=spelling, extents=extents_of(extents))
    return 0
