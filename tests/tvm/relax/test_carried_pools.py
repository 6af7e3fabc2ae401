"""Pools without a row on TVM, beside onnxruntime's kernels, which the interpreter runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm")

import qdqbridge as qb
from tests.onnx_models import Builder, canonical

pytestmark = pytest.mark.relax

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "line": ((9,), {"kernel_shape": [3], "strides": [2], "p": 1}),
    "padded": ((5, 6), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "p": 3}),
    "ceil": ((6, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "dropped window": ((4,), {"kernel_shape": [2], "strides": [3], "pads": [1, 1], "ceil_mode": 1}),
    "dilated volume": ((5, 6, 4), {"kernel_shape": [2, 2, 2], "dilations": [2, 1, 2]}),
    "same": ((7, 5), {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    "same, elements left over": ((6,), {"kernel_shape": [1], "strides": [3],
                                        "auto_pad": "SAME_UPPER"}),
    "high power": ((6,), {"kernel_shape": [3], "p": 12}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_windows(case: str) -> None:
    extents, attributes = CASES[case]
    _check("LpPool", extents, attributes)


@pytest.mark.parametrize("name", ["LpPool", "GlobalLpPool"])
def test_roots_in_double(name: str) -> None:
    window: dict[str, Any] = {"kernel_shape": [3]} if name == "LpPool" else {}
    b = Builder(opset=18)
    b.input("x", [2, 3, 9], TensorProto.DOUBLE)
    b.output(b.op(name, "x", p=3, **window), elem_type=TensorProto.DOUBLE)
    x = np.random.default_rng(0).normal(size=(2, 3, 9))
    (found,) = qb.compile(canonical(b.model()), threads=1).run({"x": x}).values()
    size = 3 if window else 9
    windows = np.lib.stride_tricks.sliding_window_view(np.abs(x) ** 3, size, axis=2)
    np.testing.assert_allclose(found, np.cbrt(windows.sum(axis=-1)), rtol=1e-14)  # float64's ulp


@pytest.mark.parametrize("power", [1, 2, 3])
def test_all_of_space(power: int) -> None:
    _check("GlobalLpPool", (4, 5), {"p": power})


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(
    ("extents", "attributes"),
    [
        ((9,), {"kernel_shape": [3], "strides": [2]}),
        ((5, 6), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "dilations": [1, 2]}),
        ((6, 5), {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
        ((4, 3, 5), {"kernel_shape": [2, 2, 2], "auto_pad": "SAME_UPPER"}),
        ((6,), {"kernel_shape": [1], "strides": [2], "auto_pad": "SAME_UPPER", "ceil_mode": 1}),
    ],
)
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8])
def test_where_the_largest_stands(
    dtype: int, extents: tuple[int, ...], attributes: dict[str, Any], storage_order: int
) -> None:
    b = Builder(opset=18)
    b.input("x", [2, 3, *extents], dtype)
    order = storage_order if len(extents) > 1 else None
    values = b.op("MaxPool", "x", outputs=2, storage_order=order, **attributes)
    b.output(values, elem_type=dtype)
    b.output(f"{values}:1", elem_type=TensorProto.INT64)
    graph = canonical(b.model())
    data = np.random.default_rng(0).integers(-3, 3, (2, 3, *extents))
    data = data.astype(helper.tensor_dtype_to_np_dtype(dtype))
    found, wanted = qb.compile(graph, threads=1).run({"x": data}), qb.evaluate(graph, {"x": data})
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
    assert qb.from_relax(*qb.to_relax(graph)).digest == graph.digest


def _check(name: str, extents: tuple[int, ...], attributes: dict[str, Any]) -> None:
    b = Builder(opset=18)
    b.input("x", [2, 3, *extents])
    b.output(b.op(name, "x", **attributes))
    graph = canonical(b.model())
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 3, *extents)).astype(np.float32)}
    (found,) = qb.compile(graph, threads=1).run(feeds).values()
    (wanted,) = qb.evaluate(graph, feeds).values()
    np.testing.assert_allclose(found, wanted, rtol=2e-6)  # sums of float32 in another order
    assert qb.from_relax(*qb.to_relax(graph)).digest == graph.digest
