"""Conv and ConvTranspose against onnxruntime's fused integer kernels and its float ones."""

from __future__ import annotations

import time

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs
from qdqbridge.core.ops.convolution import scattered
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.onnxruntime_oracle import (
    Array,
    Operand,
    dot_error,
    fused_operators,
    ideal,
    mismatches,
    ours,
    per_axis,
    product_bias,
    proven_ties,
    quantized,
    random_params,
    theirs,
)

PAIRS = ((DType.UINT8, DType.INT8), (DType.INT8, DType.INT8), (DType.UINT8, DType.UINT8))
CONV = {  # shape of x, shape of w, attributes
    "1d": ((2, 4, 17), (6, 4, 3), ConvAttrs((2,), (1,), (1, 0))),
    "2d": ((1, 3, 13, 12), (8, 3, 3, 3), ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1))),
    "depthwise": ((2, 6, 9, 9), (6, 1, 3, 3), ConvAttrs((1, 2), (1, 1), (0, 1, 1, 2), 6)),
    "grouped": ((1, 8, 11, 10), (12, 4, 3, 2), ConvAttrs((2, 1), (2, 1), (1, 0, 1, 2), 2)),
    "pointwise": ((1, 16, 7, 7), (24, 16, 1, 1), ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0))),
    "3d": ((1, 2, 5, 6, 7), (4, 2, 3, 2, 3), ConvAttrs((1, 1, 2), (1, 1, 1), (1, 0, 1, 0, 1, 1))),
}
TRANSPOSED = {
    "1d": ((2, 4, 9), (4, 3, 3), ConvTransposeAttrs((2,), (1,), (1, 0), (1,))),
    "2d": ((1, 3, 4, 4), (3, 5, 4, 4), ConvTransposeAttrs((2, 2), (1, 1), (1,) * 4, (0, 0))),
    "grouped": (
        (1, 6, 5, 6),
        (6, 4, 3, 2),
        ConvTransposeAttrs((2, 1), (1, 2), (1, 0, 1, 1), (1, 0), 2),
    ),
    "depthwise": (
        (1, 6, 5, 5),
        (6, 1, 3, 3),
        ConvTransposeAttrs((2, 2), (1, 1), (1,) * 4, (1, 1), 6),
    ),
    "3d": (
        (1, 2, 3, 3, 4),
        (2, 3, 2, 2, 3),
        ConvTransposeAttrs((1, 2, 2), (1, 1, 1), (0,) * 6, (0, 1, 0)),
    ),
}


def onnx_attributes(attributes: ConvAttrs | ConvTransposeAttrs) -> dict[str, tuple[int, ...] | int]:
    fields: dict[str, tuple[int, ...] | int] = {
        "strides": attributes.strides,
        "dilations": attributes.dilations,
        "pads": attributes.pads,
        "group": attributes.group,
    }
    if isinstance(attributes, ConvTransposeAttrs):
        fields["output_padding"] = attributes.output_padding
    return fields


def make(
    rng: np.random.Generator,
    dx: DType,
    dw: DType,
    xs: tuple[int, ...],
    ws: tuple[int, ...],
    *,
    axis: int | None,
    zero_points: bool = False,
) -> tuple[Operand, Operand, QuantParams]:
    """Returns x, w and parameters of the result that use most of its range."""
    px = random_params(rng, dx, nice=False, low=-8, high=-4)
    pw = (
        random_params(rng, dw, nice=False, low=-8, high=-4)
        if axis is None
        else per_axis(rng, dw, ws[axis], axis, zero_points=zero_points)
    )
    scale = float(px.scale) * float(pw.scale.mean()) * 70 * float(np.prod(ws[1:])) ** 0.5
    py = per_tensor(dx, np.float32(scale), int(rng.integers(dx.qmin, dx.qmax)))
    return quantized(rng, xs, px), quantized(rng, ws, pw, fixed=True), py


def unfused(name: str, attributes, operands: list[Operand], py: QuantParams) -> tuple[int, int]:
    """Compares with onnxruntime's float kernel; returns differences and results."""
    (their,) = theirs(name, operands, [py], onnx_attributes(attributes))
    (our,) = ours(name, attributes, operands, [py])
    (real,) = ideal(name, attributes, operands)
    error = dot_error(name, attributes, operands, py, int(np.prod(operands[1].values.shape[1:])))
    assert proven_ties(their, our, real, py, error)
    return mismatches(their, our), our.size


