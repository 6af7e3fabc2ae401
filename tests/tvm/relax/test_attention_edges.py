"""Attention at its edges: prompts of no tokens, and places that tables of rotation do not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.errors import InputDataError, QdqBridgeError
from tests.combinations import each_once
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.targets import UNOPTIMIZED

MS, HEADS, SIZE, ROWS, PAST = "com.microsoft", 2, 16, 6, 3
KINDS = {np.float32: TensorProto.FLOAT, np.int32: TensorProto.INT32, np.int64: TensorProto.INT64}
Feeds = dict[str, NDArray[Any]]


def drawn(*shape: int) -> NDArray[Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def built(
    op: str, given: Mapping[str, NDArray[Any] | None], *, results: int = 1, opened: bool = True,
    tables: tuple[str, ...] = (), domain: str = MS, **attributes: Any,
) -> tuple[Any, Feeds]:  # fmt: skip
    """Returns a model of one node, and what is fed; all extents but the last may be open."""
    b, names, feeds = Builder(24), list[str](), Feeds()
    for name, array in given.items():
        if array is None:
            names.append("")
        elif name in tables:
            names.append(b.init(array))
        else:
            shape: list[Any] = list(array.shape)
            if opened:
                shape[:-1] = [f"{name}_{axis}" for axis in range(len(shape) - 1)]
            names.append(b.input(name, shape, KINDS[array.dtype.type]))
            feeds[name] = array
    first = b.op(op, *names, domain=domain, outputs=results, **attributes)
    for name in [first, *(f"{first}:{i}" for i in range(1, results))]:
        b.output(name, None)
    return b.model(), feeds


def empty(past: bool) -> Feeds:
    """Returns queries, keys and values of no tokens, and those of the past."""
    made = {name: drawn(2, 0, HEADS * SIZE) for name in ("query", "key", "value")}
    olds = {f"old_{name}": drawn(2, HEADS, PAST, SIZE) for name in ("key", "value")}
    return {**made, **(olds if past else {})}


@pytest.mark.parametrize(
    ("op", "past", "opened"),
    each_once(
        ["MultiHeadAttention", "GroupQueryAttention", "Attention"], [False, True], [True, False]
    ),
)
def test_no_tokens_give_no_results(op: str, past: bool, opened: bool) -> None:
    """onnxruntime's Attention and GroupQueryAttention refuse them."""
    given: dict[str, Any] = empty(past)
    olds = {name: given.pop(name) for name in list(given) if name.startswith("old")}
    told: dict[str, Any] = {"num_heads": HEADS}
    if op == "GroupQueryAttention":
        count, told["kv_num_heads"] = PAST if past else 0, HEADS
        lengths = {"ends": np.full(2, count - 1, np.int32), "total": np.array(count, np.int32)}
        given |= olds or {"old_key": None, "old_value": None}
        given |= lengths
    elif op == "Attention":
        told = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
        given |= {"mask": None, **olds} if past else {}
    elif past:
        given |= {"bias": None, "hidden": None, "added": None, **olds}
    results = 3 if past or op == "GroupQueryAttention" else 1
    domain = "" if op == "Attention" else MS
    model, feeds = built(op, given, results=results, opened=opened, domain=domain, **told)
    graph = canonical(model)
    wanted, found = qb.evaluate(graph, feeds), qb.compile(graph, UNOPTIMIZED).run(feeds)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
    assert next(iter(wanted.values())).shape == (2, 0, HEADS * SIZE)


def turned(kind: str, *places: int) -> tuple[Any, Feeds]:
    """Returns a model whose tables have six rows, and feeds of these places."""
    half = SIZE // 2
    tables: dict[str, Any] = {"cosine": drawn(ROWS, half), "sine": drawn(ROWS, half)}
    at, names = np.array([places]), tuple(tables)
    if kind == "RotaryEmbedding":
        given: dict[str, Any] = {"x": drawn(1, HEADS, len(places), SIZE), "at": at, **tables}
        return built(kind, given, tables=names)
    if kind == "from the first":
        given = {"x": drawn(1, HEADS, len(places), SIZE), "at": at[0, :1], **tables}
        return built("RotaryEmbedding", given, tables=names)
    if kind == "MRotaryEmbedding":
        given = {"x": drawn(1, HEADS, len(places), SIZE), "at": np.stack([at] * 3), **tables}
        return built(kind, given, tables=names, mrope_section=[2, 3, 3])
    past, length = places[0] if kind == "counted" else 2, len(places)
    given = {name: drawn(1, length, HEADS * SIZE) for name in ("query", "key", "value")}
    given |= {name: drawn(1, HEADS, past, SIZE) for name in ("old_key", "old_value")}
    ends = {"ends": np.array([past + length - 1]), "total": np.array(past + length)}
    given |= {name: array.astype(np.int32) for name, array in ends.items()} | tables
    given |= {"at": at} if kind == "told" else {}
    told: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": HEADS, "do_rotary": 1}
    return built("GroupQueryAttention", given, results=3, tables=names, **told)


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("RotaryEmbedding", (4, 6, 5)), ("RotaryEmbedding", (-7, 0)), ("from the first", (4, 5, 6)),
        ("MRotaryEmbedding", (4, 6)), ("counted", (5, 6, 7)), ("counted", (0, 1, 2, 3, 4, 5, 6)),
        ("told", (6,)), ("told", (-1,)),
    ],
)  # fmt: skip
def test_places_beyond_the_tables_end_a_run(kind: str, places: tuple[int, ...]) -> None:
    """onnxruntime refuses them, too; TVM took the last row, and the interpreter's attention."""
    model, feeds = turned(kind, *places)
    graph = canonical(model)
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        ort_run(model, feeds)
    with pytest.raises(QdqBridgeError):
        qb.evaluate(graph, feeds)
    with pytest.raises(InputDataError) as caught:
        qb.compile(graph, UNOPTIMIZED).run(feeds)
    assert f"tables of rotation, which have {ROWS} rows" in caught.value.why


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("RotaryEmbedding", (5, 0)), ("from the first", (4, 5)), ("MRotaryEmbedding", (5, 0)),
        ("counted", (5,)), ("counted", (0, 1, 2, 3, 4, 5)), ("told", (5,)),
    ],
)  # fmt: skip
def test_the_last_row_of_the_tables_is_there(kind: str, places: tuple[int, ...]) -> None:
    model, feeds = turned(kind, *places)
    graph, wanted = canonical(model), ort_run(model, feeds)
    for results in (qb.evaluate(graph, feeds), qb.compile(graph, UNOPTIMIZED).run(feeds)):
        for array, meant in zip(results.values(), wanted, strict=True):
            np.testing.assert_allclose(array, meant, rtol=1e-5, atol=1e-5)  # another order of sums
