"""Compiled graphs under the model's own interface: inputs, outputs, batches, errors."""

from __future__ import annotations

import gc
import logging
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
from tvm.relax import BlockBuilder

import qdqbridge as qb
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.tvm.relax.emit.module import LARGE
from qdqbridge.tvm.relax.executable import compile_relax
from tests.core.graph.graphs import dq, graph, stored
from tests.tvm.relax.single_ops import Array, Model, X, call_names, codes, const, equal, params

pytestmark = pytest.mark.relax

S8, U8 = params("int8", 0.5, 3), params("uint8", 0.25, 131)


def two_inputs(batch: int | str = "n") -> Model:
    """``a (n, 4) int8, b (n, 4) float -> (a + b, a, 2 a)`` and an input that nobody reads."""
    m = Model()
    b = m.builder
    b.input("a", [batch, 4], 3)
    b.input("unused", [batch], 1)
    b.input("b", [batch, 4], 1)
    real = b.dq("a", 0.5, 3, np.int8)
    other = b.qdq("b", 0.25, 131)
    m.finish(b.op("Add", real, other), S8)
    b.output("a", [batch, 4], 3)
    m.finish(b.op("Mul", real, b.init(np.float32(2))), U8)
    return m


def arrays(count: int) -> dict[str, Array]:
    rng = np.random.default_rng(count)
    return {
        "a": codes((count, 4), "int8", count),
        "unused": np.zeros(count, np.float32),
        "b": rng.uniform(-40, 40, (count, 4)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def executable() -> qb.Executable:
    return qb.compile(two_inputs().load())


def test_interface(executable: qb.Executable) -> None:
    assert executable.input_names == ["a", "unused", "b"]
    assert len(executable.output_names) == 3
    assert executable.output_names[1] == "a"
    assert executable.graph.output_names == executable.output_names


@pytest.mark.parametrize("count", [1, 3, 17])
def test_every_batch(executable: qb.Executable, count: int) -> None:
    got = equal(executable, arrays(count))
    np.testing.assert_array_equal(got["a"], arrays(count)["a"])  # an output that is an input


def test_inputs_in_any_order_and_layout(executable: qb.Executable) -> None:
    given = arrays(6)
    wanted = executable.run(given)
    permuted = {name: np.asfortranarray(array) for name, array in reversed(given.items())}
    strided = {name: np.repeat(array, 2, axis=0)[::2] for name, array in given.items()}
    for other in (permuted, strided):
        for name, array in executable.run(other).items():
            np.testing.assert_array_equal(array, wanted[name])


def test_results_are_copies(executable: qb.Executable) -> None:
    first = executable.run(arrays(2))
    kept = {name: array.copy() for name, array in first.items()}
    executable.run({name: array[::-1].copy() for name, array in arrays(2).items()})
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])


def test_wrong_inputs(executable: qb.Executable) -> None:
    good = arrays(2)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"a": good["a"]}, "missing: ['unused', 'b']"),
        ({**good, "c": good["a"]}, "unknown: ['c']"),
        ({**good, "a": good["a"].astype(np.uint8)}, "uint8"),
        ({**good, "b": good["b"].astype(np.float64)}, "float64"),
        ({**good, "b": good["b"][:, :3]}, "(2, 3)"),
        ({**good, "b": good["b"][:1]}, "(1, 4)"),  # another n than a's
        ({**good, "a": good["a"][0]}, "(4,)"),
    ]
    for given, why in cases:
        with pytest.raises(InputDataError) as caught:
            executable.run(given)
        assert why in caught.value.why
    nothing = executable.run({name: array[:0] for name, array in good.items()})
    assert all(array.shape[0] == 0 for array in nothing.values())


def test_one_output_is_no_tuple() -> None:
    m = Model()
    m.add("Add", [X(codes((), "int8"), S8), X(codes((), "int8", 1), S8)], S8)
    _, built = m.check()
    assert built.module["main"].ret_ty.shape is not None


