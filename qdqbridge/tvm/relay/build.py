"""A compiled Relay module that runs under the model's own input and output names."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import ir, relay, tir
from tvm.contrib import graph_executor
from tvm.relay.build_module import bind_params_by_name

from qdqbridge.core.arguments import need_module
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.tvm.relay.dialect import half_even
from qdqbridge.tvm.relay.dialect.host import names_of

# ---- What users hand to the functions for Relay, checked before TVM sees it ----------------------


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


# ---- A compiled Relay module that runs under the model's own input and output names --------------


_CONFIG = {"relay.FuseOps.max_depth": 1, "tir.disable_assert": True}
"""One kernel per operator: LLVM contracts ``a * b + c`` of float operators that share one.

The executor copies what it is given to tensors of its own: what each function would ask of them is
known, and to ask takes LLVM a fourth of its time.
"""
_FIX = "use 'llvm', or a string such as 'llvm -mtriple=x86_64-linux-gnu -mcpu=cascadelake'"


class RelayExecutable:
    """Compiled machine code with the interface of the model.

    Attributes:
        module: The Relay module, parameters bound, before lowering.
        library: TVM's compiled module (``library.export_library(path)`` saves it).
        input_names: The model's input names, in order.
        output_names: The model's output names, in order.
    """

    def __init__(self, module: ir.IRModule, library: Any) -> None:
        self.module, self.library = module, library
        main: Any = module["main"]
        self._variables = {v.name_hint: v.checked_type for v in main.params}
        self.input_names = _names(main, "input_names", list(self._variables))
        count = len(main.ret_type.fields) if isinstance(main.ret_type, ir.TupleType) else 1
        self.output_names = _names(main, "output_names", [f"output{i}" for i in range(count)])
        self._machine = graph_executor.GraphModule(library["default"](tvm.cpu()))

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Runs the model.

        Args:
            inputs: One array per input; quantized inputs take stored integers.

        Returns:
            One array per output name; quantized outputs are stored integers, those of sub-byte
            types one per byte.

        Raises:
            InputDataError: An input is missing, unknown, or of the wrong dtype or shape.
        """
        if set(inputs) != set(self.input_names):
            raise InputDataError(
                "the inputs do not fit the model",
                why=f"given are {sorted(inputs)}",
                fix=f"give exactly {self.input_names}",
            )
        for name, (variable, type_) in zip(self.input_names, self._variables.items(), strict=True):
            self._machine.set_input(variable, checked(name, np.asarray(inputs[name]), type_))
        self._machine.run()
        return {
            name: self._machine.get_output(i).numpy() for i, name in enumerate(self.output_names)
        }


def _names(main: Any, attribute: str, default: Sequence[str]) -> list[str]:
    """Returns the model's own names where the function states as many as it needs."""
    stated = main.attrs[attribute] if attribute in names_of(main.attrs) else ()
    names = [str(name) for name in stated]
    return names if len(names) == len(default) else list(default)


def bind(module: ir.IRModule, params: Mapping[str, Any] | None = None) -> ir.IRModule:
    """Returns a module whose parameters are constants, with all types inferred.

    Args:
        module: Any Relay module with a function ``main``.
        params: Arrays by the names of ``main``'s variables.

    Raises:
        InputDataError: It is no module with a function ``main``, TVM cannot infer its types, or a
            parameter does not fit its variable.
    """
    typed = module_of(module, "a Relay build")
    arrays = arrays_of(params, typed["main"])
    if not arrays:
        return typed
    held = {name: tvm.nd.array(array) for name, array in arrays.items()}
    bound = ir.IRModule(dict(typed.functions.items()), typed.type_definitions)
    bound["main"] = bind_params_by_name(typed["main"], held)
    return relay.transform.InferType()(bound)


def build(
    module: ir.IRModule,
    params: Mapping[str, Any] | None = None,
    target: Any = "llvm",
    *,
    opt_level: int = 3,
) -> RelayExecutable:
    """Compiles a Relay module so that it computes what the interpreter computes.

    Relay's own ``qnn`` operators get the numeric contract's arithmetic (halves to even) while
    this function runs; see ``qdqbridge.tvm.relay.dialect.half_even``.

    Args:
        module: Any Relay module. ``main``'s attributes ``input_names`` and ``output_names`` hold
            the model's own names; without them variables and ``output0``, ... are used.
        params: Values of ``main``'s variables that are not inputs.
        target: A TVM target, or its string form; ``-mtriple`` defaults to this machine's.
        opt_level: TVM's optimization level.

    Raises:
        UnsupportedTargetError: The target does not exist or is no CPU, an extent is not a number,
            or TVM cannot build the module.
    """
    resolved = _resolve_llvm_target(target)
    bound = bind(module, params)
    _check_extents(bound["main"])
    try:
        with half_even(), tvm.transform.PassContext(opt_level=opt_level, config=_CONFIG):
            library = relay.build(bound, target=resolved)
    except Exception as error:  # whatever a pass or LLVM raises
        raise UnsupportedTargetError(
            "TVM cannot build the module",
            why=_reason(error),
            fix="run the graph with the interpreter, and report the module",
        ) from error
    return RelayExecutable(bound, library)


def _resolve_llvm_target(target: Any) -> Any:
    text = str(target)
    if text.split() and text.split(maxsplit=1)[0] == "llvm" and "-mtriple" not in text:
        target = f"{text} -mtriple={platform.machine()}-linux-gnu"
    try:
        resolved = tvm.target.Target(target)
    except Exception as error:  # TVM raises ValueError, KeyError or its own
        raise UnsupportedTargetError(
            f"TVM has no target {text!r}", why=_reason(error), fix=_FIX
        ) from error
    if resolved.kind.name != "llvm":
        raise UnsupportedTargetError(
            f"the target {text!r} is not supported", why="only CPU (llvm) targets are", fix=_FIX
        )
    return resolved


def _check_extents(main: Any) -> None:
    for variable in main.params:
        type_ = variable.checked_type
        if not all(isinstance(extent, tir.IntImm) for extent in getattr(type_, "shape", ())):
            raise UnsupportedTargetError(
                "a Relay build needs every extent as a number",
                where=f"input '{variable.name_hint}'",
                why=f"its type is {type_}",
                fix="fix the input shapes of the model, or build with Relax",
            )


def _reason(error: Exception) -> str:
    """Returns in one line what TVM says; it hands our own errors back as their text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    stated = [line.removeprefix("why").strip() for line in lines if line.startswith("why ")]
    return next(iter(stated), last_line(error))
