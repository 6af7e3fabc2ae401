"""Differences are measured, attributed to the node that makes them, and explained or not."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qdqbridge as qb
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantType, TensorType, per_tensor
from qdqbridge.targets.comparison.causes import UNEXPLAINED
from qdqbridge.targets.comparison.compare import Interpreter, compare_engines
from qdqbridge.targets.comparison.difference import Tally
from qdqbridge.targets.comparison.local import compare_locally
from tests.places import MODELS

QUANTIZED = sorted(MODELS.glob("digits_*s8_*.onnx"))
STEM = "/stem/stem.2/Relu_output_0_QuantizeLinear_Output"


class Faulty(Interpreter):
    """An engine that stores one element of one tensor wrongly, by ``step``."""

    label = "faulty"

    def __init__(self, graph, name, step):
        super().__init__(graph)
        self.name, self.step = name, step

    def run(self, inputs, names):
        results = dict(super().run(inputs, names))
        changed = results[self.name].copy()
        changed.flat[7] += self.step
        results[self.name] = changed
        return results


@pytest.fixture(scope="module")
def graph():
    return qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")


@pytest.fixture(scope="module")
def data():
    with np.load(MODELS / "digits_test.npz") as arrays:
        return {"input": arrays["x"][:16]}


def test_a_fault_is_found_and_counted_once(graph, data):
    found = compare_engines(Interpreter(graph), Faulty(graph, STEM, 3), graph, data)
    assert not found.equal
    assert found.worst is not None
    assert found.worst.name == STEM
    assert (found.worst.mismatches, found.worst.max_lsb) == (1, 3)
    assert [v.name for v in found.values if not v.equal] == [STEM]


@pytest.mark.parametrize("local", [False, True])
def test_an_output_that_no_node_makes_is_compared(local: bool, tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    read, x = qb.load(path), {"x": np.ones((3, 8), np.float32)}
    found = qb.compare(read, path, x, local=local)
    assert [(v.name, v.count, v.equal) for v in found.values] == [("y", 24, True)]
    wrong = Faulty(read, "y", 1)
    if local:
        found = compare_locally(read, wrong, x)
    else:
        found = compare_engines(Interpreter(read), wrong, read, x)
    assert [(v.name, v.mismatches) for v in found.values] == [("y", 1)]
    assert found.unexplained == (1 if local else 0)


@pytest.mark.parametrize("step", [1, 3])
def test_a_fault_is_never_explained_away(graph, data, step):
    found = compare_locally(graph, Faulty(graph, STEM, step), data)
    (at_fault,) = [v for v in found.values if v.name == STEM]
    assert at_fault.causes == {UNEXPLAINED: 1}
    assert at_fault.node.startswith("Conv")


def test_a_fault_does_not_spread(graph, data):
    """What follows ran on the right values, so its own results disagree with the recorded fault."""
    found = compare_locally(graph, Faulty(graph, "logits_QuantizeLinear_Output", 1), data)
    names = [v.name for v in found.values if not v.equal]
    assert names == ["logits_QuantizeLinear_Output", "logits"]
    assert found.unexplained == 2


@pytest.mark.parametrize("path", QUANTIZED, ids=lambda path: path.stem)
def test_every_difference_from_onnxruntime_is_explained(path, data):
    found = qb.compare(qb.load(path), path, data, local=True)
    assert found.values
    assert found.unexplained == 0, str(found)
    assert found.max_lsb <= 1


def test_there_is_something_to_explain():
    assert len(QUANTIZED) >= 3


def test_batches_add_up(graph, data):
    whole = compare_engines(Interpreter(graph), Faulty(graph, STEM, 1), graph, data)
    done = []
    parts = compare_engines(
        Interpreter(graph),
        Faulty(graph, STEM, 1),
        graph,
        data,
        size=5,
        progress=lambda number, total: done.append((number, total)),
    )
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert sum(v.count for v in parts.values) == sum(v.count for v in whole.values)
    assert parts.worst is not None
    assert parts.worst.mismatches == 4  # one per batch


def test_other_quantization_is_unmatched_and_not_compared(graph, data):
    other = qb.load(MODELS / "digits_cnn_s8s8_per_tensor.onnx")
    found = compare_engines(Interpreter(graph), Interpreter(other), graph, data)
    assert STEM in found.unmatched
    assert "logits" in {v.name for v in found.values}
    assert "in another type" in str(found)


def test_the_table_says_where_and_how_much(graph, data):
    text = str(compare_engines(Interpreter(graph), Faulty(graph, STEM, 3), graph, data))
    assert "interpreter against faulty" in text
    assert "3 LSB" in text
    assert "1 of 13 values differ" in text


def tally(type_, a, b, *, is_output=False):
    counted = Tally("t", "Op n", type_, is_output)
    counted.add(a, b)
    return counted.finish()


def test_quantized_values_count_in_lsb_and_real_units():
    type_ = QuantType(per_tensor(DType.UINT8, 0.5, 128), (3,))
    found = tally(type_, np.array([0, 130, 255], np.uint8), np.array([255, 130, 255], np.uint8))
    assert (found.mismatches, found.max_lsb, found.max_ulp) == (1, 255, None)
    assert found.max_abs == 127.5
    signal, noise = 63.5**2 + 1 + 63.5**2, 127.5**2
    # A difference of two logarithms there, the logarithm of a quotient here.
    assert found.sqnr_db == pytest.approx(10 * np.log10(signal / noise), rel=1e-14)


def test_floats_count_in_ulp_and_nan_equals_nan():
    type_ = TensorType(DType.FLOAT32, (4,))
    b = np.array([np.nan, 0.0, 1.0, -1.0], np.float32)
    a = b.copy()
    a[1] = -0.0
    a[2] = np.nextafter(np.float32(1), np.float32(2))
    found = tally(type_, a, b)
    assert (found.mismatches, found.max_ulp, found.max_lsb) == (1, 1, None)
    assert tally(type_, b, b).sqnr_db == float("inf")


def test_nan_against_a_number_is_an_infinite_difference():
    type_ = TensorType(DType.FLOAT32, (1,))
    found = tally(type_, np.array([np.nan], np.float32), np.array([1], np.float32))
    assert (found.mismatches, found.max_abs, found.sqnr_db) == (1, np.inf, -np.inf)


def test_wide_integers_do_not_overflow():
    type_ = TensorType(DType.UINT64, (1,))
    a, b = np.array([2**64 - 1], np.uint64), np.array([0], np.uint64)
    assert tally(type_, a, b).mismatches == 1


def test_top1_counts_rows_of_outputs_only():
    type_ = TensorType(DType.FLOAT32, (2, 2))
    a, b = np.array([[0, 1], [1, 0]], np.float32), np.array([[0, 2], [0, 1]], np.float32)
    assert tally(type_, a, b, is_output=True).top1 == 0.5
    assert tally(type_, a, b).top1 is None
