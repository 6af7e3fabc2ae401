"""Stacks of matrices with a scale of each column: exact on TVM, and read back as they were."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")

import qdqbridge as qb
from tests.tvm.relax.single_ops import Model, X, call_names, codes, params

pytestmark = pytest.mark.relax

SHAPES = (
    ((2, 3, 8), (2, 8, 5)),
    ((3, 8), (2, 8, 4)),
    ((8,), (2, 8, 3)),
    ((2, 1, 3, 8), (4, 8, 5)),
    ((3, 2, 8), (2, 1, 8, 6)),
    ((1, 2, 8), (1, 8, 1)),
)


def products(seed: int) -> Model:
    m, rng = Model(), np.random.default_rng(seed)
    for index in range(26):
        left, right = SHAPES[index % len(SHAPES)]
        xd, wd = (str(rng.choice(["int8", "uint8"])) for _ in range(2))
        columns = right[-1]
        zeros = rng.integers(0, 9, columns) if rng.random() < 0.5 else np.zeros(columns, int)
        scales = rng.uniform(0.005, 0.03, columns).astype(np.float32)
        stated = params(wd, scales, zeros.tolist(), len(right) - 1)
        w = X(codes(right, wd, index), stated, fixed=bool(rng.random() < 0.5))
        x = X(codes(left, xd, index + 1), params(xd, 0.5, 3))
        m.add("MatMul", [x, w], params("int8", 7.0, -3), label=f"{index}")
    return m


@pytest.mark.parametrize("seed", range(4))
def test_a_scale_of_each_column(seed: int) -> None:
    graph, executable = (m := products(seed)).check()
    assert call_names(executable.module).count("qnn.batch_matmul") == len(m.branches)
    assert qb.from_relax(executable.module).digest == graph.digest
