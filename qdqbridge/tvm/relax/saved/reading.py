"""A saved Relax module, read without running anything that is in its file."""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import io
import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import tvm
import tvm_ffi
from tvm import ir

from qdqbridge.core.graph.graph import Header
from qdqbridge.errors import ModelFileError
from qdqbridge.tvm.relax.read.calls import calls_of
from qdqbridge.tvm.relax.read.module import entry_name
from qdqbridge.tvm.relax.read.module_errors import ReaderPlace, explained_errors
from qdqbridge.tvm.relax.saved.script import Script, ScriptRefused, script_of

# ---- what TVM's JSON has to be like before TVM may see it ----------------------------------------
# TVM follows references without counting: a node that refers to itself, or ten thousand nodes one
# in the other, overflow the stack and end the process. What ``tvm.ir.save_json`` writes refers
# backwards only and is shallow, so anything else is refused here.

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


# ---- what the file of a Relax module says about itself -------------------------------------------


@explained_errors(ReaderPlace("the module"))
def summary(module: ir.IRModule, file: str) -> Header:
    """Returns the number of calls by operator of a module.

    Args:
        file: The name of its file.
    """
    names = Counter(
        str(call.op.name).removeprefix("relax.")
        for call in calls_of(module)
        if isinstance(call.op, ir.Op)
    )
    return Header(file, None, {"relax": tvm.__version__}, "", dict(names.most_common()))


SUFFIXES = (".json", ".py")
_LARGEST_SCRIPT = 1 << 28
"""Bytes of TVMScript; Python's parser takes many times as much memory."""


def read_module(path: Path) -> ir.IRModule:
    """Returns the module in a file.

    Args:
        path: ``.json``, as ``tvm.ir.save_json`` writes it, or ``.py``, TVMScript. The latter is
            compared with what ``IRModule.script`` writes and never run as Python.

    Raises:
        ModelFileError: The file cannot be read, holds no module, or has something in it that no
            module needs.
    """
    text, where = _text(path), str(path)
    module = _of_script(text, where) if path.suffix == ".py" else _of_json(text, where)
    if not isinstance(module, ir.IRModule):
        raise unreadable(where, f"it holds {type(module).__name__}, not IRModule")
    if not entry_name(module):
        names = ", ".join(sorted(str(name.name_hint) for name in module.functions))
        raise unreadable(where, f"of its functions ({names or 'none'}) none is 'main'")
    return module


def _text(path: Path) -> str:
    try:
        if path.suffix == ".py" and path.stat().st_size > _LARGEST_SCRIPT:
            raise unreadable(str(path), "TVMScript of this size is not parsed; save it as .json")
        return path.read_text("utf-8")
    except OSError as error:
        raise ModelFileError(
            "cannot read the Relax module",
            where=str(path),
            why=error.strerror or str(error),
            fix="check the path",
        ) from error
    except UnicodeDecodeError as error:
        raise unreadable(str(path), "it is not text") from error


def _of_json(text: str, where: str) -> Any:
    held = checked(text, where)
    try:
        return tvm.ir.load_json(held)
    except Exception as error:  # whatever TVM raises
        raise unreadable(where, _last(error)) from error


def _of_script(text: str, where: str) -> Any:
    try:
        found = script_of(text)
    except ScriptRefused as error:
        raise ModelFileError(
            "this file is not read as TVMScript",
            where=where,
            why=str(error),
            fix="such files are never run; save the module with tvm.ir.save_json instead",
        ) from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # Python's parser: text that is too deep or holds a NUL
        raise unreadable(where, f"it is not TVMScript: {error}") from error
    return _parsed(found, where)


def _parsed(found: Script, where: str) -> Any:
    from tvm.script.parser import ir as script_ir
    from tvm.script.parser import parse
    from tvm.script.parser import relax as script_relax
    from tvm.script.parser import tirx as script_tirx

    names: dict[str, Any] = {"I": script_ir, "R": script_relax, "T": script_tirx}
    names |= {name: TypeVar(name) for name in found.symbols}  # pyright: ignore[reportGeneralTypeIssues]
    if found.metadata is not None:
        names["metadata"] = _of_json(found.metadata, where)
    elif found.wants_metadata:
        raise ModelFileError(
            "the constants of this module are not in its file",
            where=where,
            why="TVMScript holds them as metadata, which was left out",
            fix="write it with module.script(show_meta=True), or save it with tvm.ir.save_json",
        )
    program = ast.unparse(ast.Module([found.program], []))
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            return parse(program, extra_vars=names, check_well_formed=False)
    except Exception as error:  # whatever TVM raises
        raise unreadable(where, f"TVM cannot parse it: {_last(error)}") from error


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
