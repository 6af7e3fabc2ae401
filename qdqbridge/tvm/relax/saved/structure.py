"""What TVM's JSON has to be like before TVM may see it.

TVM follows references without counting: a node that refers to itself, or ten thousand nodes one in
the other, overflow the stack and end the process. What ``tvm.ir.save_json`` writes refers backwards
only and is shallow, so anything else is refused here.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import tvm_ffi

from qdqbridge.errors import ModelFileError

Node = Mapping[str, Any]
DEEPEST = 1000
"""How many nodes may lie one in the other; modules that TVM writes have about twenty."""

_CONTAINERS = ("ffi.Array", "ffi.Map", "ffi.List", "ffi.Dict")
_TEXTS = (
    "ffi.String",
    "ffi.Bytes",
    "ffi.SmallStr",
    "ffi.SmallBytes",
    "DataType",
    "ffi.OpaquePyObject",
)
_PLAIN = ("None", "int", "bool", "float", *_TEXTS, "Device", "ffi.Shape")
_FAMILIES = ("ir.", "prim.", "relax.", "tirx.", "s_tir.", "target.", "script.", "node.")
_INLINE = ("int", "bool", "float")
_HEADER, _MAGIC = struct.Struct("<QQiiiBBH"), 0xDD5E40F096B4A13F


def checked(text: str, where: str) -> str:
    """Returns ``text`` where TVM may load it.

    Args:
        text: A file that ``tvm.ir.save_json`` may have written.
        where: Names it in messages.

    Raises:
        ModelFileError: It is not JSON, or no graph of TVM's objects that can be loaded safely.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # text too deep
        raise unreadable(where, f"it is not JSON: {error}") from error
    try:
        _check_graph(found)
    except _Damaged as error:
        raise unreadable(where, str(error)) from error
    return text


def unreadable(where: str, why: str) -> ModelFileError:
    """Returns the error for a file that holds no module."""
    return ModelFileError(
        "cannot read the Relax module",
        where=where,
        why=why,
        fix="write it with tvm.ir.save_json, or with 'qdqbridge to-tvm'",
    )


class _Damaged(Exception):
    """Says what is wrong with the graph."""


def _check_graph(found: Any) -> None:
    nodes = found.get("nodes") if isinstance(found, dict) else None
    if not isinstance(nodes, list) or not nodes:
        raise _Damaged("it has no list of nodes")
    root = found.get("root_index")
    if not isinstance(root, int) or not 0 <= root < len(nodes):
        raise _Damaged(f"root_index is {root!r}")
    depths: list[int] = []
    for index, node in enumerate(nodes):
        depths.append(_depth(index, node, depths))


def _depth(index: int, node: Any, depths: list[int]) -> int:
    """Returns how many nodes lie one in the other in a node, itself among them."""
    if not isinstance(node, dict) or not isinstance(node.get("type"), str):
        raise _Damaged(f"node {index} has no type")
    deepest = 0
    for reference in _references(index, node):
        if not _is_index(reference) or not 0 <= reference < index:
            raise _Damaged(f"node {index} ({node['type']}) refers to node {reference!r}")
        deepest = max(deepest, depths[reference])
    if deepest >= DEEPEST:
        raise _Damaged(f"node {index} holds {DEEPEST} others, one in the other")
    return deepest + 1


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _references(index: int, node: Node) -> Iterator[Any]:
    """Yields the nodes that a node refers to."""
    kind, data = node["type"], node.get("data")
    if kind in _CONTAINERS:
        if not isinstance(data, list):
            raise _Damaged(f"node {index} ({kind}) holds no list")
        yield from data
    elif kind == "ffi.Tensor":
        _check_tensor(index, data)
    elif kind not in _PLAIN:
        yield from _fields(index, kind, data)


def _fields(index: int, kind: str, data: Any) -> Iterator[Any]:
    if not kind.startswith(_FAMILIES):
        raise _Damaged(f"node {index} is of type '{kind[:60]}', which is no part of a module")
    if isinstance(data, str) or data is None:  # a name: an operator, a source
        return
    if not isinstance(data, dict):
        raise _Damaged(f"node {index} ({kind}) holds no fields")
    inline = _inline().get(kind)
    if inline is None:
        raise _Damaged(f"node {index} is of type '{kind[:60]}', which this TVM does not have")
    for name, value in data.items():
        if name not in inline and not isinstance(value, str):
            yield value


@cache
def _inline() -> dict[str, frozenset[str]]:
    """Returns, by type, the fields that hold a number themselves and not the index of a node."""
    found: dict[str, frozenset[str]] = {}
    waiting: list[Any] = [tvm_ffi.Object]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        infos = [vars(base).get("__tvm_ffi_type_info__") for base in kind.__mro__]
        if infos[0] is None:
            continue
        fields = [field for info in infos if info is not None for field in info.fields or ()]
        found[infos[0].type_key] = frozenset(field.name for field in fields if _is_number(field))
    return found


def _is_number(field: Any) -> bool:
    schema = json.loads((field.metadata or {}).get("type_schema", "{}"))
    return schema.get("type") in _INLINE


def _check_tensor(index: int, data: Any) -> None:
    """Refuses a tensor whose extents are not those of its bytes: TVM would take the memory."""
    if not isinstance(data, str):
        raise _Damaged(f"node {index} (ffi.Tensor) holds no text")
    try:
        raw = base64.b64decode(data, validate=True)
        magic, _, device, number, rank, code, bits, lanes = _HEADER.unpack_from(raw)
        *shape, nbytes = struct.unpack_from(f"<{rank + 1}q", raw, _HEADER.size)
    except (binascii.Error, ValueError, struct.error) as error:  # a tensor's text and header
        raise _Damaged(f"node {index} (ffi.Tensor) is damaged: {error}") from error
    count = 1
    for extent in shape:
        count *= extent
    held = len(raw) - _HEADER.size - 8 * (rank + 1)
    expected = (count * bits * lanes + 7) // 8
    whole = magic == _MAGIC and (device, number) == (1, 0) and min(shape, default=1) >= 0
    if not whole or code > _CODES or nbytes != held or nbytes != expected:
        raise _Damaged(f"node {index} (ffi.Tensor) is damaged: {held} bytes for {shape}")


_CODES = 17
"""The largest code of an element type that DLPack has."""
