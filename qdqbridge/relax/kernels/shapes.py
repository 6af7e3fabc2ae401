"""Extents that a file leaves open though they follow from its inputs, as Relax infers them."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from tvm import tirx

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.copying import copied
from qdqbridge.graph.graph import Graph, Value
from qdqbridge.graph.types import Dim, Shape
from qdqbridge.relax.emit.module import ModuleEmitter


def with_extents(graph: Graph) -> Graph:
    """Returns a graph in which every extent is known, or an input's, that can be; else the same.

    Args:
        graph: A canonical graph; it is not changed.
    """
    given = {extent for value in graph.inputs for extent in value.type.shape or ()}
    if not any(_left_open(value.type.shape, given) for value in graph.values()):
        return graph
    emitter = ModuleEmitter(keep_params=True)
    try:
        emitter.emit(graph)
    except UnsupportedTargetError:
        return graph  # compiling says why
    names = {variable: name for name, variable in emitter.extents.items()}
    copy = copied(graph)
    for value, new in copy.values.items():
        found = _inferred(value, emitter.scope.exprs.get(value), names)
        if found is not None:
            new.type = new.type.with_shape(found)
    return copy.graph


def _left_open(shape: Shape, given: Set[Dim]) -> bool:
    """True where an extent is neither known nor one of those given by the inputs."""
    return shape is None or any(isinstance(e, str) and e not in given for e in shape)


def _inferred(value: Value, expr: Any, names: dict[Any, str]) -> Shape:
    """Returns the extents that Relax found; those of the graph where it found none."""
    shape = getattr(getattr(expr, "ty", None), "shape", None)
    values = getattr(shape, "values", None)
    if value.is_constant or values is None:
        return value.type.shape
    old = value.type.shape or (None,) * len(values)
    extents: list[Dim] = []
    for number, (extent, own) in enumerate(zip(values, old, strict=True)):
        if isinstance(extent, tirx.IntImm):
            extents.append(int(extent))
        else:
            extents.append(names.get(extent, own or f"{value.name}_{number}"))
    return tuple(extents)
