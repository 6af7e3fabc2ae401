"""Names of open extents in a TFLite file, which has -1 for each of them and no names.

Two inputs that share their batch would come back with two batches. So a file that we write says the
names in its metadata; LiteRT and Vela pass over what they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from qdqbridge.core.graph.types import Shape

METADATA_NAME = "qdqbridge.open_extents"
"""The entry of a file's metadata."""
_MOST = 1 << 16
"""Bytes of the entry; a damaged file may claim more."""


def encoded(shapes: Iterable[Shape]) -> bytes | None:
    """Returns the metadata of inputs of these shapes; None where no extent is open."""
    names = [
        [extent if isinstance(extent, str) else "" for extent in shape or ()] for shape in shapes
    ]
    return json.dumps(names).encode() if any(any(each) for each in names) else None


def named(metadata: Mapping[str, memoryview], shapes: Iterable[Shape]) -> list[Shape]:
    """Returns the inputs' shapes with the names that a file says, where it says fitting ones."""
    given = list(shapes)
    data = metadata.get(METADATA_NAME)
    found = None if data is None or len(data) > _MOST else _decoded(bytes(data))
    if found is None or len(found) != len(given):
        return given
    return [_name_symbolic_extents(shape, names) for shape, names in zip(given, found, strict=True)]


def _name_symbolic_extents(shape: Shape, names: list[str]) -> Shape:
    if shape is None or len(shape) != len(names):
        return shape
    return tuple(
        name if isinstance(extent, str) and name else extent
        for extent, name in zip(shape, names, strict=True)
    )


def _decoded(data: bytes) -> list[list[str]] | None:
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError):  # no JSON: somebody else's, or damaged
        return None
    if not isinstance(found, list):
        return None
    rows: list[list[str]] = []
    for row in found:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(row, list) or not all(
            isinstance(name, str)
            for name in row  # pyright: ignore[reportUnknownVariableType]
        ):
            return None
        rows.append([str(name) for name in row])  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return rows
