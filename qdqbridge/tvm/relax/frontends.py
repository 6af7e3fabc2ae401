"""TVM's own frontends: PyTorch's, completed, and the importer of ONNX as users run it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from qdqbridge.core.arguments import ReadingOptions
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph, Note
from qdqbridge.errors import (
    InputDataError,
    QdqBridgeError,
    UnsupportedModelError,
    UnsupportedQuantization,
)
from qdqbridge.tvm.relax.read import read_function

# ---- libraries that only the frontends need: imported when one is asked for ----------------------


def imported(name: str, reader: str, install: str) -> Any:
    """Returns a module that is no dependency of qdqbridge.

    Args:
        name: The module.
        reader: Which function needs it.
        install: What pip installs.

    Raises:
        UnsupportedModelError: It is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UnsupportedModelError(
            f"{reader} needs {name.partition('.')[0]}, which is not installed",
            why=str(error),
            fix=f"pip install {install}",
        ) from error


# ---- pyTorch's ``quantized_decomposed`` operators as ``R.quantize`` and ``R.dequantize`` ---------
# They are what PT2E writes, and TVM's PyTorch frontend does not know them. Source: the definitions
# in PyTorch's ``torch/ao/quantization/fx/_decomposed.py``. PyTorch multiplies by ``1 / scale``
# where ONNX and Relax divide by it: a tie may round to the other side.

Array = NDArray[Any]
Convert = Callable[[Any, Any], Any]
"""Makes an expression of a node and the frontend's importer, as ``custom_convert_map`` asks."""

