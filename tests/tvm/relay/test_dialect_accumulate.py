"""Convolutions, dense, matrices, averages and resizes on Relay: every layout, 0 LSB."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs, PoolAttrs, ResizeAttrs
from qdqbridge.core.ops.convolution import correlate, scattered
from tests.tvm.dialect.contract import Array, contract, every_code, params
from tests.tvm.relay.relay_cases import TARGETS, UNOPTIMIZED, Cases, all_args, const

TYPES = [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8"), ("int16", "int8")]
CONV: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 9, 7), (6, 4, 3, 3), {"strides": [2, 1], "padding": [1, 0, 2, 1]}),
    ((2, 4, 9, 7), (6, 2, 3, 2), {"groups": 2, "dilation": [2, 3], "padding": [1, 2, 3, 0]}),
    ((2, 4, 9, 7), (4, 1, 3, 3), {"groups": 4, "padding": [1, 1, 1, 1]}),
    ((2, 4, 9, 7), (8, 1, 3, 3), {"groups": 4}),
    ((1, 4, 9, 7), (8, 4, 1, 1), {}),
]
OTHERS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 9), (8, 4, 3), {"padding": [2, 1], "strides": [2]}),
    ((2, 4, 5, 6, 7), (8, 4, 3, 2, 1), {"padding": [1, 1, 0, 0, 1, 2], "strides": [2, 1, 3]}),
]
TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (
        (2, 4, 5, 3),
        (4, 6, 3, 3),
        {"strides": [2, 3], "padding": [1, 0, 2, 1], "output_padding": [1, 2]},
    ),
    ((2, 4, 5, 3), (4, 3, 2, 3), {"strides": [2, 1], "groups": 2, "dilation": [2, 3]}),
    ((2, 4, 5, 3), (4, 3, 2, 2), {"strides": [2, 2], "groups": 4}),
]


def stored(array: Array, layout: str, canonical: str) -> Array:
    """Returns a channels-first array in a layout."""
    return np.ascontiguousarray(array.transpose([canonical.index(letter) for letter in layout]))


def six(x: Array, w: Array, zx: int, zw: Any, channels: int) -> list[Any]:
    scales = [0.125] * channels
    return [
        x,
        const(w, str(w.dtype)),
        const(zx, "int32"),
        const(zw, "int32"),
        const(0.5, "float32"),
        const(scales, "float32"),
    ]


def _get(attrs: dict[str, Any], name: str, default: int, count: int) -> tuple[int, ...]:
    return tuple(attrs.get(name, [default] * count))


def _letters(rank: int) -> str:
    return {1: "W", 2: "HW", 3: "DHW"}[rank]


def _conv_record(attrs: dict[str, Any], rank: int) -> ConvAttrs:
    return ConvAttrs(
        _get(attrs, "strides", 1, rank),
        _get(attrs, "dilation", 1, rank),
        _get(attrs, "padding", 0, 2 * rank),
        attrs.get("groups", 1),
    )


@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_conv_in_every_layout(xd: str, wd: str) -> None:
    rng = np.random.default_rng(0)
    cases = Cases(UNOPTIMIZED)
    wide = "int64" if xd == "int16" else "int32"
    for xs, ws, attrs in CONV + OTHERS:
        rank = len(xs) - 2
        x, w = every_code(rng, xd, xs), every_code(rng, wd, ws)
        zw = list(range(-1, ws[0] - 1))
        column = np.asarray(zw).reshape(-1, *[1] * (rank + 1))
        total = correlate(
            _conv_record(attrs, rank), x.astype(np.int64) - 3, w.astype(np.int64) - column
        ).astype(wide)
        spatial = _letters(rank)
        first, last = f"NC{spatial}", f"N{spatial}C"
        kernels = ("OI" + spatial, spatial + "IO", spatial + "OI", "O" + spatial + "I")
        for data, kernel in [(first, kernels[0]), *((last, k) for k in kernels)]:
            extra = {
                "kernel_size": list(ws[2:]),
                "channels": ws[0],
                "out_dtype": wide,
                "data_layout": data,
                "kernel_layout": kernel,
            }
            args = six(stored(x, data, first), stored(w, kernel, kernels[0]), 3, zw, ws[0])
            cases.add(f"qnn.conv{rank}d", args, attrs | extra, stored(total, data, first))
    cases.check()


def test_relays_depthwise_weight() -> None:
    """(C, multiplier, kernel...) and HWOI, as Relay's importers write them."""
    rng = np.random.default_rng(1)
    cases = Cases(UNOPTIMIZED)
    x, w = every_code(rng, "uint8", (2, 3, 6, 5)), every_code(rng, "int8", (6, 1, 3, 3))
    record = ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1), 3)
    zw = np.arange(6)
    shifted = w.astype(np.int64) - zw.reshape(-1, 1, 1, 1)
    total = correlate(record, x.astype(np.int64) - 7, shifted).astype(np.int32)
    relays = w.reshape(3, 2, 3, 3)
    for data, kernel in (("NCHW", "OIHW"), ("NHWC", "HWOI")):
        attrs = {
            "padding": [1, 1, 1, 1],
            "groups": 3,
            "channels": 6,
            "kernel_size": [3, 3],
            "data_layout": data,
            "kernel_layout": kernel,
        }
        args = six(stored(x, data, "NCHW"), stored(relays, kernel, "OIHW"), 7, zw, 6)
        cases.add("qnn.conv2d", args, attrs, stored(total, data, "NCHW"))
    cases.check()


