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
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.autoquant.targets import ORT
from qdqbridge.byoc import canonical, partition
from qdqbridge.byoc.tables import CANONICAL
from qdqbridge.canonical.fusions import FUSIONS
from qdqbridge.graph.operator import Flow
from qdqbridge.report.bounds import exact
from tests.ops.toys import TOYS, Toy, feed_of, model

ROOT = Path(__file__).parents[2]


def outputs(path: Path, feed: dict[str, NDArray[Any]]) -> NDArray[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feed)[0])


def through_everything(folder: Path, toy: Toy) -> None:
    op, feed = toy.op, feed_of(toy)
    path, again = folder / f"{op}.onnx", folder / f"{op}.again.onnx"
    onnx.save(model(toy, quantized=True), path)
    graph = qb.load(path)
    node = next(n for n in graph.nodes if n.op.name == op)
    assert node.output.quant is not None, f"{op} stays float"
    assert not [n for n in qb.explain(graph) if n.rule == "float-island"]
    wanted = outputs(path, feed)
    found = qb.evaluate(graph, feed)["y"]
    assert np.abs(found - wanted).max() <= 1.04 * toy.scale, f"{op} is not onnxruntime's"
    for kernels in ("fast", "reference"):
        assert np.array_equal(qb.compile(graph, kernels=kernels).run(feed)["y"], found), (
            op,
            kernels,
        )
    for variant in ("qnn", "qdq"):
        module, params = qb.to_relax(graph, variant=variant)
        assert qb.from_relax(module, params).digest == graph.digest, (op, variant)
    qb.save(graph, again)
    assert qb.load(again).digest == graph.digest
    stored = [np.zeros(shape, np.uint8) for shape in toy.operands] + list(toy.more)
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
    if node.op.flow is not Flow.MOVE:
        assert ORT.rule_for(node) is not None, f"{op} is not quantized"
    page = script("operator_table").page()
    assert f"| {op} | {op} |" in page
    plain(folder, toy, feed)


def plain(folder: Path, toy: Toy, feed: dict[str, NDArray[Any]]) -> None:
    """Takes the operator on floats through quantization and TVM."""
    path = folder / f"{toy.op}.float.onnx"
    onnx.save(model(toy, quantized=False), path)
    graph = qb.load(path)
    quantized = qb.quantize(graph, feed)
    assert not [n for n in qb.explain(quantized) if n.rule == "float-island"]
    module, params = qb.to_relax(graph)
    assert qb.from_relax(module, params).digest == graph.digest
    close = qb.compile(graph).run(feed)["y"], qb.evaluate(graph, feed)["y"]
    # Floats: TVM and onnxruntime have exponentials and roots, and orders of sums, of their own.
    assert np.allclose(*close, rtol=2e-6, atol=2e-6)
    assert np.allclose(close[1], outputs(path, feed), rtol=2e-6, atol=2e-6)


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path) -> None:
    for toy in TOYS:
        through_everything(folder, toy)
    assert "shrink-of-steps" in {rule.name for rule in FUSIONS}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
