"""Takes operators of which a copy of the package has a row through everything.

``test_new_operator.py`` runs it with that copy in front of the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.autoquant.targets import ORT
from qdqbridge.byoc.tables.elementwise import BINARY, UNARY
from qdqbridge.canonical.fusions import FUSIONS
from qdqbridge.ops.table import BY_NAME
from qdqbridge.report.bounds import exact

SHAPE = [2, 3, 16]
UNARY_TOY, SPELLED_TOY, BINARY_TOY = "Atan", "Shrink", "Mean"


def model(op: str, *, quantized: bool, operands: int, **attributes: float) -> onnx.ModelProto:
    tensors = [
        numpy_helper.from_array(np.array(value), name)
        for name, value in {
            "s": np.float32(0.05), "z": np.uint8(120), "sy": np.float32(0.03), "zy": np.uint8(90),
        }.items()
    ]  # fmt: skip
    nodes: list[onnx.NodeProto] = []
    names: list[str] = []
    for name in "ab"[:operands]:
        if quantized:
            nodes.append(helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}q"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}q", "s", "z"], [f"{name}d"]))
        names.append(f"{name}d" if quantized else name)
    toy = helper.make_node(op, names, ["r" if quantized else "y"], "toy")
    toy.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
    nodes.append(toy)
    if quantized:
        nodes.append(helper.make_node("QuantizeLinear", ["r", "sy", "zy"], ["yq"]))
        nodes.append(helper.make_node("DequantizeLinear", ["yq", "sy", "zy"], ["y"]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "ab"[:operands]
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors if quantized else [])
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def outputs(path: Path, feed: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feed)[0])


def through_everything(folder: Path, op: str, operands: int, **attributes: float) -> None:
    rng = np.random.default_rng(0)
    feed = {name: rng.normal(0, 2, SHAPE).astype(np.float32) for name in "ab"[:operands]}
    path, again = folder / f"{op}.onnx", folder / f"{op}.again.onnx"
    onnx.save(model(op, quantized=True, operands=operands, **attributes), path)
    graph = qb.load(path)
    node = next(n for n in graph.nodes if n.op.name == op)
    assert node.output.quant is not None, f"{op} stays float"
    assert not [n for n in qb.explain(graph) if n.rule == "float-island"]
    wanted = outputs(path, feed)
    found = qb.evaluate(graph, feed)["y"]
    assert np.abs(found - wanted).max() <= 0.031, f"{op} is not onnxruntime's"
    for kernels in ("fast", "reference"):
        assert np.array_equal(qb.compile(graph, kernels=kernels).run(feed)["y"], found), kernels
    for variant in ("qnn", "qdq"):
        module, params = qb.to_relax(graph, variant=variant)
        assert qb.from_relax(module, params).digest == graph.digest, variant
    assert f"qnn.{node.op.qnn}" in qb.to_relax(graph)[0].script()
    qb.save(graph, again)
    assert qb.load(again).digest == graph.digest
    stored = [np.zeros(SHAPE, np.uint8)] * operands
    assert exact(node, stored) is not None
    entries = {entry.name for entry in (*UNARY, *BINARY)}
    assert node.op.qnn in entries
    rule = ORT.rule_for(node)
    assert rule is not None, f"{op} is not quantized"
    plain = folder / f"{op}.float.onnx"
    onnx.save(model(op, quantized=False, operands=operands, **attributes), plain)
    float_graph = qb.load(plain)
    quantized = qb.quantize(float_graph, feed)
    assert not [n for n in qb.explain(quantized) if n.rule == "float-island"]
    module, params = qb.to_relax(float_graph)
    assert qb.from_relax(module, params).digest == float_graph.digest
    close = qb.compile(float_graph).run(feed)["y"], qb.evaluate(float_graph, feed)["y"]
    assert np.allclose(*close, rtol=2e-6, atol=2e-6)


def main(folder: Path) -> None:
    assert {UNARY_TOY, SPELLED_TOY, BINARY_TOY} <= set(BY_NAME)
    through_everything(folder, UNARY_TOY, 1)
    through_everything(folder, SPELLED_TOY, 1, lambd=0.75, bias=0.25)
    through_everything(folder, BINARY_TOY, 2)
    assert "shrink-of-steps" in {rule.name for rule in FUSIONS}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
