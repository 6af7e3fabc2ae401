"""Casts between float types next to quantized values (idiom J5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.app.pipeline import session
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.targets.profiles.export import export
from tests.core.canonical.idiom_models import X, node_of, notes_of, settled
from tests.onnx_models import Builder, ints, load, ops

HALVES: dict[int, Any] = {TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16}
CODES = ints((4, 3, 3, 3), 1)


def mixed_conv(half: int | None, *, scale: Any = 0.0371, opset: int = 21) -> onnx.ModelProto:
    """``DQ -> Cast(half) -> Conv -> Relu -> Cast(float) -> Q``, weights alike; no Cast for None."""
    b = Builder(opset)
    x = b.qdq(b.input("x", [1, 3, 5, 5]), scale, 128)
    w = b.weight(CODES, 0.0113)
    y = b.op("Relu", b.op("Conv", *(_cast(b, v, half) for v in (x, w)), pads=[1, 1, 1, 1]))
    b.output(b.qdq(_cast(b, y, TensorProto.FLOAT if half else None), 0.11, 3))
    return b.model()


def _cast(b: Builder, value: str, to: int | None) -> str:
    return value if to is None else b.op("Cast", value, to=to)


def half_scales(*, opset: int = 21) -> onnx.ModelProto:
    """``DQ of a float16 scale -> Cast(float) -> Conv -> Cast(float16) -> Q``."""
    half = np.float16
    b = Builder(opset)
    stored = b.q(b.input("x", [1, 3, 5, 5], TensorProto.FLOAT16), half(0.037), 128)
    x = b.op("Cast", b.dq(stored, half(0.037), 128), to=TensorProto.FLOAT)
    w = b.op("Cast", b.weight(CODES, half(0.0113)), to=TensorProto.FLOAT)
    y = b.op("Cast", b.op("Conv", x, w), to=TensorProto.FLOAT16)
    b.output(b.qdq(y, half(0.21), 120), elem_type=TensorProto.FLOAT16)
    return b.model()


def read_back(g: Graph, path: Path) -> None:
    export(g, path)
    again = canonicalize(read(path, canonicalize))
    assert again.digest == g.digest
    assert [n.origin.computed for n in again.nodes] == [n.origin.computed for n in g.nodes]


@pytest.mark.idiom("J5")
@pytest.mark.parametrize("half", HALVES)
def test_an_operator_between_casts_is_integer_and_remembers_its_type(
    half: int, tmp_path: Path
) -> None:
    g = canonicalize(load(mixed_conv(half)))
    verify(g)
    assert g.digest == settled(mixed_conv(None)).digest
    node = node_of(g, "Conv")
    assert node.origin.computed is DType.of(np.dtype(HALVES[half]))
    (reason,) = notes_of(g, "computed-type")
    assert str(node.origin.computed) in reason
    read_back(g, tmp_path / "again.onnx")


@pytest.mark.idiom("J5")
@pytest.mark.parametrize("make", [lambda: mixed_conv(TensorProto.FLOAT16), half_scales])
def test_the_exported_file_computes_bit_for_bit_as_the_original(make: Any, tmp_path: Path) -> None:
    model = make()
    path, exported = tmp_path / "model.onnx", tmp_path / "exported.onnx"
    path.write_bytes(model.SerializeToString())
    g = qb.load(path)
    assert "Cast" not in ops(g)
    assert node_of(g, "Conv").output.quant is not None
    qb.save(g, exported)
    x = np.random.default_rng(0).normal(0, 1.5, (1, 3, 5, 5))
    data = {"x": x.astype(g.inputs[0].type.dtype.numpy)}
    name = g.output_names[0]
    ours, theirs = (session(p).run(data, [name])[name] for p in (exported, path))
    np.testing.assert_array_equal(ours, theirs)
    found = qb.compare(g, path, data, local=True)
    assert found.unexplained == 0
    read_back(g, tmp_path / "again.onnx")


@pytest.mark.idiom("J5")
@pytest.mark.parametrize("exact", [True, False])
def test_a_cast_read_as_float_goes_where_every_code_has_its_number(exact: bool) -> None:
    """``DQ(float16) -> Cast(float)``: 8-bit codes times a power of two are float16 numbers."""
    scale = np.float16(2**-5 if exact else 0.037)
    b = Builder(21)
    x = b.qdq(b.input("x", [2, 4], TensorProto.FLOAT16), scale, 128)
    b.output(b.op("Det", b.op("Cast", b.op("Reshape", x, b.init(np.array([2, 2, 2]))), to=1)))
    g = settled(b.model())
    assert ("Cast" in ops(g)) is not exact


@pytest.mark.idiom("J5")
def test_a_cast_from_float32_is_part_of_the_dequantize() -> None:
    b = Builder(21)
    x = b.qdq(b.input("x", [2, 4]), 0.1, 128)
    half = b.op("Cast", x, to=TensorProto.FLOAT16)
    b.output(b.op("Cast", b.op("Sqrt", b.op("Abs", half)), to=TensorProto.FLOAT))
    g = settled(b.model())
    assert ops(g).count("Cast") == 1
    assert node_of(g, "dequantize").output.type.dtype is DType.FLOAT16


@pytest.mark.idiom("J5", "A21")
def test_a_cast_of_float_data_before_a_quantize_rounds_and_stays() -> None:
    half = np.float16
    b = Builder(21)
    x = b.op("Cast", b.input("x", [1, 3, 5, 5]), to=TensorProto.FLOAT16)
    x = b.qdq(x, half(X), 128)
    y = b.op("Conv", x, b.weight(CODES, half(2**-7)))
    b.output(b.op("Cast", b.qdq(y, half(0.21), 128), to=TensorProto.FLOAT))
    assert ops(settled(b.model()))[:3] == ["Cast", "quantize", "Conv"]


@pytest.mark.idiom("J5")
def test_a_cast_that_somebody_else_reads_keeps_the_operator_float() -> None:
    b = Builder(21)
    x = b.qdq(b.input("x", [1, 3, 5, 5]), X, 128)
    w = b.weight(CODES, 2**-7)
    half = [b.op("Cast", v, to=TensorProto.FLOAT16) for v in (x, w)]
    y = b.op("Cast", b.op("Conv", *half), to=TensorProto.FLOAT)
    b.output(b.qdq(y, 0.11, 3))
    b.output(b.op("Sigmoid", y))
    g = canonicalize(load(b.model()))
    verify(g)
    node = node_of(g, "Conv")
    assert node.output.quant is None
    assert node.operand(0).quant is not None
