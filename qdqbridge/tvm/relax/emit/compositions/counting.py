"""TfIdfVectorizer: how often each n-gram of a pool stands in a row of integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext, loops


def _vectorizer(context: CompositionContext) -> Sequence[Expr]:
    """Counts, those above 0, or either times a weight.

    A weight belongs to a place of the result, as in onnxruntime and ONNX's reference; ONNX's text
    gives them the order of the pool, which is another one where ``ngram_indexes`` are not sorted.
    Source: ONNX TfIdfVectorizer-9.
    """
    pool, places = context.onnx.ints("pool_int64s", None), context.onnx.ints("ngram_indexes", ())
    if pool is None or not places:
        raise NoRow("its n-grams are strings")
    x = context.cast(context.arg(0), "int64")
    shape = context.extents(x)
    if len(shape) > 2:
        raise NoRow(f"its data has {len(shape)} axes")
    size, rows = max(places) + 1, [*(1,) * (2 - len(shape)), *shape]
    x, total = context("reshape", x, rows), context("zeros", (rows[0], size), "int64")
    skips = context.onnx.int_("max_skip_count", 0)
    for length, grams in _by_length(context.onnx, pool, places).items():
        tables = [context.number(table, "int64") for table in _by_place(grams, length, size)]
        steps = 1 if length == 1 else skips + 1  # single ones are counted once
        total = context("add", total, _counted(context, x, tables, length, steps))
    number, mode = context.cast(total, "float32"), context.onnx.string("mode", "")
    if mode == "IDF":
        number = context("minimum", number, context.number(1, number))
    weights = context.onnx.floats("weights", None)
    if mode != "TF" and weights is not None:
        number = context("multiply", number, context.number(weights, number))
    return [context("reshape", number, (*shape[:-1], size))]


_Gram = tuple[int, tuple[int, ...]]
"""Where an n-gram is counted, and its members."""


def _by_length(
    onnx: NodeView, pool: Sequence[int], places: Sequence[int]
) -> dict[int, list[_Gram]]:
    """Returns the n-grams of each length that is asked for."""
    starts = onnx.ints("ngram_counts", ())
    wanted = range(onnx.int_("min_gram_length", 1), onnx.int_("max_gram_length", 1) + 1)
    found, index = dict[int, list[_Gram]](), 0
    for length, (start, end) in enumerate(zip(starts, (*starts[1:], len(pool)), strict=True), 1):
        for at in range(start, end - length + 1, length):
            if length in wanted:
                found.setdefault(length, []).append((places[index], tuple(pool[at : at + length])))
            index += 1
    return found


def _by_place(grams: Sequence[_Gram], length: int, size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns for each place of the result its n-grams, and which of them there are."""
    lists: list[list[tuple[int, ...]]] = [[] for _ in range(size)]
    for place, members in grams:
        lists[place].append(members)
    most = max(map(len, lists))
    members = np.zeros((size, most, length), np.int64)
    there = np.zeros((size, most), np.int64)
    for place, own in enumerate(lists):
        there[place, : len(own)] = 1
        members[place, : len(own)] = own or np.zeros((0, length))
    return members, there


def _counted(
    context: CompositionContext, x: Expr, tables: Sequence[Expr], length: int, steps: int
) -> Expr:
    """Returns how often the n-grams of one length are there, their members 1, 2 … steps apart."""

    def count(data: te.Tensor, members: te.Tensor, there: te.Tensor) -> te.Tensor:
        width = data.shape[1]

        def place(row: Any, column: Any) -> Any:
            # A row of nothing has one position too, for the sums to be set.
            begin = te.reduce_axis((0, tirx.max(width, tirx.const(1, "int64"))), name="begin")
            skip = te.reduce_axis((0, steps), name="skip")
            gram = te.reduce_axis((0, there.shape[1]), name="gram")
            apart: Any = skip.var + 1
            same: Any = there(column, gram.var) == 1
            for index in range(length):
                at: Any = begin.var + apart * index
                hit = data(row, at) == members(column, gram.var, index)
                same = tirx.all(same, tirx.if_then_else(at < width, hit, False))
            return te.sum(tirx.if_then_else(same, tirx.const(1, "int64"), tirx.const(0, "int64")),
                          axis=[begin, skip, gram])  # fmt: skip

        return stage([data.shape[0], members.shape[0]], place, name="counts")

    return loops(context, "ngrams", count, x, *tables)


COUNTING: Mapping[str, Composition] = {"TfIdfVectorizer": _vectorizer}
"""By the operator's name in ONNX's own domain."""
