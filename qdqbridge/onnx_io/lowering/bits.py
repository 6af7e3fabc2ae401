"""Codes of 2, 4 or 8 bits in bytes, the first one in the lowest bits, as ONNX packs them too."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

UNSIGNED = {2: TensorProto.UINT2, 4: TensorProto.UINT4, 8: TensorProto.UINT8}
"""ONNX's unsigned element type of a width."""


def unpacked(data: NDArray[Any], bits: int, count: int) -> NDArray[np.uint8]:
    """Returns the first ``count`` codes of every row of bytes (the last axis)."""
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    codes = (data[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)[..., :count]


def packed(codes: NDArray[Any], bits: int) -> bytes:
    """Returns the bytes of codes in row-major order."""
    per_byte = 8 // bits
    flat = codes.reshape(-1).astype(np.uint8)
    rows = np.pad(flat, (0, -flat.size % per_byte)).reshape(-1, per_byte)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    return np.bitwise_or.reduce(rows << shifts, axis=1).astype(np.uint8).tobytes()


def tensor_of(codes: NDArray[Any], bits: int, name: str) -> onnx.TensorProto:
    """Returns a constant of unsigned codes."""
    tensor = TensorProto(name=name, data_type=UNSIGNED[bits], dims=codes.shape)
    tensor.raw_data = packed(codes, bits)
    return tensor
