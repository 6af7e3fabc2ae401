"""Operators of com.microsoft without a row on TVM, of open extents, beside onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import qdqbridge as qb
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_models import canonical
from tests.tvm.relax.targets import UNOPTIMIZED

_CLOSE = 2e-6
"""Sums of float32 in another order, relative to the largest result; off by 3e-7 here."""
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    op: str, operands: Sequence[Array | None], *, results: int = 1, constant: Sequence[int] = (),
    opened: Mapping[int, tuple[int, ...]] | None = None, **attributes: Any,
) -> tuple[ModelProto, dict[str, Array]]:  # fmt: skip
    """Returns a model of one node whose axes of ``opened`` operands have no extent, and feeds."""
    feeds, inputs, weights = dict[str, Array](), list[Any](), list[Any]()
    names = ["" if x is None else f"x{index}" for index, x in enumerate(operands)]
    for index, (name, x) in enumerate(zip(names, operands, strict=True)):
        if x is None:
            continue
        if index in constant:
            weights.append(numpy_helper.from_array(x, name))
            continue
        axes = (opened or {}).get(index, ())
        shape = [f"{name}_{a}" if a in axes else extent for a, extent in enumerate(x.shape)]
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        inputs.append(helper.make_tensor_value_info(name, kind, shape))
        feeds[name] = x
    outputs = [f"y{index}" for index in range(results)]
    node = helper.make_node(op, names, outputs, domain="com.microsoft", **attributes)
    infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "g", inputs, infos, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def check(made: ModelProto, feeds: dict[str, Array], path: Path) -> None:
    """The interpreter gives onnxruntime's bits, TVM comes close; the node comes back."""
    graph, wanted = canonical(made), ort_run(made, feeds)
    interpreted, found = qb.evaluate(graph, feeds), qb.compile(graph, UNOPTIMIZED).run(feeds)
    for index, array in enumerate(wanted):
        np.testing.assert_array_equal(interpreted[f"y{index}"], array)
        assert found[f"y{index}"].shape == array.shape
        most = max(1.0, float(np.abs(array).max(initial=0)))
        assert np.abs(found[f"y{index}"] - array).max(initial=0) < _CLOSE * most
    qb.save(graph, path)
    assert qb.load(path).digest == graph.digest


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_a_norm_of_groups_has_a_gate(activation: str, tmp_path: Path) -> None:
    operands: list[Array | None] = [real(2, 3, 32), real(8), real(2, 3, 32)]
    opened = {0: (0, 1), 2: (0, 1)}
    made = model("GatedRMSNorm", operands, opened=opened, activation=activation, epsilon=1e-6)
    check(*made, tmp_path / "m.onnx")


@pytest.mark.parametrize("results", [1, 2])
def test_gates_of_linear_attention(results: int, tmp_path: Path) -> None:
    operands: list[Array | None] = [real(2, 3, 4), real(4), real(4), real(2, 3, 4)]
    opened = {0: (0, 1), 3: (0, 1)}
    given = operands[: 2 + results] if results == 1 else operands
    check(*model("LinearAttentionGate", given, results=results, opened=opened), tmp_path / "m.onnx")


def test_a_sum_has_a_gate(tmp_path: Path) -> None:
    operands: list[Array | None] = [real(2, 3, 8), real(2, 3, 8), real(2, 3, 1)]
    opened = dict.fromkeys(range(3), (0, 1))
    check(*model("GatedAdd", operands, opened=opened), tmp_path / "m.onnx")


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("sections", [(2, 3, 3), (1, 1, 0)])
@pytest.mark.parametrize("flat", [False, True])
def test_three_places_turn_a_token(
    layout: int, sections: tuple[int, ...], flat: bool, tmp_path: Path
) -> None:
    half, heads, size = sum(sections), 2, 16
    told: dict[str, Any] = {"mrope_section": list(sections), "mrope_layout": layout}
    x = real(2, 5, heads * size) if flat else real(2, heads, 5, size)
    places = RNG.integers(0, 30, (3, 2, 5)).astype(np.int64)
    if 2 * half < size:
        told["rotary_embedding_dim"] = 2 * half
    made = model(
        "MRotaryEmbedding", [x, places, real(32, half), real(32, half)],
        opened={0: (0, 1) if flat else (0, 2), 1: (1, 2)}, num_heads=heads,
        interleaved=int(half == 2), **told,
    )  # fmt: skip
    check(*made, tmp_path / "m.onnx")


@pytest.mark.parametrize(("bits", "columns", "bias"), [(4, 41, True), (2, 48, False)])
def test_zero_points_between_codes(bits: int, columns: int, bias: bool, tmp_path: Path) -> None:
    rows, block = 5, 16
    blocks = -(-columns // block)
    codes = RNG.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
    points = RNG.uniform(0, (1 << bits) - 1, (rows, blocks)).astype(np.float32)
    offset = real(rows) if bias else None
    operands = [real(2, 3, columns), codes, real(rows, blocks), points, None, offset]
    made = model(
        "MatMulNBits", operands if bias else operands[:4], constant=(1, 2, 3, 5),
        opened={0: (0, 1)}, N=rows, K=columns, bits=bits, block_size=block,
    )  # fmt: skip
    check(*made, tmp_path / "m.onnx")


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("past", [0, 4])
def test_attention_of_integers(per_column: bool, past: int, tmp_path: Path) -> None:
    heads, size, hidden, length = 2, 8, 12, 3
    width = heads * size
    shape = (3 * width,) if per_column else ()
    scale = RNG.uniform(0.005, 0.02, shape).astype(np.float32)
    zero = RNG.integers(-3, 4, shape).astype(np.int8)
    mask = np.ones((2, past + length), np.int32)
    mask[1, -1] = 0
    x = RNG.integers(0, 256, (2, length, hidden)).astype(np.uint8)
    weight = RNG.integers(-128, 128, (hidden, 3 * width)).astype(np.int8)
    old = real(2, 2, heads, past, size) if past else None
    operands = [
        x, weight, real(3 * width), np.array(0.02, np.float32), scale, mask,
        np.array(120, np.uint8), zero, old,
    ]  # fmt: skip
    made = model(
        "QAttention", operands if past else operands[:-1], results=2 if past else 1,
        constant=(1, 2, 4, 7), opened={0: (0, 1), 5: (0, 1), 8: (1, 3)}, num_heads=heads,
        unidirectional=int(per_column),
    )  # fmt: skip
    check(*made, tmp_path / "m.onnx")


@pytest.mark.parametrize("segments", [False, True])
def test_embeddings_of_integers(segments: bool, tmp_path: Path) -> None:
    rows, hidden = (20, 16, 2), 8
    ids = RNG.integers(0, 20, (2, 5)).astype(np.int32)
    tables = [RNG.integers(0, 256, (n, hidden)).astype(np.uint8) for n in rows]
    norm = [RNG.integers(0, 256, hidden).astype(np.uint8) for _ in range(2)]
    scales = [np.array(RNG.uniform(0.01, 0.05), np.float32) for _ in range(5)]
    points = [np.array(RNG.integers(100, 140), np.uint8) for _ in range(5)]
    kinds = RNG.integers(0, 2, (2, 5)).astype(np.int32) if segments else None
    operands: list[Array | None] = [ids, kinds, *tables, *norm, None, *scales, *points]
    for index in () if segments else (4, 10, 15):
        operands[index] = None
    made = model(
        "QEmbedLayerNormalization", operands, results=2, constant=range(2, 18),
        opened={0: (0, 1), 1: (0, 1)}, epsilon=1e-12,
    )  # fmt: skip
    check(*made, tmp_path / "m.onnx")
