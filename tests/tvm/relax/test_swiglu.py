"""SwiGLU of opset 28, which onnxruntime does not load: held to the same function written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import qdqbridge
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.options import RelaxVariant

pytestmark = pytest.mark.relax
_HEAD = (
    '<ir_version: 10, opset_import: ["": {}]> '
    "g (float[4,32,32] a, float[4,32,32] b) => (float[4,32,32] y) {{"
)
_STEPS = {
    28: "r = SwiGLU<alpha: float = 1.702> (ad, bd)",
    24: "k = Constant<value_float: float = 1.702> () ka = Mul (ad, k) w = Sigmoid (ka) "
        "v = Mul (ad, w) r = Mul (v, bd)",
}  # fmt: skip


def model(opset: int) -> onnx.ModelProto:
    text = _HEAD.format(opset)
    for name in "ab":
        text += (
            f"{name}q = QuantizeLinear ({name}, s, z) {name}d = DequantizeLinear ({name}q, s, z) "
        )
    text += _STEPS[opset] + " rq = QuantizeLinear (r, sy, zy) y = DequantizeLinear (rq, sy, zy) }"
    proto = onnx.parser.parse_model(text)
    numbers = {
        "s": np.float32(0.05),
        "z": np.uint8(120),
        "sy": np.float32(0.04),
        "zy": np.uint8(90),
    }
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.array(number), name) for name, number in numbers.items()
    )
    return proto


def test_integers_are_those_of_the_function_written_out(tmp_path: Path) -> None:
    onnx.save(model(28), tmp_path / "gated.onnx")
    graph = qdqbridge.load(tmp_path / "gated.onnx")
    (node,) = (node for node in graph.nodes if node.op is BY_NAME["SwiGLU"])
    assert node.output.quant is not None
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model(24).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(0)
    feed = {name: rng.normal(0, 2.5, (4, 32, 32)).astype(np.float32) for name in "ab"}
    found = qdqbridge.evaluate(graph, feed)["y"]
    assert np.array_equal(found, np.asarray(session.run(None, feed)[0]))
    for kernels in ("fast", "reference"):
        assert np.array_equal(qdqbridge.compile(graph, kernels=kernels).run(feed)["y"], found)


@pytest.mark.parametrize("variant", ["qnn", "qdq"])
def test_it_comes_back(variant: RelaxVariant, tmp_path: Path) -> None:
    onnx.save(model(28), tmp_path / "gated.onnx")
    graph = qdqbridge.load(tmp_path / "gated.onnx")
    module, params = qdqbridge.to_relax(graph, variant=variant)
    assert qdqbridge.from_relax(module, params).digest == graph.digest
    with pytest.raises(qdqbridge.QdqBridgeError, match="no opset up to 26"):
        qdqbridge.save(graph, tmp_path / "again.onnx")  # what onnxruntime 1.31 reads has no SwiGLU
    qdqbridge.save(graph, tmp_path / "again.onnx", opset=28)
    assert qdqbridge.load(tmp_path / "again.onnx").digest == graph.digest
