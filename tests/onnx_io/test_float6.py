"""Floats of 6 bits, four to three bytes: read, rounded and written as onnx does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import qdqbridge as qb
from tests.onnx_models import Builder, canonical

if not hasattr(TensorProto, "FLOAT6E2M3"):
    pytest.skip("this onnx does not know them", allow_module_level=True)
KINDS = (TensorProto.FLOAT6E2M3, TensorProto.FLOAT6E3M2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 63, 64])
@pytest.mark.parametrize("typed", [False, True])
def test_every_code_is_read_and_written(kind: int, count: int, typed: bool, tmp_path: Path) -> None:
    storage = helper.tensor_dtype_to_np_dtype(kind)
    codes = np.arange(count, dtype=np.uint8).view(storage)
    tensor = numpy_helper.from_array(codes, "w")
    if typed:
        tensor.ClearField("raw_data")
        tensor.int32_data.extend(codes.view(np.uint8).tolist())
    b = Builder(28)
    b.initializers.append(tensor)
    b.output(b.op("DequantizeLinear", "w", b.init(np.float32(0.5))), [count])
    (found,) = qb.evaluate(canonical(b.model()), {}).values()
    np.testing.assert_array_equal(found, codes.astype(np.float32) / 2)
    b.outputs.clear()
    x = b.input("x", [count])
    b.output(b.op("Mul", x, b.nodes[0].output[0]), [count])
    onnx.save(b.model(), tmp_path / "model.onnx")
    graph = qb.load(tmp_path / "model.onnx")
    qb.save(graph, tmp_path / "saved.onnx", opset=28)
    saved = onnx.load(tmp_path / "saved.onnx")
    onnx.checker.check_model(saved)
    (back,) = (t for t in saved.graph.initializer if t.data_type == kind and len(t.dims))
    assert back.raw_data == numpy_helper.from_array(codes).raw_data
    assert qb.load(tmp_path / "saved.onnx").digest == graph.digest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [0, 4])
@pytest.mark.parametrize("run_time", [False, True])
def test_numbers_are_those_of_the_reference(kind: int, block: int, run_time: bool) -> None:
    rng, b = np.random.default_rng(kind), Builder(28)
    x = np.concatenate([rng.normal(0, 9, (3, 60)), np.tile([0, -0.0, 1e9, -1e9], (3, 1))], axis=1)
    scale = rng.uniform(0.2, 2, (3, 16) if block else (3,)).astype(np.float32)
    at: dict[str, Any] = {"axis": 1, "block_size": 4} if block else {"axis": 0}
    feeds = {"x": x.astype(np.float32)}
    names = [b.input("x", [3, 64])]
    names.append(b.input("s", list(scale.shape)) if run_time else b.init(scale))
    feeds |= {"s": scale} if run_time else {}
    codes = b.op("QuantizeLinear", *names, output_dtype=kind, **at)
    b.output(codes, [3, 64], kind)
    b.output(b.op("DequantizeLinear", codes, names[1], **at), [3, 64])
    wanted = ReferenceEvaluator(b.model()).run(None, feeds)
    graph = canonical(b.model())
    for made in (qb.evaluate(graph, feeds), _on_tvm(graph, feeds)):
        for found, meant in zip(made.values(), wanted, strict=True):
            np.testing.assert_array_equal(
                np.asarray(found).astype(np.float32), np.asarray(meant).astype(np.float32)
            )


def _on_tvm(graph: qb.Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    pytest.importorskip("tvm")
    return dict(qb.compile(graph).run(feeds))
