"""QMoE of 2 bits: who of onnxruntime and the interpreter computes what the text says."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.ops.experts import STORED_EXPERTS, ExpertsAttrs, expert_weights
from tests.onnx_models import Array
from tests.ops.attention_cases import AttentionCase

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
