"""Takes operators of which a copy of the package has a row through everything.

``test_new_operator.py`` runs it with that copy in front of the path.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.autoquant.planning.targets import ORT
from qdqbridge.core.canonical.fusions import FUSIONS, kebab
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.build import permuted_constant
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.targets.comparison.bounds import exact
from qdqbridge.tvm.byoc import canonical, partition
from qdqbridge.tvm.byoc.tables import CANONICAL
from qdqbridge.tvm.relax.kernels.codegen.processors import cpu_of, host_target
from qdqbridge.tvm.relax.kernels.plan import plan
from tests.core.ops.toys import TOYS, Toy, feed_of, model
from tests.places import ROOT


def outputs(path: Path, feed: dict[str, NDArray[Any]]) -> NDArray[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feed)[0])


def through_everything(folder: Path, toy: Toy, page: str) -> None:
    op, feed = toy.op, feed_of(toy)
    path, again = folder / f"{op}.onnx", folder / f"{op}.again.onnx"
    in_onnx = not BY_NAME[op].onnx[0].domain
    onnx.save(model(toy, quantized=True), path)
    graph = qb.load(path)
    node = next(n for n in graph.nodes if n.op.name == op)
    assert node.output.quant is not None, f"{op} stays float"
    assert not [n for n in qb.explain(graph) if n.rule == "float-region"]
    qb.save(graph, again, overwrite=True)  # what ONNX has not is written as its steps
    wanted = outputs(path if in_onnx else again, feed)
    found = qb.evaluate(graph, feed)["y"]
    assert np.array_equal(qb.evaluate(qb.load(again), feed)["y"], found)
    assert not in_onnx or qb.load(again).digest == graph.digest
    through_tflite(folder, toy, graph, feed, found)
    assert np.abs(found - wanted).max() <= 1.04 * toy.scale, f"{op} is not onnxruntime's"
    for kernels in ("fast", "reference"):
        assert np.array_equal(qb.compile(graph, kernels=kernels).run(feed)["y"], found), (
            op,
            kernels,
        )
    for variant in ("qnn", "qdq"):
        module, params = qb.to_relax(graph, variant=variant)
        assert qb.from_relax(module, params).digest == graph.digest, (op, variant)
    assert qb.parse(graph.text("inline")).digest == graph.digest
    stored = [np.zeros(shape, np.uint8) for shape in toy.operands] + list(toy.more)
    stored += [] if toy.weight is None else [toy.weight[0]]
    assert exact(node, stored[: len(node.inputs)]) is not None
    module, params = qb.to_relax(graph)
    entries = {entry.name for entry in CANONICAL}
    own = node.op.qnn or node.op.tvm
    _, coverage = partition(module, canonical("everything"))
    if own:
        assert own in entries
        assert own in module.script()
        assert own in coverage.counts()
    assert coverage.complete  # what others stand for is float between two conversions
    if node.op.flow is Flow.ACCUMULATE:
        exact_product(graph, module)
    if node.op.flow is not Flow.MOVE:
        assert ORT.rule_for(node) is not None, f"{op} is not quantized"
    assert f"| {op} | {op if in_onnx else ''}" in page


def through_tflite(
    folder: Path, toy: Toy, graph: Graph, feed: dict[str, NDArray[Any]], wanted: NDArray[Any]
) -> None:
    """Writes what TFLite has, or can say with others, and computes it; the rest is refused."""
    path = folder / "toy.tflite"
    if toy.tflite:
        with pytest.raises(UnsupportedTargetError, match=toy.tflite):
            qb.save(graph, path, overwrite=True)
        return
    qb.save(graph, path, overwrite=True)
    written = qb.load(path)
    data = zip(written.inputs, feed.values(), strict=True)
    (found,) = qb.evaluate(written, {value.name: array for value, array in data}).values()
    # Floats of both are rounded step by step, in sums of other orders.
    assert np.allclose(found, wanted, rtol=0, atol=2e-6)


def exact_product(graph: Graph, module: Any) -> None:
    """Holds that a product is one of integers, with a kernel, a bias too."""
    assert "qnn.conv2d" in module.script() and "conv2d(" not in module.script()
    kernels = plan(graph, cpu_of(host_target())).kernels
    assert [n.op.name for n in kernels if n.op.flow is Flow.ACCUMULATE] == ["Conv"]


def with_bias(folder: Path) -> None:
    """Takes a product through TVM that adds a bias; ONNX has none of which there is no row."""
    graph = qb.load(folder / "Einsum.onnx")
    node = next(n for n in graph.nodes if n.op.name == "Einsum")
    x, w = node.operand(0), permuted_constant(node.operand(1), (1, 0))
    scales = (v.quant.params.scale.astype(np.float32) for v in (x, w) if v.quant is not None)
    scale = np.multiply(*scales)
    zero = np.zeros(4, np.int32)
    params = QuantParams(DType.INT32, scale, zero, axis=0)
    data = Constant.of(np.array([-3000, 0, 5, 70000], np.int32))
    bias = Value(QuantType(params, (4,)), "bias", constant=data)
    result = Value(node.output.type, "pixels")
    Node(BY_NAME["Pixels"], NO_ATTRIBUTES, [x, w, bias], [result])
    editor = Editor(graph)
    editor.insert(result)
    editor.replace_value(node.output, result)
    editor.finish()
    feed = feed_of(next(toy for toy in TOYS if toy.op == "Einsum"))
    found = qb.evaluate(graph, feed)["y"]
    for kernels in ("fast", "reference"):
        assert np.array_equal(qb.compile(graph, kernels=kernels).run(feed)["y"], found), kernels
    module, params = qb.to_relax(graph)
    assert qb.from_relax(module, params).digest == graph.digest
    exact_product(graph, module)


def plain(folder: Path, toy: Toy, feed: dict[str, NDArray[Any]]) -> None:
    """Takes the operator on floats through quantization and TVM."""
    path = folder / f"{toy.op}.float.onnx"
    onnx.save(model(toy, quantized=False), path)
    graph = qb.load(path)
    quantized = qb.quantize(graph, feed)
    assert not [n for n in qb.explain(quantized) if n.rule == "float-region"]
    module, params = qb.to_relax(graph)
    assert qb.from_relax(module, params).digest == graph.digest
    close = qb.compile(graph).run(feed)["y"], qb.evaluate(graph, feed)["y"]
    if BY_NAME[toy.op].onnx[0].domain:
        qb.save(graph, path, overwrite=True)
        if f"{kebab(toy.op)}-of-steps" in {rule.name for rule in FUSIONS}:
            assert qb.load(path, fuse=True).digest == graph.digest
    through_tflite(folder, toy, graph, feed, close[1])
    # Floats: TVM and onnxruntime have exponentials and roots, and orders of sums, of their own.
    assert np.allclose(*close, rtol=2e-6, atol=2e-6)
    assert np.allclose(close[1], outputs(path, feed), rtol=2e-6, atol=2e-6)


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(
        name, ROOT / "scripts" / "generators" / f"{name}.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path) -> None:
    page = script("operator_table").page()
    for toy in TOYS:
        through_everything(folder, toy, page)
        if toy is next(each for each in TOYS if each.op == toy.op):
            plain(folder, toy, feed_of(toy))
    with_bias(folder)
    of_steps = {"shrink", "min-pool", "rms-pool", "reduce-range", "softmax-one"}
    assert {f"{name}-of-steps" for name in of_steps} <= {rule.name for rule in FUSIONS}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
