"""What the suffix of a file to write says, and writing it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqbridge.app import hosting
from qdqbridge.app.cli.parameters import extents_of
from qdqbridge.core.arguments import need_relay, need_tvm
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.options import RelayVariant

if TYPE_CHECKING:
    from qdqbridge.core.graph.graph import Graph

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
    """Refuses numbers that do not fit, and Relay without numbers, before work begins.

    Raises:
        InputDataError: One is missing, is not a number, or no extent of the graph.
    """
    open_ = symbolic_extents(with_numbers(graph, extents_of(extents)))
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
    target: str = "host",
    params: Path | None = None,
    variant: RelayVariant = "canonical",
    extents: Sequence[str] = (),
    cc: str | None = None,
) -> int:
    """Writes a graph for TVM, replacing a file; returns the number of constants in ``params``.

    Raises:
        QdqBridgeError: TVM cannot express the graph, or the file cannot be written.
    """
    whole = with_numbers(graph, extents_of(extents))
    if path.suffix != RELAY:
        return hosting.export_tvm(whole, path, target, params=params, cc=cc)
    hosting.export_relay(whole, path, variant=variant)
    return 0
