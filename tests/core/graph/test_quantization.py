"""QuantParams: what is checked, and equality by bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantParams, params_of_interval, per_tensor
from qdqbridge.errors import UnsupportedQuantization
from tests.core.graph.graphs import quant


def per_axis(axis: int = 1, **fields: object) -> QuantParams:
    scale = np.array([0.5, 0.25, 0.125], np.float32)
    return quant(DType.INT8, scale, np.array([0, 1, 2], np.int32), axis=axis, **fields)  # type: ignore[arg-type]


def test_the_range_is_that_of_the_storage_type_unless_given() -> None:
    params = per_tensor(DType.INT4, 0.5)
    assert (params.qmin, params.qmax, params.full_range) == (-8, 7, True)
    narrow = per_tensor(DType.INT8, 0.5, qmin=-7, qmax=7)
    assert (narrow.qmin, narrow.qmax, narrow.full_range) == (-7, 7, False)
    assert narrow.widened() == per_tensor(DType.INT8, 0.5)
    assert narrow != narrow.widened()
    assert narrow.same_mapping(narrow.widened())


@pytest.mark.parametrize("ends", [(-200, 7), (0, 200)])
def test_a_range_beyond_the_type_is_refused(ends: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedQuantization, match="-128 to 127"):
        per_tensor(DType.INT8, 0.5).with_range(*ends)


def test_one_zero_point_stands_for_all_channels() -> None:
    scale = np.array([0.5, 0.25], np.float32)
    one = quant(DType.UINT8, scale, np.int32(7), axis=0)
    two = quant(DType.UINT8, scale, np.array([7, 7], np.int32), axis=0)
    assert one == two
    assert hash(one) == hash(two)
    assert one.zero_point.tolist() == [7, 7]
    assert one.zero_point.dtype == np.int32


def test_equality_is_bit_for_bit() -> None:
    scale = np.float32(0.1)
    base = per_tensor(DType.UINT8, scale)
    assert base == per_tensor(DType.UINT8, np.float32(0.1))
    assert base != per_tensor(DType.UINT8, np.nextafter(scale, np.float32(1)))
    assert per_tensor(DType.UINT8, np.float32(0.0)) != per_tensor(DType.UINT8, np.float32(-0.0))


@pytest.mark.parametrize(
    "changed",
    [
        {"storage_dtype": DType.UINT8, "qmin": 0, "qmax": 255},
        {"scale": np.array([0.5, 0.25, 0.25], np.float32)},
        {"zero_point": np.array([0, 1, 3], np.int32)},
        {"axis": 0},
        {"block_size": 2},
        {"qmin": -127},
        {"expressed_dtype": DType.FLOAT16},
    ],
    ids=lambda c: next(iter(c)),
)
def test_every_field_counts(changed: dict[str, object]) -> None:
    assert replace(per_axis(), **changed) != per_axis()
    assert per_axis() == per_axis()
    assert len({per_axis(), replace(per_axis(), **changed), per_axis()}) == 2


def test_no_params_equal_something_else() -> None:
    assert per_axis() != "params"


@pytest.mark.parametrize(
    ("scale", "axis"), [(np.ones(3, np.float32), None), (np.float32(1), 0)], ids=["vector", "axis"]
)
def test_shape_and_axis_must_agree(scale: np.ndarray, axis: int | None) -> None:
    with pytest.raises(UnsupportedQuantization) as caught:
        quant(DType.INT8, np.asarray(scale), np.int32(0), axis=axis)
    assert str(np.asarray(scale).shape) in caught.value.why
    assert caught.value.fix


def test_arrays_are_copied_and_locked() -> None:
    scale, zero_point = np.ones(2, np.float32), np.zeros(2, np.int32)
    params = quant(DType.INT8, scale, zero_point, axis=0)
    key = hash(params)
    scale[0], zero_point[0] = 5, 5
    assert params.scale.tolist() == [1, 1]
    assert params.zero_point.tolist() == [0, 0]
    assert hash(params) == key
    with pytest.raises(ValueError, match="read-only"):
        params.scale[0] = 2
    with pytest.raises(ValueError, match="read-only"):
        params.zero_point[0] = 2


def test_predicates() -> None:
    assert per_tensor(DType.INT8, 1.0).per_tensor
    assert not per_axis().per_tensor
    assert per_tensor(DType.INT8, 1.0).symmetric
    assert not per_axis().symmetric
    assert not per_axis().blocked
    float8 = quant(DType.FLOAT8_E4M3FN, np.float32(1), np.int32(0))
    assert float8.full_range
    assert float8.widened() is float8


def test_with_axis_moves_nothing_else() -> None:
    moved = per_axis(1).with_axis(3)
    assert moved.axis == 3
    assert moved.with_axis(1) == per_axis(1)
    same = per_axis()
    assert same.with_axis(1) is same


def test_aligned_broadcasts_along_the_axis() -> None:
    params = per_axis(1)
    assert params.aligned(params.scale, (2, 3, 4)).shape == (1, 3, 1)
    scalar = per_tensor(DType.INT8, 0.5)
    assert scalar.aligned(scalar.scale, (2, 3)).shape == ()


def test_aligned_repeats_blocks_and_drops_what_is_over() -> None:
    scale = np.array([[1, 2], [3, 4]], np.float32)
    params = quant(DType.INT4, scale, np.zeros((2, 2), np.int32), axis=1, block_size=3)
    wide = params.aligned(params.scale, (2, 5))
    assert wide.tolist() == [[1, 1, 1, 2, 2], [3, 3, 3, 4, 4]]


def test_scales_keep_their_element_type() -> None:
    params = quant(DType.INT8, np.float16(0.1), np.int32(0), expressed_dtype=DType.FLOAT16)
    assert params.scale.dtype == np.float16
    assert float(params.scale) == float(np.float16(0.1))


def test_a_range_of_zero_alone_is_no_default() -> None:
    params = per_tensor(DType.INT8, 1.0).with_range(0, 0)
    assert (params.qmin, params.qmax, params.full_range) == (0, 0, False)
    assert params.widened() == per_tensor(DType.INT8, 1.0)


def test_large_scales_that_nobody_can_write_are_not_copied() -> None:
    scale = np.linspace(1, 2, 1 << 15, dtype=np.float32)
    assert QuantParams(DType.INT8, scale, np.array(0), axis=0).scale is not scale
    scale.flags.writeable = False
    a = QuantParams(DType.INT8, scale, np.array(3), axis=0)
    assert a.scale is scale
    assert a.zero_point.strides == (0,) and (a.zero_point == 3).all()
    b = QuantParams(DType.INT8, scale.copy(), np.full(1 << 15, 3), axis=0)
    assert a == b and hash(a) == hash(b) and b.zero_point.strides == (0,)
    other = scale.copy()
    other[-1] = np.nextafter(other[-1], np.float32(3), dtype=np.float32)
    assert a != QuantParams(DType.INT8, other, np.array(3), axis=0)
    points = np.full(1 << 15, 3)
    points[-1] = 4
    c = QuantParams(DType.INT8, scale, points, axis=0)
    assert a != c and c.zero_point[-1] == 4 and not c.zero_point.flags.writeable


@pytest.mark.parametrize(("interval", "dtype", "steps", "zero_point"), [
    ((0.0, 1.0), DType.UINT8, 256, 0),
    ((0.0, 1.0), DType.INT8, 256, -128),
    ((-1.0, 1.0), DType.INT8, 128, 0),
    ((-1.0, 1.0), DType.UINT16, 32768, 32768),
    ((-1.0, 1.0), DType.INT16, 32768, 0),
])  # fmt: skip
def test_codes_that_fill_an_interval(
    interval: tuple[float, float], dtype: DType, steps: int, zero_point: int
) -> None:
    assert params_of_interval(interval, dtype) == per_tensor(dtype, 1 / steps, zero_point)
