"""Quantization moves into the types of operators; what stays float has a reason."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.canonical import absorb
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    GemmAttrs,
    PoolAttrs,
    ReduceAttrs,
    ResizeAttrs,
    SoftmaxAttrs,
)
from tests.core.canonical.at_work import alone, reasons, settled
from tests.core.graph.graphs import (
    OUT,
    U8,
    W8,
    apply,
    const,
    dq,
    graph,
    names,
    plain,
    q,
    quant,
    stored,
    typed,
)

CONV = ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0))
CONVT = ConvTransposeAttrs((1, 1), (1, 1), (0, 0, 0, 0), (0, 0))
OPERANDS = absorb.absorb_accumulator_operands


def axis(n: int, axis: int, dtype: DType = DType.INT8) -> QuantParams:
    scale = np.float32(2.0) ** -np.arange(3, 3 + n).astype(np.float32)
    return quant(dtype, scale, np.int32(0), axis=axis)


def conv(x: Value, w: QuantParams | None = W8, *, op: str = "Conv", name: str = "conv") -> Value:
    rng = np.random.default_rng(3)
    codes = rng.integers(-7, 8, (2, 2, 1, 1))
    dtype = np.float32 if w is None else w.storage_dtype.numpy
    weight = const(codes.astype(dtype), w, "w")
    attributes: Attributes = CONV if op == "Conv" else CONVT
    real = weight if w is None else dq(weight)
    return apply(op, x, real, attributes=attributes, type_=typed((1, 2, 3, 3)), name=name)


def image(params: QuantParams = U8) -> Value:
    return stored("x", params, (1, 2, 3, 3))


def quantized_operands(g: Graph) -> list[bool]:
    (node,) = [n for n in g.nodes if n.op.name in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    return [node.operand(0).quant is not None, node.operand(1).quant is not None]


# ---- absorb-accumulator-operands --------------------------------------------------------------


@pytest.mark.parametrize("w", [W8, axis(2, 0), per_tensor(DType.INT4, 0.5)], ids=str)
@pytest.mark.idiom("B1")
def test_both_operands_are_absorbed(w: QuantParams) -> None:
    x = image()
    g = graph([x], conv(dq(x), w))
    assert alone(g, OPERANDS) == []
    assert quantized_operands(g) == [True, True]
    assert names(settled(g)) == ["Conv"]


@pytest.mark.idiom("D14")
def test_a_weight_alone_is_absorbed() -> None:
    blocked = quant(
        DType.INT4, np.ones((2, 2, 1, 1), np.float32) / 2, np.zeros((2, 2, 1, 1)), axis=1,
        block_size=1,
    )  # fmt: skip
    for w in (W8, axis(2, 0), axis(2, 1), blocked):
        x = plain("x", (1, 2, 3, 3))
        g = graph([x], conv(x, w))
        alone(g, OPERANDS)
        assert quantized_operands(g) == [False, True]
        (note,) = settled(g).notes
        assert note.reason == "its input is float, only its weight is quantized"
        assert note.culprits == ("x",)


@pytest.mark.idiom("B2")
@pytest.mark.parametrize(
    ("op", "good", "bad"), [("Conv", 0, 1), ("ConvTranspose", 1, 0)], ids=["Conv", "ConvTranspose"]
)
def test_weights_along_the_axis_of_the_results(op: str, good: int, bad: int) -> None:
    x = image()
    g = graph([x], conv(dq(x), axis(2, good), op=op))
    assert alone(g, OPERANDS) == []
    x = image()
    g = graph([x], conv(dq(x), axis(2, bad), op=op))
    assert alone(g, OPERANDS) == [
        f"its weight is quantized along axis {bad}, its results vary along {good}"
    ]
    assert quantized_operands(g) == [False, False]


@pytest.mark.parametrize("trans_b", [False, True], ids=["B", "B transposed"])
@pytest.mark.parametrize("along", [0, 1])
def test_weights_of_a_gemm(trans_b: bool, along: int) -> None:
    x = stored("x", U8, (4, 2))
    w = const(np.ones((2, 2), np.int8), axis(2, along), "w")
    g = graph([x], apply("Gemm", dq(x), dq(w), attributes=GemmAttrs(trans_b=trans_b)))
    refused = alone(g, OPERANDS)
    assert bool(refused) == (along != (0 if trans_b else 1))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("float weight", "its weight is float"),
        ("float", "its operands are float"),
        ("int32 weight", "its weight is stored as int32"),
        ("float8 weight", "its weight is stored as float8_e4m3fn"),
        ("per channel input", "its input is quantized per channel"),
        ("blocks", "its weight is quantized in blocks, its input per tensor"),
    ],
)
def test_operands_that_stay_float(case: str, reason: str) -> None:
    x = image(axis(2, 1, DType.UINT8) if case == "per channel input" else U8)
    blocked = quant(
        DType.INT4, np.array([1, 2, 4, 8], np.float32).reshape(2, 2, 1, 1), np.zeros((2, 2, 1, 1)),
        axis=1, block_size=1,
    )  # fmt: skip
    weights = {
        "float weight": None, "float": None, "blocks": blocked,
        "int32 weight": per_tensor(DType.INT32, 0.5),
        "float8 weight": quant(DType.FLOAT8_E4M3FN, np.float32(1), np.int32(0)),
    }  # fmt: skip
    source = apply("Exp", dq(x)) if case == "float" else dq(x)
    g = graph([x], conv(source, weights.get(case, W8)))
    assert alone(g, OPERANDS) == [reason]
    assert not all(quantized_operands(g))
    settled(g)
    assert reasons(g)["absorb-accumulator-operands"] == reason


def test_a_product_of_a_float_and_a_quantized_activation_stays_float() -> None:
    a, b = plain("a", (2, 3)), stored("b", U8, (3, 2))
    g = graph([a, b], apply("MatMul", a, dq(b), type_=typed((2, 2))))
    assert alone(g, OPERANDS) == ["one operand is float and the other a quantized activation"]


@pytest.mark.idiom("D8")
def test_two_activations_are_absorbed() -> None:
    a, b = stored("a", U8, (2, 3)), stored("b", OUT, (3, 2))
    g = graph([a, b], q(apply("MatMul", dq(a), dq(b), type_=typed((2, 2))), U8))
    assert names(settled(g)) == ["MatMul"]


# ---- absorb-result ----------------------------------------------------------------------------


@pytest.mark.idiom("D1")
def test_the_result_is_absorbed() -> None:
    x = image()
    g = settled(graph([x], dq(q(conv(dq(x)), OUT))))
    assert names(g) == ["Conv", "dequantize"]
    assert g.nodes[0].output.type == typed((1, 2, 3, 3), OUT)


@pytest.mark.parametrize("more", ["float", "output", "second"])
def test_a_result_that_is_read_several_times_stays_float(more: str) -> None:
    x = image()
    y = conv(dq(x))
    other = {"float": apply("Exp", y), "output": y, "second": q(y, U8)}[more]
    g = settled(graph([x], q(y, OUT), other))
    assert names(g).count("quantize") == (2 if more == "second" else 1)
    assert reasons(g)["absorb-result"] == "its float result is read several times"
    (note,) = {n for n in g.notes if n.rule == "absorb-result"}
    assert note.node == "conv"
    assert note.culprits[0] == "conv"
    assert {"float": "Exp 'exp'", "output": "the graph's output", "second": "quantize 'q'"}[
        more
    ] in note.culprits


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (axis(2, 1), "its result is quantized per channel"),
        (per_tensor(DType.INT32, 2**-12), "its result is stored as int32"),
        (
            quant(DType.FLOAT8_E5M2, np.float32(1), np.int32(0)),
            "its result is stored as float8_e5m2",
        ),
    ],
    ids=["per channel", "int32", "float8"],
)
@pytest.mark.parametrize("op", ["Conv", "Add"])
def test_results_that_cannot_be_absorbed(params: QuantParams, reason: str, op: str) -> None:
    x = image()
    y = conv(dq(x)) if op == "Conv" else apply("Add", dq(x), dq(x))
    g = settled(graph([x], q(y, params)))
    assert names(g)[-1] == "quantize"
    assert reasons(g)["absorb-result" if op == "Conv" else "absorb-both-sides"] == reason


# ---- absorb-both-sides ------------------------------------------------------------------------

POOL = PoolAttrs((2, 2), (1, 1), (1, 1), (0, 0, 0, 0))
LINEAR = ResizeAttrs("linear", "half_pixel", "round_prefer_floor", (1.0, 1.0, 2.0, 2.0), None)
OPS: list[tuple[str, int, Attributes, tuple[int, ...]]] = [
    ("Add", 2, NO_ATTRIBUTES, (1, 2, 3, 3)),
    ("Mul", 2, NO_ATTRIBUTES, (1, 2, 3, 3)),
    ("Sub", 2, NO_ATTRIBUTES, (1, 2, 3, 3)),
    ("Max", 2, NO_ATTRIBUTES, (1, 2, 3, 3)),
    ("Concat", 2, AxisAttrs(1), (1, 4, 3, 3)),
    ("Sigmoid", 1, NO_ATTRIBUTES, (1, 2, 3, 3)),
    ("Softmax", 1, SoftmaxAttrs((1,)), (1, 2, 3, 3)),
    ("AveragePool", 1, POOL, (1, 2, 2, 2)),
    ("ReduceMean", 1, ReduceAttrs((2, 3)), (1, 2, 1, 1)),
    ("Resize", 1, LINEAR, (1, 2, 6, 6)),
]


@pytest.mark.idiom("E1", "H1")
@pytest.mark.parametrize(
    ("op", "count", "attributes", "shape"), OPS, ids=[name for name, *_ in OPS]
)
def test_elementwise_and_pools_are_absorbed(
    op: str, count: int, attributes: Attributes, shape: tuple[int, ...]
) -> None:
    x, y = image(), stored("y", OUT, (1, 2, 3, 3))
    operands = [dq(x), dq(y)][:count]
    result = apply(op, *operands, attributes=attributes, type_=typed(shape))
    g = graph([x, y][:count], q(result, OUT))
    alone(g, absorb.absorb_both_sides)
    assert names(g) == [op]
    settled(g)


@pytest.mark.idiom("B7")
@pytest.mark.parametrize("constant", ["stored", "float", "per channel"])
def test_constants_may_be_anything(constant: str) -> None:
    x = image()
    codes = np.array([3, -5], np.int8).reshape(1, 2, 1, 1)
    c = {
        "stored": dq(const(codes, W8)),
        "float": const(codes.astype(np.float32) / 4),
        "per channel": dq(const(codes, axis(2, 1))),
    }[constant]
    g = graph([x], q(apply("Mul", dq(x), c), OUT))
    assert alone(g, absorb.absorb_both_sides) == []
    assert names(g) == ["Mul"]


@pytest.mark.parametrize("computed", [False, True])
def test_quantized_constants_are_quantized_operands(computed: bool) -> None:
    """Also those that a file quantizes: they are constants only once a rule has looked at them."""
    known = const(np.ones((2, 3), np.uint8), U8)
    operand = q(const(np.ones((2, 3), np.float32)), U8) if computed else known
    g = settled(graph([], q(apply("Add", dq(operand), dq(operand)), OUT)))
    assert names(g) == ["Add"]
    assert g.nodes[0].output.quant is not None


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("graph input", "operand 1 is float: the result of a graph input"),
        ("float operator", "operand 1 is float: the result of Exp"),
        ("per channel", "operand 1 is quantized per channel"),
        ("int32", "operand 1 is stored as int32"),
        ("float constants", "no operand is quantized"),
    ],
)
def test_operands_of_an_add_that_stay_float(case: str, reason: str) -> None:
    x, f = stored("x", U8, (2, 3)), plain("f", (2, 3))
    wide = stored("wide", per_tensor(DType.INT32, 2**-12), (2, 3))
    channels = stored("channels", axis(3, 1), (2, 3))
    c = const(np.ones((2, 3), np.float32))
    inputs, second = {
        "graph input": ([x, f], f), "float operator": ([x], apply("Exp", dq(x))),
        "per channel": ([x, channels], dq(channels)), "int32": ([x, wide], dq(wide)),
        "float constants": ([], c),
    }[case]  # fmt: skip
    first = c if case == "float constants" else dq(x)
    g = graph(inputs, q(apply("Add", first, second, name="add"), OUT))
    assert alone(g, absorb.absorb_both_sides) == [reason]
    assert "Add" in names(g)
    assert names(g)[-1] == "quantize"


@pytest.mark.parametrize("more", ["float", "output", "second"])
def test_a_sum_that_is_read_several_times_stays_float(more: str) -> None:
    x = stored("x", U8, (2, 3))
    y = apply("Add", dq(x), dq(x), name="add")
    other = {"float": apply("Exp", y), "output": y, "second": q(y, U8)}[more]
    g = settled(graph([x], q(y, OUT), other))
    assert names(g)[:2] == ["dequantize", "Add"]
    assert reasons(g)["absorb-both-sides"] == "its float result is read several times"


@pytest.mark.parametrize(
    ("exponent", "absorbed"), [([2.0], True), (2.0, True), ([1.0, 2.0, 3.0], False)], ids=str
)
def test_pow_has_one_constant_exponent(exponent: object, absorbed: bool) -> None:
    x = stored("x", U8, (2, 3))
    y = apply("Pow", dq(x), const(np.array(exponent, np.float32)))
    g = graph([x], q(y, OUT))
    refused = alone(g, absorb.absorb_both_sides)
    assert refused == (
        [] if absorbed else ["Pow has an integer form only for one constant exponent"]
    )


def test_antialiased_resize_stays_float() -> None:
    attributes = ResizeAttrs(
        "linear", "half_pixel", "round_prefer_floor", (1.0, 1.0, 0.5, 0.5), None, antialias=True
    )
    x = stored("x", U8, (1, 1, 4, 4))
    g = graph([x], q(apply("Resize", dq(x), attributes=attributes, type_=typed((1, 1, 2, 2))), OUT))
    assert absorb_reasons(g) == ["Resize with antialias has no integer form"]


def absorb_reasons(g: Graph) -> list[str]:
    from qdqbridge.core.rewrite import run

    return [reject.reason for reject in run(g, [absorb.absorb_both_sides]).values()]
