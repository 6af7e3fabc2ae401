"""Products of activations that are quantized while the model runs, held to onnxruntime's bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from qdqbridge.app.pipeline import load, save
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.printer import text
from qdqbridge.core.ops.dynamic import DYNAMIC_DENSE, DynamicAttrs
from tests.core.graph.graphs import W8, apply, const, graph, plain, typed
from tests.exact_sessions import exact_session
from tests.onnx_models import Builder, ops

INNER, UNITS = 37, 21
Fed = dict[str, np.ndarray]

ort.set_default_logger_severity(3)


def weight(seed: int, dtype: Any = np.int8) -> np.ndarray:
    ends = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(ends.min, ends.max + 1, (INNER, UNITS), dtype)


def vector(seed: int, size: int = UNITS) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1e-3, 1e-2, size).astype(np.float32)


def integer_steps(n: Builder, x: str, w: str, points: str, scale: str, bias: str) -> str:
    codes = n.op("DynamicQuantizeLinear", x, outputs=3)
    real = n.op("Cast", n.op("MatMulInteger", codes, w, f"{codes}:2", points), to=1)
    y = n.op("Mul", real, n.op("Mul", f"{codes}:1", scale))
    return n.op("Add", y, bias)


def integer_to_float(n: Builder, x: str, w: str, points: str, scale: str, bias: str) -> str:
    codes = n.op("DynamicQuantizeLinear", x, outputs=3)
    operands = [codes, w, f"{codes}:1", scale, f"{codes}:2", points, bias]
    return n.op("MatMulIntegerToFloat", *operands, domain="com.microsoft")


def one_node(n: Builder, x: str, w: str, points: str, scale: str, bias: str) -> str:
    return n.op("DynamicQuantizeMatMul", x, w, scale, points, bias, domain="com.microsoft")


def pairs(n: Builder, x: str, w: str, points: str, scale: str, bias: str) -> str:
    codes = n.op("DynamicQuantizeLinear", x, outputs=3)
    real = n.op("DequantizeLinear", codes, f"{codes}:1", f"{codes}:2")
    return n.op("Add", n.op("MatMul", real, n.op("DequantizeLinear", w, scale, points)), bias)


SPELLINGS = (integer_steps, integer_to_float, one_node)
"""Those that onnxruntime computes in integers."""
Form = Callable[[Builder, str, str, str, str, str], str]


def model(form: Form, dtype: Any = np.int8, *, columns: bool = False) -> onnx.ModelProto:
    n = Builder(17)
    x = n.input("x", ["batch", "rows", INNER])
    points = np.full(UNITS if columns else (), 3 if dtype == np.int8 else 131, dtype)
    scale = vector(2) if columns else np.float32(0.007)
    y = form(
        n, x, n.init(weight(1, dtype)), n.init(points), n.init(scale), n.init(vector(3))
    )  # fmt: skip
    n.output(y, ["batch", "rows", UNITS])
    return n.model()


def written(found: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(found, path)
    return path


def run(path: Path, fed: Fed) -> list[np.ndarray]:
    return [np.asarray(result) for result in exact_session(path).run(None, fed)]


def data(kind: str) -> np.ndarray:
    x = np.random.default_rng(5).normal(0, 1, (2, 9, INNER)).astype(np.float32)
    x = {"both": x, "positive": np.abs(x) + 3, "negative": -np.abs(x) - 3, "zeros": 0 * x}[kind]
    return np.ascontiguousarray(x)


@pytest.mark.parametrize("kind", ["both", "positive", "negative", "zeros"])
@pytest.mark.parametrize("form", SPELLINGS, ids=lambda f: f.__name__)
def test_bits_of_onnxruntime_from_the_file_and_from_what_is_saved(
    form: Form, kind: str, tmp_path: Path
) -> None:
    path, fed = written(model(form), tmp_path), {"x": data(kind)}
    found = load(path)
    assert [node.op for node in found.nodes] == [DYNAMIC_DENSE]
    (wanted,) = run(path, fed)
    np.testing.assert_array_equal(evaluate(found, fed)[0][found.output_names[0]], wanted)
    again = tmp_path / "again.onnx"
    save(found, again)
    np.testing.assert_array_equal(run(again, fed)[0], wanted)
    assert load(again).digest == found.digest


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_every_spelling_is_one_graph(dtype: Any, columns: bool, tmp_path: Path) -> None:
    forms = (*SPELLINGS, pairs)
    found = [load(written(model(s, dtype, columns=columns), tmp_path), fuse=True) for s in forms]
    assert len({text(graph) for graph in found}) == 1
    assert [node.op for node in found[0].nodes] == [DYNAMIC_DENSE]


def test_pairs_in_floats_differ_from_integers_in_last_bits_only(tmp_path: Path) -> None:
    path, fed = written(model(pairs), tmp_path), {"x": data("both")}
    assert DYNAMIC_DENSE not in [node.op for node in load(path).nodes]
    found, (wanted,) = load(path, fuse=True), run(path, fed)
    y = evaluate(found, fed)[0][found.output_names[0]]
    # onnxruntime sums INNER float32 terms
    np.testing.assert_allclose(y, wanted, rtol=0, atol=INNER * 2**-24 * np.abs(wanted).max())


@pytest.mark.parametrize("what", ["another scale", "16-bit weight", "sums beyond int32"])
def test_pairs_that_no_integer_product_computes_stay(what: str, tmp_path: Path) -> None:
    inner = 40_000 if what == "sums beyond int32" else INNER
    n = Builder(21)
    x = n.input("x", [2, inner])
    codes = n.op("DynamicQuantizeLinear", x, outputs=3)
    scale = n.input("s", []) if what == "another scale" else f"{codes}:1"
    real = n.op("DequantizeLinear", codes, scale, f"{codes}:2")
    dtype = np.int16 if what == "16-bit weight" else np.uint8
    w = n.op("DequantizeLinear", n.init(np.full((inner, 3), 255, dtype)), n.init(np.float32(0.5)))
    n.output(n.op("MatMul", real, w))
    names = ops(load(written(n.model(), tmp_path), fuse=True))
    assert "DynamicQuantizeLinear" in names and "DynamicDense" not in names


def float_model(folder: Path) -> Path:
    """Two products of one activation, and a third of what they give."""
    rng = np.random.default_rng(8)
    arrays = {
        "a": rng.normal(0, 0.1, (INNER, UNITS)), "b": rng.normal(0, 0.1, (INNER, UNITS)),
        "c": rng.normal(0, 0.1, (UNITS, 5)), "bias": rng.normal(0, 0.1, UNITS),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["xa"], "first"),
        helper.make_node("Add", ["xa", "bias"], ["biased"], "bias"),
        helper.make_node("MatMul", ["x", "b"], ["xb"], "second"),
        helper.make_node("Mul", ["biased", "xb"], ["both"], "product"),
        helper.make_node("MatMul", ["both", "c"], ["y"], "third"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m", INNER])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "m", 5])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()],
    )  # fmt: skip
    path = folder / "float.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8], ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
def test_files_of_quantize_dynamic(per_channel: bool, kind: QuantType, tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    quantize_dynamic(float_model(tmp_path), path, per_channel=per_channel, weight_type=kind)
    found, fed = load(path), {"x": data("both")}
    names = sorted(node.op.name for node in found.nodes)
    assert names == [*["DynamicDense"] * 3, "Mul"]
    (wanted,) = run(path, fed)
    np.testing.assert_array_equal(evaluate(found, fed)[0]["y"], wanted)
    again = tmp_path / "again.onnx"
    save(found, again)
    np.testing.assert_array_equal(run(again, fed)[0], wanted)
    kinds = [node.op_type for node in onnx.load(again).graph.node]
    assert kinds.count("DynamicQuantizeLinear") == 2  # one for both that read x


def test_integers_that_somebody_else_reads_stay(tmp_path: Path) -> None:
    n = Builder(17)
    x = n.input("x", [2, INNER])
    codes = n.op("DynamicQuantizeLinear", x, outputs=3)
    total = n.op("MatMulInteger", codes, n.init(weight(1)), f"{codes}:2")
    scale = n.op("Mul", f"{codes}:1", n.init(np.float32(0.1)))
    n.output(n.op("Mul", n.op("Cast", total, to=1), scale), [2, UNITS])
    n.output(total, [2, UNITS], TensorProto.INT32)
    found = load(written(n.model(), tmp_path))
    assert DYNAMIC_DENSE not in [node.op for node in found.nodes]


def test_a_scale_of_something_else_is_not_that_of_the_codes(tmp_path: Path) -> None:
    n = Builder(17)
    x, other = n.input("x", [2, INNER]), n.input("other", [])
    codes = n.op("DynamicQuantizeLinear", x, outputs=3)
    total = n.op("MatMulInteger", codes, n.init(weight(1)), f"{codes}:2")
    scale = n.op("Mul", other, n.init(np.float32(0.1)))
    n.output(n.op("Mul", n.op("Cast", total, to=1), scale), [2, UNITS])
    found = load(written(n.model(), tmp_path))
    assert DYNAMIC_DENSE not in [node.op for node in found.nodes]


def rowwise() -> Graph:
    x = plain("x", ("n", INNER))
    w = const(weight(1).T.copy(), W8)
    attributes, type_ = DynamicAttrs(rows=True), typed(("n", UNITS))
    return graph([x], apply("DynamicDense", x, w, type_=type_, attributes=attributes))


def test_rows_with_parameters_of_their_own_are_written_step_by_step(tmp_path: Path) -> None:
    found = rowwise()
    (name,) = found.output_names
    x = data("both")[0]
    rows = [evaluate(found, {"x": row[None]})[0][name][0] for row in x]
    np.testing.assert_array_equal(evaluate(found, {"x": x})[0][name], rows)
    save(found, tmp_path / "rows.onnx")
    np.testing.assert_array_equal(run(tmp_path / "rows.onnx", {"x": x})[0], rows)
