"""LinearAttention on TVM, of open batch and length, beside ONNX's own reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper
from onnx.reference import ReferenceEvaluator

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_models import canonical
from tests.tvm.relax.targets import UNOPTIMIZED

_CLOSE = 2e-6
"""Sums of float32 in another order, relative to the largest result; off by 3e-7 here."""
_KEYS, _VALUES = 4, 6
Feeds = dict[str, np.ndarray[Any, Any]]


def _case(seed: int, rule: str) -> tuple[ModelProto, list[Feeds]]:
    rng = np.random.default_rng(seed)
    heads, group, past = int(rng.integers(1, 4)), int(rng.integers(1, 3)), bool(rng.integers(0, 2))
    decay = heads * (_KEYS if rng.integers(0, 2) else 1)
    beta = heads if rng.integers(0, 2) else 1
    widths = {
        "q": heads * group * _KEYS, "k": heads * _KEYS, "v": heads * _VALUES,
        "decay": decay if "gated" in rule else 0, "beta": beta if "delta" in rule else 0,
    }  # fmt: skip
    shapes: dict[str, list[int | str]] = {n: ["b", "t", w] for n, w in widths.items() if w}
    if past:
        shapes["past"] = ["b", heads, _KEYS, _VALUES]
    names = ["q", "k", "v", *(n if n in shapes else "" for n in ("past", "decay", "beta"))]
    node = helper.make_node(
        "LinearAttention", names, ["y", "state"], update_rule=rule, q_num_heads=heads * group,
        kv_num_heads=heads, scale=0.0 if seed % 2 else 0.3,
    )  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, 1, shape) for n, shape in shapes.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "state")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)], ir_version=13)
    extents = ({"b": 2, "t": 5}, {"b": 1, "t": 1})
    return model, [
        {
            name: rng.standard_normal([int(of.get(str(e), e)) for e in shape]).astype(np.float32)
            for name, shape in shapes.items()
        }
        for of in extents
    ]


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_open_extents(rule: str) -> None:
    for seed in range(2):
        model, fed = _case(seed, rule)
        graph = canonical(model)
        executable = qb.compile(graph, UNOPTIMIZED)
        for feeds in fed:
            wanted: Any = ReferenceEvaluator(model).run(None, feeds)
            found = executable.run(feeds)
            for name, array in zip(("y", "state"), wanted, strict=True):
                assert found[name].shape == array.shape
                largest = max(1.0, float(np.abs(array).max()))
                assert np.abs(found[name] - array).max() < _CLOSE * largest, seed


def of_microsoft(model: ModelProto) -> ModelProto:
    """The same node of onnxruntime's own domain, which it has a kernel for."""
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.opset_import[0].version, model.ir_version = 21, 10
    return model


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_onnxruntimes_own(rule: str, tmp_path: Path) -> None:
    for seed in range(2):
        model, fed = _case(seed, rule)
        graph = canonical(of_microsoft(model))
        executable = qb.compile(graph, UNOPTIMIZED)
        for feeds in fed:
            found = executable.run(feeds)
            for name, array in zip(("y", "state"), ort_run(model, feeds), strict=True):
                assert found[name].shape == array.shape
                largest = max(1.0, float(np.abs(array).max()))
                assert np.abs(found[name] - array).max() < _CLOSE * largest, seed
        module, _ = qb.to_relax(graph)
        assert qb.from_relax(module).digest == graph.digest
        qb.save(graph, tmp_path / f"{seed}.onnx")
        assert qb.load(tmp_path / f"{seed}.onnx").digest == graph.digest


@pytest.mark.parametrize(("queries", "keys", "states"), [(2, 2, 4), (2, 1, 4), (4, 1, 2)])
def test_states_share_keys_and_queries(queries: int, keys: int, states: int) -> None:
    rng = np.random.default_rng(0)
    widths = {"q": queries * _KEYS, "k": keys * _KEYS, "v": states * _VALUES}
    node = helper.make_node(
        "LinearAttention", list(widths), ["y", "state"], domain="com.microsoft",
        update_rule="linear", q_num_heads=queries, kv_num_heads=states,
    )  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, 1, ["b", "t", w]) for n, w in widths.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "state")]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    feeds = {n: rng.standard_normal((2, 3, w)).astype(np.float32) for n, w in widths.items()}
    found = qb.compile(canonical(model), UNOPTIMIZED).run(feeds)
    for name, array in zip(("y", "state"), ort_run(model, feeds), strict=True):
        assert found[name].shape == array.shape
        assert np.abs(found[name] - array).max() < _CLOSE * max(1.0, float(np.abs(array).max()))


@pytest.mark.parametrize(
    ("heads", "reason"), [((2, 2, 3), "queries do not share"), ((4, 3, 4), "keys do not share")]
)
def test_heads_that_do_not_share_evenly_are_refused(
    heads: tuple[int, int, int], reason: str
) -> None:
    model = of_microsoft(_case(0, "linear")[0])
    given = {each.name: each for each in model.graph.node[0].attribute}
    width = {value.name: value.type.tensor_type.shape.dim[-1] for value in model.graph.input}
    queries, keys, given["kv_num_heads"].i = heads
    given["q_num_heads"].i = queries
    extents = (queries * _KEYS, keys * _KEYS, heads[2] * _VALUES)
    for name, extent in zip("qkv", extents, strict=True):
        width[name].dim_value = extent
    for value in model.graph.input:
        if value.name == "past":
            value.type.tensor_type.shape.dim[1].dim_value = heads[2]
    with pytest.raises(UnsupportedTargetError, match=reason):
        qb.to_relax(canonical(model))


def test_it_comes_back_from_relax() -> None:
    graph = canonical(_case(0, "gated_delta")[0])
    module, params = qb.to_relax(graph)
    assert qb.from_relax(module, params).digest == graph.digest


def test_operands_that_the_rule_does_not_have_are_refused() -> None:
    model, _ = _case(0, "gated")
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "update_rule":
            attribute.s = b"delta"
    with pytest.raises(UnsupportedTargetError, match="of other operands"):
        qb.compile(canonical(model), UNOPTIMIZED)
