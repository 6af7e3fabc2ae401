"""Channels-last convolutions, averages and resizes, against their channels-first form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs, PoolAttrs, ResizeAttrs
from qdqbridge.core.ops.convolution import correlate, scattered
from tests.tvm.relax.dialect_cases import (
    Array,
    Cases,
    contract,
    every_code,
    params,
    scale_of,
    zero_of,
)


def _stored(array: Array, layout: str, canonical: str) -> Array:
    return np.ascontiguousarray(array.transpose([canonical.index(letter) for letter in layout]))


def _six(x: Array, w: Array, zx: int, zw: Any, channels: int) -> list[Any]:
    return [
        x,
        relax.const(w),
        relax.const(np.asarray(zx, np.int32)),
        relax.const(np.asarray(zw, np.int32)),
        relax.const(np.asarray(0.5, np.float32)),
        relax.const(np.full(channels, 0.125, np.float32)),
    ]


@pytest.mark.parametrize(
    ("xs", "ws", "attrs"),
    [
        ((2, 4, 9, 7), (6, 4, 3, 3), {"strides": [2, 1], "padding": [1, 0, 2, 1]}),
        ((2, 4, 9, 7), (6, 2, 3, 2), {"groups": 2, "dilation": [2, 3], "padding": [1, 2, 3, 0]}),
        ((2, 4, 9, 7), (4, 1, 3, 3), {"groups": 4, "padding": [1, 1, 1, 1]}),
        ((1, 4, 9, 7), (8, 4, 1, 1), {}),
    ],
)
def test_conv2d(xs: Any, ws: Any, attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    cases = Cases()
    x, w = every_code(rng, "uint8", xs), every_code(rng, "int8", ws)
    record = ConvAttrs(
        tuple(attrs.get("strides", (1, 1))),
        tuple(attrs.get("dilation", (1, 1))),
        tuple(attrs.get("padding", (0, 0, 0, 0))),
        attrs.get("groups", 1),
    )
    zw = np.arange(ws[0]) - 1
    shifted = w.astype(np.int64) - zw.reshape(-1, 1, 1, 1)
    total = correlate(record, x.astype(np.int64) - 3, shifted).astype(np.int32)
    for data, kernel in (("NHWC", "HWIO"), ("NHWC", "HWOI"), ("NHWC", "OHWI"), ("NCHW", "HWIO")):
        args = _six(_stored(x, data, "NCHW"), _stored(w, kernel, "OIHW"), 3, zw, ws[0])
        extra = {"data_layout": data, "kernel_layout": kernel}
        cases.add("qnn.conv2d", args, attrs | extra, _stored(total, data, "NCHW"))
    cases.check()


def test_conv2d_transpose() -> None:
    rng = np.random.default_rng(1)
    cases = Cases()
    x, w = every_code(rng, "uint8", (2, 4, 5, 3)), every_code(rng, "int8", (4, 3, 2, 3))
    record = ConvTransposeAttrs((2, 1), (2, 3), (1, 0, 0, 1), (0, 0), 2)
    zw = np.arange(3)
    shifted = w.astype(np.int64) - zw.reshape(1, -1, 1, 1)
    total = scattered(record, x.astype(np.int64) - 3, shifted).astype(np.int32)
    attrs = {"strides": [2, 1], "dilation": [2, 3], "padding": [1, 0, 0, 1], "groups": 2}
    for kernel in ("IOHW", "HWIO", "HWOI"):
        args = _six(_stored(x, "NHWC", "NCHW"), _stored(w, kernel, "IOHW"), 3, zw, 6)
        extra = {"data_layout": "NHWC", "kernel_layout": kernel}
        cases.add("qnn.conv2d_transpose", args, attrs | extra, _stored(total, "NHWC", "NCHW"))
    cases.check()


def test_averages_and_resizes() -> None:
    rng = np.random.default_rng(2)
    cases = Cases()
    px, py = params("uint8", 0.031, 7), params("uint8", 0.0241, 3)
    x = every_code(rng, "uint8", (2, 3, 7, 9))
    args = [_stored(x, "NHWC", "NCHW"), scale_of(px), zero_of(px), scale_of(py), zero_of(py)]
    pool = PoolAttrs((3, 2), (2, 1), (1, 1), (1, 0, 1, 1), False, False)
    expected = contract("AveragePool", pool, (x,), (px,), py)
    attrs: dict[str, Any] = {
        "pool_size": [3, 2],
        "strides": [2, 1],
        "padding": [1, 0, 1, 1],
        "layout": "NHWC",
    }
    cases.add("qnn.avg_pool2d", args, attrs, _stored(expected, "NHWC", "NCHW"))
    for method in ("linear", "cubic", "nearest"):
        record = ResizeAttrs(method, "half_pixel", "round_prefer_floor", None, (2, 3, 13, 20))
        expected = contract("Resize", record, (x,), (px,), py)
        name = "nearest_neighbor" if method == "nearest" else method
        attrs = {"size": [13, 20], "layout": "NHWC", "method": name}
        cases.add("qnn.resize2d", args, attrs, _stored(expected, "NHWC", "NCHW"))
    cases.check()
