"""A saved Relax module, read without running anything that is in its file."""

from __future__ import annotations

import ast
import contextlib
import io
from pathlib import Path
from typing import Any, TypeVar

import tvm
from tvm import ir

import qdqbridge.tvm.relax.dialect as _dialect  # noqa: F401 # pyright: ignore[reportUnusedImport]
from qdqbridge.errors import ModelFileError
from qdqbridge.tvm.relax.read.parameters import entry_name
from qdqbridge.tvm.relax.saved.script import Script, ScriptRefused, script_of
from qdqbridge.tvm.relax.saved.structure import checked, unreadable

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
