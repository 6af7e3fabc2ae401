"""Steps of training on TVM, against ONNX's reference: onnxruntime has none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

pytest.importorskip("tvm")

import qdqbridge as qb
from tests.onnx_models import Array, Builder, canonical

pytestmark = pytest.mark.relax

_STEPS: list[tuple[str, int, dict[str, Any]]] = [
    ("Adagrad", 1, {"norm_coefficient": 0.01, "decay_factor": 0.1, "epsilon": 1e-3}),
    ("Adam", 2, {"norm_coefficient": 0.01, "norm_coefficient_post": 0.02, "beta": 0.99}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "standard"}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "nesterov"}),
]
"""Operators, how many states a tensor has, and attributes."""


@pytest.mark.parametrize("tensors", [1, 2])
@pytest.mark.parametrize(("op_type", "states", "attributes"), _STEPS)
def test_steps(op_type: str, states: int, attributes: dict[str, Any], tensors: int) -> None:
    """The first step is another one than those that follow."""
    b, rng = Builder(21), np.random.default_rng(0)
    names = [b.input("rate", []), b.input("count", [], 7)]
    names += [b.input(f"x{i}", ["n", 3]) for i in range((2 + states) * tensors)]
    results = (1 + states) * tensors
    y = b.op(op_type, *names, outputs=results, domain="ai.onnx.preview.training", **attributes)
    for index in range(results):
        b.output(f"{y}:{index}" if index else y, ["n", 3])
    model = b.model()
    graph, reference = canonical(model), ReferenceEvaluator(model)
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    executable = qb.compile(graph)
    for count in (0, 1, 7):
        given: dict[str, Array] = {
            name: np.abs(rng.normal(size=(2, 3))).astype(np.float32) for name in names[2:]
        }
        given |= {"rate": np.array(0.1, np.float32), "count": np.array(count)}
        found, wanted = executable.run(given).values(), reference.run(None, given)
        for one, other in zip(found, map(np.asarray, wanted), strict=True):
            # The reference computes the last products in float64 or in float32, by the count.
            np.testing.assert_array_max_ulp(one, other.astype(np.float32), 2)
