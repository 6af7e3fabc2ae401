"""Operators of language models, and of domains that nobody knows: carried, saved bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import qdqbridge as qb
from qdqbridge.app.cli.failures import run as command
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.errors import UnsupportedModelError, UnsupportedTargetError
from tests.exact_sessions import exact_session
from tests.onnx_models import Array, Builder, load

MS = "com.microsoft"
BATCH = 2
PREFILL, DECODE = (5, 0), (1, 6)
"""Tokens that are new, and that are in the cache."""


class Case(Builder):
    """A model with symbolic batch, sequence and past, and what it is fed."""

    def __init__(self) -> None:
        super().__init__(21)
        self.kinds: dict[str, str] = {}

    def real(self, name: str, *shape: int | str) -> str:
        return self.input(name, shape)

    def integers(self, name: str, kind: str, *shape: int | str) -> str:
        self.kinds[name] = kind
        return self.input(name, shape, TensorProto.INT64 if kind == "tokens" else TensorProto.INT32)

    def cache(self, heads: int, size: int) -> list[str]:
        return [self.real(f"past_{each}", "batch", heads, "past", size) for each in "kv"]

    def constant(self, *shape: int, seed: int = 0) -> str:
        return self.init(np.random.default_rng(seed).normal(0, 0.2, shape).astype(np.float32))

    def codes(self, *shape: int) -> str:
        return self.init(np.random.default_rng(7).integers(0, 256, shape).astype(np.uint8))

    def results(self, first: str, *shapes: list[Any]) -> Case:
        for index, shape in enumerate(shapes):
            self.output(first if index == 0 else f"{first}:{index}", shape)
        return self

    def feeds(self, tokens: int, past: int) -> dict[str, Array]:
        r = np.random.default_rng(3)
        extents = {"batch": BATCH, "heads": 4, "seq": tokens, "past": past}
        given: dict[str, Array] = {}
        for info in self.inputs:
            dims = info.type.tensor_type.shape.dim
            shape = [extents[d.dim_param] if d.dim_param else d.dim_value for d in dims]
            kind = self.kinds.get(info.name)
            if kind == "tokens":
                given[info.name] = r.integers(0, 64, shape).astype(
                    helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
                )
            elif kind == "last":
                given[info.name] = np.full(shape, past + tokens - 1, np.int32)
            elif kind == "total":
                given[info.name] = np.array(past + tokens, np.int32)
            else:
                given[info.name] = r.normal(size=shape).astype(np.float32)
        return given


def gqa(*, rotary: bool) -> Case:
    case = Case()
    if rotary:
        qkv = [case.real("qkv", "batch", "seq", 128), "", ""]
    else:
        widths = {"q": 64, "k": 32, "v": 32}
        qkv = [case.real(name, "batch", "seq", width) for name, width in widths.items()]
    lengths = [case.integers("last", "last", "batch"), case.integers("total", "total")]
    tables = [case.constant(64, 8), case.constant(64, 8, seed=1)] if rotary else []
    y = case.op(
        "GroupQueryAttention", *qkv, *case.cache(2, 16), *lengths, *tables, outputs=3, domain=MS,
        num_heads=4, kv_num_heads=2, do_rotary=int(rotary),
    )  # fmt: skip
    present: list[Any] = ["batch", 2, "total", 16]
    return case.results(y, ["batch", "seq", 64], present, present)


def mha() -> Case:
    case = Case()
    qkv = [case.real(name, "batch", "seq", 32) for name in "qkv"]
    y = case.op("MultiHeadAttention", *qkv, "", "", "", *case.cache(4, 8), outputs=3, domain=MS,
                num_heads=4)  # fmt: skip
    present: list[Any] = ["batch", 4, "total", 8]
    return case.results(y, ["batch", "seq", 32], present, present)


def rotary() -> Case:
    case = Case()
    x, tokens = case.real("x", "batch", "seq", 32), case.integers("at", "tokens", "batch", "seq")
    tables = case.constant(64, 4), case.constant(64, 4, seed=1)
    y = case.op("RotaryEmbedding", x, tokens, *tables, domain=MS, num_heads=4)
    return case.results(y, ["batch", "seq", 32])


def part_of_heads() -> Case:
    case = Case()
    x, tokens = case.real("x", "batch", 4, "seq", 16), case.integers("at", "tokens", "batch", "seq")
    tables = case.constant(64, 4), case.constant(64, 4, seed=1)
    at = {"num_heads": 4, "rotary_embedding_dim": 8}
    y = case.op("RotaryEmbedding", x, tokens, *tables, domain=MS, **at)
    return case.results(y, ["batch", 4, "seq", 16])


def part_of_open_heads() -> Case:
    case = Case()
    x, tokens = case.real("x", "batch", "heads", "seq", 16), case.integers("at", "tokens", 1)
    at = {"num_heads": 4, "rotary_embedding_dim": 8}
    tables = case.constant(64, 4), case.constant(64, 4, seed=1)
    y = case.op("RotaryEmbedding", x, tokens, *tables, domain=MS, **at)
    return case.results(y, ["batch", "heads", "seq", 16])


def embedded() -> Case:
    case = Case()
    tokens = case.input("tokens", ["batch", "seq"], TensorProto.INT32)
    case.kinds["tokens"] = "tokens"
    tables = [case.constant(n, 32) for n in (64, 64)]
    norm = case.constant(32), case.constant(32, seed=1)
    y = case.op("EmbedLayerNormalization", tokens, "", *tables, "", *norm, domain=MS, outputs=2)
    case.outputs.append(helper.make_tensor_value_info(y, 1, ["batch", "seq", 32]))
    return case


def norm_of_inputs() -> Case:
    case = Case()
    both = [case.real(name, "batch", "seq", 32) for name in "xs"]
    norm = [case.real(name, 32) for name in ("scale", "shift", "bias")]
    y = case.op("SkipLayerNormalization", *both, *norm, domain=MS, epsilon=1e-5)
    return case.results(y, ["batch", "seq", 32])


def skip_layer_norm() -> Case:
    case = Case()
    both = [case.real(name, "batch", "seq", 32) for name in "xs"]
    norm = case.constant(32), case.constant(32, seed=1)
    y = case.op("SkipLayerNormalization", *both, *norm, domain=MS, epsilon=1e-5)
    return case.results(y, ["batch", "seq", 32])


def gathered() -> Case:
    case = Case()
    tokens = case.integers("tokens", "tokens", "batch", "seq")
    y = case.op("GatherBlockQuantized", case.codes(64, 32), tokens, case.constant(64, 2),
                domain=MS, bits=4, block_size=32, quantize_axis=1, gather_axis=0)  # fmt: skip
    return case.results(y, ["batch", "seq", 64])


def gathered_by_run_time_scales() -> Case:
    case = Case()
    tokens = case.integers("tokens", "tokens", "batch", "seq")
    y = case.op("GatherBlockQuantized", case.codes(64, 32), tokens, case.real("scale", 64, 2),
                domain=MS, bits=4, block_size=32, quantize_axis=1, gather_axis=0)  # fmt: skip
    return case.results(y, ["batch", "seq", 64])


def experts() -> Case:
    case = Case()
    x, router = case.real("x", "seq", 32), case.real("router", "seq", 4)
    scales = [case.init(np.full((4, n), 0.01, np.float32)) for n in (64, 32)]
    y = case.op("QMoE", x, router, case.codes(4, 64, 16), scales[0], "", case.codes(4, 32, 32),
                scales[1], domain=MS, k=2, expert_weight_bits=4,
                activation_type="gelu")  # fmt: skip
    return case.results(y, ["seq", 32])


CASES: Mapping[str, Case] = {
    "GroupQueryAttention": gqa(rotary=False), "GroupQueryAttention, rotary": gqa(rotary=True),
    "MultiHeadAttention": mha(), "RotaryEmbedding": rotary(), "QMoE": experts(),
    "RotaryEmbedding, part of heads": part_of_heads(),
    "RotaryEmbedding, part of open heads": part_of_open_heads(),
    "GatherBlockQuantized, by scales of run time": gathered_by_run_time_scales(),
    "EmbedLayerNormalization": embedded(),
    "SkipLayerNormalization, of inputs": norm_of_inputs(),
    "SkipLayerNormalization": skip_layer_norm(), "GatherBlockQuantized": gathered(),
}  # fmt: skip


def ran(path: Path, feeds: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # QMoE adds up its experts in the order of threads
    session: Any = exact_session(path, options)
    return session.run(None, feeds)


@pytest.mark.parametrize("name", CASES)
def test_operators_of_language_models_are_saved_bit_for_bit(name: str, tmp_path: Path) -> None:
    case, path, saved = CASES[name], tmp_path / "model.onnx", tmp_path / "saved.onnx"
    onnx.save(case.model(), path)
    g = qb.load(path)
    qb.save(g, saved)
    assert qb.load(saved).digest == g.digest
    for tokens, past in (PREFILL, DECODE):
        feeds = case.feeds(tokens, past)
        wanted = ran(path, feeds)
        for a, b in zip(wanted, ran(saved, feeds), strict=True):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(wanted, evaluate(g, feeds)[0].values(), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)  # another order of sums


@pytest.mark.parametrize("opset", [17, 23, 25])
def test_operators_of_onnxruntime_ask_for_no_opset(opset: int, tmp_path: Path) -> None:
    """What lies in bytes of theirs is not a tensor of 2 or 4 bits, and a QuickGelu stays one."""
    b, r, shape = Builder(opset), np.random.default_rng(0), (16, 2, 4)
    table = b.init(r.integers(0, 256, (8, 16)).astype(np.uint8))
    scales = b.init(r.uniform(0.1, 1, (8, 2)).astype(np.float32))
    ids, codes = b.input("ids", ["n"], TensorProto.INT64), r.integers(0, 256, shape)
    at = {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    x = b.op("GatherBlockQuantized", table, ids, scales, domain=MS, **at)
    weight = [b.init(codes.astype(np.uint8)), b.init(np.ones(shape[:2], np.float32))]
    at = {"K": 32, "N": 16, "bits": 2, "block_size": 16}
    b.output(b.op("QuickGelu", b.op("MatMulNBits", x, *weight, domain=MS, **at), domain=MS), None)
    path, saved = tmp_path / "model.onnx", tmp_path / "saved.onnx"
    onnx.save(b.model(), path)
    qb.save(qb.load(path), saved)
    proto, feeds = onnx.load(saved), {"ids": np.array([0, 5])}
    assert {each.domain: each.version for each in proto.opset_import} == {"": opset, MS: 1}
    assert [node.op_type for node in proto.graph.node] == [
        "GatherBlockQuantized", "MatMulNBits", "QuickGelu",
    ]  # fmt: skip
    np.testing.assert_array_equal(ran(saved, feeds)[0], ran(path, feeds)[0])


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("opset", [21, 24, 25])
def test_swish_is_written_so_that_onnxruntime_loads_it(
    opset: int, quantized: bool, tmp_path: Path
) -> None:
    """Version 1.32 takes ONNX's own in files of opset 24 alone."""
    b = Builder(opset)
    scale, point = b.init(np.float32(0.8)), b.init(np.uint8(128))

    def ends(x: str) -> str:
        if not quantized:
            return x
        return b.op("DequantizeLinear", b.op("QuantizeLinear", x, scale, point), scale, point)

    x = ends(b.input("x", ["n", 2]))
    b.output(ends(b.op("Mul", x, b.op("Sigmoid", x))))
    path, saved = tmp_path / "model.onnx", tmp_path / "saved.onnx"
    onnx.save(b.model(), path)
    graph = qb.load(path, fuse=True)
    assert "Swish" in [node.op.name for node in graph.nodes]
    qb.save(graph, saved)
    assert {each.domain: each.version for each in onnx.load(saved).opset_import} == {
        "": opset, MS: 1,
    }  # fmt: skip
    feeds = {"x": np.linspace(-100, 100, 4000, dtype=np.float32).reshape(-1, 2)}
    np.testing.assert_array_equal(ran(saved, feeds)[0], ran(path, feeds)[0])
    assert qb.load(saved).digest == graph.digest


