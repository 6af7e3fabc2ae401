"""Random graphs of ONNX's operators, a few; and what many found, each as its smallest model.

``scripts/sweep_operators`` runs thousands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.graph.graph import Graph
from tests.fuzzing.operator_stages import STAGES, case_of, outcomes
from tests.onnx_models import Array, Builder, canonical, load, run
from tests.relax.targets import UNOPTIMIZED

SEEDS = (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
INT64, INT8 = TensorProto.INT64, TensorProto.INT8


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs_mean_what_their_nodes_do(seed: int) -> None:
    found = outcomes(case_of(f"test/{seed}"), [stage for stage in STAGES if stage != "tvm"])
    assert {o.outcome for o in found.values()} <= {"pass", "unjudged"}, found


@pytest.mark.relax
@pytest.mark.parametrize("seed", range(2))
def test_random_graphs_on_tvm(seed: int) -> None:
    assert outcomes(case_of(f"test/{seed}"), ("tvm",))["tvm"].outcome == "pass"


def everywhere(graph: Graph, feeds: dict[str, Array]) -> Array:
    """Returns the only result, which the interpreter and TVM have to agree on."""
    (meant,) = run(graph, feeds)
    (got,) = qb.compile(graph, UNOPTIMIZED, threads=1).run(feeds).values()
    np.testing.assert_array_equal(got, meant)
    return meant


@pytest.mark.relax
@pytest.mark.parametrize(
    ("pads", "meant"), [((1, -3), []), ((2, -3), [7]), ((-3, 2), [7]), ((-1, -1), [])]
)
def test_pads_crop_what_the_other_end_adds(pads: tuple[int, int], meant: list[int]) -> None:
    """2 elements and one more cropped: a slice to -1 had kept the first, a verifier refused."""
    b = Builder(17)
    b.output(b.op("Pad", b.input("x", [2]), b.init(np.array(pads)), b.init(np.float32(7))))
    assert everywhere(canonical(b.model()), {"x": np.ones(2, np.float32)}).tolist() == meant


def test_pads_crop_an_open_axis() -> None:
    b = Builder(17)
    b.output(b.op("Pad", b.input("x", ["n"]), b.init(np.array([1, -1])), b.init(np.float32(7))))
    graph = canonical(b.model())
    for count, meant in ((0, []), (1, [7.0]), (2, [7.0, 1.0])):
        assert run(graph, {"x": np.ones(count, np.float32)})[0].tolist() == meant


@pytest.mark.relax
def test_broken_factors_of_an_integer_gemm_are_no_zeros() -> None:
    b = Builder(15)
    x = b.input("x", [1, 2], INT64)
    bias = b.init(np.array([[-4, 7, 9]]))
    b.output(b.op("Gemm", x, b.init(np.ones((2, 3), np.int64)), bias, alpha=1.5, beta=0.5), None,
             INT64)  # fmt: skip
    found = everywhere(canonical(b.model()), {"x": np.array([[1, 2]])})
    assert found.tolist() == [[2, 8, 9]]  # 4.5 and -2, 3.5, 4.5, cut as a Cast does


def test_a_scalar_that_follows_from_others_stays_one() -> None:
    """ONNX infers no shape of a scalar's Transpose: the difference had become a vector."""
    b = Builder(9)
    one = b.init(np.int64(432))
    b.output(b.op("Sub", b.op("Transpose", one), one), None, INT64)
    for graph in (load(b.model()), canonical(b.model())):
        (found,) = run(graph, {})
        assert found.shape == ()
        assert int(found) == 0


def test_extents_are_sliced_backwards_from_before_their_first() -> None:
    b = Builder(17)
    extents = b.op("Shape", b.input("x", [2, 3]))
    bounds = [b.init(np.array([n])) for n in (-9, -(1 << 40), 0, -1)]
    b.output(b.op("Slice", extents, *bounds), None, INT64)
    (found,) = run(canonical(b.model()), {"x": np.ones((2, 3), np.float32)})
    assert found.tolist() == [2]


def test_an_integer_product_of_no_terms_is_zero() -> None:
    """onnxruntime 1.32 gives what its memory held."""
    b = Builder(14)
    x = b.input("x", [1, "n"], INT8)
    b.output(b.op("MatMulInteger", x, b.input("y", ["n", 3], INT8)), None, TensorProto.INT32)
    feeds: dict[str, Any] = {"x": np.ones((1, 0), np.int8), "y": np.ones((0, 3), np.int8)}
    assert run(canonical(b.model()), feeds)[0].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_a_softmax_of_nothing_is_nothing(op: str) -> None:
    b = Builder(17)
    b.output(b.op(op, b.input("x", [2, "n"]), axis=1))
    (found,) = run(canonical(b.model()), {"x": np.ones((2, 0), np.float32)})
    assert found.shape == (2, 0)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_nothing_is_split_into_equal_parts(opset: int) -> None:
    b = Builder(opset)
    count = 2 if opset >= 18 else None
    first = b.op("Split", b.input("x", [0, 3]), axis=0, outputs=2, num_outputs=count)
    b.output(first)
    b.output(f"{first}:1")
    parts = run(canonical(b.model()), {"x": np.ones((0, 3), np.float32)})
    assert [part.shape for part in parts] == [(0, 3), (0, 3)]


def test_a_weight_of_no_columns_is_no_python_error() -> None:
    b = Builder(15)
    x = b.qdq(b.input("x", [5, 1]), 0.1, 8)
    b.output(b.op("MatMul", x, b.init(np.zeros((1, 0), np.float32))))
    (found,) = run(canonical(b.model()), {"x": np.ones((5, 1), np.float32)})
    assert found.shape == (5, 0)


@pytest.mark.parametrize("op", ["EyeLike", "RegexFullMatch"])
def test_operands_of_unknown_type_do_not_end_the_process(op: str) -> None:
    """ONNX's inference (1.23) reads the type of an operand that a node of anybody's own gives."""
    b = Builder(20)
    b.opsets["own"] = 1
    given: dict[str, Any] = {"dtype": TensorProto.FLOAT} if op == "EyeLike" else {"pattern": "a"}
    kind = TensorProto.FLOAT if op == "EyeLike" else TensorProto.BOOL
    b.output(b.op(op, b.op("Mystery", b.input("x", [2, 2]), domain="own"), **given), None, kind)
    assert [node.op.name for node in canonical(b.model()).nodes] == ["own::Mystery", op]