@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_conv_transpose(xd: str, wd: str) -> None:
    rng = np.random.default_rng(2)
    cases = Cases(UNOPTIMIZED)
    wide = "int64" if xd == "int16" else "int32"
    for xs, ws, attrs in TRANSPOSED:
        groups = attrs.get("groups", 1)
        x, w = every_code(rng, xd, xs), every_code(rng, wd, ws)
        record = ConvTransposeAttrs(
            _get(attrs, "strides", 1, 2),
            _get(attrs, "dilation", 1, 2),
            _get(attrs, "padding", 0, 4),
            _get(attrs, "output_padding", 0, 2),
            groups,
        )
        total = scattered(record, x.astype(np.int64) + 5, w.astype(np.int64) - 3).astype(wide)
        channels = ws[1] * groups
        for data, kernel in (("NCHW", "IOHW"), ("NHWC", "IOHW"), ("NHWC", "HWIO")):
            extra = {
                "out_dtype": wide,
                "data_layout": data,
                "kernel_layout": kernel,
                "channels": channels,
                "kernel_size": list(ws[2:]),
            }
            args = six(stored(x, data, "NCHW"), stored(w, kernel, "IOHW"), -5, 3, channels)
            cases.add("qnn.conv2d_transpose", args, attrs | extra, stored(total, data, "NCHW"))
    cases.check()


@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_dense_and_batch_matmul(xd: str, wd: str) -> None:
    rng = np.random.default_rng(3)
    wide = "int64" if xd == "int16" else "int32"
    cases = Cases(UNOPTIMIZED)
    w = every_code(rng, wd, (7, 33))
    for shape in ((4, 33), (2, 3, 33)):
        x = every_code(rng, xd, shape)
        for zw in (0, list(range(7))):
            shifted = w.astype(np.int64) - np.asarray(zw).reshape(-1, 1)
            total = ((x.astype(np.int64) + 7) @ shifted.T).astype(wide)
            attrs = {"units": 7, "out_dtype": wide}
            cases.add("qnn.dense", six(x, w, -7, zw, 7), attrs, total)
    for xs, ys in (((4, 6, 33), (4, 33, 5)), ((2, 1, 6, 9), (3, 9, 5)), ((6, 9), (2, 3, 9, 5))):
        x, y = every_code(rng, xd, xs), every_code(rng, wd, ys)
        total = ((x.astype(np.int64) - 3) @ (y.astype(np.int64) - 2)).astype(wide)
        for ta, tb in ((False, True), (True, False)):
            a = np.swapaxes(x, -1, -2).copy() if ta else x
            b = np.swapaxes(y, -1, -2).copy() if tb else y
            args = [
                a,
                b,
                const(3, "int32"),
                const(2, "int32"),
                const(0.5, "float32"),
                const(0.25, "float32"),
            ]
            attrs = {"transpose_a": ta, "transpose_b": tb, "out_dtype": wide}
            cases.add("qnn.batch_matmul", args, attrs, total)
    cases.check()


def test_sums_beyond_int32_need_int64() -> None:
    x, w = np.full((1, 70_000), -32768, np.int16), np.full((1, 70_000), -128, np.int8)
    cases = Cases(UNOPTIMIZED)
    total = np.asarray([[70_000 * 32768 * 128]], np.int64)
    cases.add(
        "qnn.dense", [*six(x, w, 0, 0, 1)[:5], const(1.0, "float32")], {"out_dtype": "int64"}, total
    )
    cases.check()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_averages(dtype: str) -> None:
    rng = np.random.default_rng(4)
    fine = 1.0 if dtype.endswith("8") else 1 / 256
    px, py = params(dtype, 0.031 * fine, 7), params(dtype, 0.0241 * fine, 3)
    x = every_code(rng, dtype, (2, 3, 8, 9))
    cases = Cases(UNOPTIMIZED)
    for pads, counted in (([0, 0, 0, 0], False), ([1, 0, 1, 1], False), ([1, 1, 1, 1], True)):
        record = PoolAttrs((3, 2), (2, 1), (1, 1), tuple(pads), False, counted)
        expected = contract("AveragePool", record, (x,), (px,), py)
        for layout in ("NCHW", "NHWC"):
            attrs = {
                "pool_size": [3, 2],
                "strides": [2, 1],
                "padding": pads,
                "layout": layout,
                "count_include_pad": counted,
            }
            args = [stored(x, layout, "NCHW"), *all_args(px, py)]
            cases.add("qnn.avg_pool2d", args, attrs, stored(expected, layout, "NCHW"))
    expected = contract("GlobalAveragePool", _none(), (x,), (px,), py)
    cases.add("qnn.mean", [x, *all_args(px, py)], {"axis": [2, 3], "keepdims": True}, expected)
    cases.check()


def _none() -> Any:
    from qdqbridge.core.graph.operator import NO_ATTRIBUTES

    return NO_ATTRIBUTES


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", ["linear", "cubic", "nearest"])
def test_resize(method: str, target: str) -> None:
    rng = np.random.default_rng(5)
    px, py = params("uint16", 0.031 / 256, 7), params("uint16", 0.0241 / 256, 3)
    x = every_code(rng, "uint16", (2, 3, 7, 9))
    cases = Cases(target)
    for coordinate in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
        record = ResizeAttrs(method, coordinate, "round_prefer_floor", None, (2, 3, 13, 20))
        expected = contract("Resize", record, (x,), (px,), py)
        for layout in ("NCHW", "NHWC"):
            attrs = {
                "size": [13, 20],
                "layout": layout,
                "method": "nearest_neighbor" if method == "nearest" else method,
                "coordinate_transformation_mode": coordinate,
            }
            args = [stored(x, layout, "NCHW"), *all_args(px, py)]
            cases.add("qnn.resize2d", args, attrs, stored(expected, layout, "NCHW"))
    cases.check()