@pytest.mark.parametrize("opset", [17, 20, 25])
@pytest.mark.parametrize(
    ("op", "biased"),
    [("FastGelu", False), ("FastGelu", True), ("Gelu", False), ("BiasGelu", True)],
)
def test_gelus_of_onnxruntime_stay_theirs(
    op: str, biased: bool, opset: int, tmp_path: Path
) -> None:
    """Of half floats onnxruntime computes ONNX's Gelu by other steps: thousands of last bits."""
    b, half = Builder(opset), TensorProto.FLOAT16
    b.input("x", ["n", 2], half)
    bias = [b.init(np.array([0.25, -1], np.float16))] if biased else []
    b.output(b.op(op, "x", *bias, domain=MS), None, half)
    path, saved = tmp_path / "model.onnx", tmp_path / "saved.onnx"
    onnx.save(b.model(), path)
    g = qb.load(path)
    digest, g.as_read = g.digest, None  # as if it had been changed: not the file's own nodes
    qb.save(g, saved)
    proto = onnx.load(saved)
    assert {each.domain: each.version for each in proto.opset_import} == {"": opset, MS: 1}
    assert [node.op_type for node in proto.graph.node] == [op]
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    feeds = {"x": every[np.isfinite(every)].reshape(-1, 2)}
    np.testing.assert_array_equal(ran(saved, feeds)[0], ran(path, feeds)[0])
    assert qb.load(saved).digest == digest


