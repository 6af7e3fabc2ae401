"""Constants that lead back to the bytes they are stored as."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from qdqbridge.core.graph.constant import Constant, StoredBytes
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import shifted_constant
from qdqbridge.onnx_io.tensors import from_bytes, raw_bytes

LARGE = (2048, 1024)


def nibbles(shape: tuple[int, ...], dtype: DType = DType.UINT4) -> tuple[Constant, np.ndarray]:
    """Returns random codes of 4 bits in bytes, and what they are."""
    count = int(np.prod(shape))
    data = np.random.default_rng(count).integers(0, 256, -(-count // 2), np.uint8)
    codes = np.stack([data & 15, data >> 4], 1).reshape(-1)[:count].astype(np.int8)
    if dtype.is_signed:
        codes = np.where(codes > 7, codes - 16, codes).astype(np.int8)
    return from_bytes(data, dtype, shape), codes.reshape(shape)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 3), (4, 6), (0, 4), (4, 0), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [DType.UINT4, DType.INT4])
def test_views_and_the_other_signedness_are_those_of_the_elements(
    shape: tuple[int, ...], dtype: DType
) -> None:
    constant, codes = nibbles(shape, dtype)
    other = shifted_constant(constant)
    shift = -8 if dtype is DType.UINT4 else 8
    perm = tuple(reversed(range(len(shape))))
    for found, wanted in (
        (constant, codes),
        (other, codes + shift),
        (other.permuted(perm), (codes + shift).transpose(perm)),
        (shifted_constant(constant.permuted(perm)), (codes + shift).transpose(perm)),
    ):
        assert found.shape == wanted.shape
        assert np.array_equal(found.numpy().astype(np.int8), wanted)
        assert found.numpy().dtype == found.dtype.numpy


def test_a_permutation_undone_is_the_constant_itself() -> None:
    constant, codes = nibbles((2, 3, 4))
    moved = constant.permuted((2, 0, 1))
    assert moved.permuted((1, 2, 0)) is constant
    assert moved.unpermuted() == (constant, (2, 0, 1))
    assert constant.permuted((2, 0, 1)) is moved
    twice = moved.permuted((2, 0, 1))
    assert np.array_equal(twice.numpy().astype(np.int8), codes.transpose(1, 2, 0))


def test_bytes_are_kept_through_a_change_of_sign() -> None:
    constant, _ = nibbles((6, 4))
    packed = constant.packed()
    assert packed is not None
    shifted = shifted_constant(constant)
    other = shifted.packed()
    assert other is not None and np.array_equal(other, packed ^ 0x88)
    assert raw_bytes(shifted) == (packed ^ 0x88).tobytes()
    assert constant.transposed().packed() is None
    assert Constant.of(np.zeros((2, 2), ml_dtypes.int4)).packed() is None


def test_the_last_byte_of_an_odd_count_has_no_stray_bits() -> None:
    constant = from_bytes(np.array([0x21, 0xF3], np.uint8), DType.UINT4, (3,))
    assert raw_bytes(constant) == bytes([0x21, 0x03])


@pytest.mark.parametrize("rows", [slice(0, 5), slice(2047, 4000), slice(7, 7), slice(None)])
def test_some_rows_are_those_of_the_whole(rows: slice) -> None:
    constant, codes = nibbles(LARGE)
    assert np.array_equal(constant.rows(rows).astype(np.int8), codes[rows])
    assert np.array_equal(constant.transposed().rows(rows).astype(np.int8), codes.T[rows])


def test_what_was_unpacked_is_held_as_long_as_somebody_looks() -> None:
    loads = list[int]()

    def load() -> np.ndarray:
        loads.append(1)
        return np.zeros(LARGE[0] * LARGE[1] // 2, np.uint8)

    constant = from_bytes(load(), DType.UINT4, LARGE)
    stored = constant._stored  # pyright: ignore[reportPrivateUsage] # to count what it loads
    assert stored is not None
    counted = Constant.stored(DType.UINT4, LARGE, StoredBytes(load, stored.decode))
    loads.clear()
    first = counted.numpy()
    assert counted.numpy() is first and len(loads) == 1
    view = counted.transposed().numpy()
    assert len(loads) == 1
    del first, view
    gc.collect()
    counted.numpy()
    assert len(loads) == 2
