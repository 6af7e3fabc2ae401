"""What users hand to the public functions, checked before anything costly begins."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.graph.graph import Graph

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def renamed(**new: str) -> Callable[[Callable[_Params, _Result]], Callable[_Params, _Result]]:
    """Lets a function take keywords by their old names too, for one release, with a warning.

    Args:
        new: The new names by the old ones.
    """

    def decorate(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
        @functools.wraps(function)
        def call(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            for old in new.keys() & kwargs.keys():
                warnings.warn(
                    f"{function.__name__}({old}=…) is {new[old]}= now",
                    DeprecationWarning,
                    stacklevel=2,
                )
                cast("dict[str, Any]", kwargs).setdefault(new[old], kwargs.pop(old))
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_in(names: dict[str, Any], **new: str) -> Callable[[str], Any]:
    """Returns a module's ``__getattr__`` that knows names it had before, with a warning.

    Args:
        names: The module's ``globals()``.
        new: The new names by the old ones.
    """

    def old(name: str) -> Any:
        if name not in new:
            raise AttributeError(f"module '{names['__name__']}' has no attribute '{name}'")
        warnings.warn(
            f"{names['__name__']}.{name} is {new[name]} now", DeprecationWarning, stacklevel=2
        )
        return names[new[name]]

    return old


def path_of(path: object) -> Path:
    """Returns ``path`` as a path.

    Raises:
        InputDataError: It is none.
    """
    if isinstance(path, (str, PathLike)):
        return Path(path)  # pyright: ignore[reportUnknownArgumentType]
    raise InputDataError(
        "the path of a model file is needed",
        why=f"{type(path).__name__} is not a path",
        fix="give a str or a pathlib.Path",
    )


def need_graph(graph: object, function: str) -> None:
    """Refuses what is not a graph.

    Raises:
        InputDataError: It is none.
    """
    if not isinstance(graph, Graph):
        raise InputDataError(
            f"{function} needs a graph, not {type(graph).__name__}",
            fix="load it first: qdqbridge.load(path)",
        )


def need_module(module: object, function: str, name: str = "main") -> None:
    """Refuses what is no TVM module with a function ``name``.

    Args:
        module: What should be one.
        function: Who wants it, for the message.
        name: The function that it must have.

    Raises:
        InputDataError: It is none.
    """
    names = [str(own.name_hint) for own in getattr(module, "functions", ())]
    if name not in names:
        raise InputDataError(
            f"{function} needs an IRModule with a function '{name}'",
            why=f"it is given {type(module).__name__} with {', '.join(names) or 'no functions'}",
            fix="give the module of to_relax, or one of qdqbridge.relay.emit on Relay; "
            "from_relax reads another function where function= names it",
        )


def need_side(side: object) -> None:
    """Refuses what is no executable.

    Raises:
        InputDataError: It is none.
    """
    if not (hasattr(side, "graph") and hasattr(side, "run")):
        raise InputDataError(
            f"{type(side).__name__} cannot be compared",
            fix="give a graph, an executable, or the path of a model file",
        )


def need_tvm() -> None:
    """Refuses to go on without TVM.

    Raises:
        UnsupportedTargetError: It is not installed.
    """
    from importlib.util import find_spec  # looked up when asked: it may be replaced

    if find_spec("tvm") is None:
        raise UnsupportedTargetError("TVM is not installed", fix="pip install 'qdqbridge[relax]'")


def need_relay() -> None:
    """Refuses to go on without Relay.

    Raises:
        UnsupportedTargetError: TVM is not installed, or is one without Relay.
    """
    from importlib.util import find_spec

    here = find_spec("tvm") is not None
    if not here or find_spec("tvm.relay") is None:
        raise UnsupportedTargetError(
            "Relay is not here",
            why="this TVM is without it" if here else "TVM is not installed",
            fix="make an environment with TVM up to 0.19 by scripts/relay_env",
        )
