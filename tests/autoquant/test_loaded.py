"""What ``quantize`` writes for onnxruntime is loaded by onnxruntime, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.app.cli.failures import DONE, MODEL, run
from qdqbridge.autoquant.planning.targets import TARGETS, WEIGHTS

REORDERED = 1e-5
"""Of the largest result: onnxruntime adds floats in another order."""
FOR_ONNXRUNTIME = [name for name, target in TARGETS.items() if target.profile == "ort"]
LOADED = {
    "weight-only": {name for name in WEIGHTS if not name.startswith("mx")},
    "dynamic": {"int8"},
    "dynamic-rows": {"int8", "uint8"},
}
"""By target, those that are not refused; of all others, integers."""
INTEGERS = {name for name in WEIGHTS if "int" in name}

NARROW = {"int2", "int4", "uint2", "uint4"}
"""Their products fit into 16 bits in pairs; those of 8 bits by 8 saturate on x86 without VNNI."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution, a MatMul and a Gemm, and samples beside them."""
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 4, 3, 3), "b": (8,), "m": (64, 64), "n": (16, 64)}
    held = [
        numpy_helper.from_array(rng.normal(0, 0.2, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    held.append(numpy_helper.from_array(np.array([8, 64]), "rows"))
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["c", "rows"], ["r"]),
        helper.make_node("MatMul", ["r", "m"], ["h"]),
        helper.make_node("Gemm", ["h", "n"], ["y"], transB=1),
    ]
    ends = [("x", (1, 4, 8, 8)), ("y", (8, 16))]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends)
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    folder = tmp_path_factory.mktemp("model")
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, folder / "float.onnx")
    np.savez(folder / "x.npz", x=rng.normal(size=(4, 4, 8, 8)).astype(np.float32))
    return folder / "float.onnx"


@pytest.mark.parametrize("block", [None, 32])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("target", FOR_ONNXRUNTIME)
def test_what_is_written_is_loaded(
    target: str, weights: str, block: int | None, model: Path, tmp_path: Path
) -> None:
    out, data = tmp_path / "out.onnx", model.with_name("x.npz")
    asked = ["--target", target, "--weights", weights, "--repair", "none", "--budget", "0"]
    asked += [] if block is None else ["--block", str(block)]
    code = run(["quantize", str(model), "--data", str(data), "-o", str(out), *asked])
    loaded = weights in LOADED.get(target, INTEGERS)
    assert code == (DONE if loaded and not (block and "dynamic" in target) else MODEL)
    if code == DONE:
        x = np.load(data)["x"][:1]
        (wanted,) = qb.evaluate(qb.load(out), {"x": x}).values()
        session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
        found = np.asarray(session.run(None, {"x": x})[0])
        if weights in NARROW:
            most = REORDERED * np.abs(wanted).max()
            np.testing.assert_allclose(found, wanted, rtol=0, atol=most)  # see REORDERED
