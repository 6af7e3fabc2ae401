"""TensorRT's quantization in files of ModelOpt: ONNX's own by another name, MXFP8 and NVFP4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import qdqbridge as qb
from tests.onnx_models import Builder, canonical, ops, run

F8, F4, E8 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def quantized(domain: str, prefix: str, stored: int, block: int | None) -> Builder:
    """A product of quantized factors, by the names of TensorRT or of ONNX."""
    b = Builder(25)
    at: dict[str, Any] = {} if block is None else {"axis": 1, "block_size": block}
    to = {} if prefix else {"output_dtype": stored}
    scale = b.init(np.float32(0.125) if block is None else np.full((6, 4), 0.125, np.float32))
    w = b.op(f"{prefix}QuantizeLinear", b.init(floats(6, 8)), scale, domain=domain, **at, **to)
    w = b.op(f"{prefix}DequantizeLinear", w, scale, domain=domain, **at)
    b.output(b.op("Gemm", b.input("x", [3, 8]), w, transB=1), [3, 6])
    return b


@pytest.mark.idiom("L6")
@pytest.mark.parametrize(
    ("prefix", "stored", "block"),
    [("", TensorProto.FLOAT8E4M3FN, None), ("TRT_FP8", TensorProto.FLOAT8E4M3FN, None),
     ("TRT_INT4", TensorProto.INT4, 2)],
)  # fmt: skip
def test_q_and_dq_of_tensorrt_are_those_of_onnx(
    prefix: str, stored: int, block: int | None
) -> None:
    whole = canonical(quantized("", "", stored, block).model())
    found = canonical(quantized("trt", prefix, stored, block).model())
    assert found.digest == whole.digest
    assert any(value.quant is not None for value in found.values())


def mxfp8(x: Any) -> Any:
    blocks = x.reshape(-1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(448)
    with np.errstate(divide="ignore"):  # a block of zeros has the smallest power
        power = np.exp2(np.maximum(np.ceil(np.log2(largest)), -127))
    return ((blocks / power).astype(F8).astype(np.float32) * power).reshape(x.shape)


def fp4(x: Any, scale: Any) -> Any:
    blocks = x.reshape(-1, 16)
    own = (np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(6) / scale).astype(F8)
    step = own.astype(np.float32) * scale
    with np.errstate(invalid="ignore"):  # a block of zeros has no scale
        real = (blocks / step).astype(F4).astype(np.float32) * step
    return np.nan_to_num(real).reshape(x.shape)


def of_blocks(kind: str, shape: list[Any], *, opset: int = 20, **more: Any) -> Builder:
    """Activations in blocks, as ModelOpt writes them."""
    b = Builder(opset)
    x = b.input("x", shape)
    if kind == "mxfp8":
        at: dict[str, Any] = {"axis": -1, "block_size": 32, **more}
        q = b.op("TRT_MXFP8DynamicQuantize", x, domain="trt", outputs=2, **at)
        y = b.op("TRT_MXFP8DequantizeLinear", q, f"{q}:1", domain="trt", **at, output_dtype=1)
    else:
        at = {"axis": -1, "block_size": 16, **more}
        scale = b.init(np.float32(0.01))
        q = b.op("TRT_FP4DynamicQuantize", x, scale, domain="trt", outputs=2, **at)
        steps = b.op("DequantizeLinear", f"{q}:1", scale)
        y = b.op("DequantizeLinear", q, steps, axis=-1, block_size=16)
    b.output(y, shape)
    return b


@pytest.mark.idiom("L10")
@pytest.mark.parametrize(("kind", "opset"), [("mxfp8", 17), ("mxfp8", 20), ("fp4", 23)])
def test_activations_in_blocks(kind: str, opset: int, tmp_path: Path) -> None:
    graph = canonical(of_blocks(kind, ["n", 3, 64], opset=opset).model())
    x = floats(2, 3, 64)
    x[0, 0], x[0, 1, :32] = 0, 448 * 2.0**-9  # zeros, and what a power of two fits
    want = mxfp8(x) if kind == "mxfp8" else fp4(x, np.float32(0.01))
    np.testing.assert_array_equal(run(graph, {"x": x})[0], want)
    qb.save(graph, tmp_path / "m.onnx")
    again = qb.load(tmp_path / "m.onnx")
    assert again.digest == graph.digest
    np.testing.assert_array_equal(run(again, {"x": x})[0], want)


@pytest.mark.idiom("L10")
@pytest.mark.parametrize("to", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_weights_in_blocks_of_powers_of_two(to: int) -> None:
    b = Builder(20)
    codes, powers = floats(6, 64).astype(F8), np.arange(120, 132, dtype=np.uint8).reshape(6, 2)
    stored = helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [6, 64], codes.tobytes(), raw=True)
    b.initializers.append(stored)
    w = b.op(
        "TRT_MXFP8DequantizeLinear", "w", b.init(powers), domain="trt", axis=-1, block_size=32,
        output_dtype=to,
    )  # fmt: skip
    x = b.input("x", [3, 64])
    b.output(b.op("Gemm", x, b.op("Cast", w, to=TensorProto.FLOAT), transB=1), [3, 6])
    graph = canonical(b.model())
    steps = np.ldexp(np.float32(1), powers.astype(int) - 127)
    real = codes.astype(np.float32) * np.repeat(steps, 32, axis=1)
    real = real.astype(np.float16).astype(np.float32) if to == TensorProto.FLOAT16 else real
    data = floats(3, 64, seed=1)
    # sums of 64 float32 products in another order
    np.testing.assert_allclose(run(graph, {"x": data})[0], data @ real.T, 1e-5, 1e-3)
    assert any(value.quant is not None and value.is_constant for value in graph.values())


@pytest.mark.idiom("L10")
@pytest.mark.parametrize(
    ("shape", "more"), [([2, 60], {}), ([64, 2], {"axis": 0}), ([2, "n"], {}), (None, {})]
)
def test_blocks_that_do_not_fill_the_last_axis_are_kept(shape: Any, more: Any) -> None:
    graph = canonical(of_blocks("mxfp8", shape, **more).model())
    assert ops(graph)[0] == "trt::TRT_MXFP8DynamicQuantize"
    assert any("TRT_MXFP8DynamicQuantize" in note.reason for note in graph.notes)
