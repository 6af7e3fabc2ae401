"""How inputs and outputs are stored: the same results, whatever a program feeds."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.canonical.interface import Interface, interface_record, with_interface
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.core.ops.attributes import TransposeAttrs
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from tests.core.graph.graphs import OUT, U8, apply, const, dq, graph, names, plain, q, quant, typed

INTERFACES = get_args(Interface)


def random_graph(seed: int) -> Graph:
    """Returns a graph of some quantized and some float inputs and outputs."""
    rng = np.random.default_rng(seed)
    types = [
        per_tensor(DType.UINT8, np.float32(rng.uniform(0.001, 1)), int(rng.integers(256))),
        per_tensor(DType.INT8, np.float32(rng.uniform(0.001, 1)), int(rng.integers(-128, 128))),
        per_tensor(DType.UINT8, 0.02, 10).with_range(10, 60),
    ]
    inputs, results = list[Value](), list[Value]()
    for index in range(int(rng.integers(1, 4))):
        x = plain(f"x{index}", ("n", 3))
        chosen = types[int(rng.integers(len(types)))]
        stored = q(x, chosen)
        if rng.random() < 0.5:
            twisted = apply(
                "Transpose",
                stored,
                type_=typed((3, "n"), chosen),
                attributes=TransposeAttrs((1, 0)),
            )
            stored = apply(
                "Transpose",
                twisted,
                type_=typed(("n", 3), chosen),
                attributes=TransposeAttrs((1, 0)),
            )
        result = apply("Add", stored, const(np.array([1, -7, 100], np.int8), types[1]),
                       type_=typed(("n", 3), types[int(rng.integers(2))]))  # fmt: skip
        results.append(dq(result))
        if rng.random() < 0.3:
            results.append(apply("Neg", x))  # somebody reads it unquantized
        inputs.append(x)
    return canonicalize(graph(inputs, *results))


def fed(value: Value, real: np.ndarray) -> np.ndarray:
    return real if value.quant is None else quantize(real, value.quant.params)


def meant(value: Value, found: np.ndarray) -> np.ndarray:
    return found if value.quant is None else dequantize(found, value.quant.params)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("seeds", [range(k, k + 10) for k in range(0, 30, 10)], ids=str)
def test_results_mean_the_same(interface: Interface, seeds: range) -> None:
    changed = 0
    for seed in seeds:
        g = random_graph(seed)
        own = with_interface(g, interface)
        verify(own)
        rng = np.random.default_rng(seed)
        real = {v.name: rng.normal(0, 8, (5, 3)).astype(np.float32) for v in g.inputs}
        expected = evaluate(g, real)[0]
        given = {v.name: fed(v, real[v.name]) for v in own.inputs}
        found = evaluate(own, given)[0]
        for name, value in zip(own.output_names, own.outputs, strict=True):
            assert np.array_equal(meant(value, found[name]), expected[name]), (seed, name)
        changed += any(v.quant is not None for v in (*own.inputs, *own.outputs))
        if interface == "as-stored":
            assert with_interface(own, "float").digest == g.digest
    assert (changed == 0) == (interface == "float")


@pytest.mark.parametrize(("interface", "storage"), [("int8", DType.INT8), ("uint8", DType.UINT8)])
def test_bytes_have_the_signedness_that_is_asked_for(interface: Interface, storage: DType) -> None:
    x = plain("x", (4,))
    own = with_interface(canonicalize(graph([x], dq(q(x, U8)))), interface)
    assert {v.type.dtype for v in (*own.inputs, *own.outputs)} == {storage}


def test_integers_from_outside_are_cut_to_a_narrower_range() -> None:
    x = plain("x", (3,))
    narrow = per_tensor(DType.UINT8, 0.5, 0).with_range(0, 12)
    own = with_interface(canonicalize(graph([x], dq(q(x, narrow)))), "as-stored")
    assert evaluate(own, {"x": np.array([3, 12, 200], np.uint8)})[0]["y0"].tolist() == [3, 12, 12]


def test_what_is_read_unquantized_stays() -> None:
    x = plain("x", (4,))
    own = with_interface(canonicalize(graph([x], dq(q(x, U8)), apply("Neg", x))), "as-stored")
    assert own.inputs[0].quant is None
    assert [v.quant is not None for v in own.outputs] == [True, False]
    assert "quantize" in names(own)


def test_other_widths_are_refused_by_name() -> None:
    x = plain("x", (4,))
    g = canonicalize(graph([x], dq(q(x, per_tensor(DType.UINT16, 0.01, 9)))))
    with pytest.raises(UnsupportedTargetError, match=r"(?s)input cannot be int8.*x.*uint16"):
        with_interface(g, "int8")
    with pytest.raises(InputDataError, match="no such interface"):
        with_interface(g, "int16")  # pyright: ignore[reportArgumentType]


def test_the_record_says_what_a_program_needs() -> None:
    x, y = plain("x", ("n", 4)), plain("y", (2, 3))
    rows = quant(DType.INT8, np.array([0.5, 0.25], np.float32), np.array([0, 0], np.int32), axis=0)
    stored = q(x, U8)
    total = apply("Add", stored, stored, type_=typed(("n", 4), OUT))
    turned = apply(
        "Transpose", q(y, rows), type_=typed((3, 2), replace(rows, axis=1)),
        attributes=TransposeAttrs((1, 0)),
    )  # fmt: skip
    own = with_interface(canonicalize(graph([x, y], dq(total), dq(turned))), "as-stored")
    record = interface_record(own)
    assert record["inputs"] == [
        {"name": "x", "dtype": "uint8", "shape": ["n", 4], "scale": 2**-5, "zero_point": 128,
         "axis": None},
        {"name": "y", "dtype": "int8", "shape": [2, 3], "scale": [0.5, 0.25], "zero_point": [0, 0],
         "axis": 0},
    ]  # fmt: skip
    assert [(each["name"], each["dtype"], each["axis"]) for each in record["outputs"]] == [
        ("y0", "uint8", None), ("y1", "int8", 1),
    ]  # fmt: skip
