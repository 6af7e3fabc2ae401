"""Peak memory of compiling, measured in a process of its own: 3 times the weights and 300 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.places import ROOT

SCRIPT = ROOT / "scripts" / "benches" / "compile_memory.py"
SIZE, LAYERS = 4096, 6


def _dense_layers(path: Path) -> None:
    """Writes MatMuls by 16 MB of int8 each, quantized in between."""
    rng = np.random.default_rng(0)
    scalars = {"s": np.float32(0.02), "z": np.uint8(128), "zw": np.int8(0)}
    held = [numpy_helper.from_array(np.asarray(a), name) for name, a in scalars.items()]
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q0"])]
    for i in range(LAYERS):
        weight = rng.integers(-127, 128, (SIZE, SIZE), dtype=np.int8)
        held.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"x{i}"]),
            helper.make_node("DequantizeLinear", [f"w{i}", "s", "zw"], [f"r{i}"]),
            helper.make_node("MatMul", [f"x{i}", f"r{i}"], [f"m{i}"]),
            helper.make_node("QuantizeLinear", [f"m{i}", "s", "z"], [f"q{i + 1}"]),
        ]
    nodes.append(helper.make_node("DequantizeLinear", [f"q{LAYERS}", "s", "z"], ["y"]))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, SIZE]) for n in "xy"]
    graph = helper.make_graph(nodes, "dense", values[:1], values[1:], held)
    opsets = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is Linux's")
def test_compiling_keeps_to_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "dense.onnx"
    _dense_layers(path)
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(path)],
        check=True,
        timeout=240,
        capture_output=True,
        text=True,
    )
    found = json.loads(run.stdout)
    # Beside the weights there are biases and scales.
    assert found["weights"] == pytest.approx(SIZE * SIZE * LAYERS / 2**20, rel=0.01)
    assert found["bound"] == 3 * found["weights"] + 300
    assert found["weights"] < found["peak"] <= found["bound"], found
