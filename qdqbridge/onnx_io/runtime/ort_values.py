"""Arrays of every element type through onnxruntime's Python interface.

``InferenceSession.run`` takes and gives what NumPy itself knows. bfloat16, the 8-bit and 4-bit
floats and the integers below 8 bits go through ``OrtValue``, whose memory is written and read here:
elements of fewer than 8 bits lie packed in it, as they do in a file.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.onnx_io.tensors import dtype_to_onnx, from_bytes, raw_bytes

Array = NDArray[Any]
_OF_ONNX = {
    "float8e4m3fn": DType.FLOAT8_E4M3FN, "float8e4m3fnuz": DType.FLOAT8_E4M3FNUZ,
    "float8e5m2": DType.FLOAT8_E5M2, "float8e5m2fnuz": DType.FLOAT8_E5M2FNUZ,
    "float8e8m0": DType.FLOAT8_E8M0, "float4e2m1": DType.FLOAT4_E2M1,
    "float6e2m3": DType.FLOAT6_E2M3, "float6e3m2": DType.FLOAT6_E3M2, "bfloat16": DType.BFLOAT16,
    "int4": DType.INT4, "uint4": DType.UINT4, "int2": DType.INT2, "uint2": DType.UINT2,
}  # fmt: skip
"""Element types that NumPy does not have, by onnxruntime's names of them."""
_EXTENDED = frozenset(dtype.numpy for dtype in _OF_ONNX.values())


def run(session: Any, feeds: Mapping[str, Any], names: Sequence[str] | None = None) -> list[Any]:
    """Returns what ``InferenceSession.run`` would, of whatever element types.

    Args:
        session: An ``InferenceSession``.
        feeds: An array for each input; a list for a sequence, None for an empty optional.
        names: The outputs wanted; all by default.
    """
    types = {value.name: _element(value.type) for value in session.get_outputs()}
    wanted = list(types) if names is None else list(names)
    given = (each.dtype for each in feeds.values() if isinstance(each, np.ndarray))
    extended = any(dtype in _EXTENDED for dtype in given)
    if not extended and not any(types.get(name) for name in wanted):
        return session.run(wanted, dict(feeds))
    values = session.run_with_ort_values(
        wanted, {name: _to_value(np.asarray(array)) for name, array in feeds.items()}
    )
    return [_from_value(value) for value in values]


def _element(type_: str) -> DType | None:
    """Returns the element type of a tensor where NumPy does not have it."""
    return _OF_ONNX.get(type_.removeprefix("tensor(").removesuffix(")"))


def _to_value(array: Array) -> Any:
    import onnxruntime as ort

    if array.dtype not in _EXTENDED:
        return ort.OrtValue.ortvalue_from_numpy(array)
    constant = Constant.of(array)
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, dtype_to_onnx(constant.dtype))
    data = raw_bytes(constant)
    if data:
        ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def _from_value(value: Any) -> Array:
    dtype = _element(value.data_type())
    if dtype is None:
        return value.numpy()
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return from_bytes(np.frombuffer(data, np.uint8), dtype, tuple(value.shape())).numpy()
