"""Element types: ranges, families, and NumPy's counterparts."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType, DTypeKind


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (DType.INT8, -128, 127), (DType.UINT8, 0, 255), (DType.INT4, -8, 7), (DType.UINT4, 0, 15),
        (DType.INT2, -2, 1), (DType.UINT2, 0, 3), (DType.INT16, -32768, 32767),
        (DType.UINT16, 0, 65535), (DType.INT32, -(2**31), 2**31 - 1),
        (DType.INT64, -(2**63), 2**63 - 1),
    ],
    ids=str,
)  # fmt: skip
def test_ranges(dtype: DType, low: int, high: int) -> None:
    assert (dtype.qmin, dtype.qmax) == (low, high)


@pytest.mark.parametrize("dtype", [d for d in DType if d.kind is not DTypeKind.STRING], ids=str)
def test_numpy_both_ways(dtype: DType) -> None:
    assert DType.of(dtype.numpy) is dtype
    assert DType.of(np.zeros(3, dtype.numpy).dtype) is dtype
    assert str(dtype) == dtype.numpy.name


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_integer and d.bits >= 8], ids=str)
def test_ranges_are_numpy_s(dtype: DType) -> None:
    info = np.iinfo(dtype.numpy)
    assert (dtype.qmin, dtype.qmax) == (info.min, info.max)


def test_families_are_disjoint() -> None:
    for dtype in DType:
        assert (
            dtype.is_integer + dtype.is_float + (dtype.kind in (DTypeKind.BOOL, DTypeKind.STRING))
            == 1
        )
        assert not (dtype.is_signed and not dtype.is_integer)
    small = {d.label for d in DType if d.is_small_float}
    assert small == {d.label for d in DType if d.label.startswith(("float8", "float6_", "float4"))}


def test_a_foreign_dtype_is_no_dtype() -> None:
    with pytest.raises(KeyError):
        DType.of(np.dtype(np.complex64))
