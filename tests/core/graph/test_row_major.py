"""Copies in row-major order: every bit where NumPy puts it, whatever the order of the source."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from qdqbridge.core.graph import constant
from qdqbridge.core.graph.constant import fill, parts

_DTYPES = (
    np.int8, np.uint8, np.float16, np.int32, np.float64, np.bool_, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
)  # fmt: skip


def drawn(seed: int) -> NDArray[Any]:
    """Returns an array in some order of its axes: a part of one, with gaps, reversed, repeated."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    shape = tuple(rng.integers(0 if seed % 11 == 0 else 1, 40 if rank < 4 else 12, rank))
    array = rng.integers(0, 100, shape).astype(_DTYPES[seed % len(_DTYPES)])
    array = array.transpose(rng.permutation(rank))
    match seed % 4:
        case 0:
            return array[tuple(slice(int(rng.integers(0, 3)), None) for _ in shape)]
        case 1:
            return array[tuple(slice(None, None, int(rng.choice([1, 2, -1]))) for _ in shape)]
        case 2 if array.size:
            return np.broadcast_to(array[:1], array.shape)
        case _:
            return array


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_random_orders(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant, "PART", 256)
    for seed in range(start, start + 100):
        source = drawn(seed)
        target = np.empty(source.shape, source.dtype)
        fill(target, source)
        assert target.tobytes() == source.tobytes(), seed
        assert b"".join(part.tobytes() for part in parts(source)) == source.tobytes(), seed


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1031, 261), (8, 4096), (264, 8), (3, 272, 136)])
def test_matrices_of_several_tiles(dtype: Any, shape: tuple[int, ...]) -> None:
    source = np.random.default_rng(0).integers(0, 100, shape).astype(dtype).swapaxes(-1, -2)
    target = np.empty(source.shape, dtype)
    fill(target, source)
    np.testing.assert_array_equal(target, source)


def test_other_types_are_cast() -> None:
    target = np.empty((3, 2), np.int8)
    fill(target, np.arange(6).reshape(2, 3).T)
    assert target.tolist() == [[0, 3], [1, 4], [2, 5]]