def test_only_an_input_is_an_output() -> None:
    m = Model()
    m.builder.input("x", [2, 3], 1)
    m.builder.output("x", [2, 3], 1)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(qb.compile(m.load()).run({"x": x})["x"], x)


def test_an_output_given_twice_and_a_constant_one() -> None:
    m = Model()
    b = m.builder
    b.input("x", [2, 3], 1)
    y = b.op("Relu", "x")
    b.output(b.op("Identity", y), None)
    b.output(b.op("Identity", y), None)
    b.output(b.op("Identity", b.init(np.arange(3, dtype=np.float32))), None)
    executable = qb.compile(m.load())
    equal(executable, {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)})


def test_names_that_are_no_identifiers() -> None:
    m = Model()
    b = m.builder
    for name in ("a/b:0", "a.b:0", "1", "größe", "main"):
        b.input(name, [2], 1)
    total = b.op("Add", b.op("Add", "a/b:0", "a.b:0"), b.op("Add", "1", "größe"))
    b.output(b.op("Add", total, "main"), None)
    graph = m.load()
    executable = qb.compile(graph)
    assert executable.input_names == ["a/b:0", "a.b:0", "1", "größe", "main"]
    given = {name: np.full(2, i, np.float32) for i, name in enumerate(executable.input_names)}
    assert executable.run(given).popitem()[1].tolist() == [10, 10]


def test_exposed_values() -> None:
    m = Model()
    m.add(
        "Conv",
        [
            X(codes((1, 1, 4, 4), "uint8"), U8),
            X(codes((2, 1, 3, 3), "int8"), params("int8", 0.1), True),
        ],
        S8,
    )
    graph = m.load()
    extra = qb.compile(graph, expose=[graph.inputs[0]])
    assert len(extra.output_names) == 2
    equal(extra, m.inputs)


def test_targets() -> None:
    m = Model()
    m.add("Add", [X(codes((64,), "int8"), S8), X(codes((64,), "int8", 1), S8)], S8)
    graph = m.load()
    equal(qb.compile(graph, "llvm"), m.inputs)
    for wrong in ("no-such-target", "", "llvm -no-such-option=1"):
        with pytest.raises(UnsupportedTargetError, match="no target") as caught:
            qb.compile(graph, wrong)
        assert len(caught.value.why.splitlines()) == 1
    with pytest.raises(UnsupportedTargetError, match="haswell"):
        qb.compile(graph, {"kind": "llvm", "mcpu": "hasswell"})


# ---- what TVM cannot run ------------------------------------------------------------------------


def refused(m: Model, capfd: pytest.CaptureFixture[str]) -> UnsupportedTargetError:
    """Returns the error of compiling; nothing of TVM may be printed."""
    graph = m.load()
    with pytest.raises(UnsupportedTargetError) as caught:
        qb.compile(graph)
    printed = "".join(capfd.readouterr())
    assert printed == ""
    assert "Traceback" not in str(caught.value)
    assert ".cc" not in str(caught.value)
    return caught.value


def test_an_unsupported_node_is_named(capfd) -> None:
    m = Model()
    m.add("Multinomial", [X(np.ones((1, 4), np.float32))], None, dtype=6, row="", sample_size=2)
    error = refused(m, capfd)
    (node,) = m.builder.nodes
    assert "Multinomial" in error.what
    assert node.name in error.where


def test_all_unsupported_nodes_are_named(capfd) -> None:
    m = Model()
    x = X(np.ones((1, 4), np.float32))
    m.add("Multinomial", [x], None, dtype=6, row="", sample_size=2)
    m.add("Multinomial", [x], None, dtype=6, row="", sample_size=3)
    m.add("Add", [x, x], None)
    error = refused(m, capfd)
    assert "2 nodes" in error.what
    assert all(n.name in error.why for n in m.builder.nodes if n.op_type == "Multinomial")