def test_a_sum_that_others_read_stays_beside_its_gelu(tmp_path: Path) -> None:
    b = Builder(17)
    b.input("x", ["n", 2])
    b.output(b.op("BiasGelu", "x", b.init(np.array([0.25, -1], np.float32)), domain=MS), ["n", 2])
    path, saved = tmp_path / "model.onnx", tmp_path / "saved.onnx"
    onnx.save(b.model(), path)
    g = qb.load(path)
    g.outputs.append(g.nodes[0].output)
    g.output_names.append("total")
    qb.save(g, saved)
    assert [node.op_type for node in onnx.load(saved).graph.node][:2] == ["Add", "Gelu"]
    feeds = {"x": np.linspace(-4, 4, 64, dtype=np.float32).reshape(-1, 2)}
    np.testing.assert_array_equal(ran(saved, feeds)[0], ran(path, feeds)[0])
    np.testing.assert_array_equal(
        ran(saved, feeds)[1], feeds["x"] + np.array([0.25, -1], np.float32)
    )
    assert qb.load(saved).digest == g.digest


def test_batches_of_none() -> None:
    b = Builder(21)
    given = [b.input(name, ["b", 3, 16]) for name in "qkv"]
    b.output(b.op("MultiHeadAttention", *given, domain=MS, num_heads=2), None)
    feeds = {name: np.zeros((0, 3, 16), np.float32) for name in "qkv"}
    (found,) = evaluate(load(b.model()), feeds)[0].values()
    assert found.shape == (0, 3, 16)


