"""Learned weights: close to the best of all, and better than GPTQ's where operands are rounded."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from qdqbridge.autoquant.planning.decide import apply
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.targets import ORT
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.gptq import rounded_rows, with_rounding
from qdqbridge.autoquant.repair.layers import layer_of
from qdqbridge.autoquant.repair.learn import (
    DAMPING,
    OperandMoments,
    descended,
    learned,
    learned_rows,
    targets,
)
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.interpreter import evaluate
from tests.autoquant.float_models import quantize_plainly
from tests.onnx_models import Builder, canonical

W4 = Format(DType.INT4, symmetric=True, axis=0)


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def problem(seed, rows, size):
    """Weights, scales of 4 bits, and operands, real and rounded, mostly in few directions."""
    weight, common = drawn(seed, rows, size), drawn(seed + 50, size, 3)
    x = common @ drawn(seed + 60, 3, 200) + 0.2 * drawn(seed + 70, size, 200)
    rounded = np.rint(x) + 0.1 * drawn(seed + 80, size, 200)
    scale = np.repeat(np.abs(weight).max(axis=1, keepdims=True) / 7, size, axis=1)
    return weight, scale, x, rounded


def error(weight, stored, scale, x, rounded):
    """What learning minimizes: the outputs, and a little how far weights move."""
    damping = DAMPING * float(np.diag(rounded @ rounded.T).mean())
    real = stored * scale
    return float(
        ((weight @ x - real @ rounded) ** 2).sum() + damping * ((real - weight) ** 2).sum()
    )


@pytest.mark.parametrize("seed", range(20))
def test_close_to_the_best_of_all_roundings(seed):
    size = 6
    weight, scale, x, rounded = problem(seed, 1, size)
    zero = np.zeros_like(weight)
    square, cross = rounded @ rounded.T, x @ rounded.T
    target, hessian = targets(weight, square, cross, 1.0)
    ours, factor = learned_rows(target, scale, zero, hessian, -7, 7)
    assert factor == 1 and (np.abs(ours) <= 7).all()
    below = np.floor(weight / scale)
    best = min(
        error(weight, np.clip(below + np.array(step), -7, 7), scale, x, rounded)
        for step in itertools.product(range(-1, 3), repeat=size)
    )
    got = error(weight, ours, scale, x, rounded)
    nearest = error(weight, np.clip(np.rint(weight / scale), -7, 7), scale, x, rounded)
    assert got <= nearest
    assert got <= best * 1.6  # single changes end near the least of pairs and triples of them


def test_single_changes_do_not_help_any_more():
    weight, scale, _, rounded = problem(3, 8, 70)
    zero = np.zeros_like(weight)
    hessian = rounded @ rounded.T + np.eye(70)
    start = np.clip(np.rint(weight / scale), -7, 7)

    def lost(stored):
        off = (stored - zero) * scale - weight
        return np.einsum("rj,rj->r", off @ hessian, off)

    found = descended(weight, start, scale, zero, hessian, -7, 7)
    assert (lost(found) <= lost(start)).all() and lost(found).sum() < lost(start).sum()
    once = descended(weight, found, scale, zero, hessian, -7, 7)
    for column in range(70):
        for step in (-1, 1):
            other = once.copy()
            other[:, column] = np.clip(other[:, column] + step, -7, 7)
            assert (lost(other) >= lost(once) - 1e-6).all()  # the order of sums in float64


def test_errors_of_operands_are_made_up_for():
    """GPTQ approaches ``w x'``; what is wanted is ``w x``."""
    gains = []
    for seed in range(10):
        weight, scale, x, rounded = problem(seed, 16, 24)
        zero, square = np.zeros_like(weight), rounded @ rounded.T
        target, hessian = targets(weight, square, x @ rounded.T, 1.0)
        ours, factor = learned_rows(target, scale, zero, hessian, -7, 7, (1.0, 0.9, 0.8))
        theirs = rounded_rows(weight, scale, zero, square, -7, 7)
        both = [
            float(((weight @ x - q * s @ rounded) ** 2).sum())
            for q, s in ((theirs, scale), (ours, scale * factor[:, None]))
        ]
        gains.append(both[0] / both[1])
    assert np.median(gains) > 1.2 and min(gains) > 1


def test_moments_are_sums_over_batches_and_centred():
    b = Builder(17)
    weight = drawn(1, 6, 2, 3, 2).astype(np.float32)
    b.output(b.op("Conv", b.input("x", ["n", 4, 5, 7]), b.init(weight), group=2))
    layer = layer_of(canonical(b.model()).nodes[-1])
    assert layer is not None
    x, y = drawn(2, 3, 4, 5, 7), drawn(3, 3, 4, 5, 7)
    whole = OperandMoments.of(layer, [x], [y], centred=False)
    parts = [
        OperandMoments.of(layer, [x[i : i + 1]], [y[i : i + 1]], centred=False) for i in range(3)
    ]
    joined = parts[0] + parts[1] + parts[2]
    # float64 sums in another order, here and below
    np.testing.assert_allclose(joined.cross, whole.cross, rtol=1e-9, atol=1e-9)
    moved = OperandMoments.of(layer, [x + 5], [y - 3], centred=True)
    centred = OperandMoments.of(layer, [x], [y], centred=True)
    np.testing.assert_allclose(moved.square, centred.square, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moved.cross, centred.cross, rtol=1e-9, atol=1e-9)


def two_products(b, x):
    x = b.op("MatMul", x, b.init(drawn(4, 12, 24).astype(np.float32) / 4))
    x = b.op("Relu", b.op("Add", x, b.init(drawn(5, 24).astype(np.float32))))
    return b.op("MatMul", x, b.init(drawn(6, 24, 7).astype(np.float32) / 4))


def test_unseen_outputs_are_closer():
    b = Builder(21)
    b.output(two_products(b, b.input("x", ["n", 12])))
    graph = canonical(b.model())
    mixing = drawn(8, 12, 12)
    x, unseen = ((drawn(seed, 256, 12) @ mixing).astype(np.float32) for seed in (9, 10))
    start = quantize_plainly(graph, {"x": x}, replace(ORT, weights=W4)).decision
    samples = Samples.of(graph.inputs, {"x": x})
    result, told = learned(start, samples)
    assert " of 31 output channels rounded otherwise" in told and result.integers
    (wanted,) = evaluate(graph, {"x": unseen})[0].values()

    def noise(decision):
        (got,) = evaluate(apply(decision), {"x": unseen})[0].values()
        return float(((got - wanted) ** 2).sum())

    gptq, _ = with_rounding(start, samples)
    assert noise(result) < noise(gptq) < noise(start)
    again, _ = learned(start, samples)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(result.integers.values(), again.integers.values(), strict=True)
    )