_STORED = {"uint8": "uint8", "int8": "int8", "uint16": "uint16", "int16": "int16"}
_OVERLOADS = {
    "quantize_per_tensor": ("default", "tensor", "tensor2"),
    "dequantize_per_tensor": ("default", "tensor", "tensor2"),
    "quantize_per_channel": ("default",),
    "dequantize_per_channel": ("default",),
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one such operator after its data.

    Attributes:
        scale: float32, a scalar or one element per channel.
        zero_point: The same shape, of the storage type.
        axis: The channels' axis; 0 per tensor.
        low: The smallest integer that may be stored.
        high: The largest.
        dtype: The storage type.
        real: The type of the real numbers.
    """

    scale: Array
    zero_point: Array
    axis: int
    low: int
    high: int
    dtype: str
    real: str


def converters(constants: Mapping[str, Array]) -> dict[str, Convert]:
    """Returns TVM's ``custom_convert_map`` for a program.

    Args:
        constants: The program's tensors by the name of the graph node that holds them.
    """
    found: dict[str, Convert] = {}
    for name, overloads in _OVERLOADS.items():
        convert = _quantize if name.startswith("quantize") else _dequantize
        for overload in overloads:
            found[f"{name}.{overload}"] = _bound(convert, name, constants)
    found["choose_qparams.tensor"] = choose
    return found


def _bound(
    convert: Callable[[Any, Any, Arguments], Any], name: str, constants: Mapping[str, Array]
) -> Convert:
    def run(node: Any, importer: Any) -> Any:
        chosen = parameters_of(node)
        if chosen is not None:
            return _by_run_time(node, importer, [importer.env[part] for part in chosen])
        return convert(node, importer, _arguments(node, name, constants))

    return run


def _quantize(node: Any, importer: Any, given: Arguments) -> Any:
    """``clamp(round(x / scale) + zero_point, low, high)``: a quantize, and a clip if narrower."""
    emit = importer.block_builder.emit
    stored = emit(
        relax.op.quantize(
            importer.env[node.args[0]], relax.const(given.scale), relax.const(given.zero_point),
            axis=given.axis, out_dtype=given.dtype,
        )
    )  # fmt: skip
    info = np.iinfo(given.dtype)
    if given.low <= info.min and given.high >= info.max:
        return stored
    low, high = max(given.low, info.min), min(given.high, info.max)
    return emit(relax.op.clip(stored, low, high))  # type: ignore[arg-type] # TVM takes numbers


def _dequantize(node: Any, importer: Any, given: Arguments) -> Any:
    return importer.block_builder.emit(
        relax.op.dequantize(
            importer.env[node.args[0]], relax.const(given.scale), relax.const(given.zero_point),
            axis=given.axis, out_dtype=given.real,
        )
    )  # fmt: skip


def _by_run_time(node: Any, importer: Any, parameters: Sequence[Any]) -> Any:
    """A quantize or dequantize by a scale and a uint8 zero point that the run finds."""
    quantizes = node.target.__name__.startswith("quantize")
    make = relax.op.quantize if quantizes else relax.op.dequantize
    dtype = "uint8" if quantizes else "float32"
    data = importer.env[node.args[0]]
    return importer.block_builder.emit(make(data, *parameters, axis=0, out_dtype=dtype))


_PER_TENSOR = ("input", "scale", "zero_point", "quant_min", "quant_max", "dtype")
_PER_CHANNEL = ("input", "scales", "zero_points", "axis", "quant_min", "quant_max", "dtype")
_NUMBERS = ("scale", "scales", "zero_point", "zero_points", "quant_min", "quant_max")


def _arguments(node: Any, name: str, constants: Mapping[str, Array]) -> Arguments:
    names: Sequence[str] = _PER_CHANNEL if name.endswith("channel") else _PER_TENSOR
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    dtype = str(given["dtype"]).removeprefix("torch.")
    if dtype not in (*_STORED, "int32") or (name.startswith("quantize") and dtype == "int32"):
        raise UnsupportedQuantization(
            f"cannot read the quantization of '{node.name}'",
            where=f"{node.target}",
            why=f"its integers are {dtype}",
            fix="quantize to int8, uint8, int16 or uint16",
        )
    known = {
        key: _attribute_array(node, value, key, constants)
        for key, value in given.items()
        if key in _NUMBERS
    }
    scale = known.get("scale", known.get("scales"))
    zero_point = known.get("zero_point", known.get("zero_points"))
    assert scale is not None
    scale = _element(scale, name)
    zeros = np.zeros_like(scale) if zero_point is None else _element(zero_point, name)
    low, high = (int(known[key].reshape(())) for key in ("quant_min", "quant_max"))
    real = str(given.get("out_dtype") or "float32").removeprefix("torch.")
    return Arguments(
        scale.astype(np.float32), zeros.astype(dtype), int(given.get("axis", 0)), low, high,
        dtype, real,
    )  # fmt: skip


def _element(array: Array, name: str) -> Array:
    """Returns parameters per tensor as a scalar, per channel as a vector."""
    return array.reshape(-1) if name.endswith("channel") else array.reshape(())


def _attribute_array(node: Any, value: Any, key: str, constants: Mapping[str, Array]) -> Any:
    if value is None:
        return None
    if isinstance(value, int | float):
        return np.asarray(value)
    found = constants.get(str(getattr(value, "name", "")))
    if found is None:
        raise UnsupportedQuantization(
            f"cannot read the quantization of '{node.name}'",
            where=f"{node.target}",
            why=f"its {key} is computed while the model runs",
            fix="use a quantizer that fixes scales beforehand (static quantization)",
        )
    return found


# Scales and zero points that a PT2E program finds as it runs, as ``DynamicQuantizeLinear`` does.
#
# PyTorch's ``choose_qparams`` takes them from the extremes of the data and 0, as ONNX does, in
# int8 or uint8: codes and zero points of int8 are 128 less, which no real number shows, so all are
# uint8 here. Two things PyTorch does otherwise: it multiplies by ``1 / scale``, where a tie may
# round to the other side, and it has a smallest scale. Source: PyTorch's
# ``torch/ao/quantization/fx/_decomposed.py``, and ``determine_qparams`` in
# ``torch/ao/quantization/utils.py``.

_CHOOSE = "choose_qparams.tensor"
_OTHERS = (
    "choose_qparams", "choose_qparams_symmetric", "choose_qparams_per_token",
    "choose_qparams_per_token_asymmetric",
)  # fmt: skip
"""Operators that find scales at run time, by the part of their names before the overload."""

_READERS = ("quantize_per_tensor.tensor", "dequantize_per_tensor.tensor")
_LAST = 255
_WHOLE_NUMBERS = {"uint8": (0, _LAST), "int8": (-128, 127)}
"""Codes of a type, all of which are used."""


def parameters_of(node: Any) -> tuple[Any, Any] | None:
    """Returns the graph nodes of the scale and the zero point of a Q or DQ; None of constants."""
    given = {**dict(zip(("input", "scale", "zero_point"), node.args, strict=False)), **node.kwargs}
    scale, zero_point = given.get("scale"), given.get("zero_point")
    if _chooser(scale) is None or _chooser(scale) is not _chooser(zero_point):
        return None
    return scale, zero_point


def _chooser(value: Any) -> Any:
    """Returns the node that chose a scale or a zero point."""
    source = value.args[0] if getattr(value, "op", "") == "call_function" and value.args else None
    return source if source is not None and _fx_target_name(source) == _CHOOSE else None


def _fx_target_name(node: Any) -> str:
    return str(getattr(getattr(node, "target", None), "__name__", ""))


def choose(node: Any, importer: Any) -> tuple[Any, Any]:
    """Returns the scale and the uint8 zero point of data, in the steps of TVM's ONNX frontend.

    Args:
        node: The ``choose_qparams.tensor`` of an exported program.
        importer: TVM's importer of the program.
    """
    emit, op = importer.block_builder.emit, relax.op
    x = importer.env[node.args[0]]
    zero, last = (relax.const(number, "float32") for number in (0.0, float(_LAST)))
    high = emit(op.maximum(zero, op.max(x)))
    low = emit(op.minimum(zero, op.min(x)))
    scale = emit(op.divide(op.subtract(high, low), last))
    place = op.subtract(zero, op.divide(low, scale))
    clipped = op.clip(place, 0, _LAST)  # type: ignore[arg-type] # TVM takes numbers
    return scale, emit(op.astype(op.round(clipped), "uint8"))


def check(program: Any) -> None:
    """Refuses scales of run time that no ``DynamicQuantizeLinear`` has.

    Raises:
        UnsupportedQuantization: They are symmetric or per token, leave codes out, are not of
            float32, or something else reads them.
    """
    for node in program.graph.nodes:
        why = _reason(node) if node.op == "call_function" else ""
        if why:
            raise UnsupportedQuantization(
                f"cannot read the quantization of '{node.name}'",
                where=_fx_target_name(node),
                why=why,
                fix="use a quantizer that takes asymmetric scales of whole tensors in all of int8 "
                "or uint8, or static ones (is_dynamic=False)",
            )


def _reason(node: Any) -> str:
    name = _fx_target_name(node)
    if name.partition(".")[0] not in _OTHERS:
        return ""
    if name != _CHOOSE:
        return "its scales, found as the program runs, are not ONNX's DynamicQuantizeLinear's"
    source, low, high, _, dtype = node.args
    stored = str(dtype).removeprefix("torch.")
    if _WHOLE_NUMBERS.get(stored) != (low, high):
        return f"it uses the codes {low} to {high} of {stored}, not all"
    real = str(source.meta["val"].dtype).removeprefix("torch.")
    if real != "float32":
        return f"its data are {real}, not float32"
    readers = {_fx_target_name(user) for part in node.users for user in part.users}
    others = sorted(readers.difference(_READERS))
    return f"{', '.join(others)} reads its scale or zero point" if others else ""


def notes(program: Any) -> Iterator[Note]:
    """Yields what PyTorch does otherwise: a smallest scale."""
    for node in program.graph.nodes:
        if node.op == "call_function" and _fx_target_name(node) == _CHOOSE:
            least = float(node.args[3])
            yield Note(
                "smallest-scale",
                node.name,
                f"PyTorch has no scale below {least:.6g}; data within a range of "
                f"{np.float32(least * _LAST):.3g} have a finer one here",
            )


_WHOLE = (
    "aten.elu.default", "aten.gelu.default", "aten.hardsigmoid.default", "aten.hardswish.default",
    "aten.leaky_relu.default", "aten.linear.default", "aten.matmul.default",
    "aten.scaled_dot_product_attention.default",
    "aten.selu.default", "aten.softplus.default",
    "aten.upsample_nearest2d.vec",
)  # fmt: skip
"""Operators that TVM's frontend knows as one, and that PyTorch's decompositions would take apart.

Batch norms are not among them: TVM 0.27 reads the undecomposed one's arguments one place off.
"""


def from_torch(program: Any, *, canonical: bool = True, fuse: bool = False) -> Graph:
    """Reads an exported PyTorch program through TVM's frontend.

    A program quantized by PT2E (operators ``quantized_decomposed.*``) becomes the graph that the
    QDQ ONNX file of the same program is read as. Products whose activations it quantizes while it
    runs (``choose_qparams``) are a ``DynamicDense`` or ``DynamicConv``.

    Args:
        program: What ``torch.export.export`` returned, of a model in evaluation mode.
        canonical: Rewrite the graph to the canonical form.
        fuse: As for :func:`qdqbridge.load`.

    Returns:
        The graph; inputs have the names of the module's arguments.

    Raises:
        InputDataError: It is no exported program.
        UnsupportedModelError: PyTorch is not installed, TVM's frontend does not know an operator,
            or an operator has no counterpart here; all of them are listed.
        UnsupportedQuantization: Scales that it finds while it runs are not those of ONNX's
            DynamicQuantizeLinear, or a type is not known.
    """
    torch = imported("torch", "from_torch", "torch")
    if not isinstance(program, torch.export.ExportedProgram):
        raise InputDataError(
            f"from_torch was given {type(program).__name__}, no exported program",
            fix="give it torch.export.export(model.eval(), example_inputs)",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's about itself
        program = program.run_decompositions(_decompositions(torch))
    check(program)
    module = _imported(program)
    names = [str(name) for name in program.graph_signature.user_outputs]
    graph = read_function(module["main"], module, output_names=names, where="the exported program")
    verify(graph)
    if canonical:
        verify(canonicalize(graph, ReadingOptions(fuse=fuse, dynamic=True)))
    graph.notes.extend(notes(program))
    return graph


def _decompositions(torch: Any) -> dict[Any, Any]:
    table = torch.export.default_decompositions()
    for operator in list(table):
        if str(operator) in _WHOLE:
            table.pop(operator)
    return table


def _imported(program: Any) -> Any:
    """Returns the program as TVM's frontend imports it; what that raises is mapped here."""
    from tvm.relax.frontend.torch import from_exported_program

    try:
        return from_exported_program(
            program,
            run_ep_decomposition=False,
            unwrap_unit_return_tuple=True,
            custom_convert_map={
                **converters(dict(_constants(program))),
                "hardsigmoid.default": _hard_sigmoid,
            },
        )
    except QdqBridgeError:
        raise
    except Exception as error:  # TVM's frontend raises what its converters meet
        raise UnsupportedModelError(
            "TVM's PyTorch frontend cannot import the program",
            why=str(error).strip().partition("\n")[0] or type(error).__name__,
            fix="write the operator with others, or export the model as ONNX and load that",
        ) from error


def _hard_sigmoid(node: Any, importer: Any) -> Any:
    """``clip(x / 6 + 1/2, 0, 1)``, which is read as ONNX's HardSigmoid; TVM clips to 6 first."""
    from tvm import relax

    x = importer.env[node.args[0]]
    sixth, half = (relax.const(number, x.ty.dtype.dtype) for number in (1 / 6, 0.5))
    line = relax.op.add(relax.op.multiply(sixth, x), half)
    clipped = relax.op.clip(line, 0, 1)  # type: ignore[arg-type] # TVM takes numbers
    return importer.block_builder.emit(clipped)


def _constants(program: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields the program's tensors by the name of the node that stands for them."""
    held: dict[str, Any] = {**program.state_dict, **program.constants}
    for spec in program.graph_signature.input_specs:
        tensor = held.get(spec.target) if spec.target is not None else None
        if tensor is not None and hasattr(tensor, "detach"):
            yield str(spec.arg.name), np.asarray(tensor.detach().cpu().numpy())


# ---- TVM's own importer of ONNX and its own kernels, as a user of TVM alone runs a file ----------


def run_imported(model: Any, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Returns what TVM computes of a model without any rule of this package.

    Args:
        model: ONNX's ModelProto.
        inputs: In the order of the model's.
    """
    module = from_onnx(model, keep_params_in_input=False)
    device: Any = tvm.cpu()
    machine = relax.VirtualMachine(relax.build(module, "llvm"), device)
    found = machine["main"](*(tvm.runtime.tensor(each) for each in inputs))
    arrays = found if isinstance(found, list | tuple | tvm.ir.Array) else [found]
    return [np.asarray(each.numpy()) for each in arrays]
