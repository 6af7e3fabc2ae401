"""Element types of TVM's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.errors import UnsupportedTargetError

HOLDABLE = frozenset(
    (
        DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT64, DType.INT32,
        DType.INT16, DType.INT8, DType.UINT64, DType.UINT32, DType.UINT16, DType.UINT8, DType.BOOL,
    )
)  # fmt: skip
"""Element types that TVM stores in tensors."""

_SUB_BYTE = {DType.INT4: np.int8, DType.INT2: np.int8, DType.UINT4: np.uint8, DType.UINT2: np.uint8}
_MINIFLOATS = frozenset(dtype for dtype in DType if dtype.is_small_float)


def as_bytes(array: NDArray[Any]) -> NDArray[Any]:
    """Returns floats of 8 bits and fewer as the bytes that TVM holds; any other array as it is."""
    return array.view(np.uint8) if DType.of(array.dtype) in _MINIFLOATS else array


def from_tvm_array(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Returns an array of TVM's in the element type that it stands for."""
    if dtype in _MINIFLOATS:
        return array.view(dtype.numpy)
    return array.astype(dtype.numpy, copy=False)


def storage(params: QuantParams) -> str:
    """Returns the TVM element type that holds ``params``' stored values."""
    return tvm_dtype(params.storage_dtype)


def tvm_dtype(dtype: DType) -> str:
    """Returns TVM's name of an element type.

    A byte holds an element of a sub-byte type, and the bits of an 8- or 4-bit float.

    Raises:
        UnsupportedTargetError: TVM has no tensors of it.
    """
    if dtype in _SUB_BYTE:
        return str(np.dtype(_SUB_BYTE[dtype]))
    if dtype in _MINIFLOATS:
        return "uint8"
    if dtype not in HOLDABLE:
        raise UnsupportedTargetError(
            f"TVM cannot hold tensors of {dtype}",
            why="this is a limit of TVM, not of the model",
            fix="run it with the interpreter or onnxruntime, or export the graph",
        )
    return str(dtype)
