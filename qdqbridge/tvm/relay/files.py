"""Relay modules as files, without loss.

``astext`` prints scalar constants and float attributes with six digits, so text is never stored:
a file is a zip archive of TVM's JSON, which keeps every bit, and of the parameters.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import ir, relay

from qdqbridge.core.arguments import need_module, path_of
from qdqbridge.core.graph.atomic_write import placed
from qdqbridge.errors import ModelFileError
from qdqbridge.tvm.relay.build import arrays_of

_MODULE, _PARAMS, _FORMAT = "module.json", "params.bin", "format.txt"
_VERSION = "qdqbridge relay 1"


def save(module: ir.IRModule, params: Mapping[str, Any] | None, path: Path | str) -> None:
    """Writes a module and its parameters to one file, at once or not at all.

    Args:
        module: Any Relay module that is not canonicalized yet.
        params: Arrays by the names of ``main``'s variables, or None.
        path: Where to.

    Raises:
        InputDataError: It is not a module, or its parameters are no arrays.
        OutputFileError: The file cannot be written.
    """
    path = path_of(path)
    need_module(module, "saving")
    arrays = {name: tvm.nd.array(array) for name, array in arrays_of(params).items()}
    members = {
        _FORMAT: _VERSION.encode(), _MODULE: tvm.ir.save_json(module).encode(),
        _PARAMS: bytes(relay.save_param_dict(arrays)),
    }  # fmt: skip
    with placed(path) as scratch, zipfile.ZipFile(scratch, "w") as archive:
        for member, data in members.items():
            with archive.open(zipfile.ZipInfo(member), "w", force_zip64=True) as target:
                target.write(data)


def load(path: Path | str) -> tuple[ir.IRModule, dict[str, Any]]:
    """Returns the module and the parameters (TVM arrays by name) of a file.

    The module is structurally equal to the one that was saved.

    Raises:
        ModelFileError: The file is missing, or not one that :func:`save` wrote.
    """
    path = path_of(path)
    try:
        with zipfile.ZipFile(path) as archive:
            version = archive.read(_FORMAT).decode(errors="replace")
            text, data = archive.read(_MODULE), archive.read(_PARAMS)
    except (OSError, KeyError, zipfile.BadZipFile) as error:  # KeyError: a member is not there
        raise ModelFileError(
            "cannot read the Relay module",
            where=str(path),
            why=str(error),
            fix="give a file that qdqbridge.tvm.relay.save wrote",
        ) from error
    if version != _VERSION:
        raise ModelFileError(
            "cannot read the Relay module",
            where=str(path),
            why=f"its format is {version!r}",
            fix=f"this version reads {_VERSION!r}",
        )
    try:
        module: Any = tvm.ir.load_json(text.decode())
        need_module(module, "a file of a Relay module")
        return module, dict(relay.load_param_dict(data))
    except (tvm.TVMError, ValueError, KeyError, TypeError) as error:
        # what TVM raises of JSON that is not a module
        raise ModelFileError(
            "cannot read the Relay module",
            where=str(path),
            why=str(error).splitlines()[-1],
        ) from error


class _Lifted(relay.ExprMutator):  # pyright: ignore[reportUntypedBaseClass]
    """Replaces float scalar constants by variables."""

    def __init__(self) -> None:
        super().__init__()
        self.params: dict[str, Any] = {}
        self.variables: list[Any] = []

    def visit_constant(self, const: Any) -> Any:
        """Returns a variable in the place of a float scalar."""
        if const.data.shape or "float" not in const.data.dtype:
            return const
        name = f"scalar{len(self.variables)}"
        self.params[name] = const.data
        self.variables.append(relay.var(name, shape=(), dtype=const.data.dtype))
        return self.variables[-1]

    def visit_function(self, fn: Any) -> Any:
        """Leaves inner functions alone: their variables are the patterns of a backend."""
        return fn


def readable(module: ir.IRModule) -> tuple[str, dict[str, Any]]:
    """Returns a module as text for people, with the numbers that text would round.

    Args:
        module: Any Relay module.

    Returns:
        The text, in which every float scalar of ``main`` is a variable, and the exact values of
        those variables. Float attributes stay rounded to six digits: text is not for storing.

    Raises:
        InputDataError: It is not a module with a function ``main``.
    """
    need_module(module, "text")
    lifted = _Lifted()
    main: Any = module["main"]
    body = lifted.visit(main.body)
    shown = ir.IRModule(dict(module.functions.items()), module.type_definitions)
    shown["main"] = relay.Function(
        [*main.params, *lifted.variables], body, main.ret_type, main.type_params, main.attrs
    )
    typed: Any = relay.transform.InferType()(shown)
    return str(typed.astext(show_meta_data=False)), lifted.params
