"""Products as TFLite has them: sums that 32 bits hold, and weights around zero."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
pytest.importorskip("ai_edge_litert", reason="LiteRT, the judge")

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from tests.exact_sessions import exact_session
from tests.tflite_io.test_against_litert import by_litert

Array = NDArray[Any]
SHAPES = {"Conv": (6, 4, 1, 1), "ConvTranspose": (4, 6, 1, 1), "Gemm": (6, 4)}
AXIS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0}


def model(
    op: str, stored: Array, scale: Array, zero: Array, bias: Array | None, *, step: float = 0.07
) -> onnx.ModelProto:
    """A product of a stored activation, rounded again; scales of one or of each result."""
    axis: dict[str, Any] = {"axis": AXIS[op]} if np.ndim(scale) else {}
    held: dict[str, Any] = {
        "xs": np.float32(0.02), "xz": np.int8(3), "w": stored, "ws": scale, "wz": zero,
        "ys": np.float32(step), "yz": np.int8(5),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xr"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wr"], **axis),
    ]
    inputs = ["xr", "wr"]
    if bias is not None:
        units = (np.float32(0.02) * np.broadcast_to(scale, bias.shape)).astype(np.float32)
        held |= {"b": bias, "bs": units, "bz": np.zeros(bias.shape, np.int32)}
        nodes.append(helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["br"], axis=0))
        inputs.append("br")
    attributes: dict[str, Any] = {"transB": 1} if op == "Gemm" else {}
    nodes += [
        helper.make_node(op, inputs, ["yr"], **attributes),
        helper.make_node("QuantizeLinear", ["yr", "ys", "yz"], ["y"]),
    ]
    given, made = ([5, 4], [5, 6]) if op == "Gemm" else ([1, 4, 5, 5], [1, 6, 5, 5])
    graph = helper.make_graph(
        nodes, "product", [helper.make_tensor_value_info("x", TensorProto.INT8, given)],
        [helper.make_tensor_value_info("y", TensorProto.INT8, made)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def run(path: Path, x: Array, *, optimized: bool = True) -> Array:
    options = ort.SessionOptions()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return np.asarray(exact_session(path, options).run(None, {"x": x})[0])


def data(made: onnx.ModelProto, numbers: np.random.Generator) -> Array:
    extents = [dim.dim_value for dim in made.graph.input[0].type.tensor_type.shape.dim]
    return numbers.integers(-128, 128, extents).astype(np.int8)


def apart(one: Array, other: Array) -> Array:
    return np.abs(one.astype(int) - other.astype(int))


def around_zero(op: str, seed: int, folder: Path) -> None:
    """One weight with a zero point: a channel that does not fit is widened, and none beside it."""
    numbers = np.random.default_rng(seed)
    shape, axis = SHAPES[op], AXIS[op]
    unsigned, each, wide = (bool(seed >> bit & 1) for bit in range(3))
    dtype, middle = (np.uint8, 128) if unsigned else (np.int8, 0)
    zero = numbers.integers(-25, 26, 6 if each else ())
    zeros = zero.reshape([-1 if a == axis else 1 for a in range(len(shape))]) if each else zero
    codes = numbers.integers(-90, 91, shape) + zeros
    widened = int(numbers.integers(6))
    if wide:
        place = tuple(widened if a == axis else 0 for a in range(len(shape)))
        codes[place] = -128 if (zero[widened] if each else zero) > 0 else 127
    stored, zero_point = (codes + middle).astype(dtype), (zero + middle).astype(dtype)
    scale = numbers.uniform(0.008, 0.015, 6 if each else ()).astype(np.float32)
    bias = numbers.integers(-4000, 4000, 6).astype(np.int32) if seed & 8 else None
    made = model(op, stored, scale, zero_point, bias)
    x, path, written = data(made, numbers), folder / "m.onnx", folder / "m.tflite"
    onnx.save(made, path)
    graph = qb.load(path)
    qb.save(graph, written, overwrite=True)
    wanted, said = (qb.evaluate(g, {"x": x})["y"] for g in (graph, qb.load(written)))
    channels = apart(said, wanted).max(axis=tuple(a for a in range(wanted.ndim) if a != 1))
    assert not np.delete(channels, widened).any(), (seed, channels)
    assert channels[widened] <= int(wide), (seed, channels)
    # LiteRT's multipliers have 31 bits: a result on a tie may go to either side.
    assert apart(by_litert(written, {"x": x})[0], said).max() <= 1, seed


def beyond_32_bits(op: str, seed: int, folder: Path) -> None:
    """One bias that a quantizer has cut off at the ends of int32, or near them."""
    numbers = np.random.default_rng(seed)
    scale = numbers.uniform(0.005, 0.02, 6).astype(np.float32)
    tiny = numbers.integers(6)
    scale[tiny] = 1e-7
    bias = numbers.integers(-500, 500, 6).astype(np.int32)
    ends = (2**31 - 1, -(2**31), 2**31 - 40_000, -(2**31) + 30_000, 2**30)
    bias[tiny] = ends[seed % len(ends)]
    stored = numbers.integers(-127, 128, SHAPES[op]).astype(np.int8)
    made = model(op, stored, scale, np.zeros(6, np.int8), bias, step=0.05)
    x, path = data(made, numbers), folder / "m.onnx"
    onnx.save(made, path)
    graph, wanted = qb.load(path), run(path, x, optimized=False)
    assert np.array_equal(qb.evaluate(graph, {"x": x})["y"], wanted), seed
    qb.save(graph, folder / "m.tflite", overwrite=True)
    assert apart(by_litert(folder / "m.tflite", {"x": x})[0], wanted).max() <= 1, seed
    for profile in ("ort", "qoperator"):
        written = folder / f"{profile}.onnx"
        qb.save(graph, written, profile=profile, overwrite=True)
        found = run(written, x, optimized=profile == "ort")
        assert apart(found, wanted).max() <= 1, (seed, profile)  # another order of float32


@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("check", [around_zero, beyond_32_bits])
def test_products(check: Callable[[str, int, Path], None], op: str, tmp_path: Path) -> None:
    for seed in range(16):
        check(op, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("check", [around_zero, beyond_32_bits])
def test_more_products(check: Callable[[str, int, Path], None], op: str, tmp_path: Path) -> None:
    for seed in range(16, 120):
        check(op, seed, tmp_path)


@pytest.mark.parametrize("moved", [False, True])
def test_int32_that_litert_cannot_dequantize_is_refused_by_name(
    moved: bool, tmp_path: Path
) -> None:
    nodes = [helper.make_node("DequantizeLinear", ["x", "s", "z"], ["r"])]
    nodes.append(helper.make_node("Transpose" if moved else "Identity", ["r"], ["y"]))
    held = {"s": np.float32(0.01), "z": np.int32(0)}
    graph = helper.make_graph(
        nodes, "wide", [helper.make_tensor_value_info("x", TensorProto.INT32, [4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()],
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    with pytest.raises(UnsupportedTargetError, match="dequantizes no int32") as refusal:
        qb.save(qb.load(path), tmp_path / "m.tflite")
    assert "profile 'tflite'" in refusal.value.where
