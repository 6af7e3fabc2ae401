"""The attention operators: the interpreter's function beside onnxruntime, and TVM beside both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import (
    get_all_operator_schema,  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
)

import qdqbridge as qb
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.ops.attention import MergedAttentionAttrs
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.attention_cases import FAMILIES, AttentionCase
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.targets import UNOPTIMIZED

CLOSE = 2e-5
"""Sums of float32 in another order; random cases are off by 3e-6 at most."""


@pytest.mark.parametrize("family", FAMILIES)
def test_random_nodes_are_onnxruntimes(family: str) -> None:
    for seed in range(200):
        case = FAMILIES[family](seed)
        wanted = case.reference()
        results = BY_NAME[case.op].compute(case.attributes, case.operands)
        assert case.distance(results[: len(wanted)], wanted) < CLOSE, seed


def goes_through(case: AttentionCase, path: Path, target: Any, *, open_axes: bool) -> None:
    """The node runs on TVM, and comes back from Relax and from a file."""
    wanted = case.reference()
    graph = canonical(case.model(open_axes=open_axes))
    assert not list(verify(graph) or ())
    assert graph.nodes[-1].op is BY_NAME[case.op]
    interpreted = qb.evaluate(graph, case.feeds())
    assert case.distance([interpreted[f"out_{i}"] for i in range(len(wanted))], wanted) < CLOSE
    module, _ = qb.to_relax(graph)
    assert qb.from_relax(module).digest == graph.digest
    results = qb.compile(graph, target).run(case.feeds())
    found = [np.asarray(results[f"out_{i}"]) for i in range(len(wanted))]
    assert case.distance(found, wanted) < CLOSE
    qb.save(graph, path)
    assert qb.load(path).digest == graph.digest


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("open_axes", "target"),
    [
        (True, UNOPTIMIZED),
        (False, UNOPTIMIZED),
        pytest.param(False, "host", marks=pytest.mark.slow),
        pytest.param(True, "host", marks=pytest.mark.slow),
    ],
    ids=["open as written", "fixed as written", "fixed", "open"],
)
def test_nodes_run_on_tvm_and_come_back(
    family: str, open_axes: bool, target: Any, tmp_path: Path
) -> None:
    """TVM's code as it is; what LLVM makes of it, which takes twice as long, is for the sweep."""
    case = FAMILIES[family](0 if open_axes else 1)
    goes_through(case, tmp_path / "m.onnx", target, open_axes=open_axes)


def test_sequences_of_different_lengths_over_blocks() -> None:
    """What each of them gives alone; onnxruntime 1.32 gives the shorter ones other numbers."""
    case = next(
        each for each in map(FAMILIES["sparse"], range(99))
        if each.operands[0] is not None and each.operands[0].shape[:2] == (3, 1)
    )  # fmt: skip
    lengths = np.array([9, 40, 21], np.int32)
    given = list(case.operands)
    given[7], given[8] = np.array([40], np.int32), lengths
    case = replace(case, operands=given)
    together = BY_NAME[case.op].compute(case.attributes, given)
    graph = canonical(case.model(open_axes=True))
    found = qb.compile(graph, UNOPTIMIZED).run(case.feeds())
    for b, length in enumerate(lengths):
        alone = [x[b : b + 1] if i < 5 and x is not None else x for i, x in enumerate(given)]
        alone[7] = alone[8] = np.array([length], np.int32)
        single = replace(case, operands=alone, valid=[[slice(None)]] * 3)
        wanted = single.reference()
        assert single.distance([each[b : b + 1] for each in together], wanted) < CLOSE
        results = [np.asarray(found[f"out_{i}"])[b : b + 1] for i in range(3)]
        assert single.distance(results, wanted) < CLOSE


def test_a_bias_of_open_extents_is_found_in_vectors(tmp_path: Path) -> None:
    """Its place was a remainder, of which LLVM's vectors made an address that is none."""
    goes_through(FAMILIES["grouped"](3), tmp_path / "m.onnx", "host", open_axes=True)


@pytest.mark.parametrize("seed", [48, 69])
def test_places_of_open_extents(seed: int, tmp_path: Path) -> None:
    """The places of a prompt are counted from the first; TVM lost their extents."""
    case = FAMILIES["grouped"](seed)
    assert case.operands[9] is not None
    goes_through(case, tmp_path / "m.onnx", UNOPTIMIZED, open_axes=True)


