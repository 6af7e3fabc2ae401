"""``fix`` on engines of vendors: no file that it leaves runs worse than the one it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.app.fixing import fix
from tests.places import MODELS


def gather_of_blocks() -> onnx.ModelProto:
    """A table of 4-bit blocks, which Hexagon leaves to the CPU as one operator and not as two."""
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (8, 16)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.02, (8, 2)).astype(np.float32)
    table = helper.make_tensor("table", TensorProto.INT4, [8, 32], packed.tobytes(), raw=True)
    node = helper.make_node(
        "GatherBlockQuantized", ["table", "index", "scales"], ["y"], domain="com.microsoft",
        gather_axis=0, quantize_axis=1, block_size=16,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "gather",
        [helper.make_tensor_value_info("index", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 32])],
        [table, numpy_helper.from_array(scales, "scales")],
    )
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


@pytest.mark.parametrize("target", ["qnn", "qnn-v73"])
def test_what_runs_only_as_it_was_is_kept(
    target: Literal["qnn", "qnn-v73"], tmp_path: Path
) -> None:
    onnx.save(gather_of_blocks(), tmp_path / "g.onnx")
    made = fix(tmp_path / "g.onnx", target, tmp_path / "f.onnx")
    assert made.as_it_was and made.closer
    assert (tmp_path / "f.onnx").read_bytes() == (tmp_path / "g.onnx").read_bytes()
    assert made.there.results is not None and made.there.results.equal
    assert made.other is not None and made.other.results is None
    assert "cannot load" in made.other.without


def test_an_open_extent_has_a_number_where_the_file_is_kept(tmp_path: Path) -> None:
    model: Any = gather_of_blocks()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, tmp_path / "g.onnx")
    made = fix(tmp_path / "g.onnx", "qnn", tmp_path / "f.onnx", extents={"n": 2})
    kept: Any = onnx.load(tmp_path / "f.onnx")
    assert made.as_it_was
    assert kept.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    assert [node.op_type for node in kept.graph.node] == ["GatherBlockQuantized"]


def test_the_file_before_is_run_too(tmp_path: Path) -> None:
    made = fix(MODELS / "digits_cnn_s8s8_per_tensor.onnx", "qnn", tmp_path / "f.onnx")
    assert not made.as_it_was and made.other is not None and made.other.results is not None
    assert made.there.results is not None
    there, before = (found.outputs[0].sqnr_db for found in (made.there.results, made.other.results))
    assert there > before + 10
