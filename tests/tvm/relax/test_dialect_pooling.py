"""qnn.avg_pool1d/2d/3d, qnn.mean and qnn.sum, against the operator table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantType, TensorType
from qdqbridge.core.ops.attributes import PoolAttrs, ReduceAttrs
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.errors import GraphError
from qdqbridge.tvm.relax import dialect
from qdqbridge.tvm.relax.dialect import tensor_type
from tests.tvm.relax.dialect_cases import Cases, contract, every_code, params, scale_of, zero_of

POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9, 7), {"pool_size": [3, 2], "strides": [2, 1], "padding": [1, 0, 2, 1]}),
    ((2, 3, 9, 7), {"pool_size": [2, 2], "dilation": [3, 2]}),
    ((2, 3, 10, 8), {"pool_size": [3, 3], "strides": [2, 3], "padding": [1, 1, 1, 1]}),
    ((2, 3, 5, 4), {"pool_size": [5, 4]}),
    ((2, 3, 11), {"pool_size": [4], "strides": [3], "padding": [2, 1]}),
    (
        (1, 2, 5, 6, 4),
        {"pool_size": [2, 3, 2], "strides": [2, 2, 1], "padding": [1, 0, 0, 1, 2, 1]},
    ),
]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_average_pools(dtype: str) -> None:
    rng = np.random.default_rng(0)
    px, py = params(dtype, 0.031, 7), params(dtype, 0.0241, 3)
    cases = Cases()
    for shape, attrs in POOLS:
        x, rank = every_code(rng, dtype, shape), len(shape) - 2
        for ceil in (False, True):
            for include in (False, True):
                record = PoolAttrs(
                    tuple(attrs["pool_size"]),
                    tuple(attrs.get("strides", [1] * rank)),
                    tuple(attrs.get("dilation", [1] * rank)),
                    tuple(attrs.get("padding", [0] * 2 * rank)),
                    ceil,
                    include,
                )
                expected = contract("AveragePool", record, (x,), (px,), py)
                args = [x, scale_of(px), zero_of(px), scale_of(py), zero_of(py)]
                extra = {"ceil_mode": ceil, "count_include_pad": include}
                cases.add(f"qnn.avg_pool{rank}d", args, attrs | extra, expected)
    cases.check()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16"])
def test_mean_and_sum(dtype: str) -> None:
    rng = np.random.default_rng(1)
    px, py = params(dtype, 0.031, 7), params(dtype, 0.0241, 3)
    x = every_code(rng, dtype, (2, 3, 40, 5))
    cases = Cases()
    for axes in ((2, 3), (1,), (3,), (1, 3), (1, 2, 3)):
        for keep in (False, True):
            record = ReduceAttrs(axes, keep)
            args = [x, scale_of(px), zero_of(px), scale_of(py), zero_of(py)]
            attrs = {"axis": list(axes), "keepdims": keep}
            mean = contract("ReduceMean", record, (x,), (px,), py)
            cases.add("qnn.mean", args, attrs, mean)
            coarse = params(dtype, 0.3, 3)
            total = contract("ReduceSum", record, (x,), (px,), coarse)
            args[3:] = [scale_of(coarse), zero_of(coarse)]
            cases.add("qnn.sum", args, attrs, total)
    whole = ReduceAttrs((0, 1, 2, 3), False)
    args = [x, scale_of(px), zero_of(px), scale_of(py), zero_of(py)]
    mean = contract("ReduceMean", whole, (x,), (px,), py)
    cases.add("qnn.mean", args, {}, mean, symbolic=False)
    cases.check()


def test_a_mean_of_halves_rounds_to_even() -> None:
    p = params("int8", 1.0)
    x = np.asarray([[0, 1], [1, 2], [2, 3], [-1, 0], [-2, -1], [127, 127]], np.int8)
    cases = Cases()
    args = [x, scale_of(p), zero_of(p), scale_of(p), zero_of(p)]
    expected = np.asarray([0, 2, 2, 0, -2, 127], np.int8)
    cases.add("qnn.mean", args, {"axis": [1]}, expected)
    cases.check()


def test_float_results() -> None:
    rng = np.random.default_rng(2)
    p = params("uint8", 0.031, 7)
    x = every_code(rng, "uint8", (2, 3, 9, 7))
    args = [x, scale_of(p), zero_of(p), scale_of(p), zero_of(p)]
    result = TensorType(DType.FLOAT32, None)
    cases = Cases()
    for name, row, record, attrs in (
        ("qnn.mean", "ReduceMean", ReduceAttrs((2, 3), True), {"axis": [2, 3], "keepdims": True}),
        (
            "qnn.avg_pool2d",
            "AveragePool",
            PoolAttrs((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
            {"pool_size": [3, 3], "padding": [1, 1, 1, 1]},
        ),
    ):
        evaluate = BY_NAME[row].contract
        assert evaluate is not None
        expected = evaluate(record, (x,), (QuantType(p, None),), (result,))
        assert expected is not None
        cases.add(name, args, attrs | {"out_dtype": "float32"}, expected[0])
    cases.check()


@pytest.mark.parametrize(
    ("name", "attrs", "reason"),
    [
        ("qnn.avg_pool2d", {}, "missing attributes ['pool_size']"),
        ("qnn.avg_pool2d", {"pool_size": [9, 9]}, "larger than the padded input"),
        ("qnn.avg_pool2d", {"pool_size": [2, 2], "layout": "NCHW4c"}, "layout is NCHW4c"),
        ("qnn.mean", {"axis": [4]}, "axis is 4 for 4 axes"),
        ("qnn.mean", {"out_dtype": "int32"}, "out_dtype int32"),
    ],
)
def test_wrong_calls_say_what_is_wrong(name: str, attrs: dict[str, Any], reason: str) -> None:
    p = params("int8", 1.0)
    x = relax.Var("x", tensor_type([1, 2, 5, 5], "int8"))
    with pytest.raises(GraphError) as error:
        relax.BlockBuilder().normalize(
            dialect.call(name, [x, scale_of(p), zero_of(p), scale_of(p), zero_of(p)], attrs)
        )
    assert reason in str(error.value)
