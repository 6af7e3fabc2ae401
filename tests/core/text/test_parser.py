"""The text form is read back: the same digest, errors with a place, and nothing but errors."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import NestedType, QuantType, TensorType
from qdqbridge.core.ops.attributes import ClipAttrs, ResizeAttrs
from qdqbridge.core.ops.composition import CompositionAttrs, Step
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.errors import InputDataError, InvalidModelError, ModelFileError
from tests.core.graph.graphs import U8, apply, const, dq, graph, plain, q, quant, stored
from tests.onnx_io.digest_trips import loaded
from tests.onnx_io.random_models import random_model
from tests.places import ROOT

MODELS = sorted((ROOT / "models").glob("*.onnx"))
COLLECTIONS = [ROOT.parent / "shared" / name for name in ("producers", "models")]


def check(g: Graph) -> Graph:
    """Reads a graph back from both complete forms; returns what the first gives."""
    text = g.text("inline")
    back = qb.parse(text)
    assert back.digest == g.digest
    assert back.text("inline") == text
    assert [value.type for value in back.inputs] == [value.type for value in g.inputs]
    assert [value.name for value in back.inputs] == [value.name for value in g.inputs]
    assert back.output_names == g.output_names
    weights: dict[str, np.ndarray] = {}
    assert qb.parse(g.text(weights), weights).digest == g.digest
    for node, read in zip(g.nodes, back.nodes, strict=True):
        assert read.op is node.op
        assert read.attributes == node.attributes
        assert [v.type for v in read.outputs] == [v.type for v in node.outputs]
    return back


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("canonical", [True, False], ids=["canonical", "raw"])
def test_models_come_back(path: Path, canonical: bool) -> None:
    g = qb.load(path, canonical=canonical)
    back = check(g)
    (x,) = g.inputs
    shape = [2 if isinstance(dim, str) else dim for dim in x.type.shape or ()]
    data = {x.name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    ours, theirs = qb.evaluate(g, data), qb.evaluate(back, data)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("seed", range(40))
def test_random_models_come_back(seed: int) -> None:
    try:
        g = loaded(random_model(seed))
    except qb.QdqBridgeError as error:
        pytest.skip(f"it is not read: {error.what}")
    check(g)


@pytest.mark.parametrize("folder", COLLECTIONS, ids=lambda path: path.name)
def test_a_sample_of_the_collections_comes_back(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".onnx", ".tflite"))
    if not files:
        pytest.skip("the collection is not here")
    for path in files[:: len(files) // 12]:
        try:
            g = qb.load(path)
        except qb.QdqBridgeError:
            continue
        check(g)


def _of_every_type() -> Graph:
    rng = np.random.default_rng(0)
    results: list[Value] = []
    for dtype in DType:
        if dtype is DType.STRING:
            data = np.array([["a'b\n", 'ü"'], ["\\", ""]], object)
        else:
            size = dtype.numpy.itemsize
            bits = rng.integers(0, 256, (6, 5, size), np.uint8)
            if dtype.bits < 8 or dtype is DType.BOOL:
                bits %= 1 << min(dtype.bits, 1)
            data = bits.view(dtype.numpy)[..., 0]
        for part in (data, data[:1, :2], data[0, 0] if dtype is not DType.STRING else data[0]):
            value = Value(TensorType(dtype, np.shape(part)), constant=Constant.of(np.asarray(part)))
            results.append(value)
    x = plain("x", (2,))
    return graph([x], dq(q(x, U8)), *results)


def test_constants_of_every_type() -> None:
    g = _of_every_type()
    back = check(g)
    for a, b in zip(g.outputs[1:], back.outputs[1:], strict=True):
        assert a.constant is not None
        assert b.constant is not None
        assert a.constant.numpy().tolist() == b.constant.numpy().tolist() or (
            a.constant.numpy().tobytes() == b.constant.numpy().tobytes()  # not a number
        )


@pytest.mark.parametrize(
    "params",
    [
        quant(DType.INT8, np.array([0.1, 0.2, 0.3, 0.4], np.float32), [1, 2, 3, 4], axis=0),
        quant(DType.UINT4, np.full((2, 4), 0.1, np.float32), np.eye(2, 4), axis=0, block_size=2),
        quant(DType.INT8, np.full((4, 1), 0.1, np.float32), axis=1, block_size=4),
        quant(DType.INT16, np.float32(0.1), 3, qmin=-5, qmax=7),
        quant(DType.FLOAT8_E4M3FN, np.float16(0.1), expressed_dtype=DType.FLOAT16, saturate=False),
        quant(
            DType.FLOAT4_E2M1,
            np.array([[0.5, 2.0]] * 4, DType.FLOAT8_E8M0.numpy),
            axis=1,
            block_size=2,
            expressed_dtype=DType.BFLOAT16,
        ),
    ],
    ids=str,
)
def test_parameters_of_every_granularity(params: object) -> None:
    assert isinstance(params, type(U8))
    x = stored("x", params, (4, 4))
    check(graph([x], dq(x)))


def test_shapes_names_and_attributes() -> None:
    x = Value(TensorType(DType.FLOAT32, ("batch size", "(n*8)", 0)), "a 'name'")
    y = Value(TensorType(DType.FLOAT32, None), "y")
    z = Value(NestedType(DType.FLOAT32, None, ("optional", "sequence")), "z")
    clip = apply("Clip", x, attributes=ClipAttrs(float("-inf"), None), type_=x.type)
    div, erf = (Step(BY_NAME[n], NO_ATTRIBUTES, o) for n, o in (("Div", (0, 1)), ("Erf", (2,))))
    composed = apply(
        "Composition", y, const(np.float32(2)), attributes=CompositionAttrs((div, erf)),
        type_=y.type,
    )  # fmt: skip
    sizes = ResizeAttrs("linear", "asymmetric", "floor", (1.0, 1.5), None, -0.5)
    resized = apply("Resize", plain("w", (2, 4)), attributes=sizes, type_=y.type)
    g = graph([x, y, z], clip, composed, z)
    check(g)
    w = resized.producer.operand(0) if resized.producer else None
    assert w is not None
    check(graph([w], resized))


def test_equal_constants_are_written_and_kept_once() -> None:
    data = np.arange(40, dtype=np.float32)
    x = plain("x", (40,))
    g = graph([x], apply("Add", apply("Mul", x, const(data)), const(data)))
    text = g.text("inline")
    assert text.count("base64:") == 1
    back = qb.parse(text)
    a, b = (node.operand(1).constant for node in back.nodes)
    assert a is b


def test_by_hand() -> None:
    g = qb.parse(
        """
        // a comment
        qnn-raw 1
        input %x: float32[batch, 2]
        %y = Add(%x, const float32[2] [1 -2.5]): float32[batch, 2]
        %z = Softmax(%y) {axes=[1]}: float32[batch, 2]
        output %z
        output %y "sum"
        """
    )
    assert [value.name for value in g.inputs] == ["x"]
    assert g.output_names == ["z", "sum"]
    out = qb.evaluate(g, {"x": np.zeros((1, 2), np.float32)})
    assert out["sum"].tolist() == [[1.0, -2.5]]


HEAD = "qnn-raw 1\ninput %0: float32[2,3]\n"
BAD = {
    "version": ("qnn-raw 0\n", "line 1:1", "version"),
    "sign": (HEAD + "%1 = Relu(%0)$: float32", "line 3:14", "no such sign"),
    "undefined": (HEAD + "%1 = Relu(%7): float32", "line 3:11", "not defined"),
    "twice": (HEAD + "%0 = Relu(%0): float32", "line 3:1", "defined twice"),
    "operator": (HEAD + "%1 = Rleu(%0): float32", "line 3:6", "no such operator"),
    "attribute": (HEAD + "%1 = Softmax(%0) {axis=[1]}: float32", "line 3:19", "not expected"),
    "missing": (HEAD + "%1 = Softmax(%0) {}: float32", "line 3:18", "missing"),
    "type": (HEAD + "%1 = Relu(%0): float33", "line 3:16", "element type"),
    "elements": (HEAD + "output const int8[2] [1]", "line 3:22", "fit the shape"),
    "range": (HEAD + "output const int8[1] [128]", "line 3:23", "-128 to 127"),
    "digits": (HEAD + "output const int8[1] [" + "9" * 10**6 + "]", "line 3:23", "integer"),
    "bomb": (HEAD + "output const int8[99999999999,99999999] [1]", "line 3:41", "fit the shape"),
    "base64": (HEAD + "output const int8[1] #1:00=base64:A", "line 3:28", "base64"),
    "hash": (HEAD + "output const int8[1] #1:00=base64:AAAA", "line 3:22", "hash"),
    "nested": (HEAD + "input %1: " + "sequence<" * 10**5, "line 3:155", "too deep"),
    "outputs": (HEAD, "line 3:1", "no outputs"),
    "scales": (HEAD + "input %1: quant<int8, [1 1], 0, axis=0>[3]", "line 3:11", "scales"),
    "axis": (HEAD + "input %1: quant<int8, 1, 0, axis=0>[3]", "line 3:11", "axis"),
    "stored range": (HEAD + "input %1: quant<int8, 1, 0, range=0..300>[3]", "line 3:11", "range"),
    "results": (HEAD + "%1, %2 = Relu(%0): float32", "line 3:1", "one type"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_say_where(case: str) -> None:
    text, where, what = BAD[case]
    with pytest.raises(ModelFileError) as caught:
        qb.parse(text)
    assert caught.value.where == where
    assert re.search(what, caught.value.what)
    assert caught.value.why
    assert caught.value.fix


def test_a_node_that_its_operator_does_not_take() -> None:
    with pytest.raises(InvalidModelError, match="Concat") as caught:
        qb.parse(HEAD + "%1 = Concat(%0) {axis=5}: float32\noutput %1")
    assert caught.value.where == "line 3:1"


@pytest.mark.parametrize("operands", ["[]", "[Erf()]", "[Erf(1)]", "[Erf(0) Add(0,7)]"])
def test_a_composition_of_what_is_not_there(operands: str) -> None:
    with pytest.raises(InvalidModelError, match="Composition"):
        qb.parse(HEAD + f"%1 = Composition(%0) {{steps={operands}}}: float32\noutput %1")


@pytest.mark.parametrize("scale", ["nan", "inf", "0", "-1"])
def test_a_resize_by_no_number(scale: str) -> None:
    fixed = "mode='nearest', coordinate_transformation_mode='half_pixel', nearest_mode='floor'"
    with pytest.raises(InvalidModelError, match="positive and finite"):
        qb.parse(
            HEAD + f"%1 = Resize(%0) {{{fixed}, scales=[1 {scale}], sizes=None}}: float32\n"
            "output %1"
        )


def test_weights_that_are_missing_or_others() -> None:
    data = np.arange(40, dtype=np.float32)
    x = plain("x", (40,))
    weights: dict[str, np.ndarray] = {}
    text = graph([x], apply("Mul", x, const(data))).text(weights)
    (key,) = weights
    assert weights[key] is data or np.shares_memory(weights[key], data)
    with pytest.raises(InputDataError, match="missing"):
        qb.parse(text)
    with pytest.raises(InputDataError, match="not those"):
        qb.parse(text, {key: data + 1})
    with pytest.raises(InputDataError, match="cannot take what text is given"):
        qb.parse(b"qnn-raw 1")  # type: ignore[arg-type]


def test_an_npz_file_keeps_weights(tmp_path: Path) -> None:
    g = qb.load(MODELS[0])
    weights: dict[str, np.ndarray] = {}
    text = g.text(weights)
    kept_weights: dict[str, Any] = dict(weights)
    np.savez(tmp_path / "weights.npz", **kept_weights)
    with np.load(tmp_path / "weights.npz") as kept:
        assert qb.parse(text, kept).digest == g.digest


def damaged(text: str, rng: random.Random) -> str:
    """Returns a text in which a word or a sign is another one, is gone, or stands twice."""
    words = re.split(r"(\W)", text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(words))
        kind = rng.randrange(5)
        if kind == 0:
            words[at] = ""
        elif kind == 1:
            words[at] = words[rng.randrange(len(words))]
        elif kind == 2:
            words[at] += rng.choice(("-", "9", "\x00", "'", "%", "[", "}", "é", "0x", "\n", "//"))
        elif kind == 3:
            words[at] = words[at][: len(words[at]) // 2]
        else:
            del words[rng.randrange(len(words)) :]
            words.append("")
    return "".join(words)


def sources() -> list[str]:
    """Texts to damage: trained networks, all types, and opaque nodes."""
    carried = [
        g for seed in range(60) if (g := _loaded_or_none(seed)) and "base64" in g.text("inline")
    ]
    raw = qb.load(MODELS[0], canonical=False)
    return [g.text("inline") for g in (raw, _of_every_type(), *carried[:4])] + [
        re.sub(r"=base64:\S*?(?=\)|$)", "", raw.text("inline"))
    ]


def _loaded_or_none(seed: int) -> Graph | None:
    try:
        return loaded(random_model(seed))
    except qb.QdqBridgeError:
        return None


def test_damaged_text_gives_nothing_but_our_errors() -> None:
    rng, texts, refused = random.Random(0), sources(), 0
    for index in range(600):
        text = damaged(texts[index % len(texts)], rng)
        try:
            qb.parse(text).text()
        except qb.QdqBridgeError as error:
            refused += 1
            assert error.what
    assert refused > 300


def _seconds(nodes: int) -> float:
    lines = [HEAD.strip()]
    lines += [f"%{i} = Relu(%{i - 1}): float32[2,3]" for i in range(1, nodes)]
    text = "\n".join([*lines, f"output %{nodes - 1}"])
    start = time.process_time()
    qb.parse(text)
    return time.process_time() - start


def test_time_is_linear() -> None:
    _seconds(10)
    small = min(_seconds(1000) for _ in range(3))
    assert min(_seconds(8000) for _ in range(3)) < 8 * small * 3


def test_canonical_rules_know_what_is_parsed() -> None:
    text = qb.load(MODELS[0], canonical=False).text("inline")
    from qdqbridge.core.canonical import canonicalize

    assert canonicalize(qb.parse(text)).digest == qb.load(MODELS[0]).digest


def test_types_are_those_of_the_record() -> None:
    x = stored("x", U8, (2,))
    g = qb.parse(graph([x], dq(x)).text())
    assert isinstance(g.inputs[0].type, QuantType)
    assert g.inputs[0].type.params == U8
