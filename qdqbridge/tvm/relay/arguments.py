"""What users hand to the functions for Relay, checked before TVM sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import ir, relay, tir

from qdqbridge.core.arguments import need_module
from qdqbridge.errors import InputDataError

_SUB_BYTE = ("int2", "uint2", "int4", "uint4")


def module_of(mod: Any, function: str) -> ir.IRModule:
    """Returns a module, or the module of a function, with all types inferred.

    Args:
        mod: An ``IRModule`` with a function ``main``, a function or another expression.
        function: Names who asks, in messages.

    Raises:
        InputDataError: It is none of these, or TVM cannot infer its types.
    """
    if isinstance(mod, ir.RelayExpr):
        mod = tvm.IRModule.from_expr(mod)
    need_module(mod, function)
    try:
        return relay.transform.InferType()(mod)
    except Exception as error:  # a type error of any of TVM's kinds
        raise InputDataError(
            f"{function} needs a well-typed module",
            why=f"TVM says: {last_line(error)}",
            fix="run relay.transform.InferType() on it where it is made",
        ) from error


def last_line(error: Exception) -> str:
    """Returns the line of an error of TVM that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def arrays_of(params: Any, main: Any = None) -> dict[str, NDArray[Any]]:
    """Returns parameters as NumPy arrays by name.

    Args:
        params: A mapping from names to arrays of NumPy or TVM, or None. Names that no variable has
            are what a pass left over, and stay.
        main: The function whose variables they shall fit; None checks no types.

    Raises:
        InputDataError: It is no such mapping, or an array does not fit its variable.
    """
    given = {} if params is None else params
    if not isinstance(given, Mapping):
        raise InputDataError(
            "params must be arrays by name",
            why=f"{type(given).__name__} is not a mapping",
            fix="give a dict, or None where the module holds its constants",
        )
    arrays = {str(name): _array(str(name), value) for name, value in given.items()}
    for variable in () if main is None else main.params:
        name = str(variable.name_hint)
        if name in arrays:
            _check_fit(name, arrays[name], variable.checked_type)
    return arrays


def checked(name: str, array: NDArray[Any], type_: Any) -> NDArray[Any]:
    """Returns an input as TVM holds it; sub-byte types are held one per byte.

    Raises:
        InputDataError: It has another element type or another shape.
    """
    shape, dtype = tuple(int(extent) for extent in type_.shape), np.dtype(type_.dtype)
    held = array.astype(dtype) if array.dtype.name in _SUB_BYTE else array
    if held.dtype != dtype or held.shape != shape:
        raise InputDataError(
            f"input '{name}' does not fit",
            why=f"it is {array.dtype}{list(array.shape)}",
            fix=f"give {dtype}{list(shape)}",
        )
    return np.asarray(held, order="C")


def _array(name: str, value: Any) -> NDArray[Any]:
    array = value.numpy() if isinstance(value, tvm.nd.NDArray) else np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise InputDataError(
            f"parameter '{name}' is not an array of numbers",
            why=f"it is {type(value).__name__} of {array.dtype}",
        )
    return array


def _check_fit(name: str, array: NDArray[Any], type_: Any) -> None:
    extents = [int(e) if isinstance(e, tir.IntImm) else None for e in type_.shape]
    same = len(extents) == array.ndim and all(
        extent in (None, size) for extent, size in zip(extents, array.shape, strict=True)
    )
    if not same or str(array.dtype) != str(type_.dtype):
        shape = ["?" if extent is None else extent for extent in extents]
        raise InputDataError(
            f"parameter '{name}' does not fit its variable",
            why=f"it is {array.dtype}{list(array.shape)}",
            fix=f"give {type_.dtype}[{', '.join(map(str, shape))}]",
        )
