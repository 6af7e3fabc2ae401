"""Each rule of each profile: a file that breaks it has that finding, one that keeps it none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from qdqbridge.errors import InvalidModelError, UnsupportedTargetError
from qdqbridge.targets.profiles import PROFILES, Effect, Finding, check, profile_of
from qdqbridge.targets.profiles.ort.rules import FUSED_WRONGLY
from tests.onnx_io.writer_models import CNN, ROWS, S8, S32, U8, Net, X, Y
from tests.onnx_models import conv_model
from tests.places import MODELS

SYMMETRIC = (0.02, 0, S8)


def findings(
    build: Callable[[Net], str], folder: Path, profile: str, *, opset: int = 17, **model: Any
) -> list[Finding]:
    net = Net(opset)
    shape = model.pop("shape", CNN)
    shape = [1, *shape[1:]] if profile == "qnn" else shape  # it takes no open ones
    proto = net.model([build(net)], shape, **model)
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return check(path, profile)


def rules(found: list[Finding]) -> set[str]:
    return {finding.rule for finding in found}


def conv(
    net: Net, *, x: Any = None, weight: str = "", bias: str = "", y: Any = Y, axis: int = 0
) -> str:
    scale, zero_point, *dtype = x or X
    operands = [
        net.fake("x", scale, int(zero_point), *dtype),
        weight or net.weight(4, 4, 3, 3, axis=axis),
    ]
    result = net.op("Conv", *operands, *([bias] if bias else []), pads=[1, 1, 1, 1])
    return result if y is None else net.fake(result, *y)


def int32_bias(net: Net, ratio: float = 1.0) -> tuple[str, str]:
    """A per-tensor weight and a bias whose scale is the product, times ``ratio``."""
    scale = np.float32(0.01)
    weight = net.dq(net.constant(np.ones((4, 4, 3, 3), S8)), scale, 0, S8)
    bias = net.dq(net.constant(np.arange(4, dtype=S32)), np.float32(X[0]) * scale * ratio, 0, S32)
    return weight, bias


def with_bias(net: Net, ratio: float) -> str:
    weight, bias = int32_bias(net, ratio)
    return conv(net, weight=weight, bias=bias)


def far_weight(net: Net) -> str:
    """A float weight of which one number takes the range that one scale has."""
    weight = np.full((4, 4, 3, 3), 0.04, np.float32)
    weight[0, 0, 0, 0] = 20
    return net.constant(weight)


def float_matrix(net: Net) -> str:
    """A MatMul with a bias, which becomes a Gemm, and a float weight as in :func:`far_weight`."""
    weight = np.full((6, 4), 0.04, np.float32)
    weight[0, 0] = 20
    rows = net.op("Reshape", "x", net.constant(np.array([-1, 6])))
    product = net.op("MatMul", net.fake(rows, *X), net.constant(weight))
    return net.fake(net.op("Add", product, net.floats(4)), *Y)


def full_bias(net: Net) -> str:
    """A bias from which any product of 1 and a code goes beyond int32."""
    weight = net.dq(net.constant(np.ones((4, 4, 3, 3), S8)), np.float32(0.01), 0, S8)
    most = net.constant(np.full(4, np.iinfo(S32).max - 10, S32))
    return conv(net, weight=weight, bias=net.dq(most, np.float32(X[0]) * np.float32(0.01), 0, S32))


def uneven_bias(net: Net) -> str:
    """A weight of one scale for each channel beside a bias of one."""
    _, bias = int32_bias(net)
    return conv(net, weight=net.weight(4, 4, 3, 3, axis=0), bias=bias)


def uneven_scales(net: Net) -> str:
    """A matrix of channels beside a bias of twice their scales."""
    weight = net.dq(net.constant(np.ones((6, 4), S8)), np.linspace(0.1, 0.4, 4), 0, S8, axis=1)
    scale = 2 * X[0] * np.linspace(0.1, 0.4, 4)
    bias = net.dq(net.constant(np.full(4, 100, np.int32)), scale, 0, S32, axis=0)
    rows = net.op("Reshape", "x", net.constant(np.array([-1, 6])))
    return net.fake(net.op("Gemm", net.fake(rows, *X), weight, bias), *Y)


def per_channel_activation(net: Net) -> str:
    scale = net.constant(np.full(4, 0.1, np.float32))
    zero = net.constant(np.zeros(4, U8))
    stored = net.op("QuantizeLinear", conv(net), scale, zero, axis=1)
    return net.op("DequantizeLinear", stored, scale, zero, axis=1)


def without_zero_point(net: Net) -> str:
    scale = net.constant(np.float32(0.1))
    stored = net.op("QuantizeLinear", "x", scale)
    return net.op("DequantizeLinear", stored, scale)


def rank_one(net: Net, op: str = "Add") -> str:
    scale, zero = net.constant(np.full(1, 0.1, np.float32)), net.constant(np.zeros(1, U8))

    def fake(x: str) -> str:
        stored = net.op("QuantizeLinear", x, scale, zero)
        return net.op("DequantizeLinear", stored, scale, zero)

    return fake(net.op(op, fake("x"), fake("x")))


def computed_scale(net: Net) -> str:
    peak = net.op("Abs", net.op("ReduceMax", "x", keepdims=0))
    zero = net.constant(np.array(0, S8))
    stored = net.op("QuantizeLinear", "x", peak, zero)
    return net.op("DequantizeLinear", stored, peak, zero)


def blocked(net: Net, axis: int, dtype: Any = S8) -> str:
    weight = net.constant(net.random.integers(-7, 8, (16, 16)).astype(S8))
    shape = (2, 16) if axis == 0 else (16, 2)
    scale = net.constant(np.full(shape, 0.1, np.float32))
    zero = net.constant(np.zeros(shape, dtype))
    real = net.op("DequantizeLinear", weight, scale, zero, axis=axis, block_size=8)
    return net.op("MatMul", net.fake("x", *SYMMETRIC), real)


def short_blocks(net: Net) -> str:
    """Blocks of 12 in 16 elements."""
    scale, zero = (
        net.constant(np.full((2, 16), 0.1, np.float32)),
        net.constant(np.zeros((2, 16), S8)),
    )
    weight = net.constant(net.random.integers(-7, 8, (16, 16)).astype(S8))
    real = net.op("DequantizeLinear", weight, scale, zero, axis=0, block_size=12)
    return net.op("Flatten", real)


def stored_term(net: Net) -> str:
    """A stored vector, added before an axis is."""
    term = net.dq(net.constant(np.arange(CNN[-1], dtype=S8)), 0.1, 0, S8)
    total = net.op("Add", net.fake("x", *SYMMETRIC), term)
    return net.op("Unsqueeze", total, net.constant(np.array([0])))


def reduced(net: Net, op_type: str, x: str, *axes: int) -> str:
    """A reduction over the pixels of an image, or over other axes."""
    return net.op(op_type, x, axes=list(axes or (2, 3)), keepdims=0)


def extremes(net: Net) -> list[str]:
    return [reduced(net, op_type, conv(net, y=None)) for op_type in ("ReduceMax", "ReduceMin")]


def three_axes(net: Net) -> str:
    """A MatMul of rank 3 whose activation has a zero point."""
    x = net.fake(net.op("Squeeze", "x", net.constant(np.array([0]))), *Y)
    return net.op("MatMul", x, net.weight(6, 5, axis=1))


def sixteen_bits(net: Net) -> str:
    return net.fake("x", 0.001, 30000, np.uint16)


def contrib(net: Net) -> str:
    result = net.fake("x", *SYMMETRIC)
    for node in net.nodes:
        node.domain = "com.microsoft"
    return result


def residual(net: Net) -> str:
    skip = net.fake("x", *SYMMETRIC)
    branch = net.op("Conv", skip, net.weight(4, 4, 1, 1, axis=0))
    return net.op("Add", net.fake(branch, 0.1, 0, S8), skip)


def int8_read_twice(net: Net) -> str:
    """onnxruntime turns int8 into uint8 on x86, but not where two operators read it."""
    x = net.fake("x", *SYMMETRIC)
    branch = net.fake(net.op("Conv", x, net.weight(4, 4, 1, 1, axis=0)), 0.1, 0, S8)
    return net.fake(net.op("Add", x, branch), 0.1, 0, S8)


def clip(net: Net, x: str, low: float, high: float) -> str:
    return net.op("Clip", x, net.constant(np.float32(low)), net.constant(np.float32(high)))


def transposed(net: Net, axis: int) -> str:
    operands = net.fake("x", *SYMMETRIC), net.weight(4, 4, 3, 3, axis=axis)
    return net.op("ConvTranspose", *operands)


def asymmetric_channels(net: Net) -> str:
    stored = net.constant(net.random.integers(0, 255, (4, 4, 3, 3)).astype(U8))
    weight = net.dq(stored, np.full(4, 0.01), [100, 120, 128, 131], U8, axis=0)
    return conv(net, weight=weight)


TAILS = ("", "Relu", "Clip")
BLOCKS: dict[str, tuple[set[str], Callable[[Net, str, str], str]]] = {
    # rules that are broken, what is between the result of a product, a stored activation, and Q
    "product": (set(), lambda n, c, d: c),
    "stored skip": (set(), lambda n, c, d: n.op("Add", c, d)),
    "stored skip first": (set(), lambda n, c, d: n.op("Add", d, c)),
    "moved skip": (set(), lambda n, c, d: n.op("Add", c, n.op("Transpose", d, perm=[0, 1, 2, 3]))),
    "bias": (set(), lambda n, c, d: n.op("Add", c, n.floats(4, 1, 1))),
    "skip": ({"quantized-skip"}, lambda n, c, d: n.op("Add", c, "x")),
    "skip first": ({"quantized-skip"}, lambda n, c, d: n.op("Add", "x", c)),
    "two products": ({"quantized-skip"}, lambda n, c, d: n.op("Add", c, product_of(n, d))),
    "silu": ({"quantized-operands"}, lambda n, c, d: n.op("Mul", c, n.op("Sigmoid", c))),
    "sigmoid": ({"quantized-operands"}, lambda n, c, d: n.op("Sigmoid", c)),
    "softmax": ({"quantized-operands"}, lambda n, c, d: n.op("Softmax", c, axis=1)),
    "float add": ({"quantized-operands"}, lambda n, c, d: n.op("Add", d, "x")),
    "stored sigmoid": (set(), lambda n, c, d: n.op("Sigmoid", n.fake(c, *STEP))),
    "pool": (set(), lambda n, c, d: n.op("AveragePool", d, kernel_shape=[1, 1])),
    "pool, sine": (
        {"quantized-result", "quantized-operands"},
        lambda n, c, d: n.op("Sin", n.op("AveragePool", d, kernel_shape=[1, 1])),
    ),
    "concat": (set(), lambda n, c, d: n.op("Concat", d, n.fake(c, *STEP), axis=1)),
    "concat, two scales": (
        {"one-scale-concat"},
        lambda n, c, d: n.op("Concat", d, n.fake(c, 0.03, 0, S8), axis=1),
    ),
}
STEP = (0.05, 0, S8)


def product_of(net: Net, x: str) -> str:
    """A Conv of stored numbers whose result is float."""
    codes = net.constant(np.ones((4, 4, 1, 1), S8))
    return net.op("Conv", x, net.dq(codes, np.full(4, 0.1), np.zeros(4), S8, axis=0))


def block(net: Net, name: str, tail: str = "") -> str:
    """A block of :data:`BLOCKS` behind a product, an activation and Q."""
    stored = net.fake("x", *STEP)
    result = BLOCKS[name][1](net, product_of(net, stored), stored)
    if tail == "Clip":
        result = clip(net, result, 0, 6)
    elif tail:
        result = net.op(tail, result)
    return net.fake(result, *STEP)


@pytest.mark.parametrize("name", BLOCKS)
def test_what_stays_float_in_tensorrt_is_told(name: str, tmp_path: Path) -> None:
    """With and without activations behind it: 102 blocks."""
    for tail in TAILS:
        for last in ("", "Relu"):
            build = partial(followed_block, name=name, tail=tail, last=last)
            found = findings(build, tmp_path, "tensorrt")
            assert rules(found) == BLOCKS[name][0], (name, tail)


def followed_block(net: Net, name: str, tail: str, last: str) -> str:
    result = block(net, name, tail)
    return net.op(last, result) if last else result


BROKEN: dict[str, tuple[str, str, Callable[[Net], str]]] = {
    # profile, rule, network
    "ort_float_operand": (
        "ort", "operands-dequantized",
        lambda n: n.fake(n.op("Add", conv(n), n.op("Sin", conv(n))), *Y),
    ),
    "ort_full_bias": ("ort", "room-for-sums", full_bias),
    "ort_float_weight": ("ort", "float-weight-kept", lambda n: conv(n, weight=far_weight(n))),
    "ort_float_matrix": ("ort", "float-weight-kept", float_matrix),
    "ort_float_result": ("ort", "result-quantized", lambda n: conv(n, y=None)),
    "ort_result_read_twice": (
        "ort", "result-quantized",
        lambda n: n.op("Add", n.fake(r := conv(n, y=None), *Y), n.op("Sin", r)),
    ),
    "ort_clamp_not_implied": (
        "ort", "result-quantized", lambda n: n.fake(n.op("Relu", conv(n, y=None)), *Y),
    ),
    "ort_16_bits": (
        "ort", "element-types",
        lambda n: n.fake(n.op("Add", n.fake("x", *X), n.fake("x", 0.001, 0, np.int16)), *Y),
    ),
    "ort_int8_read_twice": ("ort", "element-types", int8_read_twice),
    "ort_bias_scale": ("ort", "bias-int32", lambda n: with_bias(n, 1.5)),
    "ort_no_kernel": ("ort", "integer-kernel", lambda n: n.fake(n.op("Sin", conv(n)), *Y)),
    "ort_pool_rescaled": (
        "ort", "pair-can-be-dropped",
        lambda n: n.fake(n.op("ReduceMax", n.fake("x", *X)), *Y),
    ),
    "ort_rank_one": ("ort", "rank-0-parameters", rank_one),
    "portable_domain": ("portable", "onnx-domain", contrib),
    "portable_zero_point": ("portable", "explicit-zero-point", without_zero_point),
    "portable_rank": ("portable", "rank-0-parameters", rank_one),
    "portable_axis": (
        "portable", "positive-axis",
        lambda n: n.op("Conv", "x", n.dq(n.constant(np.ones((4, 4, 1, 1), S8)), np.full(4, 0.1),
                                         0, S8, axis=-4)),
    ),
    "portable_scale": ("portable", "constant-positive-scale", computed_scale),
    "portable_opset": ("portable", "declared-opset", sixteen_bits),
    "qnn_full_bias": ("qnn", "room-for-sums", full_bias),
    "tensorrt_type": ("tensorrt", "signed-8-bit", lambda n: n.fake("x", 0.1, 0, U8)),
    "tensorrt_zero_point": ("tensorrt", "zero-point-0", lambda n: n.fake("x", 0.1, 3, S8)),
    "tensorrt_bias": ("tensorrt", "float-bias", lambda n: with_bias(n, 1.0)),
    "tensorrt_domain": ("tensorrt", "onnx-domain", contrib),
    "tensorrt_scale": ("tensorrt", "constant-positive-scale", computed_scale),
    "tensorrt_negative_scale": (
        "tensorrt", "constant-positive-scale", lambda n: n.fake("x", -0.1, 0, S8),
    ),
    "tensorrt_channels": ("tensorrt", "per-tensor-activations", per_channel_activation),
    "tensorrt_transposed": ("tensorrt", "weight-axis", lambda n: transposed(n, 1)),
    "tensorrt_conv_axis": (
        "tensorrt", "weight-axis", lambda n: conv(n, x=SYMMETRIC, y=(0.1, 0, S8), axis=1),
    ),
    "tensorrt_half": (
        "tensorrt", "both-operands-quantized",
        lambda n: n.op("Conv", n.fake("x", *SYMMETRIC), n.floats(4, 4, 3, 3)),
    ),
    "tensorrt_residual": ("tensorrt", "no-q-before-residual-add", residual),
    "tensorrt_skip": ("tensorrt", "quantized-skip", lambda n: block(n, "skip")),
    "tensorrt_operands": ("tensorrt", "quantized-operands", lambda n: block(n, "silu")),
    "tensorrt_result": ("tensorrt", "quantized-result", lambda n: block(n, "pool, sine")),
    "tensorrt_concat": ("tensorrt", "one-scale-concat", lambda n: block(n, "concat, two scales")),
    "qnn_domain": ("qnn", "contrib-domain", sixteen_bits),
    "qnn_channels": ("qnn", "symmetric-per-channel", asymmetric_channels),
    "qnn_activation": ("qnn", "per-tensor-activations", per_channel_activation),
    "qnn_axis": ("qnn", "weight-axis", lambda n: transposed(n, 0)),
    "qnn_bias_scale": ("qnn", "bias-int32", uneven_scales),
    "qnn_bias_of_one_scale": ("qnn", "bias-granularity", uneven_bias),
    "qnn_float_result": ("qnn", "whole-node-unit", lambda n: conv(n, y=None)),
    "qnn_storage": (
        "qnn", "storage", lambda n: n.dq(n.op("Cast", "x", to=6), 0.1, 0, S32),
    ),
    "qnn_relu": (
        "qnn", "clamp-behind-pair", lambda n: n.fake(n.op("Relu", conv(n, y=None)), *Y),
    ),
    "qnn_clip": (
        "qnn", "clamp-behind-pair", lambda n: n.fake(clip(n, conv(n, y=None), 0, 1), 0.05, 0),
    ),
    "qnn_high_end": ("qnn", "clip-of-two-ends", lambda n: n.fake(clip(n, conv(n), -99, 1), *Y)),
    "qnn_wide_clip": (
        "qnn", "clip-of-two-ends",
        lambda n: n.fake(
            clip(n, n.fake(n.op("Exp", sixteen_bits(n)), 0.001, 30000, np.uint16), -1, 1),
            0.001, 30000, np.uint16,
        ),
    ),
    "qnn_low_end": ("qnn", "clip-of-two-ends", lambda n: n.fake(clip(n, conv(n), -1, 99), *Y)),
    "tensorrt_dynamic": (
        "tensorrt", "static-quantization", lambda n: n.op("DynamicQuantizeLinear", "x", results=3),
    ),
    "qnn_dynamic": (
        "qnn", "static-quantization", lambda n: n.op("DynamicQuantizeLinear", "x", results=3),
    ),
    "openvino_operator": (
        "openvino", "known-operators", lambda n: n.op("QGemm", "x", domain="com.microsoft"),
    ),
    "openvino_dynamic": (
        "openvino", "dynamic-activations",
        lambda n: n.op("DynamicQuantizeMatMul", "x", n.constant(np.ones((6, 5), S8)),
                       n.constant(np.float32(0.1)), domain="com.microsoft"),
    ),
    "openvino_16_bits": ("openvino", "8-bit-activations", sixteen_bits),
    "openvino_scale_1": (
        "openvino", "range-of-16-bits", lambda n: n.fake("x", 1.0, 0, np.int16),
    ),
    "openvino_axis": ("openvino", "weight-axis", lambda n: conv(n, axis=1)),
    "openvino_blocks": ("openvino", "whole-blocks", short_blocks),
    "openvino_clip": (
        "openvino", "clip-on-a-step",
        lambda n: n.fake(clip(n, n.fake("x", 0.25, 3, U8), 0, 5.9), *Y),
    ),
    "openvino_term": ("openvino", "stored-terms", stored_term),
    "openvino_extreme": (
        "openvino", "rounded-extremes",
        lambda n: n.fake(reduced(n, "ReduceMax", conv(n, y=None)), *Y),
    ),
    "openvino_concat": (
        "openvino", "rounded-extremes",
        lambda n: n.fake(n.op("Concat", *extremes(n), axis=1), 0.05, 0),
    ),
    "openvino_mean": (
        "openvino", "averaged-products",
        lambda n: n.fake(reduced(n, "ReduceMean", three_axes(n), 1), *Y),
    ),
    "openvino_float_mean": (
        "openvino", "reduced-products",
        lambda n: n.fake(reduced(n, "ReduceMean", conv(n, y=None)), *Y),
    ),
    "openvino_axes": (
        "openvino", "reduced-axes", lambda n: reduced(n, "ReduceL1", "x"),
    ),
    "qoperator_form": ("qoperator", "qlinear-form", conv),
    "qoperator_none": ("qoperator", "integer-kernel", lambda n: n.fake(n.op("Sin", conv(n)), *Y)),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_is_found(name: str, tmp_path: Path) -> None:
    profile, rule, build = BROKEN[name]
    found = [f for f in findings(build, tmp_path, profile) if f.rule == rule]
    assert found
    record = next(r for r in profile_of(profile).rules if r.name == rule)
    for finding in found:
        assert (finding.effect, finding.fix) == (record.effect, record.fix)
        assert finding.reason and finding.source and finding.node


@pytest.mark.parametrize(
    ("axis", "profile", "rule"),
    [(1, "openvino", "blocks-of-terms"), (0, "tensorrt", "blocks-of-4-bits"),
     (0, "qnn", "no-blocks")],
)  # fmt: skip
def test_blocks(axis: int, profile: str, rule: str, tmp_path: Path) -> None:
    shape: list[int | str] = [5, 16]
    found = findings(lambda n: blocked(n, axis), tmp_path, profile, opset=21, shape=shape)
    assert rule in rules(found)


def test_blocks_of_terms_are_fine_for_openvino(tmp_path: Path) -> None:
    shape: list[int | str] = [5, 16]
    found = findings(lambda n: blocked(n, 0), tmp_path, "openvino", opset=21, shape=shape)
    assert "blocks-of-terms" not in rules(found)


KEPT: dict[str, tuple[str, Callable[[Net], str]]] = {
    "ort_conv": ("ort", conv),
    "ort_bias": ("ort", lambda n: with_bias(n, 1.0)),
    "ort_bias_within_a_percent": ("ort", lambda n: with_bias(n, 1.005)),
    "ort_float_bias": ("ort", lambda n: conv(n, bias=n.floats(4))),
    "ort_implied_relu": ("ort", lambda n: n.fake(n.op("Relu", conv(n, y=None)), 0.05, 0)),
    "ort_int8": ("ort", lambda n: conv(n, x=SYMMETRIC, y=(0.05, 0, S8))),
    "ort_pool_passed": (
        "ort", lambda n: n.fake(n.op("Conv", n.op("MaxPool", n.fake("x", *X), kernel_shape=[2, 2]),
                                     n.weight(4, 4, 1, 1, axis=0)), *Y),
    ),
    "portable": ("portable", lambda n: with_bias(n, 1.0)),
    "tensorrt": ("tensorrt", lambda n: conv(n, x=SYMMETRIC, bias=n.floats(4), y=(0.1, 0, S8))),
    "tensorrt_transposed": ("tensorrt", lambda n: transposed(n, 0)),
    "qnn": ("qnn", lambda n: with_bias(n, 1.0)),
    "qnn_float_bias": ("qnn", lambda n: conv(n, bias=n.floats(4))),
    "qnn_transposed": ("qnn", lambda n: n.fake(transposed(n, 1), *SYMMETRIC)),
    "qnn_relu": ("qnn", lambda n: n.fake(n.op("Relu", with_bias(n, 1.0)), *Y)),
    "qnn_implied_relu": ("qnn", lambda n: n.fake(n.op("Relu", conv(n, y=None)), 0.05, 0)),
    "qnn_clip": ("qnn", lambda n: n.fake(clip(n, with_bias(n, 1.0), -1, 1), *Y)),
    "openvino": ("openvino", lambda n: with_bias(n, 1.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_kept_rules_give_no_finding(name: str, tmp_path: Path) -> None:
    profile, build = KEPT[name]
    found = findings(build, tmp_path, profile)
    assert [each for each in found if each.effect is not Effect.PROCESSOR] == []


@pytest.mark.parametrize("rule", ["fixed-encodings", "wide-arithmetic"])
def test_what_is_computed_from_floats_is_exact_on_hexagon(rule: str, tmp_path: Path) -> None:
    def sigmoid(net: Net, operand: str) -> str:
        return net.fake(net.op("Sigmoid", operand), 0.0001, 3, np.uint16)

    for integers in (True, False):
        found = findings(
            lambda n, whole=integers: sigmoid(n, n.fake("x", *X) if whole else "x"),
            tmp_path, "qnn", opset=21,
        )  # fmt: skip
        assert (rule in rules(found)) == integers


@pytest.mark.parametrize("name", ["Shape", "Size", "Exp"])
def test_a_shape_reads_no_values(name: str, tmp_path: Path) -> None:
    found = findings(lambda n: n.op("Cast", n.op(name, with_bias(n, 1.0)), to=1), tmp_path, "qnn")
    assert ("wide-before-floats" in rules(found)) == (name == "Exp")


def test_sixteen_bits_at_opset_21_are_declared(tmp_path: Path) -> None:
    for profile in ("portable", "qnn"):
        assert findings(sixteen_bits, tmp_path, profile, opset=21) == []


def test_findings_name_nodes_tensors_and_values(tmp_path: Path) -> None:
    (found,) = findings(lambda n: n.dq(n.q("x", 0.1, 3, S8), 0.1, 0, S8), tmp_path, "tensorrt")
    assert (found.operator, found.node, found.tensors) == ("QuantizeLinear", "n0", (
        "QuantizeLinear_0",
    ))  # fmt: skip
    assert "(int8) is 3, not 0" in found.reason


@pytest.mark.parametrize("number", [0.0, -0.5, np.inf, np.nan])
@pytest.mark.parametrize("profile", ["portable", "tensorrt", "qnn", "openvino"])
def test_scales_that_are_no_scales(profile: str, number: float, tmp_path: Path) -> None:
    found = findings(lambda n: conv(n, x=(number, 0, S8)), tmp_path, profile)
    rules = ("constant-positive-scale", "positive-scale")
    reasons = {f.reason for f in found if f.rule in rules}
    assert reasons
    assert all(f"holds {number:.6g}" in reason for reason in reasons)


@pytest.mark.parametrize("profile", ["ort", "qnn"])
@pytest.mark.parametrize("ratio", [0.0, np.inf])
def test_biases_without_a_usable_scale(profile: str, ratio: float, tmp_path: Path) -> None:
    found = findings(lambda n: with_bias(n, ratio), tmp_path, profile)
    assert "bias-int32" in rules(found)


def test_hexagon_takes_a_bias_of_another_scale_beside_a_convolution(tmp_path: Path) -> None:
    assert "bias-int32" not in rules(findings(lambda n: with_bias(n, 2.0), tmp_path, "qnn"))


def test_a_custom_domain_is_refused(tmp_path: Path) -> None:
    net = Net()
    net.nodes.append(onnx.helper.make_node("Quant", ["x"], ["y"], "q", domain="qonnx.custom"))
    model = net.model(["y"], ROWS)
    model.opset_import.append(onnx.helper.make_opsetid("qonnx.custom", 1))
    onnx.save(model, tmp_path / "m.onnx")
    (found,) = check(tmp_path / "m.onnx")
    assert (found.rule, found.effect) == ("registered-operator", Effect.REFUSED)


def test_rules_are_named_once_and_tell_their_source() -> None:
    for profile in PROFILES.values():
        names = [rule.name for rule in profile.rules]
        assert names and len(names) == len(set(names))
        assert all(rule.source and rule.fix and rule.applies_to for rule in profile.rules)


def test_every_rule_has_a_test() -> None:
    tested = {(profile, rule) for profile, rule, _ in BROKEN.values()}
    tested |= {("openvino", "blocks-of-terms"), ("tensorrt", "blocks-of-4-bits")}
    tested |= {("qnn", "no-blocks"), ("ort", "registered-operator")}
    missing = {(p.name, r.name) for p in PROFILES.values() for r in p.rules} - tested
    missing -= {(p, r.name) for p in ("portable", "qoperator") for r in FUSED_WRONGLY}
    # In test_profiles_ort*, test_fused_groups: against onnxruntime. Openvino's shared ones: above.
    assert {rule for profile, rule in missing if profile == "ort"} == {
        "constant-scalar-parameters", "known-types", "no-dilations", "no-small-floats",
        "int8-past-movers", "zero-points-written", "float-bias-kept", "two-roundings",
        "clamped-float8", "refused-float8", "counted-padding", "resized-in-place",
        "rounded-activation", "scales-of-run-time", "unsaid-parameters", "bias-units",
        "int32-past-movers", "pairs-fit", "weight-types",
    }  # fmt: skip
    assert {profile for profile, _ in missing} <= {"ort", "qnn", "qnn-v73", "openvino"}


def test_unknown_profile() -> None:
    with pytest.raises(UnsupportedTargetError, match="no export profile 'rot13'"):
        check(MODELS / "digits_cnn_float.onnx", "rot13")


def test_an_invalid_file_keeps_no_rules(tmp_path: Path) -> None:
    model = conv_model()
    (node,) = [n for n in model.graph.node if n.op_type == "Conv"]
    node.attribute.append(helper.make_attribute("group", 5))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InvalidModelError, match="group"):
        check(path, "portable")
