"""Pieces of an open count that overlap: nothing is left out, few are written again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import Prim, load, store
from qdqbridge.tvm.relax.kernels.codegen.loops import halves, overlapping, turns
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from tests.tvm.relax.kernels.kernel_cases import HOST, target_of

ROOM = 512
SIZES = [halves(14), halves(5), (14, 4, 1), (48, 32, *halves(16)), (1,)]


def marking(sizes: tuple[int, ...]) -> Any:
    """Returns a function that adds 1 to every element that a piece has, and counts pieces."""

    def body() -> None:
        count = tirx.Var("n", "int64")
        given = T.arg("given", T.buffer((count,), "int32"))
        marks = T.arg("marks", T.buffer((ROOM,), "int32"))
        pieces = T.arg("pieces", T.buffer((1,), "int32"))
        with root():

            def piece(start: Prim, size: int) -> None:
                store(pieces, 0, load(pieces, 0, 1) + 1, 1)
                with turns(size) as i:
                    store(marks, start + i, load(marks, start + i, 1) + 1, 1)

            overlapping(given.shape[0], sizes, piece)

    function = prim_func(body).with_attr("global_symbol", "marking")
    library: Any = tvm.compile(tvm.IRModule({"marking": function}), target=target_of(HOST))
    return library["marking"]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_count_is_covered_by_few_pieces(sizes: tuple[int, ...]) -> None:
    function = marking(sizes)
    for count in range(161):
        given, marks, pieces = (tvm.runtime.tensor(np.zeros(n, np.int32)) for n in (count, ROOM, 1))
        function(given, marks, pieces)
        found = marks.numpy()
        assert (found[:count] >= 1).all() and not found[count:].any(), count
        largest = max((size for size in sizes if size <= count), default=1)
        assert pieces.numpy()[0] == -(-count // largest), count
        size = min(s for s in sizes if s >= count % largest) if count >= sizes[0] else largest
        again = size - count % largest if count % largest else 0
        assert found.sum() == count + again, count


def test_halves() -> None:
    assert halves(14) == (14, 8, 4, 2, 1)
    assert halves(16) == (16, 8, 4, 2, 1)
    assert halves(2) == (2, 1)
    assert halves(1) == (1,)
