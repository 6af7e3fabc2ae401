"""Convolutions, transposed convolutions, qnn.dense and qnn.batch_matmul: exact sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs
from qdqbridge.core.ops.convolution import correlate, scattered
from qdqbridge.errors import GraphError
from qdqbridge.tvm.relax import dialect
from tests.tvm.relax.dialect_cases import Array, Cases, every_code


def _vector(value: Any, dtype: str) -> Any:
    return relax.const(np.asarray(value), dtype)


def _six(x: Array, w: Any, zx: int, zw: Any, channels: int = 1) -> list[Any]:
    scales = [0.125] * channels if channels > 1 else 0.125
    weight = relax.const(w)
    return [
        x,
        weight,
        _vector(zx, "int32"),
        _vector(zw, "int32"),
        _vector(0.5, "float32"),
        _vector(scales, "float32"),
    ]


CONV: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 9, 7), (6, 4, 3, 3), {"strides": [2, 1], "padding": [1, 0, 2, 1]}),
    ((2, 4, 9, 7), (6, 2, 3, 2), {"groups": 2, "dilation": [2, 3], "padding": [1, 2, 3, 0]}),
    ((2, 4, 9, 7), (8, 1, 3, 3), {"groups": 4, "padding": [1, 1, 1, 1]}),
    ((1, 4, 9, 7), (8, 4, 1, 1), {}),
    ((3, 2, 5, 5), (3, 2, 1, 1), {"strides": [2, 2], "padding": [1, 0, 0, 1]}),
    ((2, 4, 9), (8, 4, 3), {"padding": [2, 1], "strides": [2]}),
    ((2, 2, 9), (4, 1, 4), {"groups": 2, "dilation": [2]}),
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
    ((2, 4, 5), (4, 3, 2), {"padding": [1, 1]}),
    ((2, 4, 5, 4, 3), (4, 3, 2, 2, 2), {"strides": [2, 1, 2]}),
]
TYPES = [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8"), ("int16", "int8")]


def _get(attrs: dict[str, Any], name: str, default: int, count: int) -> tuple[int, ...]:
    return tuple(attrs.get(name, [default] * count))


@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_conv(xd: str, wd: str) -> None:
    rng = np.random.default_rng(0)
    cases = Cases()
    for xs, ws, attrs in CONV:
        rank = len(xs) - 2
        x, w = every_code(rng, xd, xs), every_code(rng, wd, ws)
        record = ConvAttrs(
            _get(attrs, "strides", 1, rank),
            _get(attrs, "dilation", 1, rank),
            _get(attrs, "padding", 0, 2 * rank),
            attrs.get("groups", 1),
        )
        for zx, zw in ((77, 0), (3, list(range(-1, ws[0] - 1)))):
            column = np.asarray(zw).reshape(-1, *[1] * (rank + 1))
            total = correlate(record, x.astype(np.int64) - zx, w.astype(np.int64) - column)
            wide = "int64" if xd == "int16" else "int32"
            args = _six(x, w, zx, zw, ws[0])
            extra = {"kernel_size": list(ws[2:]), "channels": ws[0], "out_dtype": wide}
            cases.add(f"qnn.conv{rank}d", args, attrs | extra, total.astype(wide))
    cases.check()


@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_conv_transpose(xd: str, wd: str) -> None:
    rng = np.random.default_rng(1)
    cases = Cases()
    for xs, ws, attrs in TRANSPOSED:
        rank, groups = len(xs) - 2, attrs.get("groups", 1)
        x, w = every_code(rng, xd, xs), every_code(rng, wd, ws)
        record = ConvTransposeAttrs(
            _get(attrs, "strides", 1, rank),
            _get(attrs, "dilation", 1, rank),
            _get(attrs, "padding", 0, 2 * rank),
            _get(attrs, "output_padding", 0, rank),
            groups,
        )
        for zx, zw in ((-5, 3), (3, list(range(-1, ws[1] - 1)))):
            row = np.asarray(zw).reshape(1, -1, *[1] * rank)
            total = scattered(record, x.astype(np.int64) - zx, w.astype(np.int64) - row)
            wide = "int64" if xd == "int16" else "int32"
            args = _six(x, w, zx, zw, ws[1] * groups)
            cases.add(
                f"qnn.conv{rank}d_transpose",
                args,
                attrs | {"out_dtype": wide},
                total.astype(wide),
            )
    cases.check()


@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_dense_and_batch_matmul(xd: str, wd: str) -> None:
    rng = np.random.default_rng(2)
    wide = "int64" if xd == "int16" else "int32"
    cases = Cases()
    w = every_code(rng, wd, (7, 33))
    for shape in ((33,), (2, 3, 33)):
        x = every_code(rng, xd, shape)
        for zw in (0, list(range(7))):
            shifted = w.astype(np.int64) - np.asarray(zw).reshape(-1, 1)
            total = (x.astype(np.int64) + 7) @ shifted.T
            attrs = {"units": 7, "out_dtype": wide}
            cases.add("qnn.dense", _six(x, w, -7, zw, 7), attrs, total.astype(wide))
    for xs, ys in (((4, 6, 33), (4, 33, 5)), ((2, 1, 6, 9), (3, 9, 5)), ((6, 9), (2, 3, 9, 5))):
        x, y = every_code(rng, xd, xs), every_code(rng, wd, ys)
        total = ((x.astype(np.int64) - 3) @ (y.astype(np.int64) - 2)).astype(wide)
        for ta, tb in ((False, True), (True, False), (False, False)):
            a = np.swapaxes(x, -1, -2).copy() if ta else x
            b = np.swapaxes(y, -1, -2).copy() if tb else y
            args = _six(a, b, 3, 2)
            args[1] = b
            attrs = {"transpose_a": ta, "transpose_b": tb, "out_dtype": wide}
            cases.add("qnn.batch_matmul", args, attrs, total, symbolic=len(xs) > 2)
        columns = np.arange(ys[-1])
        total = ((x.astype(np.int64) - 3) @ (y.astype(np.int64) - columns)).astype(wide)
        args = _six(x, y, 3, columns.tolist(), ys[-1])
        args[1] = y
        attrs = {"transpose_b": False, "out_dtype": wide}
        cases.add("qnn.batch_matmul", args, attrs, total)
    cases.check()


def test_sums_beyond_int32_need_int64() -> None:
    x = np.full((1, 70_000), -32768, np.int16)
    w = np.full((1, 70_000), -128, np.int8)
    total = np.asarray([[70_000 * 32768 * 128]], np.int64)
    cases = Cases()
    cases.add("qnn.dense", _six(x, w, 0, 0), {"out_dtype": "int64"}, total)
    cases.check()
    left, right = dialect.magnitude("int16", 0), dialect.magnitude("int8", [0, 0])
    assert dialect.accumulator_dtype(70_000, left, right) == "int64"
    assert dialect.accumulator_dtype(1000, dialect.magnitude("uint8", 255), right) == "int32"
    edge = ((1 << 31) - 1) // (255 * 128)
    assert dialect.accumulator_dtype(edge, 255, 128) == "int32"
    assert dialect.accumulator_dtype(edge, 255, 128, bias=1 << 20) == "int64"


def _call(name: str, x: str, xs: Any, wd: str, ws: Any, attrs: Any = None, scale: Any = 1.0) -> Any:
    return relax.BlockBuilder().normalize(
        dialect.call(
            name,
            [
                relax.Var("x", relax.TensorType(xs, x)),
                relax.Var("w", relax.TensorType(ws, wd)),
                _vector(0, "int32"),
                _vector(0, "int32"),
                _vector(1.0, "float32"),
                _vector(scale, "float32"),
            ],
            attrs or {},
        )
    )


BAD: list[tuple[tuple[Any, ...], str]] = [
    (("qnn.conv2d", "int8", (1, 3, 5), "int8", (4, 3, 3, 3)), "data has 3 axes"),
    (("qnn.conv2d", "float32", (1, 3, 5, 5), "int8", (4, 3, 3, 3)), "data has dtype float32"),
    (("qnn.conv2d", "int8", (1, 4, 5, 5), "int8", (4, 3, 3, 3)), "channels of data and weight"),
    (("qnn.conv2d", "int8", (1, 3, 2, 5), "int8", (4, 3, 3, 3)), "larger than the padded input"),
    (
        ("qnn.conv2d", "int8", (1, 3, 5, 5), "int8", (4, 3, 3, 3), {"padding": [1, 2, 3]}),
        "padding is (1, 2, 3)",
    ),
    (
        ("qnn.conv2d", "int8", (1, 3, 5, 5), "int8", (4, 3, 3, 3), {"data_layout": "NCHW4c"}),
        "data_layout is NCHW4c",
    ),
    (("qnn.conv2d", "int8", (1, 3, 5, 5), "int8", (4, 3, 3, 3), {}, [1.0] * 3), "3 entries for 4"),
    (("qnn.conv2d", "int8", (1, 6, 5, 5), "int8", (4, 2, 3, 3), {"groups": 3}), "do not divide"),
    (
        ("qnn.conv2d", "int8", (1, 3, 5, 5), "int8", (4, 3, 3, 3), {"out_dtype": "int16"}),
        "out_dtype is int16",
    ),
    (
        ("qnn.conv2d_transpose", "int8", (1, 3, 5, 5), "int8", (4, 3, 3, 3)),
        "channels of data and weight",
    ),
    (("qnn.dense", "int8", (1, 3), "int8", (4, 5)), "3 and 5 differ"),
    (("qnn.dense", "int8", (1, 3), "int8", (4, 3), {"units": 5}), "units and the weight"),
    (("qnn.batch_matmul", "int8", (2, 4, 3), "int8", (3, 5, 3)), "do not broadcast"),
]


@pytest.mark.parametrize(("args", "reason"), BAD)
def test_wrong_calls_say_what_is_wrong(args: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(GraphError) as error:
        _call(*args)
    assert reason in str(error.value)
