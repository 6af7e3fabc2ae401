"""What from_relax refuses, and what it says then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
from tvm import relax

import qdqbridge as qb
from qdqbridge.core.graph.graph import Value
from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from qdqbridge.tvm.qnn.origin import provenance_of
from qdqbridge.tvm.qnn.read import CALLS, Call, Reading
from qdqbridge.tvm.qnn.read.call import Result
from qdqbridge.tvm.relax.dialect import tensor_type
from qdqbridge.tvm.relax.read.module import ROWS
from tests.tvm.relax.read_cases import read_back, same
from tests.tvm.relax.single_ops import Model, X, codes, params

pytestmark = pytest.mark.relax


def large() -> qb.Graph:
    """A product whose weight is larger than what stays in a module."""
    m = Model()
    w = X(codes((300, 256), "int8"), params("int8", 0.01), fixed=True)
    m.add(
        "MatMul",
        [X(codes((1, 300), "int8"), params("int8", 0.5)), w],
        params("int8", 2.0),
        row="Dense",
    )
    return m.load()


def test_parameters_kept_apart_are_needed(tmp_path: Path) -> None:
    graph = large()
    module, arrays = qb.to_relax(graph, keep_params=True)
    assert arrays
    same(qb.from_relax(module, arrays), graph)
    archive = tmp_path / "p.npz"
    save: Any = np.savez
    save(archive, **arrays)
    same(qb.from_relax(module, np.load(archive)), graph)
    with pytest.raises(UnsupportedModelError, match="has no value") as error:
        qb.from_relax(module)
    assert "params" in error.value.fix
    tensors: Any = {name: tvm.runtime.tensor(np.ascontiguousarray(a)) for name, a in arrays.items()}
    same(qb.from_relax(relax.transform.BindParams("main", tensors)(module)), graph)


def test_operators_without_a_counterpart_are_listed() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor_type((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(relax.op.cumprod(x, axis=1))
            b = builder.emit(relax.op.median(a, axis=0, keepdims=True)[0])
            out = builder.emit_output(relax.op.add(a, b))
        builder.emit_func_output(out)
    with pytest.raises(UnsupportedModelError, match=r"2 call\(s\)") as error:
        qb.from_relax(builder.finalize())
    assert "cumprod" in error.value.why
    assert "median" in error.value.why


def test_a_composition_is_read_from_its_attribute() -> None:
    m = Model()
    b = m.builder
    x = m.operand(X(codes((2, 40), "uint8"), params("uint8", 0.05, 131)))
    half = b.op("Mul", b.op("Erf", b.op("Div", x, b.init(np.float32(2)))), b.init(np.float32(0.5)))
    m.finish(half, params("int8", 0.01))
    graph = m.load()
    assert [n.op.name for n in graph.nodes] == ["Composition"]
    same(read_back(graph), graph)


@pytest.mark.parametrize("name, count", [("matmul", 2), ("where", 3), ("divide", 2)])
def test_another_number_of_arguments_is_refused(name: str, count: int) -> None:
    reading = Reading(ROWS, CALLS, "main")
    x = reading.input("x", "float32", (2, 2))
    for given in {1, 2, 3, 4} - {count}:
        call = Call(name, (x,) * given, {}, (Result("float32", (2, 2)),), None, "y", "main")
        value = reading.call(call)
        assert isinstance(value, Value)
        assert value.producer is not None
        assert f"{given} arguments" in reading.whys[value.producer]


def test_a_record_of_another_form_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="damaged"):
        provenance_of('qdqbridge:{"op":"Relu","attributes":{"nothing":1}}')


def test_operands_and_attributes_of_a_call_are_typed() -> None:
    call = Call("concatenate", (), {"axis": "x", "pads": 1.5}, ())
    with pytest.raises(InvalidModelError, match="lacks operand 0"):
        _ = call.args[0]
    with pytest.raises(InvalidModelError, match="'axis' of concatenate is not an integer"):
        call.integer("axis")
    with pytest.raises(InvalidModelError, match="not a list of integers"):
        call.ints("pads")
