"""Rewrites keep the bits, or say how far they move; what cannot be done is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import QuantType, per_tensor
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.byoc import Constraints, Limits, canonical, prepare
from qdqbridge.tvm.byoc.rewrites import NAMED, Rewrite, named
from tests.core.graph.graphs import OUT, S8, U8, apply, const, stored
from tests.core.graph.graphs import graph as graph_of
from tests.places import MODELS

INT8 = Constraints(Limits(activations=("int8",)))


def digits(graph: Graph, count: int = 24) -> dict[str, Any]:
    with np.load(MODELS / "digits_test.npz") as arrays:
        return {graph.inputs[0].name: arrays["x"][:count]}


def types(graph: Graph) -> set[str]:
    return {str(v.quant.params.storage_dtype) for v in graph.values() if v.quant}


@pytest.mark.parametrize("path", sorted(MODELS.glob("*u8s8*.onnx")), ids=lambda path: path.stem)
def test_uint8_becomes_int8_bit_for_bit(path: Path) -> None:
    graph = qb.load(path)
    digest = graph.digest
    changed, rewrites = prepare(graph, INT8)
    verify(changed, "changed")
    assert graph.digest == digest
    assert types(changed) <= {"int8", "int32"}
    assert [(r.name, r.done, r.exactness) for r in rewrites] == [("8-bit type", True, "exact")]
    data = digits(graph)
    for ours, wanted in zip(
        qb.evaluate(changed, data).values(), qb.evaluate(graph, data).values(), strict=True
    ):
        np.testing.assert_array_equal(ours, wanted)


def test_int8_becomes_uint8_beside_int8_weights() -> None:
    graph = qb.load(MODELS / "digits_cnn_s8s8_per_tensor.onnx")
    changed, _ = prepare(graph, Constraints(Limits(activations=("uint8",), weights=("int8",))))
    weights = {v.quant.params.storage_dtype for v in changed.values() if v.constant and v.quant}
    computed = {
        v.quant.params.storage_dtype for v in changed.values() if not v.constant and v.quant
    }
    assert computed == {DType.UINT8} and DType.UINT8 not in weights
    data = digits(graph)
    (ours,), (wanted,) = (qb.evaluate(g, data).values() for g in (changed, graph))
    np.testing.assert_array_equal(ours, wanted)


def small() -> Graph:
    """Quantized inputs and outputs: uint8 in, two operators, uint8 out."""
    x = stored("x", U8, (2, 3))
    half = apply("Relu", x, type_=QuantType(U8, (2, 3)), name="relu")
    y = apply("Add", half, const(np.ones((3,), np.uint8), OUT), type_=QuantType(OUT, (2, 3)))
    return graph_of([x], y)


def test_the_interface_keeps_its_type_behind_a_requantize() -> None:
    graph = small()
    changed, rewrites = prepare(graph, INT8)
    verify(changed, "changed")
    ends = [*changed.inputs, *changed.outputs]
    assert {str(v.type.dtype) for v in ends} == {"uint8"}
    inner = [v for v in changed.values() if v not in ends]
    assert {str(v.type.dtype) for v in inner} == {"int8"}
    assert [r.where for r in rewrites] == ["activations", "interface"]
    x = np.arange(256, dtype=np.uint8)[:252].reshape(-1, 3)[:2]
    for codes in (x, x + 120, x + 249):
        (ours,), (wanted,) = (qb.evaluate(g, {"x": codes}).values() for g in (changed, graph))
        np.testing.assert_array_equal(ours, wanted)


def test_a_softmax_gets_the_built_in_scale_and_says_how_far_it_moves() -> None:
    graph = qb.load(MODELS / "digits_attention_u8s8_per_channel.onnx")
    table = canonical("npu", Constraints(families={"softmax": Limits(output_scale=1 / 256)}))
    changed, rewrites = prepare(graph, table)
    verify(changed, "changed")
    nodes = [n for n in changed.nodes if n.op.name == "Softmax"]
    assert len(nodes) == len(rewrites) == 2
    assert all(n.output.quant and n.output.quant.params.scale == 1 / 256 for n in nodes)
    assert {r.exactness for r in rewrites} == {"at most 1 LSB of 0.003921568859368563"}


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8])
def test_the_stated_error_of_a_softmax_is_reached_and_kept(dtype: DType) -> None:
    scale = 1 / 255
    y = per_tensor(dtype, scale, dtype.qmin)
    shape = (512, 4)
    x = stored("x", S8, shape)
    from qdqbridge.core.ops.attributes import SoftmaxAttrs

    out = apply("Softmax", x, type_=QuantType(y, shape), attributes=SoftmaxAttrs((1,)))
    graph = graph_of([x], out)
    changed, (rewrite,) = prepare(graph, NAMED["softmax-1/256"])
    codes = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    (ours,), (wanted,) = (qb.evaluate(g, {"x": codes}).values() for g in (changed, graph))
    moved = np.abs(ours.astype(int) - wanted.astype(int)).max()
    assert rewrite.exactness.startswith(f"at most {moved} LSB") and moved == 1


def test_clamps_become_operators_bit_for_bit() -> None:
    graph = qb.load(MODELS / "digits_cnn_s8s8_per_tensor.onnx")
    changed, rewrites = prepare(graph, named(["split-clamps"]))
    verify(changed, "changed")
    assert len(rewrites) == 5 and {r.exactness for r in rewrites} == {"exact"}
    for node in changed.nodes:
        if node.op.name in ("Conv", "Add"):
            assert node.output.quant is not None and node.output.quant.params.full_range
    data = digits(graph)
    (ours,), (wanted,) = (qb.evaluate(g, data).values() for g in (changed, graph))
    np.testing.assert_array_equal(ours, wanted)


def test_scales_per_channel_are_refused_with_a_reason() -> None:
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    changed, rewrites = prepare(graph, named(["per-tensor"]))
    assert changed.digest == graph.digest
    assert len(rewrites) == 6 and not any(r.done for r in rewrites)
    assert "would round the weights again" in rewrites[0].detail


def test_nothing_is_done_without_need() -> None:
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    for constraints in (Constraints(), Constraints(Limits(activations=("int8", "uint8")))):
        changed, rewrites = prepare(graph, constraints)
        assert rewrites == list[Rewrite]() and changed.digest == graph.digest


def test_names_of_rewrites() -> None:
    joined = named(["int8", "softmax-1/256"])
    assert joined.everywhere.activations == ("int8",)
    assert joined.of("softmax").output_scale == 1 / 256
    with pytest.raises(UnsupportedTargetError, match="no rewrite 'int9'"):
        named(["int9"])
