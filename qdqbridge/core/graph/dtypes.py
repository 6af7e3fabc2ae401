"""Element types: what a tensor stores, independent of what the numbers mean."""

from __future__ import annotations

from enum import Enum
from typing import Any, cast

import ml_dtypes
import numpy as np


class DTypeKind(Enum):
    """The families of element types."""

    FLOAT = "float"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    BOOL = "bool"
    STRING = "string"


class DType(Enum):
    """An element type, named as NumPy and ml_dtypes name it.

    The value is ``(name, kind, bits, numpy scalar type)``; sub-byte types take one byte per
    element in memory and ``bits`` bits in a file.
    """

    FLOAT64 = ("float64", DTypeKind.FLOAT, 64, np.float64)
    FLOAT32 = ("float32", DTypeKind.FLOAT, 32, np.float32)
    FLOAT16 = ("float16", DTypeKind.FLOAT, 16, np.float16)
    BFLOAT16 = ("bfloat16", DTypeKind.FLOAT, 16, ml_dtypes.bfloat16)
    FLOAT8_E4M3FN = ("float8_e4m3fn", DTypeKind.FLOAT, 8, ml_dtypes.float8_e4m3fn)
    FLOAT8_E4M3FNUZ = ("float8_e4m3fnuz", DTypeKind.FLOAT, 8, ml_dtypes.float8_e4m3fnuz)
    FLOAT8_E5M2 = ("float8_e5m2", DTypeKind.FLOAT, 8, ml_dtypes.float8_e5m2)
    FLOAT8_E5M2FNUZ = ("float8_e5m2fnuz", DTypeKind.FLOAT, 8, ml_dtypes.float8_e5m2fnuz)
    FLOAT8_E8M0 = ("float8_e8m0fnu", DTypeKind.FLOAT, 8, ml_dtypes.float8_e8m0fnu)
    FLOAT6_E2M3 = ("float6_e2m3fn", DTypeKind.FLOAT, 6, ml_dtypes.float6_e2m3fn)
    FLOAT6_E3M2 = ("float6_e3m2fn", DTypeKind.FLOAT, 6, ml_dtypes.float6_e3m2fn)
    FLOAT4_E2M1 = ("float4_e2m1fn", DTypeKind.FLOAT, 4, ml_dtypes.float4_e2m1fn)
    INT64 = ("int64", DTypeKind.SIGNED, 64, np.int64)
    INT32 = ("int32", DTypeKind.SIGNED, 32, np.int32)
    INT16 = ("int16", DTypeKind.SIGNED, 16, np.int16)
    INT8 = ("int8", DTypeKind.SIGNED, 8, np.int8)
    INT4 = ("int4", DTypeKind.SIGNED, 4, ml_dtypes.int4)
    INT2 = ("int2", DTypeKind.SIGNED, 2, ml_dtypes.int2)
    UINT64 = ("uint64", DTypeKind.UNSIGNED, 64, np.uint64)
    UINT32 = ("uint32", DTypeKind.UNSIGNED, 32, np.uint32)
    UINT16 = ("uint16", DTypeKind.UNSIGNED, 16, np.uint16)
    UINT8 = ("uint8", DTypeKind.UNSIGNED, 8, np.uint8)
    UINT4 = ("uint4", DTypeKind.UNSIGNED, 4, ml_dtypes.uint4)
    UINT2 = ("uint2", DTypeKind.UNSIGNED, 2, ml_dtypes.uint2)
    BOOL = ("bool", DTypeKind.BOOL, 8, np.bool_)
    STRING = ("string", DTypeKind.STRING, 0, np.object_)

    def __init__(self, label: str, kind: DTypeKind, bits: int, scalar: type) -> None:
        self.label = label
        self.kind = kind
        self.bits = bits
        self.numpy: np.dtype = np.dtype(scalar)

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers of any width."""
        return self.kind in (DTypeKind.SIGNED, DTypeKind.UNSIGNED)

    @property
    def is_signed(self) -> bool:
        """True for signed integers."""
        return self.kind is DTypeKind.SIGNED

    @property
    def is_float(self) -> bool:
        """True for every floating-point type, those of 8 bits and fewer included."""
        return self.kind is DTypeKind.FLOAT

    @property
    def is_small_float(self) -> bool:
        """True for floating-point types of 8 bits and fewer, which only store quantized values."""
        return self.kind is DTypeKind.FLOAT and self.bits <= 8

    @property
    def is_finite(self) -> bool:
        """True for floating-point types without infinity and NaN, in which everything saturates."""
        return self.kind is DTypeKind.FLOAT and self.bits < 8

    @property
    def qmin(self) -> int:
        """Smallest integer the type holds."""
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def qmax(self) -> int:
        """Largest integer the type holds."""
        return (1 << (self.bits - (1 if self.is_signed else 0))) - 1

    @property
    def largest(self) -> float:
        """Largest finite number of a floating-point type."""
        return float(cast("Any", ml_dtypes.finfo)(self.numpy).max)

    @property
    def step(self) -> float:
        """Smallest distance between two numbers of the type: 1 for integers."""
        if not self.is_float:
            return 1.0
        return float(cast("Any", ml_dtypes.finfo)(self.numpy).smallest_subnormal)

    def __str__(self) -> str:
        return self.label

    @staticmethod
    def of(dtype: np.dtype) -> DType:
        """Returns the element type of a NumPy dtype.

        Raises:
            KeyError: The dtype has no counterpart.
        """
        return _BY_NUMPY[np.dtype(dtype)]


_BY_NUMPY = {dtype.numpy: dtype for dtype in DType}
