"""Parameters that are kept apart from their function: by name, or as TVM's frontends do it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from qdqbridge.errors import InputDataError
from qdqbridge.tvm.relax.read.calls import results_of

Arrays: TypeAlias = "Mapping[str, Any]"


def entry_name(module: Any) -> str:
    """Returns the function of a module to read: ``main``, or the only one, else nothing."""
    names = [str(g.name_hint) for g, f in module.functions.items() if isinstance(f, relax.Function)]
    if "main" in names:
        return "main"
    return names[0] if len(names) == 1 else ""


def named_params(function: Any, name: str, params: Arrays) -> dict[str, Any]:
    """Returns the parameters of a function by their names.

    Args:
        function: The Relax function.
        name: Its name in the module.
        params: Arrays by parameter name, or what ``relax.frontend.detach_params`` returns: lists
            of arrays by function name, for the last parameters of each.

    Raises:
        InputDataError: There are more arrays than parameters.
    """
    own = dict(params)
    detached = own.get(name)
    names = [str(v.name) for v in function.params]
    if name not in names and isinstance(detached, Sequence):
        values = list(cast("Sequence[Any]", detached))
        if len(values) > len(names):
            raise InputDataError(
                f"{len(values)} arrays are given for '{name}'",
                why=f"the function has {len(names)} parameters",
                fix="give the arrays that came with the module",
            )
        own = dict(zip(names[len(names) - len(values) :], values, strict=True))
    return _as_printed(own, names)


def _as_printed(own: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Adds parameters under the names that TVMScript gave them: ``a_b`` for ``a.b``."""
    printed = {re.sub(r"\W", "_", name): array for name, array in own.items()}
    return {name: printed[name] for name in names if name in printed} | own


def attached_params(function: Any) -> dict[str, Any]:
    """Returns the parameters that a frontend has put into the function's attributes.

    The TFLite frontend puts constants there which are in the function itself, and no parameters.
    """
    attrs = function.attrs
    values = [] if attrs is None else list(attrs.get("params", ()) or ())
    names = [str(v.name) for v in function.params]
    if attrs is not None and attrs.get("num_input") == len(names):
        return {}
    return dict(zip(names[len(names) - len(values) :], values, strict=True))


def fitting(variable: Any, tensor: Any) -> NDArray[Any]:
    """Returns the array of a parameter.

    Args:
        variable: The parameter as the function declares it.
        tensor: Its array, or a tensor of TVM.

    Raises:
        InputDataError: It has another element type or shape than the parameter.
    """
    array = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    declared = results_of(variable.ty)
    if len(declared) != 1:
        return array
    dtype, shape = declared[0].dtype, declared[0].shape
    fits = shape is None or (
        len(shape) == array.ndim
        and all(isinstance(e, str) or e == n for e, n in zip(shape, array.shape, strict=True))
    )
    if fits and str(array.dtype) == dtype:
        return array
    raise InputDataError(
        f"the array for the parameter '{variable.name}' does not fit",
        why=f"it is {array.dtype} {list(array.shape)}, the function takes {dtype} "
        f"{'of any shape' if shape is None else list(shape)}",
        fix="give the arrays that came with the module",
    )
