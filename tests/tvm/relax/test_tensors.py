"""Inputs in the caller's memory, and copies of those that TVM cannot read there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

import qdqbridge as qb
from qdqbridge.tvm.relax.files import aligned, handed_over, lasting, to_array, to_tensor
from tests.places import MODELS

MODEL = MODELS / "digits_cnn_u8s8_per_channel.onnx"
CPU: Any = tvm.cpu()


def _ready(shape: tuple[int, ...] = (3, 5), dtype: Any = np.float32) -> Any:
    array = aligned(shape, np.dtype(dtype))
    array[...] = np.arange(array.size).reshape(shape)
    return array


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8, np.int64])
def test_aligned_arrays_are_handed_over(dtype: Any) -> None:
    array = _ready(dtype=dtype)
    assert array.ctypes.data % 64 == 0 and handed_over(array)
    assert np.shares_memory(np.from_dlpack(to_tensor(array, CPU)), array)


@pytest.mark.parametrize("count", [5, (1 << 20) + 3, 3 << 20])
def test_lasting_arrays_are_handed_over(count: int) -> None:
    array = lasting((count,), np.dtype(np.int16))
    array[...] = np.arange(count) % 1000
    held = to_tensor(array, CPU)
    assert array.ctypes.data % 64 == 0 and np.shares_memory(np.from_dlpack(held), array)
    del array
    assert np.array_equal(np.from_dlpack(held), np.arange(count) % 1000)


def test_what_cannot_be_handed_over_is_copied() -> None:
    whole = _ready((4, 8))
    frozen = _ready()
    frozen.flags.writeable = False
    for array in (
        whole[:, ::2],
        whole.T,
        whole[1:, 1:],
        whole.reshape(-1)[1:],
        frozen,
        _ready() > 3,
    ):
        assert not handed_over(array)
        tensor = to_tensor(array, CPU)
        np.testing.assert_array_equal(to_array(tensor), array)
        if array.dtype != np.bool_:
            assert not np.shares_memory(np.from_dlpack(tensor), array)


def test_results_are_the_callers_own() -> None:
    array = _ready()
    result = to_array(to_tensor(array, CPU))
    assert not np.shares_memory(result, array) and result.flags.writeable


def test_buffers_are_filled_in_and_run() -> None:
    graph = qb.load(MODEL)
    executable = qb.compile(graph)
    (value,) = graph.inputs
    assert set(executable.buffers()) == ({value.name} if _static(value.type.shape) else set())
    shape = tuple(e if isinstance(e, int) else 2 for e in value.type.shape or ())
    array = aligned(shape, np.dtype(np.float32))
    array[...] = np.random.default_rng(0).normal(size=shape)
    kept = array.copy()
    assert handed_over(array)
    ours, meant = executable.run({value.name: array}), qb.evaluate(graph, {value.name: kept})
    np.testing.assert_array_equal(array, kept)
    for name, expected in meant.items():
        np.testing.assert_array_equal(ours[name], expected)


def _static(shape: Any) -> bool:
    return all(isinstance(extent, int) for extent in shape)
