"""Entries of the tables of emission functions: a row, and what emits its nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import AnyAttributes, Operator, Row
from qdqbridge.tvm.qnn.emit.emitter import FunctionEmitter

P = ParamSpec("P")
R = TypeVar("R")
Emission: TypeAlias = Callable[Concatenate[FunctionEmitter, Node, P], R]


def at(
    row: Row[AnyAttributes],
    emit: Callable[Concatenate[FunctionEmitter, Node, AnyAttributes, P], R],
) -> tuple[Operator, Emission[P, R]]:
    """Returns the entry of a row whose function takes the attributes that the row has."""

    def emitted(emitter: FunctionEmitter, node: Node, *args: P.args, **kwargs: P.kwargs) -> R:
        return emit(emitter, node, node.record(row.attributes), *args, **kwargs)

    return row, emitted
