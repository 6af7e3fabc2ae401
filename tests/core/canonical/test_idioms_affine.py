"""Affine maps per channel behind integer products (idiom B6): told of, folded on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqbridge.app.cli.failures import run as command
from qdqbridge.app.pipeline import load as load_file
from qdqbridge.app.sources import inspect_model
from qdqbridge.core.arguments import ReadingOptions
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.targets.profiles.export import export
from tests.core.canonical.at_work import data_for
from tests.core.canonical.idiom_models import X, constant_of, conv, node_of, notes_of, settled
from tests.onnx_models import Array, Builder, ints, load, ops, run

C = 4
COLUMN = (1, C, 1, 1)
SCALES = np.array([2**-7, 3 * 2**-9, 2**-6, 2**-8], np.float32)
FACTORS = np.array([0.5, 2, 1.25, 4], np.float32)
OFFSETS = np.array([1, -2, 3, 0.4], np.float32)


def column(b: Builder, numbers: Any) -> str:
    return b.init(np.asarray(numbers, np.float32).reshape(COLUMN))


def batch_norm(b: Builder, y: str, mean: float = 0.3) -> str:
    numbers = [FACTORS[::-1], OFFSETS, np.full(C, mean), np.array([1, 0.5, 2, 0.25])]
    return b.op("BatchNormalization", y, *(b.init(n.astype(np.float32)) for n in numbers))


def training_model(
    factors: Any = FACTORS, codes: Array | None = None, scale: Any = SCALES
) -> onnx.ModelProto:
    """``Conv(zero bias) -> Div -> Add -> BatchNormalization -> Relu -> Q -> DQ``."""
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 5, 5]), X, 128)
    codes = ints((C, 3, 3, 3), 1) if codes is None else codes
    w = b.weight(codes, scale, **({"axis": 0} if np.ndim(scale) else {}))
    y = b.op("Conv", x, w, b.init(np.zeros(C, np.float32)))
    y = b.op("Add", b.op("Div", y, column(b, factors)), column(b, OFFSETS))
    b.output(b.qdq(b.op("Relu", batch_norm(b, y)), 2**-4, 0))
    return b.model()


def folded(model: onnx.ModelProto) -> Graph:
    """Returns the graph with the option: verified, a fixpoint, written and read again."""
    g = canonicalize(load(model), ReadingOptions(fold_affine=True))
    verify(g)
    text = g.text()
    assert canonicalize(g).text() == text
    again = canonicalize(load(written(g)))
    assert again.digest == g.digest
    return g


def written(g: Graph) -> bytes:
    from qdqbridge.targets.profiles.export import exported_proto

    return exported_proto(g).SerializeToString()


def agree(model: onnx.ModelProto, g: Graph) -> None:
    """The ideals are equal but for what float32 parameters move; results differ on ties only."""
    raw = canonicalize(load(model))
    data = data_for(raw)
    for ours, want in zip(run(g, data), run(raw, data), strict=True):
        apart = np.abs(ours.astype(np.float64) - want)
        assert apart.max() <= 2**-4
        assert np.count_nonzero(apart) <= 0.02 * apart.size
    wide = np.float64
    exact, ideal = (evaluate(graph, data, exact=True)[0] for graph in (g, raw))
    for name in ideal:
        np.testing.assert_array_equal(exact[name].astype(wide), ideal[name].astype(wide))


@pytest.mark.idiom("B6")
def test_the_training_convolution_becomes_one_integer_convolution() -> None:
    model = training_model()
    g = folded(model)
    assert ops(g) == ["quantize", "Conv", "dequantize"]
    node = node_of(g, "Conv")
    weight, plain = node.operand(1), node_of(canonicalize(load(model)), "Conv").operand(1)
    assert weight.quant is not None and plain.quant is not None
    np.testing.assert_array_equal(constant_of(node, 1), ints((C, 3, 3, 3), 1))
    gain = FACTORS[::-1].astype(np.float64) / np.sqrt(
        np.array([1, 0.5, 2, 0.25], np.float32) + np.float64(np.float32(1e-5))
    )
    want = SCALES.astype(np.float64) / FACTORS * gain
    np.testing.assert_array_equal(weight.quant.params.scale, want.astype(np.float32))
    assert node.operand(2).quant is not None  # int32 in units of scale_x * scale_w
    agree(model, g)


@pytest.mark.idiom("B6")
def test_a_negative_factor_mirrors_the_integers() -> None:
    model = training_model(factors=FACTORS * np.array([1, -1, 1, -1], np.float32))
    g = folded(model)
    weight = constant_of(node_of(g, "Conv"), 1)
    signs = np.array([1, -1, 1, -1]).reshape(C, 1, 1, 1)
    np.testing.assert_array_equal(weight, ints((C, 3, 3, 3), 1) * signs)
    agree(model, g)


@pytest.mark.idiom("B6")
def test_a_weight_without_a_mirror_image_stays() -> None:
    codes = ints((C, 3, 3, 3), 1)
    codes[1, 0, 0, 0] = -128
    assert ops(folded(training_model(codes=codes))) == ["quantize", "Conv", "dequantize"]
    model = training_model(factors=-FACTORS, codes=codes)
    g = folded(model)
    assert "BatchNormalization" in ops(g)
    (reason,) = notes_of(g, "fold-affine")
    assert "Div 'node_div" in reason
    assert "no mirror image" in reason


@pytest.mark.idiom("B6")
@pytest.mark.parametrize("factor", [0.0, 1e-42, np.inf])
def test_a_factor_that_leaves_no_scale_is_refused(factor: float) -> None:
    b = Builder()
    y = conv(b, b.qdq(b.input("x", [1, 3, 2, 2]), X, 128))
    y = b.op("Mul", y, column(b, [1, 1, factor * 2.0**6, 1]))
    b.output(b.qdq(y, 2**-4, 0))
    g = folded(b.model())
    assert "Mul" in ops(g)
    if np.isfinite(factor):
        assert "leaves no usable scale" in notes_of(g, "fold-affine")[0]


@pytest.mark.idiom("B6")
def test_without_the_option_every_node_stays_and_is_named() -> None:
    model = training_model()
    g = settled(model)
    assert ops(g) == [
        "quantize", "Conv", "Div", "Add", "BatchNormalization", "quantize", "dequantize"
    ]  # fmt: skip
    (note,) = [n for n in g.notes if n.rule == "affine-behind-product"]
    assert note.node == node_of(g, "Conv").name
    assert note.culprits == tuple(
        node_of(g, name).name for name in ("Div", "Add", "BatchNormalization")
    )
    assert "--fold-affine" in note.reason


@pytest.mark.idiom("B6")
def test_the_option_reaches_the_flow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(training_model().SerializeToString())
    want = folded(training_model()).digest
    assert load_file(path, fold_affine=True).digest == want
    assert inspect_model(path, options=ReadingOptions(fold_affine=True)).digest == want
    assert load_file(path).digest != want
    assert command(["explain", str(path), "--fold-affine"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "fold-affine" in told
    out = tmp_path / "folded.onnx"
    export(load_file(path, fold_affine=True), out)
    assert canonicalize(read(out, canonicalize)).digest == want


@pytest.mark.idiom("B6")
@pytest.mark.parametrize("variant", ["Mul", "Div", "Sub", "reversed Sub", "scalar", "stored"])
def test_each_affine_operator_behind_a_dense_product(variant: str) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [5, 6]), X, 128)
    w = b.weight(ints((6, C), 3), SCALES, axis=1)
    y = b.op("Gemm", x, w, b.init(OFFSETS))
    match variant:
        case "Mul" | "Div":
            y = b.op(variant, y, b.init(FACTORS))
        case "Sub":
            y = b.op("Sub", y, b.init(OFFSETS * 3))
        case "reversed Sub":
            y = b.op("Sub", b.init(OFFSETS.reshape(1, C)), y)
        case "scalar":
            y = b.op("Mul", b.init(np.float32(0.7)), y)
        case _:
            y = b.op("Mul", y, b.weight(np.array([3, 5, 7, 9], np.int8), np.float32(0.3)))
    b.output(b.qdq(y, 2**-4, 100))
    g = folded(b.model())
    assert ops(g) == ["quantize", "Dense", "dequantize"]
    agree(b.model(), g)


@pytest.mark.idiom("B6")
@pytest.mark.parametrize("equal", [True, False])
def test_groups_of_a_transposed_convolution_share_their_factors(equal: bool) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 4, 3, 3]), X, 128)
    w = b.weight(ints((4, 2, 2, 2), 1), SCALES[:2], axis=1)
    y = b.op("ConvTranspose", x, w, group=2)
    y = b.op("Mul", y, column(b, [0.5, 2, 0.5, 2] if equal else FACTORS))
    b.output(b.qdq(y, 2**-4, 100))
    g = folded(b.model())
    assert ("Mul" in ops(g)) is not equal
    assert any("groups" in r for r in notes_of(g, "fold-affine")) is not equal
    agree(b.model(), g)


@pytest.mark.idiom("B6")
@pytest.mark.parametrize("why", ["spatial", "two readers", "output", "float input"])
def test_what_is_no_chain_stays(why: str) -> None:
    b = Builder()
    real = b.input("x", [1, 3, 2, 2])
    y = conv(b, real if why == "float input" else b.qdq(real, X, 128))
    shape = (1, C, 2, 2) if why == "spatial" else COLUMN
    z = b.op("Mul", y, b.init(np.full(shape, 0.7, np.float32)))
    b.output(b.qdq(z, 2**-4, 0))
    if why == "two readers":
        b.output(b.op("Sigmoid", y))
    if why == "output":
        b.output(y)
    g = folded(b.model())
    assert "Mul" in ops(g)
    assert not notes_of(g, "affine-behind-product")


def test_a_rounding_between_product_and_affine_map_is_kept() -> None:
    """``Conv -> Q -> DQ -> Add -> Q`` rounds twice; as one convolution it would round once."""
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 5, 5]), X, 128)
    y = b.qdq(b.op("Conv", x, b.weight(ints((C, 3, 3, 3), 1), SCALES, axis=0)), 2**-4, 100)
    b.output(b.qdq(b.op("Add", y, column(b, OFFSETS)), 2**-4, 90))
    plain, asked = (
        settled(b.model()),
        canonicalize(load(b.model()), ReadingOptions(fold_affine=True)),
    )
    assert asked.digest == plain.digest
    assert not [note for note in plain.notes if "fold_affine" in note.reason]