@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("granularity", ["tensor", "channel", "zero_points"])
@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
def test_conv_equals_the_fused_kernel(dtypes, granularity, biased) -> None:
    """Bit for bit: QLinearConv."""
    dx, dw = dtypes
    for name, (xs, ws, attributes) in CONV.items():
        for seed in range(5):
            rng = np.random.default_rng(seed)
            axis = None if granularity == "tensor" else 0
            zero_points = granularity == "zero_points" and dw is DType.UINT8
            x, w, py = make(rng, dx, dw, xs, ws, axis=axis, zero_points=zero_points)
            operands = [x, w, product_bias(rng, x, w, ws[0])] if biased else [x, w]
            fields = onnx_attributes(attributes)
            if seed == 0:
                assert "QLinearConv" in fused_operators("Conv", operands, [py], fields)
            (their,) = theirs("Conv", operands, [py], fields, optimized=True)
            (our,) = ours("Conv", attributes, operands, [py])
            assert mismatches(their, our) == 0, (name, seed)


@pytest.mark.parametrize("bias", ["none", "int32", "float"])
@pytest.mark.parametrize("granularity", ["tensor", "channel", "zero_points"])
def test_conv_differs_from_the_float_kernel_in_ties_only(granularity, bias) -> None:
    differences = total = 0
    for dx, dw in PAIRS:
        for xs, ws, attributes in CONV.values():
            for seed in range(4):
                rng = np.random.default_rng(seed)
                x, w, py = make(
                    rng,
                    dx,
                    dw,
                    xs,
                    ws,
                    axis=None if granularity == "tensor" else 0,
                    zero_points=granularity == "zero_points",
                )
                operands = [x, w]
                if bias == "int32":
                    operands.append(product_bias(rng, x, w, ws[0]))
                if bias == "float":
                    real = rng.standard_normal(ws[0]).astype(np.float32)
                    operands.append(Operand(real, None, True))
                counted = unfused("Conv", attributes, operands, py)
                differences, total = differences + counted[0], total + counted[1]
    assert differences * 5000 < total


@pytest.mark.parametrize("bias", ["none", "int32"])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_conv_transpose_differs_from_the_float_kernel_in_ties_only(granularity, bias) -> None:
    """onnxruntime has no integer kernel for it."""
    differences = total = 0
    for dx, dw in PAIRS:
        for xs, ws, attributes in TRANSPOSED.values():
            if granularity == "channel" and attributes.group > 1:
                continue  # onnxruntime wants one scale per channel of the whole result
            for seed in range(6):
                rng = np.random.default_rng(seed)
                axis = None if granularity == "tensor" else 1
                x, w, py = make(rng, dx, dw, xs, ws, axis=axis)
                operands = [x, w]
                if bias == "int32":
                    operands.append(product_bias(rng, x, w, ws[1] * attributes.group))
                counted = unfused("ConvTranspose", attributes, operands, py)
                differences, total = differences + counted[0], total + counted[1]
    assert differences * 1000 < total  # the scales make exact ties


def test_grouped_conv_transpose_per_channel_equals_its_groups_one_by_one() -> None:
    rng = np.random.default_rng(0)
    attributes = TRANSPOSED["grouped"][2]
    x, w, py = make(rng, DType.UINT8, DType.INT8, (1, 6, 5, 6), (6, 4, 3, 2), axis=1)
    (whole,) = ours("ConvTranspose", attributes, [x, w], [py])
    alone = ConvTransposeAttrs((2, 1), (1, 2), (1, 0, 1, 1), (1, 0))
    for group in range(2):
        part = slice(3 * group, 3 * group + 3)
        operands = [Operand(x.values[:, part], x.params), Operand(w.values[part], w.params)]
        (one,) = ours("ConvTranspose", alone, operands, [py])
        np.testing.assert_array_equal(whole[:, 4 * group : 4 * group + 4], one)


def test_float_result_is_the_accumulator_times_one_scale() -> None:
    rng = np.random.default_rng(1)
    xs, ws, attributes = CONV["2d"]
    x, w, _ = make(rng, DType.UINT8, DType.INT8, xs, ws, axis=0)
    assert x.params is not None and w.params is not None
    (our,) = ours("Conv", attributes, [x, w], [None])
    cx = x.values.astype(np.float64) - x.params.zero_point
    (acc,) = BY_NAME["Conv"].compute(attributes, (cx, w.values.astype(np.float64)))
    scale = np.multiply(x.params.scale, w.params.scale).reshape(-1, 1, 1)
    assert scale.dtype == np.float32
    np.testing.assert_array_equal(our, acc.astype(np.float32) * scale)


