"""A rounding to codes and back whose parameters are operands, so that trying others is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import rounded_to
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operands, Row
from qdqbridge.core.ops.stored import present

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
        _along(number.astype(x.dtype), attributes.axis, x.ndim) for number in numbers
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


def _along(number: Array, axis: int | None, rank: int) -> Array:
    if axis is None or number.ndim == 0:
        return number
    return number.reshape([-1 if i == axis else 1 for i in range(rank)])


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

OPERATORS = (SIMULATE,)