def test_an_extent_that_one_operand_knows(tmp_path: Path) -> None:
    """The batch of the past is a number, that of the data has a name."""
    case = FAMILIES["merged"](0)
    model = case.model(open_axes=True)
    past = case.operands[4]
    assert past is not None
    for info in model.graph.input:
        if info.name == "in_4":
            info.type.tensor_type.shape.dim[1].dim_value = past.shape[1]
    results = qb.compile(canonical(model), UNOPTIMIZED).run(case.feeds())
    assert case.distance([results["out_0"], results["out_1"]], case.reference()) < CLOSE


def test_a_past_of_nothing() -> None:
    """A 0 among the extents of TVM's reshape stands for another one."""
    case = FAMILIES["merged"](8)
    x, weight = case.operands[:2]
    assert isinstance(case.attributes, MergedAttentionAttrs) and x is not None
    assert weight is not None and case.operands[4] is None
    heads = case.attributes.num_heads
    past = np.zeros((2, len(x), heads, 0, weight.shape[1] // 3 // heads), np.float32)
    operands = [*case.operands[:4], past, *case.operands[5:]]
    case = replace(case, operands=operands, valid=[*case.valid, [slice(None)] * 2])
    results = qb.compile(canonical(case.model()), UNOPTIMIZED).run(case.feeds())
    assert case.distance([results["out_0"], results["out_1"]], case.reference()) < CLOSE


@pytest.mark.parametrize("seed", [1, 2])
def test_negative_places_count_from_the_end(seed: int) -> None:
    """As ONNX's Gather does; onnxruntime refuses them."""
    case = FAMILIES["rotary"](seed)
    places = case.feeds()["in_3"]
    graph = canonical(case.model())
    results = qb.compile(graph, UNOPTIMIZED).run({**case.feeds(), "in_3": places - 64})
    assert case.distance([results["out_0"]], case.reference()) < CLOSE


HEADS = (["b", 4, "n", 8], ["b", 2, "m", 8], ["b", 2, "m", 16])
FLAT = (["b", "n", 32], ["b", "m", 16], ["b", "m", 32])


@pytest.mark.parametrize("shapes", [HEADS, FLAT])
@pytest.mark.parametrize(("past", "count"), [(None, "m"), ("p", "(m+p)"), (3, "(m+3)")])
def test_extents_of_what_attention_gives(shapes: Any, past: int | str | None, count: str) -> None:
    """ONNX's inference takes open counts of keys for 0."""
    b = Builder(24)
    operands = [b.input(name, shape) for name, shape in zip("qkv", shapes, strict=True)]
    if past is not None:
        kept = [b.input(f"past_{x}", ["b", 2, past, n]) for x, n in (("k", 8), ("v", 16))]
        operands += ["", *kept]
    heads: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 2} if shapes is FLAT else {}
    first = b.op("Attention", *operands, outputs=4, **heads)
    for name in (first, *(f"{first}:{i}" for i in range(1, 4))):
        b.output(name, None)
    y = ("b", "n", 64) if shapes is FLAT else ("b", 4, "n", 16)
    assert [value.type.shape for value in canonical(b.model()).outputs] == [
        y, ("b", 2, count, 8), ("b", 2, count, 16), ("b", 4, "n", count),
    ]  # fmt: skip


@pytest.mark.parametrize(("past", "count"), [(None, "n"), ("p", "(n+p)"), (3, "(n+3)")])
@pytest.mark.parametrize("op", ["MultiHeadAttention", "Attention"])
def test_extents_of_what_onnxruntimes_attentions_keep(
    op: str, past: int | str | None, count: str
) -> None:
    """It tells them only where both counts are numbers."""
    b = Builder(21)
    if op == "Attention":
        data = (
            b.input("x", ["b", "n", 32]),
            *(b.init(np.ones(shape, np.float32)) for shape in ((32, 96), 96)),
        )
        kept, expected = ([2, "b", 2, past, 16],), [(2, "b", 2, count, 16)]
    else:
        data = tuple(b.input(name, ["b", "n", 32]) for name in "qkv")
        kept, expected = (["b", 2, past, 16],) * 2, [("b", 2, count, 16)] * 2
    olds = [b.input(f"past_{i}", shape) for i, shape in enumerate(kept)] if past else []
    between = [""] * ({"MultiHeadAttention": 6, "Attention": 4}[op] - len(data)) if past else []
    results = 1 + len(expected)
    first = b.op(op, *data, *between, *olds, domain="com.microsoft", outputs=results, num_heads=2)
    for name in (first, *(f"{first}:{i}" for i in range(1, results))):
        b.output(name, None)
    shapes = [value.type.shape for value in canonical(b.model()).outputs]
    assert shapes == [("b", "n", 32), *expected]


@pytest.mark.parametrize(("sizes", "width"), [(None, 32), ([32, 32, 48], 48)])
def test_extents_of_an_attention_without_a_bias(sizes: list[int] | None, width: int) -> None:
    """onnxruntime does not tell them: the rank of what a fused T5 gives was unknown."""
    b = Builder(17)
    x, weights = b.input("x", ["b", "n", 32]), b.init(np.ones((32, 64 + width), np.float32))
    at: dict[str, Any] = {"domain": "com.microsoft", "num_heads": 2, "qkv_hidden_sizes": sizes}
    b.output(b.op("Attention", x, weights, **at), None)
    (value,) = canonical(b.model()).outputs
    assert value.type.shape == ("b", "n", width)


def test_keys_that_an_earlier_layer_keeps() -> None:
    """Its rank was unknown, so that TVM refused the second attention."""
    b, rng = Builder(21), np.random.default_rng(0)
    data = [b.input(name, ["b", "n", 32]) for name in "qkv"]
    kept = [b.input(name, ["b", 2, "p", 16]) for name in ("old_k", "old_v")]
    at: dict[str, Any] = {"domain": "com.microsoft", "num_heads": 2}
    first = b.op("MultiHeadAttention", *data, "", "", "", *kept, outputs=3, **at)
    b.output(b.op("MultiHeadAttention", first, f"{first}:1", f"{first}:2", **at), None)
    feeds = {name: rng.standard_normal((2, 3, 32)).astype(np.float32) for name in "qkv"}
    feeds |= {n: rng.standard_normal((2, 2, 4, 16)).astype(np.float32) for n in kept}
    wanted = ort_run(b.model(), feeds)[0]
    graph = canonical(b.model())
    for results in (qb.evaluate(graph, feeds), qb.compile(graph, UNOPTIMIZED).run(feeds)):
        assert np.abs(next(iter(results.values())) - wanted).max() < CLOSE


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "sparse"])
def test_what_onnxruntime_needs_of_results_that_nobody_reads(family: str, tmp_path: Path) -> None:
    """A past without the results that keep it is garbage there, or refused."""
    path = tmp_path / "model.onnx"
    for seed in range(6):
        case = FAMILIES[family](seed)
        places = range(len(case.valid))
        for asked in {(0,), (0, *places[1:2]), (0, *places[2:])}:
            model = case.quantized(asked)
            wanted, graph = case.reference(model), canonical(model)
            qb.save(graph, path, overwrite=True)
            found = case.reference(onnx.load(path))
            part = replace(case, valid=[case.valid[place] for place in asked])
            assert part.distance(found, wanted) == 0, (seed, asked)
            assert qb.load(path).digest == graph.digest
            step = qb.evaluate(graph, case.feeds())
            assert part.distance(list(step.values()), wanted) <= 2**-6, (seed, asked)


