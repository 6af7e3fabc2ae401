"""8- and 4-bit floats on TVM: bytes, whose numbers the interpreter has bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm")
import tvm
from tvm import relax

import qdqbridge as qb
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.tvm.qnn.dialect.quantize import FORMATS, decoded
from qdqbridge.tvm.relax.dialect import call, tensor_type
from tests.onnx_models import Array, Builder, canonical

pytestmark = pytest.mark.relax
SIGNED = [dtype for dtype in FORMATS.values() if dtype is not DType.FLOAT8_E8M0]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, -1e-45]


def interesting(dtype: DType) -> Array:
    """Returns every number of a format, every midpoint, their neighbours, and random floats."""
    numbers = np.unique(decoded(dtype)[np.isfinite(decoded(dtype))])
    middles = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
    beyond = np.float32(dtype.largest) * np.array([1.01, 1.05, 1.07, 1.2, 1.5, 4, -1.07, -4], "f4")
    exact = np.concatenate([numbers, middles, beyond, np.array(SPECIAL, np.float32)])
    rng = np.random.default_rng(dtype.bits)
    free = rng.normal(size=2000) * np.exp2(rng.integers(-20, 18, 2000))
    with np.errstate(over="ignore"):
        ends = [np.nextafter(exact, np.float32(limit)) for limit in (-np.inf, np.inf)]
    return np.concatenate([exact, *ends, free.astype(np.float32)]).astype(np.float32)


def ran(name: str, args: Sequence[Any], attrs: Mapping[str, Any]) -> Array:
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor_type(args[0].shape, str(args[0].dtype)))
    with builder.function("main", [x]):
        y = builder.emit(call(f"qnn.{name}", [x, relax.const(args[1])], attrs))
        builder.emit_func_output(y)
    library: Any = tvm.compile(builder.finalize(), tvm.target.Target("llvm"))
    cpu: Any = tvm.cpu()
    return relax.VirtualMachine(library, cpu)["main"](tvm.runtime.tensor(args[0])).numpy()


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
@pytest.mark.parametrize("saturate", [True, False])
def test_quantize_and_back_as_the_interpreter(dtype: DType, saturate: bool) -> None:
    if not saturate and dtype.is_finite:
        pytest.skip("it has nothing beyond its largest number")
    for scale in (1.0, 0.3):
        params = QuantParams(
            dtype,
            np.asarray(scale, np.float32),
            np.zeros((), np.int32),
            saturate=saturate,  # type: ignore[arg-type]
        )
        x = interesting(dtype)
        attrs = {"axis": -1, "format": dtype.label, "saturate": saturate, "rounding": "nearest"}
        found = ran("quantize_minifloat", [x, np.float32(scale)], attrs)
        wanted = quantize(x, params)
        number = ~np.isnan(wanted.astype(np.float32))
        np.testing.assert_array_equal(found[number], wanted.view(np.uint8)[number])
        np.testing.assert_array_equal(np.isnan(found.view(dtype.numpy).astype("f4")), ~number)
        back = ran("dequantize_minifloat", [found, np.float32(scale)],
                   {"axis": -1, "format": dtype.label})  # fmt: skip
        np.testing.assert_array_equal(back, dequantize(found.view(dtype.numpy), params))


def network(elem_type: int, *, axis: int | None = None, saturate: int = 1) -> Graph:
    """Returns a product of a float8 activation and a float8 weight, moved and rounded again."""
    b = Builder(opset=28 if elem_type in SIXES else 23)
    x = b.input("x", ["n", 3, 8])
    low = b.op("QuantizeLinear", x, b.init(np.float32(0.5)), output_dtype=elem_type,
               saturate=saturate)  # fmt: skip
    low = b.op("Transpose", low, perm=[0, 2, 1])
    real = b.op("DequantizeLinear", low, b.init(np.float32(0.5)))
    w = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    scale = np.float32(0.25) if axis is None else np.array([0.25, 0.5, 0.125, 1], np.float32)
    weight = b.op("QuantizeLinear", b.init(w), b.init(scale), output_dtype=elem_type,
                  axis=1)  # fmt: skip
    weight = b.op("DequantizeLinear", weight, b.init(scale), axis=1)
    y = b.op("MatMul", real, weight)
    y = b.op("QuantizeLinear", y, b.init(np.float32(2)), output_dtype=elem_type)
    b.output(y, ["n", 8, 4], elem_type)
    return canonical(b.model())


SIXES = [getattr(TensorProto, n) for n in ("FLOAT6E2M3", "FLOAT6E3M2") if hasattr(TensorProto, n)]
"""onnx knows them since 1.23."""
TYPES = [
    *SIXES, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2FNUZ, TensorProto.FLOAT4E2M1,
]  # fmt: skip


@pytest.mark.parametrize("elem_type", TYPES)
def test_a_network_of_them(elem_type: int) -> None:
    graph = network(elem_type, axis=1)
    x = {"x": (np.random.default_rng(1).normal(size=(2, 3, 8)) * 3).astype(np.float32)}
    (found,), (wanted,) = qb.compile(graph).run(x).values(), evaluate(graph, x)[0].values()
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("keep_params", [False, True])
def test_read_back(keep_params: bool) -> None:
    for elem_type in TYPES:
        graph = network(elem_type, axis=1, saturate=int(elem_type != TensorProto.FLOAT8E5M2))
        module, params = qb.to_relax(graph, keep_params=keep_params)
        assert qb.from_relax(module, params).digest == graph.digest


def test_inputs_and_constants_are_their_bytes() -> None:
    b = Builder(opset=23)
    x = b.input("x", [2, 4], TensorProto.FLOAT8E4M3FN)
    b.output(b.op("DequantizeLinear", x, b.init(np.float32(3))), [2, 4])
    graph = canonical(b.model())
    codes = np.arange(8, dtype=np.uint8).reshape(2, 4) * 17
    given = {"x": codes.view(DType.FLOAT8_E4M3FN.numpy)}
    (found,), (wanted,) = qb.compile(graph).run(given).values(), evaluate(graph, given)[0].values()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("elem_type", [*TYPES, TensorProto.INT32])
def test_blocks_and_half_scales_are_read_back(elem_type: int) -> None:
    for scales in (np.float32, np.float16):
        graph = blocks(elem_type, scales)
        assert qb.from_relax(*qb.to_relax(graph)).digest == graph.digest


def blocks(elem_type: int, scales: type[np.floating[Any]]) -> Graph:
    """Returns a product whose weight has blocks of 3, the last a short one."""
    b, kind = Builder(opset=28 if elem_type in SIXES else 23), scales
    x = b.input("x", [2, 8], NP_TO_ONNX[kind])
    if elem_type != TensorProto.INT32:
        scale = b.init(kind(0.5))
        low = b.op("QuantizeLinear", x, scale, output_dtype=elem_type)
        x = b.op("DequantizeLinear", low, scale)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (8, 4)).astype(helper.tensor_dtype_to_np_dtype(elem_type))
    steps = b.init(rng.uniform(0.1, 1, (3, 4)).astype(kind))
    weight = b.op("DequantizeLinear", b.init(codes), steps, axis=0, block_size=3)
    b.output(b.op("MatMul", x, weight), [2, 4], NP_TO_ONNX[kind])
    return canonical(b.model())


NP_TO_ONNX = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16}
