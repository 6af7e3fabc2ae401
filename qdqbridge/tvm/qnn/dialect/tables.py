"""Tables over the codes of an 8- or 16-bit type, computed by NumPy when a call is legalized."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.tvm.qnn.dialect.arithmetic import Prim, kind_of
from qdqbridge.tvm.qnn.dialect.tir import tirx


def _scalar_qparams(scale: Any, zero_point: Any, dtype: str) -> QuantParams:
    return QuantParams(
        DType.of(np.dtype(dtype)),
        np.asarray(scale, np.float32).reshape(()),
        np.asarray(zero_point, np.int32).reshape(()),
    )


def real_codes(dtype: str, scale: Any, zero_point: Any) -> NDArray[np.float32]:
    """Returns the float32 value of every code, in the order of its bit pattern."""
    params = _scalar_qparams(scale, zero_point, dtype)
    return dequantize(codes(params), params)


def quantize_table(values: NDArray[Any], scale: Any, zero_point: Any, dtype: str) -> NDArray[Any]:
    """Returns real values as codes of ``dtype``."""
    return quantize(np.asarray(values, np.float32), _scalar_qparams(scale, zero_point, dtype))


def index_of(code: Prim) -> Prim:
    """Returns the bit pattern of an 8- or 16-bit code as an int32 index."""
    unsigned = "uint8" if kind_of(code) in ("int8", "uint8") else "uint16"
    return tirx.reinterpret(unsigned, code).astype("int32")