def test_a_bound_of_zero_is_a_bound() -> None:
    """Without the attribute SwiGLU has none; the row's 0 means that."""
    b = Builder(21)
    x, logits = b.input("x", [3, 16]), b.input("logits", [3, 2])
    weights = [b.init(np.ones(shape, np.float32)) for shape in ((2, 32, 16), (2, 16, 16))]
    at: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": 0.0}
    b.output(b.op("MoE", x, logits, weights[0], "", weights[1], domain=MS, **at), [3, 16])
    feeds = {"x": np.ones((3, 16), np.float32), "logits": np.ones((3, 2), np.float32)}
    graph = load(b.model())
    assert graph.nodes[-1].op.name == "com.microsoft::MoE"
    (found,) = evaluate(graph, feeds)[0].values()
    assert not found.any()


def test_a_cache_grows_by_an_extent_of_its_own() -> None:
    g = load(CASES["GroupQueryAttention"].model())
    y, *cache = (value.type.shape for value in g.outputs)
    assert y == ("batch", "seq", 64)
    for shape in cache:
        assert shape is not None and shape[:2] + shape[3:] == ("batch", 2, 16)
        assert isinstance(shape[2], str) and shape[2] != "past"


def foo(**attributes: Any) -> Builder:
    b = Builder(21)
    b.output(b.op("Foo", b.input("x", ["batch", 8]), domain="my.company", **attributes), ["b", 3])
    return b


