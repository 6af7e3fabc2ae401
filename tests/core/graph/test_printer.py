"""The text form, word for word, and what the digest depends on."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.printer import array_hash, elements, params_text
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.attributes import ClipAttrs, ConvAttrs, ReshapeAttrs
from tests.core.graph.graphs import (
    OUT,
    U8,
    W8,
    Array,
    apply,
    const,
    dq,
    graph,
    plain,
    q,
    quant,
    rq,
    stored,
    typed,
)

CONV = ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0))


def small(prefix: str = "", scale: float = 2**-5, weight: int = 3) -> Graph:
    x = plain(f"{prefix}x", ("batch", 1, 2, 2))
    params = per_tensor(DType.UINT8, scale, 128)
    w = const(np.full((1, 1, 1, 1), weight, np.int8), W8, f"{prefix}w")
    y = apply(
        "Conv",
        q(x, params, f"{prefix}q"),
        w,
        type_=typed(("batch", 1, 2, 2), OUT.with_range(10, 255)),
        attributes=CONV,
        name=f"{prefix}conv",
    )
    return graph([x], dq(y, f"{prefix}dq"), y)


def test_golden_text() -> None:
    g = small()
    assert g.text() == (
        "qnn-raw 1\n"
        "input %0: float32[d0,1,2,2]\n"
        "%1 = quantize(%0): quant<uint8, 0x1.0000000000000p-5, 128>\n"
        "%2 = Conv(%1, const quant<int8, 0x1.0000000000000p-7, 0>[1,1,1,1] [3])"
        " {strides=[1 1], dilations=[1 1], pads=[0 0 0 0], group=1}:"
        " quant<uint8, 0x1.0000000000000p-3, 10, range=10..255>\n"
        "%3 = dequantize(%2): float32\n"
        "output %3\n"
        "output %2\n"
    )
    g.canonical = True
    assert g.text().startswith("qnn-canonical 4\n")


def test_digest_is_the_hash_of_the_text() -> None:
    g = small()
    assert g.digest == hashlib.sha256(g.text().encode()).hexdigest()


def test_names_and_provenance_leave_no_trace() -> None:
    a, b = small(), small("other/")
    b.name, b.metadata, b.opset = "renamed", {"producer": "somebody"}, 21
    assert a.text() == b.text()


def test_what_the_results_depend_on_counts() -> None:
    digests = {g.digest for g in (small(), small(scale=2**-6), small(weight=4))}
    assert len(digests) == 3


def chains(order: str) -> Graph:
    """Two chains that meet in one node; ``order`` says which one is built first."""
    x = stored("x", U8, (2,))
    results: dict[str, Value] = {}
    for key in order:
        results[key] = rq(dq_free(x, key), OUT)
    y = apply("Add", results["a"], results["b"], type_=typed((2,), OUT))
    g = graph([x], y)
    if order == "ba":
        g.nodes = [g.nodes[i] for i in (2, 3, 0, 1, 4)]
        Editor(g).finish()
    return g


def dq_free(x: Value, key: str) -> Value:
    other = per_tensor(DType.INT8, 2**-4 if key == "a" else 2**-3)
    return rq(x, other)


def test_node_order_leaves_no_trace() -> None:
    assert chains("ab").text() == chains("ba").text()


def test_sharing_of_constants_leaves_no_trace() -> None:
    def two(shared: bool) -> Graph:
        x = stored("x", U8, (3,))
        c = const(np.array([1, 2, 3], np.int8), W8)
        d = c if shared else const(np.array([1, 2, 3], np.int8), W8, "other")
        y = apply("Add", x, c, type_=typed((3,), OUT))
        return graph([x], apply("Mul", y, d, type_=typed((3,), OUT)))

    assert two(True).text() == two(False).text()


def test_reading_a_value_twice_is_not_two_values() -> None:
    x = stored("x", U8, (2,))
    once = rq(x, OUT)
    shared = graph([x], apply("Add", once, once, type_=typed((2,), OUT)))
    twice = graph([x], apply("Add", rq(x, OUT), rq(x, OUT), type_=typed((2,), OUT)))
    assert shared.text() != twice.text()
    assert "%2 = Add(%1, %1)" in shared.text()


def test_symbolic_extents_are_numbered_and_unknown_ranks_are_stars() -> None:
    x, y = plain("x", ("n", "m", "n")), plain("y", None)
    text = graph([x, y], x, y).text()
    assert "input %0: float32[d0,d1,d0]\n" in text
    assert "input %1: float32[*]\n" in text


def test_left_out_operands_and_attributes() -> None:
    x = plain("x", (4,))
    y = apply("Clip", x, None, attributes=ClipAttrs(None, 6.0))
    z = apply("Reshape", y, attributes=ReshapeAttrs((2, -1)), type_=typed((2, 2)))
    text = graph([x], z).text()
    assert "%1 = Clip(%0, _) {low=None, high=0x1.8000000000000p+2}: float32\n" in text
    assert "%2 = Reshape(%1) {shape=[2 -1], allow_zero=False}: float32\n" in text


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (U8, "quant<uint8, 0x1.0000000000000p-5, 128>"),
        (U8.with_range(128, 255), "quant<uint8, 0x1.0000000000000p-5, 128, range=128..255>"),
        (
            quant(DType.INT8, np.array([1, 2], np.float32), np.int32(0), axis=1),
            "quant<int8, [0x1.0000000000000p+0 0x1.0000000000000p+1], 0, axis=1>",
        ),
        (
            quant(
                DType.INT4, np.array([[1, 2]], np.float32), np.array([[0, 1]]), axis=1, block_size=4
            ),
            "quant<int4, [0x1.0000000000000p+0 0x1.0000000000000p+1], [0 1], axis=1, block=4>",
        ),
        (
            quant(
                DType.INT8, np.float16(0.5), np.int32(0), expressed_dtype=DType.FLOAT16
            ),
            "quant<int8:float16, 0x1.0000000000000p-1, 0>",
        ),
    ],
    ids=["per-tensor", "range", "per-axis", "blocks", "float16"],
)  # fmt: skip
def test_parameters(params: QuantParams, text: str) -> None:
    assert params_text(params) == text


def test_long_arrays_are_shape_and_hash() -> None:
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    assert re.fullmatch(r"#2x3:[0-9a-f]{32}", elements(array))
    assert elements(array) == f"#2x3:{hashlib.sha256(array.tobytes()).hexdigest()[:32]}"
    assert elements(array.T.copy()) != elements(array)
    assert elements(np.asarray(0.1, np.float32)) == float(np.float32(0.1)).hex()
    assert elements(np.array([True, False])) == "[1 0]"
    assert elements(np.array(["a", "b"], object)) == "['a', 'b']"
    assert elements(np.array([-3, 7]).astype(DType.INT4.numpy)) == "[-3 7]"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(2, 0, 1),
        np.asfortranarray(np.arange(20, dtype=np.float32).reshape(4, 5)),
        np.arange(40, dtype=np.int8)[::2],
        np.float32(3.5),
        np.zeros((0, 3), np.int8),
    ],
    ids=["transposed", "fortran", "strided", "scalar", "empty"],
)
def test_hashes_do_not_see_strides(array: Array) -> None:
    array = np.asarray(array)
    expected = hashlib.sha256(array.tobytes(order="C")).hexdigest()[:32]
    assert array_hash(array) == expected


def test_hashes_in_chunks_are_the_hash_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqbridge.core.graph.constant.PART", 64)
    array = np.arange(700, dtype=np.int32).reshape(35, 20).T
    assert array_hash(array) == hashlib.sha256(array.tobytes()).hexdigest()[:32]


def test_the_zero_of_a_bias_and_its_sign_count() -> None:
    a, b = per_tensor(DType.INT8, 1.0), replace(per_tensor(DType.INT8, 1.0), scale=np.float32(-1))
    assert params_text(a) != params_text(b)
