"""Random graphs through plan, fusions and shared buffers; scripts/sweeps/sweep_graphs runs many."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.tvm.relax.kernels.random_graphs import differences

SEEDS = (1, 8, 10, 19)
"""The batch known and open, one thread and two, each class of CPUs."""


@pytest.mark.parametrize("seed", SEEDS)
def test_codes_are_the_interpreters(seed: int) -> None:
    counts: Counter[str] = Counter()
    assert differences(seed, 6, counts) == []
    assert counts.total() > 6
