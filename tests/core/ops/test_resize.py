"""Resize against onnxruntime: equal in every mode, even in the bits of float results."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.core.ops.resize import COORDINATES, moves, sizes
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.onnxruntime_oracle import Operand, assert_equal, pairs, quantized

SHAPES: list[tuple[tuple[int, ...], tuple[float, ...]]] = [
    ((1, 2, 5, 7), (1, 1, 2, 3)),
    ((1, 2, 5, 7), (1, 1, 0.6, 1.5)),
    ((2, 3, 6, 6), (1, 1, 1, 2)),
    ((2, 2, 8, 9), (1, 1, 0.5, 0.5)),
    ((5, 6), (1.7, 2)),
    ((1, 3, 9), (1, 1, 2)),
    ((2, 3, 4), (1, 1, 1.5)),
    ((1, 2, 3, 4, 5), (1, 1, 2, 1.5, 2)),
    ((1, 5, 6, 3), (1, 2, 2, 1)),
]


def region(shape: tuple[int, ...], coordinates: str) -> tuple[float, ...]:
    roi = np.asarray([0] * len(shape) + [1] * len(shape), np.float32)
    if coordinates == "tf_crop_and_resize":
        roi[len(shape) - 1], roi[-1], roi[-2] = 0.1, 0.8, 1.2
    return tuple(float(r) for r in roi)


def cases(mode: str, coordinates: str) -> Iterator[tuple[tuple[int, ...], ResizeAttrs]]:
    """Yields shapes with attributes, once with scales and once with sizes."""
    nearest = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    for i, (shape, factors) in enumerate(SHAPES):
        if mode == "cubic" and not (len(shape) == 2 or (len(shape) == 4 and factors[1] == 1)):
            continue  # onnxruntime interpolates cubically over the last two axes only
        scales = tuple(float(np.float32(factor)) for factor in factors)
        for nearest_mode in nearest if mode == "nearest" else nearest[:1]:
            for exclude in (False, True) if mode == "cubic" else (False,):
                attributes = ResizeAttrs(
                    mode,
                    coordinates,
                    nearest_mode,
                    scales,
                    None,
                    (-0.75, -0.5)[i % 2],
                    exclude,
                    2.5,
                    False,
                    region(shape, coordinates),
                )
                yield shape, attributes
                by_size = ResizeAttrs(
                    mode,
                    coordinates,
                    nearest_mode,
                    None,
                    sizes(attributes, shape),
                    attributes.cubic_coeff_a,
                    exclude,
                    2.5,
                    False,
                    attributes.roi,
                )
                yield shape, by_size


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_equals_onnxruntime(mode, coordinates) -> None:
    for seed, (px, py) in enumerate(pairs(14, DType.UINT8, 6)):
        for shape, attributes in cases(mode, coordinates):
            x = quantized(np.random.default_rng(seed), shape, px)
            given: list[Operand | None] = [x, Operand(np.asarray(attributes.roi, np.float32))]
            if attributes.sizes is None:
                given.append(Operand(np.asarray(attributes.scales, np.float32)))
            else:
                given += [None, Operand(np.asarray(attributes.sizes, np.int64))]
            fields = {
                "mode": mode,
                "coordinate_transformation_mode": coordinates,
                "nearest_mode": attributes.nearest_mode,
                "cubic_coeff_a": attributes.cubic_coeff_a,
                "exclude_outside": int(attributes.exclude_outside),
                "extrapolation_value": attributes.extrapolation_value,
            }
            for result in (py, px if mode == "nearest" else None):
                assert_equal("Resize", attributes, [x], result, fields, given=given)


@pytest.mark.parametrize("factor", [2.0, 0.5, 1.5])
def test_opset_10_nearest_equals_onnxruntime(factor) -> None:
    """It truncates where it enlarges and rounds up where it shrinks."""
    attributes = ResizeAttrs("nearest", "asymmetric", "simple", (1.0, 1.0, factor, factor), None)
    rng = np.random.default_rng(0)
    params = per_tensor(DType.UINT8, 0.1, 3)
    x = quantized(rng, (1, 2, 8, 8), params)
    scales = Operand(np.asarray(attributes.scales, np.float32))
    fields = {"mode": "nearest"}
    assert_equal("Resize", attributes, [x], params, fields, given=[x, scales], opset=10)


def test_only_nearest_without_a_crop_moves_values() -> None:
    for mode in ("nearest", "linear", "cubic"):
        for coordinates in COORDINATES:
            attributes = ResizeAttrs(mode, coordinates, "floor", (2.0,), None)
            wanted = mode == "nearest" and coordinates != "tf_crop_and_resize"
            assert moves(attributes) == wanted


def test_nearest_moves_4_bit_values() -> None:
    stored = np.asarray([[-8, 7]], np.int8).astype(DType.INT4.numpy)
    attributes = ResizeAttrs("nearest", "asymmetric", "floor", (1.0, 2.0), None)
    (result,) = BY_NAME["Resize"].compute(attributes, (stored,))
    assert result.astype(np.int8).tolist() == [[-8, -8, 7, 7]]


def test_float64_interpolates_in_float64() -> None:
    x = np.asarray([[0.0, 1.0], [2.0, 3.0]])
    attributes = ResizeAttrs("linear", "align_corners", "floor", None, (2, 4))
    (result,) = BY_NAME["Resize"].compute(attributes, (x,))
    np.testing.assert_array_equal(result[0], [0, 1 / 3, 2 / 3, 1])
