"""Packed products whose scales or zero points only the run knows: onnxruntime never sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.targets.profiles import Effect, check

TERMS, ROWS = 256, 24
TOLD = "scales-of-run-time"
OFF = 0.1
"""Of the largest result; rounding of activations to 8 bits is some 1 %, and those are 50 %."""


def build(bits: int, block: int, level: int, late: tuple[str, ...], path: Path) -> dict[str, Any]:
    """Writes a product of which some operands are inputs; returns what to feed."""
    rng, blocks = np.random.default_rng(0), TERMS // block
    operands = {
        "codes": rng.integers(0, 256, (ROWS, blocks, block * bits // 8)).astype(np.uint8),
        "scales": rng.uniform(0.01, 0.03, ROWS * blocks).astype(np.float32),
        "zeros": rng.integers(0, 256, ROWS * -(-blocks * bits // 8)).astype(np.uint8),
    }
    x = rng.normal(0, 1, (3, TERMS)).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", *operands], ["y"], domain="com.microsoft", K=TERMS, N=ROWS, bits=bits,
        block_size=block, accuracy_level=level,
    )  # fmt: skip
    feeds = {"x": x, **{name: operands[name] for name in late}}
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, ROWS])
    fixed = [numpy_helper.from_array(a, name) for name, a in operands.items() if name not in late]
    graph = helper.make_graph([node], "g", ports, [y], fixed)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return feeds


def apart(path: Path, feeds: dict[str, Any], meant: NDArray[Any]) -> float:
    """Returns how far onnxruntime is off, relative to the largest result."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = np.asarray(session.run(None, feeds)[0], np.float64)
    return float(np.abs(found - meant).max() / np.abs(meant).max())


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize(("bits", "block"), [(2, 16), (2, 32), (4, 16), (4, 128), (8, 32)])
@pytest.mark.parametrize(
    "late",
    [(), ("scales",), ("zeros",), ("scales", "zeros"), ("codes", "scales", "zeros")],
    ids="-".join,
)
def test_what_onnxruntime_never_sees_is_told_and_written_otherwise(
    bits: int, block: int, level: int, late: tuple[str, ...], tmp_path: Path
) -> None:
    path, written = tmp_path / "source.onnx", tmp_path / "written.onnx"
    feeds = build(bits, block, level, late, path)
    graph = qb.load(path)
    meant = np.asarray(qb.evaluate(graph, feeds)["y"], np.float64)
    told = TOLD in {finding.rule for finding in check(path) if finding.effect is Effect.OTHER}
    assert told == (apart(path, feeds, meant) > OFF)
    qb.save(graph, written, "ort")
    assert TOLD not in {finding.rule for finding in check(written)}
    assert apart(written, feeds, meant) < OFF
