"""QuantizeLinear and DequantizeLinear whose scale or zero point is known at run time only.

Where parameters are constants, quantization is part of a value's type, and there is no such node.
Here they are operands: the node stands between a float tensor and a plain tensor of integers (or
of 8-bit or 4-bit floats), and computes what :mod:`qdqbridge.core.graph.numerics` says of constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import rounded_to
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operands, Row
from qdqbridge.core.ops.attributes import LinearAttrs
from qdqbridge.core.ops.shapes import differ, known, laid_along
from qdqbridge.core.ops.stored import present


def aligned(parameter: Array, attributes: LinearAttrs, shape: tuple[int, ...]) -> Array:
    """Returns a scale or zero point shaped to broadcast against data of ``shape``.

    Raises:
        ValueError: It does not fit the data.
    """
    if parameter.ndim == 0 or parameter.shape == (1,):
        return parameter.reshape(())
    axis = attributes.axis if attributes.axis is not None else 1
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"there is no axis {axis} in data of shape {shape}")
    axis %= len(shape)
    if parameter.ndim == 1 and not attributes.block_size:
        if parameter.shape[0] != shape[axis]:
            raise ValueError(f"parameters of shape {parameter.shape} for {shape}, axis {axis}")
        return laid_along(parameter, axis, len(shape))
    if parameter.ndim != len(shape) or not all(parameter.shape):
        raise ValueError(f"parameters of shape {parameter.shape} for blocks of {shape}")
    size = attributes.block_size or -(-shape[axis] // parameter.shape[axis])
    repeated = np.repeat(parameter, size, axis=axis)
    if not shape[axis] <= repeated.shape[axis] < shape[axis] + size:
        raise ValueError(f"{parameter.shape} blocks of {size} for {shape}, axis {axis}")
    return repeated.take(range(shape[axis]), axis=axis)


def _quantize(attributes: LinearAttrs, operands: Operands) -> tuple[Array, ...]:
    x, scale, zero_point = _three(operands)
    own = np.float64 if np.float64 in (x.dtype, scale.dtype) else np.float32
    wide = own if attributes.precision is None else attributes.precision.numpy
    divisor = aligned(scale.astype(wide), attributes, x.shape)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scaled = (x.astype(wide) / divisor).astype(own)
    shift = np.zeros((), np.int64)
    if zero_point is not None and attributes.to.is_integer:
        shift = aligned(zero_point.astype(np.int64), attributes, x.shape)
    return (rounded_to(scaled, attributes.to, shift, saturate=attributes.saturate),)


def _dequantize(attributes: LinearAttrs, operands: Operands) -> tuple[Array, ...]:
    x, scale, zero_point = _three(operands)
    wide = np.float64 if scale.dtype == np.float64 else np.float32
    factor = aligned(scale.astype(wide), attributes, x.shape)
    if DType.of(x.dtype).is_integer:
        whole = x.astype(np.int64)
        if zero_point is not None:
            whole = whole - aligned(zero_point.astype(np.int64), attributes, x.shape)
        x = whole
    with np.errstate(over="ignore", invalid="ignore"):
        real = x.astype(wide) * factor
        return (real if wide is np.float64 else real.astype(attributes.to.numpy),)


def _three(operands: Operands) -> tuple[Array, Array, Array | None]:
    x, scale, zero_point = (*operands, None, None)[:3]
    assert x is not None and scale is not None
    return x, scale, zero_point


def _check_runtime_qparams(node: Node, attributes: LinearAttrs) -> Iterator[str]:
    x, scale = node.operand(0), node.operand(1)
    for value in (x, scale, node.optional(2), node.output):
        if value is not None and value.quant is not None:
            yield f"'{value.name}' is quantized: it takes plain tensors"
    if x.rank is not None and attributes.axis is not None and (scale.rank or 0) > 0:
        if not -x.rank <= attributes.axis < x.rank:
            yield f"there is no axis {attributes.axis} in data of rank {x.rank}"
        elif scale.rank == 1 and known(scale, 0) != 1 and not attributes.block_size:
            extent = known(x, attributes.axis)
            if differ(extent, known(scale, 0)):
                yield f"{known(scale, 0)} scales for {extent} elements"


QUANTIZE_LINEAR = Row(
    name="QuantizeLinear", flow=Flow.FLOAT, attributes=LinearAttrs, compute=_quantize,
    check=_check_runtime_qparams, apart=True,
    numerics="sat(rint(x / s) + z) with s and z of run time: float32 division (or in the type "
    "that precision says), half to even; NaN gives the least integer. Equals onnxruntime 1.32.",
)  # fmt: skip
DEQUANTIZE_LINEAR = Row(
    name="DequantizeLinear", flow=Flow.FLOAT, attributes=LinearAttrs, compute=_dequantize,
    check=_check_runtime_qparams, apart=True,
    numerics="f32(q - z) * s with s and z of run time, rounded once to the result's type. Equals "
    "onnxruntime 1.32.",
)  # fmt: skip

OPERATORS = (QUANTIZE_LINEAR, DEQUANTIZE_LINEAR)


# ---- A rounding to codes and back whose parameters are operands, so that trying others is free ---


DISABLED = 0
CODES: Mapping[DType, int] = MappingProxyType(
    {
        DType.INT8: 1, DType.UINT8: 2, DType.INT32: 3, DType.INT16: 4, DType.UINT16: 5,
        DType.INT4: 6, DType.UINT4: 7, DType.INT2: 8, DType.UINT2: 9,
    }
)  # fmt: skip
"""The number of a storage type at run time: Relay's ``SQNN_DTYPE_TO_CODE``, continued."""
FLOAT_CODES: Mapping[DType, int] = MappingProxyType(
    {DType.FLOAT8_E4M3FN: -1, DType.FLOAT8_E5M2: -2}
)
"""Those of storage types that are floats: the multiples of a scale that the type has."""


