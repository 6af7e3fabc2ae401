"""Softmax and Gelu of float32: close to exact results, whatever extents are open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.ops.attributes import GeluAttrs, NormAttrs, SoftmaxAttrs
from qdqbridge.tvm.relax.executable import compile_relax
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.plan import plan
from tests.combinations import first_with_all
from tests.core.graph.graphs import apply, const, graph, plain, typed
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, target_of

SHAPES: dict[str, tuple[tuple[Any, ...], list[tuple[int, ...]]]] = {
    "known": ((3, 5, 70), [(3, 5, 70)]),
    "open rows": (("a", 5, 64), [(1, 5, 64), (40, 5, 64)]),
    "open columns": (("a", 2, "b", "b"), [(1, 2, 1, 1), (3, 2, 31, 31), (2, 2, 130, 130)]),
    "vector": (("n",), [(1,), (33,), (5000,)]),
}


def network(op: str, shape: tuple[Any, ...]) -> Graph:
    x = plain("x", shape)
    softmax = op == "Softmax"
    attributes = SoftmaxAttrs((len(shape) - 1,)) if softmax else GeluAttrs()
    return graph([x], apply(op, x, type_=typed(shape), attributes=attributes))


@pytest.mark.parametrize(
    ("cpu", "case", "op"), first_with_all(CPUS, list(SHAPES), ["Softmax", "Gelu"])
)
def test_close_to_exact(cpu: Cpu, case: str, op: str) -> None:
    shape, given = SHAPES[case]
    found = network(op, shape)
    assert [k.name for k in plan(found, cpu).kernels.values()] == [f"float_{op.lower()}"]
    executable, (name,) = compile_relax(found, target_of(cpu), threads=2), found.output_names
    for each in given:
        x = np.random.default_rng(len(each)).normal(0, 3, each).astype(np.float32)
        exact = evaluate(found, {"x": x}, exact=True)[0][name]
        # some of float32's last bits, of the square of an operand too, which is an exponent
        np.testing.assert_allclose(executable.run({"x": x})[name], exact, rtol=2e-6, atol=1e-7)


def test_infinities_and_no_numbers() -> None:
    found = network("Softmax", ("n", 40))
    (name,) = found.output_names
    x = np.zeros((5, 40), np.float32)
    x[0, 3], x[1, 38], x[2] = np.nan, np.inf, -np.inf
    x[3, :39] = -np.inf
    x[4, 5] = -1e9
    with np.errstate(invalid="ignore"):
        wanted = evaluate(found, {"x": x})[0][name]
    got = compile_relax(found, target_of(HOST)).run({"x": x})[name]
    # quotients are products with a reciprocal
    np.testing.assert_allclose(got, wanted, rtol=2e-7, atol=0)
    assert got[4, 5] == 0


@pytest.mark.parametrize(("cpu", "count"), first_with_all(CPUS, [1, 37, 256]))
def test_layer_norms(cpu: Cpu, count: int) -> None:
    rng = np.random.default_rng(count)
    x = plain("x", ("a", "b", count))
    vectors = [const(rng.normal(1, 1, count).astype(np.float32)) for _ in range(2)]
    attributes, type_ = NormAttrs(2, 1e-5), typed(("a", "b", count))
    y = apply("LayerNormalization", x, *vectors, type_=type_, attributes=attributes)
    found = graph([x], y)
    assert [k.name for k in plan(found, cpu).kernels.values()] == ["float_layer_norm"]
    data = rng.normal(3, 2, (3, 7, count)).astype(np.float32)
    (name,) = found.output_names
    exact = evaluate(found, {"x": data}, exact=True)[0][name]
    got = compile_relax(found, target_of(cpu)).run({"x": data})[name]
    # sums of up to 256 numbers of about 3 in float32, some lanes at a time
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