def test_what_the_importer_prints_is_not_shown(capfd) -> None:
    m = Model()
    m.add("Multinomial", [X(np.ones((1, 4), np.float32))], None, dtype=6, row="", sample_size=2)
    graph = m.load()
    with pytest.raises(UnsupportedTargetError, match="Multinomial"):
        qb.compile(graph)
    assert capfd.readouterr().out == ""
    gc.collect()  # the converter's block builder complains when it goes, in whatever test that is


def test_emission_works_again_after_an_error(capfd) -> None:
    m = Model()
    m.add("Multinomial", [X(np.ones((1, 4), np.float32))], None, dtype=6, row="", sample_size=2)
    refused(m, capfd)
    assert BlockBuilder.current() is None
    good = Model()
    good.add("Relu", [X(np.ones((1, 4), np.float32))], None)
    good.check()


def test_an_unknown_rank_is_refused(capfd) -> None:
    m = Model()
    m.builder.input("x", None, 1)
    m.builder.output(m.builder.op("Relu", "x"), None)
    error = refused(m, capfd)
    assert "rank" in str(error)


def test_building_is_quiet(capfd, caplog) -> None:
    caplog.set_level(logging.INFO)
    m = Model()
    m.add("Add", [X(codes((4,), "int8"), S8), const(np.float32(1))], S8)
    m.check()
    assert "".join(capfd.readouterr()) == ""
    assert not caplog.records


def test_large_constants_are_those_of_the_documentation() -> None:
    m = Model()
    small = X(codes((LARGE // 8 - 1, 8), "int8"), params("int8", 0.1), fixed=True)
    large = X(codes((LARGE // 8, 8), "int8"), params("int8", 0.1), fixed=True)
    for w in (small, large):
        m.add("MatMul", [X(codes((1, w.values.shape[0]), "uint8"), U8), w], S8, row="Dense")
    module, kept = qb.to_relax(m.load(), keep_params=True)
    assert [array.nbytes for array in kept.values()] == [LARGE]
    assert "qnn.dense" in call_names(module)


def test_what_tvm_cannot_build_is_one_error(monkeypatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("Check failed: x is false\n  File a.cc, line 1")

    m = Model()
    m.add("Relu", [X(np.ones((1, 4), np.float32))], None)
    graph = m.load()
    monkeypatch.setattr("tvm.compile", fail)
    with pytest.raises(UnsupportedTargetError, match="cannot build") as caught:
        qb.compile(graph)
    assert caught.value.why == "Check failed: x is false"


def test_an_interrupted_build_is_interrupted(monkeypatch) -> None:
    """TVM makes a wordless RuntimeError of a KeyboardInterrupt in a pass."""

    def interrupted(module: object, context: object) -> None:
        raise KeyboardInterrupt

    passed: Any = tvm.transform.module_pass(interrupted, opt_level=0)
    m = Model()
    m.add("Relu", [X(np.ones((1, 4), np.float32))], None)
    graph = m.load()
    monkeypatch.setattr("tvm.compile", lambda module, target, **_: passed(module))
    with pytest.raises(KeyboardInterrupt):
        qb.compile(graph)


def test_the_dialects_own_reason_is_told(capfd) -> None:
    m = Model()
    words, one = params("int16", 2**-8, 0), const(np.ones(1, np.float32))
    m.add("LayerNormalization", [X(codes((1, 50_000), "int16"), words), one], words, axis=-1)
    error = refused(m, capfd)
    assert "LayerNormalization" in error.what
    assert "a row has 50000 elements" in error.why


def test_stored_numbers_outside_the_range_of_an_input_are_refused() -> None:
    params_ = params("int8", 0.1, 3).with_range(-20, 30)
    executable = compile_relax(graph([x := stored("x", params_, (3,))], dq(x)))
    executable.run({"x": np.array([-20, 0, 30], np.int8)})
    with pytest.raises(InputDataError, match="outside its range"):
        executable.run({"x": np.array([-20, 0, 31], np.int8)})
