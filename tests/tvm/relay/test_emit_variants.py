"""What each variant looks like, and what TVM's shipped tables make of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relay
from tvm.relay.op.contrib import arm_compute_lib, cmsisnn, dnnl, ethosu
from tvm.relay.op.contrib.register import get_pattern_table

import qdqbridge as qb
from qdqbridge.tvm.relay.emit import emit
from tests.combinations import each_once
from tests.places import MODELS
from tests.tvm.relay.emitted import FUSED, calls, composites, operators, results
from tests.tvm.relay.networks import classifier

TABLES = (arm_compute_lib, cmsisnn, dnnl, ethosu)  # importing one registers its table


def partitioned(module: Any, table: str) -> tuple[int, int, Counter[str]]:
    """Returns composites, regions, and the operators that are left in ``main``."""
    for change in (
        relay.transform.MergeComposite(get_pattern_table(table)),
        relay.transform.AnnotateTarget(table),
        relay.transform.MergeCompilerRegions(),
        relay.transform.PartitionGraph(),
    ):
        module = change(module)
    left = Counter(call.op.name for call in calls(module) if hasattr(call.op, "name"))
    return sum(composites(module).values()), len(module.functions) - 1, left


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the code in TVM's table
def test_ethos_u_takes_everything_but_the_ends() -> None:
    """21 layers and the two requantizes before Concat, in one region."""
    module, _ = emit(classifier(np.int8)[0], "tflite")
    found, regions, left = partitioned(module, "ethos-u")
    assert (found, regions) == (23, 1)
    assert left == {"qnn.quantize": 1, "qnn.dequantize": 1}


@pytest.mark.parametrize(
    ("table", "dtype", "per_channel", "count"),
    [
        ("cmsis-nn", np.int8, True, 12),
        ("arm_compute_lib", np.uint8, False, 9),
        ("arm_compute_lib", np.int8, False, 9),
    ],
)
def test_tables_match_tflite(table: str, dtype: Any, per_channel: bool, count: int) -> None:
    module, _ = emit(classifier(dtype, per_channel=per_channel)[0], "tflite")
    assert partitioned(module, table)[0] == count


@pytest.mark.parametrize(
    ("layout", "per_channel"),
    [pytest.param("NHWC", True, marks=pytest.mark.slow), ("NCHW", False)],
)
def test_dnnl_takes_every_product(layout: str, per_channel: bool) -> None:
    """Seven convolutions and one product, none of them twice; the addition goes with one."""
    module, _ = emit(classifier(np.uint8, per_channel=per_channel)[0], "dnnl", layout)
    found, _, left = partitioned(dnnl.legalize_qnn_for_dnnl(module), "dnnl")
    assert found == 8
    assert not {"qnn.conv2d", "qnn.dense", "qnn.add", "qnn.requantize"} & left.keys()


def test_forms() -> None:
    """The operators of one network in every variant."""
    graph, _ = classifier()
    found = {name: Counter(operators(emit(graph, name)[0])) for name in
             ("canonical", "tflite", "dnnl", "fq2i")}  # fmt: skip
    for ours in found.values():
        assert (ours["qnn.conv2d"], ours["qnn.dense"], ours["qnn.add"]) == (7, 1, 1)
    canonical, tflite, dnnl_, fq2i = found.values()
    assert (canonical["nn.bias_add"], canonical["clip"], canonical["transpose"]) == (8, 2, 1)
    assert canonical["qnn.mean"] == canonical["qnn.resize2d"] == 2
    assert not {"qnn.mean", "qnn.sigmoid", "qnn.softmax", "transpose"} & tflite.keys()
    assert tflite["mean"] == tflite["image.resize2d"] == 2
    assert (tflite["nn.avg_pool2d"], tflite["sigmoid"], tflite["concatenate"]) == (1, 1, 1)
    assert (dnnl_["add"], dnnl_["cast"], dnnl_["clip"]) == (8, 8, 9)
    assert (fq2i["maximum"], fq2i["nn.bias_add"], fq2i["add"]) == (2, 7, 1)
    assert (fq2i["nn.global_avg_pool2d"], fq2i["qnn.avg_pool2d"], fq2i["transpose"]) == (2, 1, 0)


@pytest.mark.parametrize(
    ("variant", "layout", "kernel", "depthwise", "axis"),
    [
        ("canonical", "NCHW", "OIHW", "OIHW", 1), ("canonical", "NHWC", "HWIO", "HWOI", 3),
        ("tflite", "NHWC", "HWIO", "HWOI", 3), ("fq2i", "NHWC", "OHWI", "OHWI", 3),
        ("dnnl", "NHWC", "HWIO", "HWOI", 3),
    ],
)  # fmt: skip
def test_layouts(variant: str, layout: str, kernel: str, depthwise: str, axis: int) -> None:
    module, _ = emit(classifier()[0], variant, layout)
    convolutions = [call for call in calls(module) if call.op.name == "qnn.conv2d"]
    assert {call.attrs.data_layout for call in convolutions} == {layout}
    plain = [call for call in convolutions if call.attrs.groups == 1]
    assert {call.attrs.kernel_layout for call in plain} == {kernel}
    assert {c.attrs.kernel_layout for c in convolutions if c.attrs.groups > 1} == {depthwise}
    assert all(call.args[3].data.shape == () for call in convolutions)  # kernel zero point
    ends = [call for call in calls(module) if call.op.name == "qnn.requantize"]
    assert {c.attrs.axis for c in ends if c.args[1].data.shape} <= {axis, 1}


@pytest.mark.parametrize(
    ("file", "variant"),
    each_once(sorted(MODELS.glob("digits_*8s8*.onnx")), ["canonical", "dnnl"]),
)
def test_models(file: Path, variant: str) -> None:
    graph = qb.load(file)
    shapes = [[1 if isinstance(e, str) else e for e in v.type.shape or ()] for v in graph.inputs]
    data = {
        v.name: np.random.default_rng(2).uniform(0, 16, shape).astype(np.float32)
        for v, shape in zip(graph.inputs, shapes, strict=True)
    }
    for ours, wanted in results(graph, data, variant).values():
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_network(layout: str) -> None:
    graph, data = classifier()
    for ours, wanted in results(graph, data, "canonical", layout, FUSED).values():
        np.testing.assert_array_equal(ours, wanted)
