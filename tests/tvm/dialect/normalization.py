"""qnn.softmax, qnn.log_softmax and the normalizations, on each host, against the operator table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.ops.attributes import EpsilonAttrs, GroupNormAttrs, NormAttrs, SoftmaxAttrs
from tests.tvm.dialect.contract import Array, Host, contract, every_code, params

CODES = [("int8", 1), ("uint8", 0), ("int16", 1)]
"""Element types, each with the target that it is tried on."""


SHAPES = [((6, 5, 37), (2,)), ((6, 5, 37), (1,)), ((6, 40), (0,)), ((2, 3, 4, 5), (1, 2, 3))]
"""Shapes, each with the axes that a softmax goes over."""


@pytest.mark.parametrize(("dtype", "target"), CODES)
def test_softmax(host: Host, dtype: str, target: int) -> None:
    rng = np.random.default_rng(0)
    fine = 1 / 256 if dtype == "int16" else 1.0
    cases = host.cases(host.targets[target])
    for scale in (0.03, 0.11, 1.7):
        px = params(dtype, scale * fine, 5)
        for py in (params(dtype, fine / 256, -128 if dtype == "int8" else 0),):
            for shape, axes in SHAPES if scale == 0.11 else SHAPES[:1]:
                x = every_code(rng, dtype, shape)
                args = [x, host.scale_of(px), host.zero_of(px), host.scale_of(py), host.zero_of(py)]
                axis = axes[0] if len(axes) == 1 else list(axes)
                expected = contract("Softmax", SoftmaxAttrs(axes), (x,), (px,), py)
                cases.add("qnn.softmax", args, {"axis": axis}, expected)
                log = params(dtype, 0.1 * fine, 20)
                args[3:] = [host.scale_of(log), host.zero_of(log)]
                expected = contract("LogSoftmax", SoftmaxAttrs(axes), (x,), (px,), log)
                cases.add("qnn.log_softmax", args, {"axis": axis}, expected)
    cases.check()


Affine = tuple[Array, Any, Array, Any]


def _affine(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Affine]:
    """Gamma and beta as floats, and as codes."""
    floats = [rng.normal(size=shape).astype(np.float32) for _ in range(2)]
    pg, pb = params("uint8", 0.011, 100), params("int32", 0.0003, 0)
    stored = rng.integers(0, 256, shape).astype(np.uint8)
    bias = rng.integers(-10_000, 10_000, shape).astype(np.int32)
    return [(floats[0], None, floats[1], None), (stored, pg, bias, pb)]


def _norm_args(host: Host, x: Array, px: Any, affine: Affine, py: Any) -> list[Any]:
    gamma, pg, beta, pb = affine
    return [x, host.const(gamma), host.const(beta), *host.all_args(px, pg, pb, py)]


@pytest.mark.parametrize(("dtype", "target"), CODES)
def test_row_normalizations(host: Host, dtype: str, target: int) -> None:
    rng = np.random.default_rng(1)
    fine = 1 / 256 if dtype == "int16" else 1.0
    px, py = params(dtype, 0.031 * fine, 7), params(dtype, 0.0241 * fine, 3)
    cases = host.cases(host.targets[target])
    x, image = every_code(rng, dtype, (3, 20, 24)), every_code(rng, dtype, (2, 6, 9, 11))
    x[1] = x[1, 0, 0]
    for affine in _affine(rng, (24,)):
        record = NormAttrs(2, 1e-5)
        for name, row in (("layer_norm", "LayerNormalization"), ("rms_norm", "RMSNormalization")):
            beta = (affine[2], affine[3])
            if name == "rms_norm":
                beta = (np.zeros_like(affine[2]), affine[3])
            operands = (x, affine[0], beta[0])
            own = (affine[0], affine[1], *beta)
            expected = contract(row, record, operands, (px, affine[1], beta[1]), py)
            args = _norm_args(host, x, px, own, py)
            cases.add(f"qnn.{name}", args, {"axis": -1, "epsilon": 1e-5}, expected)
    for affine in _affine(rng, (20, 24)):
        operands, types = (x, affine[0], affine[2]), (px, affine[1], affine[3])
        expected = contract("LayerNormalization", NormAttrs(1, 1e-3), operands, types, py)
        args = _norm_args(host, x, px, affine, py)
        cases.add("qnn.layer_norm", args, {"axis": 1, "epsilon": 1e-3}, expected)
    for affine in _affine(rng, (6,)):
        operands, types = (image, affine[0], affine[2]), (px, affine[1], affine[3])
        args = _norm_args(host, image, px, affine, py)
        expected = contract("InstanceNormalization", EpsilonAttrs(1e-5), operands, types, py)
        cases.add("qnn.instance_norm", args, {"epsilon": 1e-5}, expected)
        expected = contract("GroupNormalization", GroupNormAttrs(3, 1e-5), operands, types, py)
        cases.add("qnn.group_norm", args, {"num_groups": 3, "epsilon": 1e-5}, expected)
    cases.check()


@pytest.mark.parametrize(("dtype", "target"), CODES)
def test_batch_norm(host: Host, dtype: str, target: int) -> None:
    rng = np.random.default_rng(2)
    px, py = params(dtype, 0.031, 7), params(dtype, 0.0241, 3)
    x = every_code(rng, dtype, (2, 5, 40, 40))
    gamma, beta, mean = (rng.normal(size=5).astype(np.float32) for _ in range(3))
    variance = rng.uniform(0.1, 2, 5).astype(np.float32)
    vectors = (gamma, beta, mean, variance)
    expected = contract(
        "BatchNormalization", EpsilonAttrs(1e-5), (x, *vectors), (px, *[None] * 4), py
    )
    args = [x, *(host.const(v) for v in vectors)]
    args += [host.scale_of(px), host.zero_of(px), host.scale_of(py), host.zero_of(py)]
    cases = host.cases(host.targets[target])
    cases.add("qnn.batch_norm", args, {"epsilon": 1e-5}, expected)
    cases.check()
