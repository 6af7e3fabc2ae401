"""A few random nodes of every kind; ``scripts/sweeps/sweep_kernels --of others`` runs thousands."""

from __future__ import annotations

import numpy as np

from qdqbridge.tvm.relax.kernels.plan import kernel_of
from tests.tvm.relax.kernels.kernel_cases import Cases
from tests.tvm.relax.kernels.random_others import KINDS


def test_random_nodes() -> None:
    rng = np.random.default_rng(2)
    cases = Cases(kernel_of, threads=2)
    for make in KINDS * 2:
        case = make(rng)
        cases.add(
            case.name, case.attributes, case.operands, case.result, last=case.last, needed=False
        )
    assert cases.check() > len(KINDS)
