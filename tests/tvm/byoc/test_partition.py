"""Partitions: complete on every operator, bit for bit the same when run, and explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.places import MODELS

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.errors import (
    GraphError,
    InputDataError,
    QdqBridgeError,
    UnsupportedTargetError,
)
from qdqbridge.tvm.byoc import (
    Anything,
    CallPattern,
    Constraints,
    Entry,
    Limits,
    Table,
    canonical,
    composites,
    describe,
    partition,
    prepare,
    runnable,
)
from qdqbridge.tvm.byoc.coverage import Contents, reasons_of
from qdqbridge.tvm.byoc.descriptions import convolution, other
from qdqbridge.tvm.byoc.partition import host_of
from qdqbridge.tvm.byoc.pattern import Applied, Free, Term
from qdqbridge.tvm.byoc.records import Record
from qdqbridge.tvm.relax.read import read_function
from tests.tvm.byoc.emission_models import CASES, model_of
from tests.tvm.relax.single_ops import Model, X, codes, const, params
from tests.tvm.relax.targets import compiled

pytestmark = pytest.mark.relax

QUANTIZED = sorted(MODELS.glob("*s8*.onnx"))
PLAIN = {"float", "plain integers"}
S8, U8 = params("int8", 0.5, 3), params("uint8", 0.25, 120)


def run(module: Any, inputs: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    tvm: Any = import_module("tvm")
    library = compiled(module)
    machine = tvm.relax.VirtualMachine(library, tvm.cpu())
    names = [str(name) for name in module["main"].attrs["input_names"]]
    result = machine["main"](*(tvm.runtime.tensor(inputs[name]) for name in names))
    parts = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [part.numpy() for part in parts]


def digits(count: int) -> np.ndarray[Any, Any]:
    with np.load(MODELS / "digits_test.npz") as arrays:
        return arrays["x"][:count]


@pytest.mark.parametrize("test", CASES)
def test_every_operator_is_taken_and_described(
    test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(test, monkeypatch)
    if model is None:
        return  # a test about an error
    table = canonical()
    module, coverage = partition(qb.to_relax(model.load())[0], table)
    assert all(item.reasons for item in coverage.left)
    wrong = [item for item in coverage.left if item.kind not in PLAIN]
    run_time = [item for item in wrong if "symbolic extent" in item.reasons[0]]
    assert wrong == run_time
    for composite in composites(module):
        record = describe(composite, table)
        assert all(value.shape is not None for value in record.inputs)
        if record.output.scale is not None:
            assert record.output.scale.size and record.output.zero_point is not None


@pytest.mark.parametrize("path", QUANTIZED, ids=lambda path: path.stem)
def test_models_are_taken_whole(path: Path) -> None:
    graph = qb.load(path)
    for regions, count in ((True, 1), (False, 0)):
        _, coverage = partition(qb.to_relax(graph)[0], canonical(), regions=regions)
        assert coverage.complete and not coverage.left
        assert len(coverage.regions) == count


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] * ("per_tensor" in p.stem)) for p in QUANTIZED],
    ids=lambda path: path.stem,
)
def test_a_partitioned_model_runs_to_the_same_bits(path: Path) -> None:
    graph, x = qb.load(path), digits(5)
    (name,) = [value.name for value in graph.inputs]
    (wanted,) = qb.evaluate(graph, {name: x}).values()
    module, _ = qb.to_relax(graph)
    few = canonical("few").only("conv2d", "dense", "add", "reshape", "softmax")
    merged, _ = partition(module, canonical())
    for divided in (partition(module, few, regions=False)[0], runnable(merged)):
        (found,) = run(divided, {name: x})
        np.testing.assert_array_equal(found, wanted)
    (found,) = qb.compile(runnable(merged)).run({name: x}).values()
    np.testing.assert_array_equal(found, wanted)


def test_all_operators_run_inside_composites(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in CASES:
        test: Any = case.values[0]
        if case.id not in ("accumulate-convolutions", "rows-layer_norms", "movers-shapes"):
            continue
        model: Any = model_of(test, monkeypatch)
        graph = model.load()
        module, _ = partition(qb.to_relax(graph)[0], canonical(), regions=False)
        wanted = qb.evaluate(graph, model.inputs)
        for found, (name, array) in zip(run(module, model.inputs), wanted.items(), strict=True):
            np.testing.assert_array_equal(found, array, err_msg=name)


# ---- reasons ---------------------------------------------------------------------------------


def weight(scale: Any = 0.25, axis: int | None = None) -> X:
    return X(codes((4, 3, 3, 3), "int8", 1), params("int8", scale, np.zeros(np.shape(scale)), axis),
             fixed=True)  # fmt: skip


def conv_model() -> Model:
    m = Model()
    m.add("Conv", [X(codes((1, 3, 8, 8), "int8"), S8), weight()], U8, label="conv")
    return m


def left_of(module: Any, table: Table) -> dict[str, tuple[str, str]]:
    _, coverage = partition(module, table)
    return {item.operator: (item.kind, "; ".join(item.reasons)) for item in coverage.left}


def test_what_no_entry_has_is_named() -> None:
    module, _ = qb.to_relax(conv_model().load())
    left = left_of(module, canonical().only("dense"))
    assert left["qnn.conv2d"] == ("no pattern", "no entry of the table has qnn.conv2d")
    kind, reason = left["qnn.requantize"]
    assert kind == "no pattern" and "is wanted, qnn.conv2d is found" in reason


def test_a_refusal_is_told_at_every_operator_of_the_match() -> None:
    module, _ = qb.to_relax(conv_model().load())
    table = canonical("npu", constraints=Constraints(Limits(activations=("int8",))))
    left = left_of(module, table)
    for operator in ("qnn.conv2d", "qnn.requantize"):
        kind, reason = left[operator]
        assert kind == "refused"
        assert "the type of the result is uint8, int8 is taken" in reason


def test_a_value_that_is_read_elsewhere_keeps_its_chain_outside() -> None:
    from tvm import relax

    from qdqbridge.tvm.relax.dialect import call

    def number(value: Any, dtype: str) -> Any:
        return relax.const(np.asarray(value, dtype))

    builder = relax.BlockBuilder()
    extents: Any = [2, 4]
    x = relax.Var("x", relax.TensorType(extents, "int8"))
    w, zero, one = number(np.ones((5, 4)), "int8"), number(0, "int32"), number(0.5, "float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            total = builder.emit(call("qnn.dense", [x, w, zero, zero, one, one]))
            rounded = builder.emit(call("qnn.requantize", [total, one, zero, one, zero]))
            again = builder.emit(relax.op.negative(total))
            ends = builder.emit_output(relax.Tuple([rounded, again]))
        builder.emit_func_output(ends)
    left = left_of(builder.get(), canonical())
    kind, reason = left["qnn.requantize"]
    assert kind == "read elsewhere" and "qnn.dense" in reason and "negative" in reason
    assert left["negative"] == ("no pattern", "it belongs to qnn.dense, which is left")


def test_float_operators_are_told_apart() -> None:
    m = Model()
    m.add("Add", [const(np.ones((2, 3), np.float32)), X(codes((2, 3), "int8"), S8)])
    module, _ = qb.to_relax(m.load())
    _, coverage = partition(module, canonical())
    assert [(i.operator, i.kind) for i in coverage.left] == [("add", "float")]
    assert coverage.complete


def test_a_clamp_that_is_refused_stays_behind_alone() -> None:
    module, _ = qb.to_relax(qb.load(MODELS / "digits_cnn_s8s8_per_tensor.onnx"))
    table = canonical("npu", constraints=Constraints(Limits(clamp=False))).without("clamp")
    _, coverage = partition(module, table)
    assert {item.operator for item in coverage.left} == {"clip"}
    assert coverage.counts()["conv2d"] == 5
    assert "the result is clamped to 0..127" in coverage.left[0].reasons[0]


# ---- tables and forms ------------------------------------------------------------------------


def test_a_vendor_writes_entries_of_its_own() -> None:
    chain = CallPattern("nn.max_pool2d", CallPattern("qnn.add", Anything().named("a")).named("op"))
    table = Table("dsp", (Entry("add_pool", chain, other), *canonical().only("conv2d").entries))
    module, coverage = partition(
        qb.to_relax(qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx"))[0], table
    )
    assert coverage.counts() == {"conv2d": 5, "add_pool": 1}
    (found,) = [c for c in composites(module) if c.name == "dsp.add_pool"]
    assert describe(found, table).op == "qnn.add"


def test_a_coverage_reads_well_and_is_json() -> None:
    module, _ = qb.to_relax(qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx"))
    _, coverage = partition(module, canonical("npu").only("conv2d"))
    text = coverage.text()
    assert text.startswith("npu: 5 composites in 2 region(s) hold 15 of 25 operators, 10 left")
    assert "no entry of the table has qnn.mean" in text
    found = json.loads(json.dumps(coverage.json()))
    assert found["operators"] == 25 and len(found["left"]) == 10 and not found["complete"]
    assert all(item["reasons"] for item in found["left"])


def test_a_composite_of_another_table_cannot_be_described() -> None:
    module, _ = partition(qb.to_relax(conv_model().load())[0], canonical("a"))
    with pytest.raises(GraphError, match="cannot be described"):
        describe(composites(module)[0], canonical("b"))
    with pytest.raises(GraphError, match="the table 'a' has no entry 'conv2d'"):
        describe(composites(module)[0], canonical("a").without("conv2d"))


def test_calls_have_the_names_of_the_model_and_equal_reasons_are_told_once() -> None:
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    module, _ = qb.to_relax(graph)
    table = canonical("npu", constraints=Constraints(Limits(activations=("int8",))))
    _, coverage = partition(module, table)
    names = {value.name for value in graph.values()}
    assert {item.name for item in coverage.left} <= names
    convolutions = [item for item in coverage.left if item.operator == "qnn.conv2d"]
    assert len({item.name for item in convolutions}) == len(convolutions) == 5
    assert len({item.reasons for item in convolutions}) == 1
    assert coverage.text().count("conv2d (it ends with qnn.requantize) refuses") == 2  # and add


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(UnsupportedTargetError, match="cannot be partitioned"):
        host_of(3)


@pytest.mark.parametrize("wrong", [None, "cmsis-nn", 3])
def test_what_is_no_argument_is_refused_in_words(wrong: Any) -> None:
    graph = qb.load(MODELS / "digits_mlp_float.onnx")
    module, _ = qb.to_relax(graph)
    for attempt in (
        lambda: partition(module, wrong),
        lambda: prepare(graph, wrong),
        lambda: prepare(wrong, canonical()),
        lambda: qb.from_relax(wrong),
    ):
        with pytest.raises(InputDataError):
            attempt()


@pytest.mark.parametrize(
    ("name", "entries", "constraints"),
    [("", (), Constraints()), (None, (), Constraints()), ("t", (1,), Constraints()), ("t", (), 3)],
)
def test_a_table_is_made_of_its_parts(name: Any, entries: Any, constraints: Any) -> None:
    with pytest.raises(QdqBridgeError, match="a table is made of"):
        Table(name, entries, constraints)


@pytest.mark.parametrize("found", ["too wide", None])
def test_a_check_that_returns_no_list_is_named(found: Any) -> None:
    module, _ = qb.to_relax(qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx"))
    conv = canonical().entry("conv2d")
    assert conv is not None
    with pytest.raises(QdqBridgeError, match="check of entry 'conv2d' returned"):
        partition(module, Table("npu", (conv.checked(lambda record: found),)))


def test_what_a_check_raises_arrives() -> None:
    def check(record: Record) -> list[str]:
        raise KeyError(record.op)

    module, _ = qb.to_relax(qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx"))
    conv = canonical().entry("conv2d")
    assert conv is not None
    with pytest.raises(KeyError, match=r"qnn\.conv2d"):
        partition(module, Table("npu", (conv.checked(check),)))


def test_what_is_not_runnable() -> None:
    nothing: Any = None
    with pytest.raises(UnsupportedTargetError, match="cannot be partitioned"):
        runnable(nothing)


def test_a_region_takes_integers_for_a_concat_that_converts_others() -> None:
    """The inputs of a region do not say what they mean: the Concat does."""
    m, wide, other = Model(), params("uint8", 0.25, 72), params("int8", 0.5, 127)
    operands = [X(codes((2, 3), str(p.storage_dtype), 5), p) for p in (wide, other, wide)]
    m.add("Concat", operands, wide, axis=0)
    divided, _ = partition(qb.to_relax(m.load())[0], canonical())
    (region,) = (f for f in divided.functions.values() if f.attrs and "Codegen" in f.attrs)
    found = canonicalize(read_function(region))
    (concat,) = (node for node in found.nodes if node.op.name == "Concat")
    assert all(value is not None and value.quant is not None for value in concat.inputs)


def test_a_thousand_operators_take_seconds() -> None:
    from time import perf_counter

    m = Model()
    x = m.operand(X(codes((1, 4), "int8"), S8))
    for _ in range(250):
        first = m.builder.op("Sigmoid", m.builder.qdq(x, 0.01, 0, np.int8))
        x = m.builder.op("Neg", m.builder.qdq(first, 0.01, 0, np.int8))
    m.finish(x, S8)
    module, _ = qb.to_relax(m.load())
    start = perf_counter()
    _, coverage = partition(module, canonical())
    assert coverage.complete and coverage.operators > 499
    assert perf_counter() - start < 20


def test_operators_are_named_by_what_a_person_finds() -> None:
    """Variables that a host counts out (``lv31``) are nobody's names."""

    def call(name: str, *args: Term, op: str = "mystery") -> Applied:
        return Applied(None, (1,), "int8", op, lambda: args, dict[str, Any], name=name)

    image = Free(None, (1,), "int8", "image")
    first = call("lv", image)
    second = call("lv31", first)
    named = call("logits", second)
    last = call("gv", named)
    alone = call("lv7", call("lv8"))
    before = call("lv9")
    read = call("scores", before)
    left = (first, second, named, last, alone, before, read)
    found = reasons_of(canonical())(Contents(left, (), ()))
    assert [each.name for each in found] == [
        "behind 'image'", "behind 'image'", "logits", "behind 'logits'", "mystery",
        "before 'scores'", "scores",
    ]  # fmt: skip


def test_a_pattern_that_names_too_little_is_refused() -> None:
    conv = CallPattern("qnn.conv2d", *[Anything()] * 6).named("op")
    biased = CallPattern("add", conv, Anything())
    rounded = CallPattern("qnn.requantize", biased, *[Anything()] * 4)
    module = qb.to_relax(qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx"))[0]
    for pattern, unread in (
        (rounded.named("requantize"), "the add of the pattern"),
        (rounded, "the add and the qnn.requantize of the pattern"),
    ):
        with pytest.raises(QdqBridgeError, match=f"would not have {unread}"):
            partition(module, Table("npu", (Entry("conv", pattern, convolution),)))
