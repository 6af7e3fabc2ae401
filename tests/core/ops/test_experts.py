"""Experts of 2 bits, and activations that onnxruntime's CPU does not have: what the text says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.core.ops.experts import EXPERTS, STORED_EXPERTS, ExpertsAttrs, expert_weights
from tests.core.ops.attention_cases import AttentionCase
from tests.onnx_models import Array, canonical
from tests.tvm.relax.targets import UNOPTIMIZED

BLOCK, WIDTH, TOKENS = 64, 128, 5
CLOSE = 1e-6
"""Of the largest result: sums of float32 in another order."""


def table_product(x: Array, weight: Array, scales: Array) -> Array:
    """The product as onnxruntime's kernel adds it up.

    A bit of four neighbouring weights chooses one of sixteen sums of their activations, each added
    or subtracted. These sums are rounded to 8 bits, with one step for 64 activations.
    Source: onnxruntime core/mlas/lib/sqnbitgemm_lut_kernel_avx2.cpp.

    Args:
        x: (tokens, terms).
        weight: (results, terms), whole numbers from -2 to 1.
        scales: (results, blocks).
    """
    fours = x.reshape(len(x), -1, 4)
    step = np.abs(fours).sum(-1).reshape(len(x), -1, BLOCK // 4).max(-1) / np.float32(127)
    step = np.repeat(step, BLOCK // 4, axis=1)
    codes = (weight + 2).astype(np.int64)
    total = np.zeros((len(x), len(weight), fours.shape[1]))
    for bit, factor in ((0, 0.5), (1, 1.0)):
        signs = ((codes >> bit & 1) * 2 - 1).reshape(len(weight), -1, 4)
        sums = np.einsum("tqi,nqi->tnq", fours, signs.astype(np.float32))
        total += factor * np.rint(sums * (1 / step)[:, None]) * step[:, None]
    total -= 0.5 * fours.sum(-1)[:, None]
    return (total * np.repeat(scales, BLOCK // 4, axis=1)).sum(-1).astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
def test_two_bits_are_multiplied_exactly_and_by_onnxruntime_out_of_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = ExpertsAttrs(activation_type="identity", expert_weight_bits=2, block_size=BLOCK)
    x = rng.standard_normal((TOKENS, WIDTH)).astype(np.float32)
    operands: list[Array | None] = [x, np.zeros((TOKENS, 1), np.float32)]
    parts: list[tuple[Array, Array]] = []
    for _ in range(2):
        stored = rng.integers(0, 256, (1, WIDTH, WIDTH // 4)).astype(np.uint8)
        scales = rng.uniform(0.01, 0.05, (1, WIDTH, WIDTH // BLOCK)).astype(np.float32)
        operands += [stored, scales, None]
        parts.append((expert_weights(a, stored, np.ones_like(scales), None)[0], scales[0]))
    case = AttentionCase("QMoE", a, operands, [[slice(None)] * TOKENS])
    (theirs,), (ours,) = case.reference(), STORED_EXPERTS.compute(a, operands)
    tables, exact = x, x.astype(np.float64)
    for weight, scales in parts:
        tables = table_product(tables, weight, scales)
        exact = exact @ (weight * np.repeat(scales, BLOCK, axis=1)).T.astype(np.float64)
    largest = np.abs(exact).max()
    assert np.abs(ours - exact).max() < CLOSE * largest
    assert np.abs(theirs - tables).max() < CLOSE * largest
    assert np.abs(theirs - exact).max() > 1e-3 * largest


def gelu(x: Array) -> Array:
    """ONNX's Gelu with ``approximate="tanh"``, in float64."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def experts(activation: str, fusion: int, x: Array, logits: Array, weights: list[Array]) -> Array:
    """Two experts per token in float64, as onnxruntime's text on MoE says."""
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    result = np.zeros((len(x), weights[1].shape[1]))
    for token, expert in np.ndindex(shares.shape):
        if np.sum(logits[token] > logits[token, expert]) >= 2:
            continue
        inner = weights[0][expert] @ x[token]
        if activation == "relu2":
            inner = np.maximum(inner, 0) ** 2
        else:
            pairs = inner.reshape(-1, 2) if fusion == 1 else inner.reshape(2, -1).T
            inner = gelu(pairs[:, 0]) * pairs[:, 1]
        result[token] += shares[token, expert] * (weights[1][expert] @ inner)
    return result


CASES = pytest.mark.parametrize(
    ("activation", "fusion"), [("geglu", 1), ("geglu", 2), ("relu2", 0)]
)


def case_of(activation: str, fusion: int) -> tuple[AttentionCase, Array]:
    """A node with such experts, and what the text says of it."""
    rng = np.random.default_rng(fusion)
    x, logits = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 32), (5, 4)))
    rows = 48 if fusion else 24
    weights = [
        rng.standard_normal(shape).astype(np.float32) * 0.3
        for shape in ((4, rows, 32), (4, 32, 24))
    ]
    a = ExpertsAttrs(2, activation, swiglu_fusion=fusion)
    operands = [x, logits, weights[0], None, weights[1], None]
    wide = [each.astype(np.float64) for each in (x, logits, *weights)]
    expected = experts(activation, fusion, wide[0], wide[1], wide[2:])
    return AttentionCase("MoE", a, operands, [[slice(None)] * TOKENS]), expected


@CASES
def test_activations_of_other_processors_are_those_of_the_text(
    activation: str, fusion: int, tmp_path: Path
) -> None:
    case, expected = case_of(activation, fusion)
    graph = canonical(case.model())
    assert [node.op for node in graph.nodes] == [EXPERTS]
    assert graph.outputs[0].type.shape == expected.shape
    (found,) = qb.evaluate(graph, case.feeds()).values()
    assert np.abs(found - expected).max() < CLOSE * np.abs(expected).max()
    qb.save(graph, tmp_path / "saved.onnx")
    assert qb.load(tmp_path / "saved.onnx").digest == graph.digest


@pytest.mark.relax
@CASES
def test_activations_of_other_processors_run_on_tvm(activation: str, fusion: int) -> None:
    case, expected = case_of(activation, fusion)
    graph = canonical(case.model())
    (found,) = qb.compile(graph, UNOPTIMIZED).run(case.feeds()).values()
    assert np.abs(found - expected).max() < CLOSE * np.abs(expected).max()
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest


def test_a_gate_in_a_product_of_its_own_is_not_geglus() -> None:
    case, _ = case_of("geglu", 1)
    apart = replace(case, attributes=ExpertsAttrs(2, "geglu"))
    (node,) = canonical(apart.model()).nodes
    assert node.op is not EXPERTS