DEFAULTS = {
    (schema.domain, schema.name, name): onnx.AttributeProto.FromString(stated._default_value)
    for schema in get_all_operator_schema()
    for name, stated in schema.attributes.items()
    if schema.domain == "com.microsoft" and stated._default_value
}
"""Attributes by operator, as onnxruntime says that they are where a node does not."""


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "own"])
def test_a_default_may_be_said(family: str) -> None:
    for seed in range(5):
        model = FAMILIES[family](seed).model()
        (node,), digest = model.graph.node, canonical(model).digest
        said = {each.name for each in node.attribute}
        for (domain, op_type, name), value in DEFAULTS.items():
            if (domain, op_type) == (node.domain, node.op_type) and name not in said and value.type:
                node.attribute.append(value)
                assert canonical(model).digest == digest, name
                node.attribute.pop()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("open_axes", [False, True])
def test_many_nodes_run_on_tvm_and_come_back(family: str, open_axes: bool, tmp_path: Path) -> None:
    for seed in range(1, 5):
        path = tmp_path / f"{seed}.onnx"
        goes_through(FAMILIES[family](seed), path, "host", open_axes=open_axes)


def test_a_text_of_such_a_node_is_read_back() -> None:
    graph = canonical(FAMILIES["grouped"](1).model())
    assert qb.parse(graph.text()).digest == graph.digest
