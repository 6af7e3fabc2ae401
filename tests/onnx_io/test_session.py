"""onnxruntime as the reference: files that would end the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

CODE = """
import sys
import numpy as np
import qdqbridge as qb

x = {"x": np.arange(256, dtype=np.uint8)[None]}
print(qb.compare(qb.load(sys.argv[1]), sys.argv[1], x).max_lsb)
"""


@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_a_last_operand_that_is_left_out_does_not_end_the_process(op: str, tmp_path: Path) -> None:
    """onnxruntime's kernels read it all the same (1.32); an operand of no name is left out too."""
    numbers = [("x_scale", 0.05), ("y_scale", 1 / 256)]
    initializers = [helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in numbers]
    initializers.append(helper.make_tensor("x_zero", TensorProto.UINT8, [], [128]))
    node = helper.make_node(
        op, ["x", "x_scale", "x_zero", "y_scale"], ["y"], domain="com.microsoft"
    )
    ends = [helper.make_tensor_value_info(name, TensorProto.UINT8, [1, 256]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], initializers)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    found = subprocess.run(
        [sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (0, "0\n"), found.stderr
