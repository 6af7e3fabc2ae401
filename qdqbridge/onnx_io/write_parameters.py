"""Scales and zero points as ONNX writes them, one pair of initializers for equal parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.constant import Constant
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.numerics import dequantize
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.onnx_io.write_names import Names

_Key = tuple[DType, DType, tuple[int, ...], bytes, bytes]


class Parameters:
    """The initializers of scales and zero points.

    Args:
        names: Hands out tensor names.
        constants: Where initializers go.
    """

    def __init__(self, names: Names, constants: dict[str, Constant]) -> None:
        self._names, self._constants = names, constants
        self._known: dict[_Key, tuple[str, str]] = {}

    def of(self, params: QuantParams, stem: str) -> tuple[str, str]:
        """Returns the names of scale and zero point; new ones begin with ``stem``."""
        scale, zero_point = params.scale, params.zero_point
        key = (
            params.storage_dtype, params.scale_dtype, scale.shape,
            scale.tobytes(), zero_point.tobytes(),
        )  # fmt: skip
        if key not in self._known:
            pair = (self._names.take(f"{stem}_scale"), self._names.take(f"{stem}_zero_point"))
            self._constants[pair[0]] = Constant.of(scale)
            self._constants[pair[1]] = Constant.of(
                zero_point.astype(params.storage_dtype.numpy).reshape(scale.shape)
            )
            self._known[key] = pair
        return self._known[key]


def granularity(params: QuantParams) -> dict[str, int]:
    """Returns the attributes ``axis`` and ``block_size``, empty for per-tensor parameters."""
    given = {"axis": params.axis, "block_size": params.block_size}
    return {name: number for name, number in given.items() if number is not None}


def quantizing(params: QuantParams) -> dict[str, int]:
    """Returns the attributes of a QuantizeLinear into ``params``."""
    return granularity(params) | ({} if params.saturate else {"saturate": 0})


def real_bounds(params: QuantParams) -> tuple[float | None, float | None]:
    """Returns the real interval of a per-tensor range, None on the sides where it is full."""
    ends = np.array([params.qmin, params.qmax], params.storage_dtype.numpy)
    low, high = (float(x) for x in dequantize(ends, params.widened()).astype(np.float32))
    full = params.storage_dtype
    return (low if params.qmin > full.qmin else None, high if params.qmax < full.qmax else None)


def starts_at_zero(params: QuantParams) -> bool:
    """True where the range is what a Relu leaves: nothing below the zero point."""
    above: NDArray[Any] = params.zero_point == params.qmin
    return bool(above.all()) and params.qmax == params.storage_dtype.qmax


def quantizable(params: QuantParams) -> bool:
    """True where ONNX's QuantizeLinear can make values of this type (it cannot make int32)."""
    return params.storage_dtype.bits <= 16