@dataclass(frozen=True, slots=True)
class SimulatedAttrs(Attributes):
    """SimulateQuantization.

    Attributes:
        axis: The axis along which scales vary; None for one pair per tensor.
        floats: Whether what is stored may be floats.
    """

    axis: int | None = None
    floats: bool = False


def _simulate(attributes: SimulatedAttrs, operands: Operands) -> tuple[Array, ...]:
    x, code, *numbers = present(operands, 6)
    if int(code) == DISABLED:
        return (x,)
    scale, zero_point, low, high = (
        laid_along(number.astype(x.dtype), attributes.axis, x.ndim) for number in numbers
    )
    for dtype, number in FLOAT_CODES.items():
        if int(code) == number:
            stored = rounded_to(x / scale, dtype)
            return (np.asarray(stored.astype(x.dtype) * scale, x.dtype),)
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = np.rint(x / scale) + zero_point
    # fmax takes the number where the other operand is NaN.
    codes = np.minimum(np.fmax(shifted, low), high)
    return (np.asarray((codes - zero_point) * scale, x.dtype),)


def _check_simulated_quant(node: Node, _: Attributes) -> Iterator[str]:
    if len(node.inputs) != 6:
        yield f"it has {len(node.inputs)} operands and takes 6"


SIMULATE = Row(
    name="SimulateQuantization", flow=Flow.FLOAT, attributes=SimulatedAttrs, compute=_simulate,
    data=(0,), check=_check_simulated_quant,
    numerics="Operands x, code, scale, zero_point, low, high. Code 0: x. Else "
    "(clip(rint(x / scale) + zero_point, low, high) - zero_point) * scale in float32: what "
    "quantize and dequantize give. NaN gives low. Codes of at most 16 bits in ONNX. Negative "
    "codes: the nearest float8 of x / scale, times scale.",
)  # fmt: skip
