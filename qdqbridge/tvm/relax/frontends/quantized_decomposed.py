"""PyTorch's ``quantized_decomposed`` operators as ``R.quantize`` and ``R.dequantize``.

They are what PT2E writes, and TVM's PyTorch frontend does not know them. Source: the definitions
in PyTorch's ``torch/ao/quantization/fx/_decomposed.py``. PyTorch multiplies by ``1 / scale`` where
ONNX and Relax divide by it: a tie may round to the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from qdqbridge.errors import UnsupportedQuantization
from qdqbridge.tvm.relax.frontends import dynamic_parameters

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
    found["choose_qparams.tensor"] = dynamic_parameters.choose
    return found


def _bound(
    convert: Callable[[Any, Any, Arguments], Any], name: str, constants: Mapping[str, Array]
) -> Convert:
    def run(node: Any, importer: Any) -> Any:
        chosen = dynamic_parameters.parameters_of(node)
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
        key: _array(node, value, key, constants) for key, value in given.items() if key in _NUMBERS
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


def _array(node: Any, value: Any, key: str, constants: Mapping[str, Array]) -> Any:
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
