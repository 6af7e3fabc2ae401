"""qnn.resize1d/2d/3d and qnn.resize, against the operator table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.core.ops.resize import COORDINATES, NEAREST
from qdqbridge.errors import GraphError
from qdqbridge.tvm.relax import dialect
from qdqbridge.tvm.relax.dialect import tensor_type
from tests.tvm.relax.dialect_cases import Cases, contract, every_code, params, scale_of, zero_of
from tests.tvm.relax.targets import TARGETS

PX, PY = params("uint8", 0.031, 7), params("uint8", 0.0241, 3)
FINE_X, FINE_Y = params("uint16", 0.031 / 256, 7), params("uint16", 0.0241 / 256, 3)
"""Two bytes show what one would hide: a fused multiply-add in the last place."""


def _args(x: Any, px: Any = PX, py: Any = PY) -> list[Any]:
    return [x, scale_of(px), zero_of(px), scale_of(py), zero_of(py)]


def _record(mode: str, coordinate: str, size: tuple[int, ...], **more: Any) -> ResizeAttrs:
    return ResizeAttrs(
        mode,
        coordinate,
        more.pop("nearest", "round_prefer_floor"),
        more.pop("scales", None),
        size,
        **more,
    )


@pytest.mark.parametrize(("method", "target"), [
    ("linear", TARGETS[0]),
    ("cubic", TARGETS[1]),
    *(pytest.param(m, t, marks=pytest.mark.slow)
      for m, t in (("linear", TARGETS[1]), ("cubic", TARGETS[0]))),
], ids=["linear-unoptimized", "cubic-host", "linear-host", "cubic-unoptimized"])  # fmt: skip
def test_interpolation(method: str, target: Any) -> None:
    rng = np.random.default_rng(0)
    x = every_code(rng, "uint16", (2, 3, 7, 9))
    roi = (0.0, 0.0, 0.1, -0.2, 1.0, 1.0, 0.9, 1.3)
    cases = Cases(target)
    for coordinate in COORDINATES:
        for size, exclude in (((13, 20), False), ((4, 9), method == "cubic"), ((1, 5), False)):
            crop = coordinate == "tf_crop_and_resize"
            record = _record(
                method,
                coordinate,
                (2, 3, *size),
                roi=roi if crop else (),
                extrapolation_value=0.7 if crop else 0.0,
                exclude_outside=exclude,
            )
            attrs: dict[str, Any] = {
                "size": list(size),
                "method": method,
                "cubic_exclude": exclude,
                "coordinate_transformation_mode": coordinate,
            }
            if crop:
                attrs |= {"roi": [0.1, -0.2, 0.9, 1.3], "extrapolation_value": 0.7}
            expected = contract("Resize", record, (x,), (FINE_X,), FINE_Y)
            cases.add("qnn.resize2d", _args(x, FINE_X, FINE_Y), attrs, expected)
    cases.check()


def test_nearest_moves_codes() -> None:
    rng = np.random.default_rng(1)
    x = every_code(rng, "uint8", (2, 3, 7, 9))
    cases = Cases()
    for rounding in NEAREST:
        for coordinate in ("half_pixel", "asymmetric", "align_corners"):
            record = _record("nearest", coordinate, (2, 3, 14, 5), nearest=rounding)
            attrs = {
                "size": [14, 5],
                "method": "nearest_neighbor",
                "rounding_method": rounding,
                "coordinate_transformation_mode": coordinate,
            }
            expected = contract("Resize", record, (x,), (PX,), PY)
            cases.add("qnn.resize2d", _args(x), attrs, expected)
    cases.check()


def test_other_ranks_and_given_scales() -> None:
    rng = np.random.default_rng(2)
    cases = Cases()
    line, volume = every_code(rng, "uint8", (2, 3, 9)), every_code(rng, "uint8", (2, 3, 4, 5, 6))
    for x, size in ((line, (20,)), (volume, (7, 3, 11))):
        rank = len(size)
        for method in ("linear", "cubic", "nearest"):
            record = _record(method, "half_pixel", (2, 3, *size))
            expected = contract("Resize", record, (x,), (PX,), PY)
            name = "nearest_neighbor" if method == "nearest" else method
            attrs = {"size": list(size), "method": name}
            cases.add(f"qnn.resize{rank}d", _args(x), attrs, expected, symbolic=False)
    image = every_code(rng, "uint8", (2, 5, 7, 3))
    record = _record("linear", "half_pixel", (2, 10, 11, 3))
    expected = contract("Resize", record, (image,), (PX,), PY)
    cases.add("qnn.resize", _args(image), {"size": [0, 10, 11, 0]}, expected)
    scales = (1.0, 2.3, 1.7, 1.0)
    record = ResizeAttrs("linear", "half_pixel", "floor", scales, None)
    expected = contract("Resize", record, (image,), (PX,), PY)
    attrs = {"size": [0, 11, 11, 0], "scales": list(scales)}
    cases.add("qnn.resize", _args(image), attrs, expected)
    cases.check()


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"size": [4]}, "one entry per resized axis"),
        ({"size": [4, 4], "method": "bilinear"}, "method is 'bilinear'"),
        ({"size": [4, 4], "scales": [2.0, 2.0]}, "scales give"),
        ({"size": [4, 4], "coordinate_transformation_mode": "tf_crop_and_resize"}, "roi has 0"),
    ],
)
def test_wrong_calls_say_what_is_wrong(attrs: dict[str, Any], reason: str) -> None:
    x = relax.Var("x", tensor_type([1, 2, 5, 5], "uint8"))
    with pytest.raises(GraphError) as error:
        relax.BlockBuilder().normalize(dialect.call("qnn.resize2d", _args(x), attrs))
    assert reason in str(error.value)
