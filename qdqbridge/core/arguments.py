"""What users hand to the public functions, checked before anything costly begins."""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from os import PathLike, fsencode
from pathlib import Path
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin

import numpy as np

from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, UnsupportedTargetError

# ---- options for reading a model, shared by everything that reads one ----------------------------


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Rewrites beyond the bit-exact ones.

    Attributes:
        decomposed: Read fake quantization written as float arithmetic (Div, Round, Clip, Mul) as
            Q and DQ.
        fold_affine: Fold float Mul, Add, BatchNormalization … into the integer product before them;
            moves a rounding.
        fuse: Fuse activations and norms that are written step by step into one operator each;
            includes ``dynamic``.
        dynamic: Turn a product whose activation goes through DynamicQuantizeLinear and
            DequantizeLinear into an integer product.
    """

    decomposed: bool = False
    fold_affine: bool = False
    fuse: bool = False
    dynamic: bool = False


BIT_FOR_BIT = ReadingOptions()
"""Nothing that moves a rounding."""


_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def checked(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Refuses arguments that are not what the function's type hints say.

    This is the border: behind it arguments have their types, and functions ask only for what types
    do not say. The elements of arrays are looked at where they are used.

    Raises:
        InputDataError: By the function that this returns, where an argument is something else.
    """
    signature = inspect.signature(function)
    hints: dict[str, Any] = {}

    @functools.wraps(function)
    def call(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        if not hints:  # the module is whole by now
            names = _Names(vars(sys.modules[function.__module__]))
            hints.update((n, names.meaning(p.annotation)) for n, p in signature.parameters.items())
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if signature.parameters[name].default is not value and not _fits(value, hints[name]):
                raise _unfit(function.__name__, name, value, hints[name])
        return function(*args, **kwargs)

    return call


class _Ours:
    """Stands for what is imported for the type checker only: a class of this package or TVM."""


_LOOKED_AT = ("Chooser", "Dialect", "GivenData", "Judge", "Metric", "Side")
"""Protocols and aliases among them: those who use such an argument see whether it is one."""


@dataclass(frozen=True, slots=True)
class _Names:
    """What the names in the annotations of a module mean when the program runs."""

    module: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        found = self.module.get(name, vars(builtins).get(name)) or type(name, (_Ours,), {})
        return self.meaning(found) if isinstance(found, str) else found  # an alias

    def meaning(self, annotation: str) -> Any:
        """Returns the type that an annotation stands for."""
        try:
            return eval(annotation, {}, cast("Any", self))
        except TypeError:  # what stands for a class takes no parameters
            return Any


def _fits(value: Any, hint: Any) -> bool:
    """True for a value of a type, as far as one can look without using the value up."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Any, np.ndarray):
        return True
    if kind in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if kind is Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if kind is Mapping:
        if not isinstance(value, Mapping):
            return False
        found = cast("Mapping[Any, Any]", value)  # an archive reads what is looked at
        look = inner[1] not in (Any, np.ndarray) and get_origin(inner[1]) is not np.ndarray
        return all(_fits(k, inner[0]) and (not look or _fits(found[k], inner[1])) for k in found)
    if kind is Sequence:
        listed = isinstance(value, Sequence | Set) and not isinstance(value, str | bytes)
        return listed and all(_fits(each, inner[0]) for each in cast("Iterable[Any]", value))
    if kind is Callable:
        return callable(value)
    if isinstance(kind, type) and issubclass(kind, _Ours):
        return kind.__name__ in (*_LOOKED_AT, *(each.__name__ for each in type(value).__mro__))
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and isinstance(value, bool) <= (kind is bool)
    return isinstance(value, kind or type(None))


_NUMBERS: dict[Any, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (int, float, np.integer, np.floating),
}


def _unfit(function: str, name: str, value: Any, hint: Any) -> InputDataError:
    """Returns what to say of an argument that is something else than its hint."""
    kind = type(value).__name__
    first, *others = get_args(hint) or (hint,)
    if first is Graph and all(isinstance(o, type) and issubclass(o, _Ours) for o in others):
        return InputDataError(
            f"{function} needs a graph, not {kind}", fix="load it first: qdqbridge.load(path)"
        )
    short = isinstance(value, str | int | float | list | tuple)
    return InputDataError(
        f"{function} cannot take what {name} is given",
        why=f"it is {value!r:.60}" if short else f"it is of type {kind}",
        fix=f"give {_words(hint)}",
    )


def _words(hint: Any) -> str:
    """Returns how a message calls a type."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return " or ".join(map(repr, inner))
    if kind in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_words, inner)))
    if kind in (Mapping, Sequence):
        return {Mapping: "a mapping", Sequence: "a list"}[kind] + f" of ({_words(inner[-1])})"
    words = {
        bool: "True or False", int: "a whole number", float: "a number", str: "a str",
        PathLike: "a path", Graph: "a graph", np.ndarray: "arrays", type(None): "None",
        Callable: "a function", Any: "anything",
    }  # fmt: skip
    return words.get(kind) or f"a {getattr(kind, '__name__', kind)}"


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
    why = f"{type(path).__name__} is not a path"
    if isinstance(path, (str, PathLike)):
        found = Path(path)  # pyright: ignore[reportUnknownArgumentType]
        try:
            if b"\0" not in fsencode(found):
                return found
        except UnicodeEncodeError:
            pass
        why = "no file can have this name: it holds a NUL, or half of a character"
    raise InputDataError(
        "the path of a file is needed", why=why, fix="give a str or a pathlib.Path"
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
            fix="give the module of to_relax, or one of qdqbridge.tvm.relay.emit on Relay; "
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


RELAY_INSTALL = (
    "in an environment of its own, with Python 3.10 and without the extra relax: pip install "
    "'qdqbridge[relay]', then a TVM with Relay: pip install --no-deps hhb-tvm==3.2.3, or your own "
    "up to 0.19"
)


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
            fix=RELAY_INSTALL,
        )
