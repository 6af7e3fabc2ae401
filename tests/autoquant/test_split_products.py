"""A product that is written as the sum of two for x86 without VNNI: said, aligned, undone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qdqbridge as qb
from qdqbridge.app.fixing import fix
from qdqbridge.app.quantizing import quantization
from qdqbridge.app.verdict import split_products, verdict
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.options import FixTarget
from tests.places import MODELS

FLOAT = MODELS / "digits_cnn_float.onnx"
IMAGES = np.load(MODELS / "digits_test.npz")["x"]
DATA = {"input": IMAGES[:64]}
ROUGH: dict[str, Any] = {"repair": (), "tune": False, "chooser": "mean-of-maxima"}
HEAD = "/classifier/Gemm"


@pytest.fixture(scope="module")
def made():
    return quantization(FLOAT, DATA, **ROUGH)


@pytest.fixture(scope="module")
def file(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("split") / "split.onnx"
    qb.save(made.graph, path)
    return path


def whole_weight(graph):
    """Returns the stored weights of the products that give a graph's outputs, added up."""
    weights = [n.operand(1).constant.numpy() for n in graph.nodes if n.op is DENSE]
    return len(weights), np.sum(weights, axis=0, dtype=np.int32)


def test_the_summary_says_what_is_split_and_what_it_takes(made):
    (split,) = split_products(made)
    (head,) = (n for n in made.original.nodes if n.name == HEAD)
    assert split.name == HEAD and split.size == head.operand(1).constant.size
    said = dict(verdict(made))["split"]
    assert HEAD in said and f"{split.size:,} more bytes" in said and "VNNI" in said
    assert whole_weight(made.graph)[0] == 2


@pytest.mark.parametrize("target", ["tensorrt", "qnn", "openvino", "tflite", "tosa"])
def test_nothing_is_split_for_other_runtimes(target):
    made = quantization(FLOAT, DATA, target=target, **ROUGH)
    assert not split_products(made) and whole_weight(made.graph)[0] == 1
    assert "split" not in dict(verdict(made))


def test_blame_aligns_both_parts_with_the_product_they_are_of(file):
    found = qb.blame(FLOAT, file, {"input": IMAGES[200:232]}, nodes=False)
    assert found.aligned == 1.0 and not found.unknown
    # Integer kernels round once where the simulation rounds a float sum: a quarter of a decibel.
    assert found.simulated_db == pytest.approx(found.quantized_db, abs=0.25)
    (weight,) = (each for each in found.tensors if each.name == "classifier.weight")
    # Half a step of 127 of the largest weight is above 30 dB; half of the weights would be 3.
    assert weight.added_db > 30 and "--exclude" not in weight.options


@pytest.mark.parametrize("target", ["tensorrt", "qnn", "openvino", "tflite"])
def test_fix_makes_one_product_of_them(file, made, tmp_path, target: FixTarget):
    path = tmp_path / ("fixed.tflite" if target == "tflite" else "fixed.onnx")
    extents = {"batch": 2}  # with open ones OpenVINO needs no other file
    fixed = fix(file, target, path, extents=extents)
    weight = whole_weight(made.graph)[1]
    assert fixed.meaning.outputs[0].sqnr_db > 25
    if target == "tflite":
        count, stored = whole_weight(qb.load(path))
        assert count == 1 and np.array_equal(stored, weight)
        return
    model = onnx.load(path)
    assert sum(node.op_type == "Gemm" for node in model.graph.node) == 1
    if target == "tensorrt":
        assert not any(each.rule == "quantized-skip" for each in fixed.after or ())
        assert any("one product again" in change.after for change in fixed.changes)
        stored = [numpy_helper.to_array(t) for t in model.graph.initializer]
        assert any(np.array_equal(array, weight) for array in stored)


def test_one_product_gives_the_numbers_of_its_parts(file, tmp_path):
    """Integer sums are the same; what is rounded to float once differs in its last bits."""
    qb.save(qb.load(file), tmp_path / "openvino.onnx", "openvino")
    both = (qb.evaluate(qb.load(f), DATA)["logits"] for f in (file, tmp_path / "openvino.onnx"))
    parts, whole = both
    bits = np.abs(parts).max() * np.finfo(np.float32).eps
    assert np.abs(parts - whole).max() <= 2 * bits
    assert whole_weight(qb.load(tmp_path / "openvino.onnx"))[0] == 1


def test_for_onnxruntime_both_stay(file, tmp_path):
    fix(file, "ort", tmp_path / "fixed.onnx")
    assert qb.load(tmp_path / "fixed.onnx").digest == qb.load(file).digest


def test_two_products_of_their_own_stay_two(file, tmp_path):
    """Where both have a weight in one place they are no parts, whatever the sum would be."""
    model = onnx.load(file)
    (odd,) = (t for t in model.graph.initializer if t.name.endswith("weight_odd"))
    odd.CopyFrom(numpy_helper.from_array(np.ones_like(numpy_helper.to_array(odd)), odd.name))
    onnx.save(model, tmp_path / "own.onnx")
    qb.save(qb.load(tmp_path / "own.onnx"), tmp_path / "openvino.onnx", "openvino")
    assert whole_weight(qb.load(tmp_path / "openvino.onnx"))[0] == 2