@pytest.mark.parametrize("which", ["x per axis", "w on axis 1", "blocked", "float x", "int32 x"])
def test_types_without_an_integer_form_are_refused(which) -> None:
    rng = np.random.default_rng(2)
    xs, ws, attributes = CONV["2d"]
    x, w, py = make(rng, DType.UINT8, DType.INT8, xs, ws, axis=0)
    if which == "x per axis":
        x = Operand(x.values, per_axis(rng, DType.UINT8, 3, 1))
    elif which == "w on axis 1":
        w = Operand(w.values, per_axis(rng, DType.INT8, 3, 1))
    elif which == "blocked":
        scale = np.ones((4, *ws[1:]), np.float32)
        w = Operand(
            w.values,
            QuantParams(DType.INT8, scale, np.zeros(scale.shape, np.int32), axis=0, block_size=2),
        )
    elif which == "float x":
        x = Operand(x.real)
    else:
        x = Operand(x.values.astype(np.int32), per_tensor(DType.INT32, 0.1))
    contract = BY_NAME["Conv"].contract
    assert contract is not None
    assert contract(attributes, (x.values, w.values), (x.type, w.type), (None,)) is None
    (our,) = ours("Conv", attributes, [x, w], [py])
    (real,) = ideal("Conv", attributes, [x, w])
    error = dot_error("Conv", attributes, [x, w], py, 27)
    expected: Array = np.clip(
        np.rint(real / float(py.scale)) + int(py.zero_point), py.qmin, py.qmax
    ).astype(our.dtype)
    assert proven_ties(expected, our, real, py, error)


def test_16_bit_sums_are_exact() -> None:
    """Products of 16-bit codes leave float32 at once: every sum must equal Python's integers."""
    rng = np.random.default_rng(3)
    px, pw = per_tensor(DType.UINT16, 1.0, 40000), per_tensor(DType.INT16, 1.0, -3)
    x, w = quantized(rng, (1, 3, 4), px), quantized(rng, (2, 3, 2), pw)
    attributes = ConvAttrs((1,), (1,), (0, 0))
    py = per_tensor(DType.INT16, 2.0**17, 0)
    (our,) = ours("Conv", attributes, [x, w], [py])
    for o in range(2):
        for i in range(3):
            acc = sum(
                (int(x.values[0, c, i + k]) - 40000) * (int(w.values[o, c, k]) + 3)
                for c in range(3)
                for k in range(2)
            )
            expected = np.rint(np.float32(acc) * np.float32(2.0**-17))
            assert our[0, o, i] == np.clip(expected, -32768, 32767)


def test_4_bit_weights() -> None:
    rng = np.random.default_rng(4)
    px, pw = per_tensor(DType.UINT8, 0.1, 7), per_tensor(DType.INT4, 0.2)
    py = per_tensor(DType.UINT8, 1.0, 90)
    xs, ws, attributes = CONV["2d"]
    x, narrow = quantized(rng, xs, px), rng.integers(-8, 8, ws).astype(np.int8)
    (our,) = ours("Conv", attributes, [x, Operand(narrow.astype(DType.INT4.numpy), pw)], [py])
    wide = Operand(narrow, per_tensor(DType.INT8, 0.2))
    (expected,) = ours("Conv", attributes, [x, wide], [py])
    np.testing.assert_array_equal(our, expected)


def test_a_large_image_takes_no_more_than_seconds() -> None:
    rng = np.random.default_rng(5)
    x, w, py = make(rng, DType.UINT8, DType.INT8, (1, 16, 320, 320), (16, 16, 3, 3), axis=0)
    begin = time.perf_counter()
    (our,) = ours("Conv", ConvAttrs((1, 1), (1, 1), (1,) * 4), [x, w], [py])
    assert our.shape == (1, 16, 320, 320)
    assert time.perf_counter() - begin < 10


def test_transposed_convolutions_of_no_examples_give_none() -> None:
    w = np.ones((2, 3, 3, 3), np.float32)
    attributes = ConvTransposeAttrs((1, 1), (1, 1), (1, 1, 1, 1), (0, 0))
    found = scattered(attributes, np.zeros((0, 2, 4, 4), np.float32), w)
    assert found.shape == (0, 3, 4, 4)