def test_a_domain_that_nobody_knows_is_carried_by_every_verb(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.onnx" for name in ("one", "two", "out")]
    onnx.save(foo(strength=3).model(), files[0])
    onnx.save(foo(strength=4).model(), files[1])
    one, two, out = map(str, files)
    for arguments in (["inspect", one], ["explain", one], ["canonicalize", one],
                      ["export", one, "-o", out], ["diff", one, out]):  # fmt: skip
        assert command(arguments) == 0, arguments
    assert command(["diff", one, two]) == 1
    node, original = (onnx.load(path).graph.node[0] for path in (out, one))
    assert (node.op_type, node.domain) == ("Foo", "my.company")
    assert list(node.attribute) == list(original.attribute)


def test_a_domain_that_nobody_knows_is_refused_by_whoever_has_to_run_it() -> None:
    g = load(foo().model())
    with pytest.raises(UnsupportedModelError, match=r"my\.company::Foo"):
        evaluate(g, {"x": np.ones((2, 8), np.float32)})
    with pytest.raises(UnsupportedTargetError, match=r"my\.company::Foo"):
        qb.compile(g)


@pytest.mark.parametrize(
    ("reader", "makes"),
    [
        ("Transpose", TensorProto.FLOAT),
        ("Not", TensorProto.BOOL),
        ("BitwiseNot", TensorProto.INT64),
    ],
)
def test_what_reads_an_unknown_result_says_its_type(
    reader: str, makes: int, tmp_path: Path
) -> None:
    b = Builder(21)
    b.output(b.op(reader, b.op("Foo", b.input("x", [2]), domain="my.company")), None, makes)
    g = load(b.model())
    assert g.nodes[0].output.type.dtype is g.outputs[0].type.dtype
    qb.save(g, tmp_path / "saved.onnx")
    assert qb.load(tmp_path / "saved.onnx").digest == canonicalize(g).digest


def test_the_declared_type_of_an_unknown_result_is_kept(tmp_path: Path) -> None:
    b = Builder(21)
    made = b.op("Foo", b.input("x", ["batch", 8]), domain="my.company")
    b.output(b.op("Sqrt", made), ["batch", 3], TensorProto.FLOAT16)
    model = b.model()
    info = helper.make_tensor_value_info(made, TensorProto.FLOAT16, ["batch", 3])
    model.graph.value_info.append(info)
    qb.save(load(model), tmp_path / "saved.onnx")
    saved = onnx.load(tmp_path / "saved.onnx").graph
    assert [v.type for v in saved.value_info if v.name == saved.node[0].output[0]] == [info.type]


def recurrent() -> tuple[Builder, Array]:
    b, r = Builder(17), np.random.default_rng(1)
    weights = (b.init(r.normal(0, 0.2, (1, 32, n)).astype(np.float32)) for n in (4, 8))
    b.output(b.op("LSTM", b.input("x", ["seq", "batch", 4]), *weights, hidden_size=8))
    return b, r.normal(size=(5, 2, 4)).astype(np.float32)


def attending() -> tuple[Builder, Array]:
    b, r = Builder(17), np.random.default_rng(1)
    weights = (b.init(r.normal(0, 0.2, shape).astype(np.float32)) for shape in ((32, 96), 96))
    x = b.input("x", ["batch", "seq", 32])
    b.output(b.op("Attention", x, *weights, domain=MS, num_heads=4))
    return b, r.normal(size=(2, 3, 32)).astype(np.float32)


@pytest.mark.parametrize("make", [recurrent, attending])
def test_what_onnxruntime_quantizes_dynamically_is_carried_bit_for_bit(
    make: Any, tmp_path: Path
) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    builder, x = make()
    onnx.save(builder.model(), tmp_path / "float.onnx")
    path, saved = tmp_path / "dynamic.onnx", tmp_path / "saved.onnx"
    quantize_dynamic(tmp_path / "float.onnx", path, weight_type=QuantType.QInt8)
    g = qb.load(path)
    assert any("DynamicQuantizeLSTM" in n.op.name or "QAttention" in n.op.name for n in g.nodes)
    qb.save(g, saved)
    (wanted,) = ran(path, {"x": x})
    np.testing.assert_array_equal(wanted, ran(saved, {"x": x})[0])
    (found,) = evaluate(g, {"x": x})[0].values()
    np.testing.assert_array_equal(wanted, found)
