"""Pieces that threads share out: none is left out, and what must not be done twice is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from qdqbridge.tvm.relax.kernels.codegen.lanes import load, store
from qdqbridge.tvm.relax.kernels.codegen.loops import SharedPieces, turns
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.threads import Caller
from tests.tvm.relax.kernels.kernel_cases import HOST, target_of

pytestmark = pytest.mark.skipif(HOST.barrier is None, reason="kernels of other CPUs use none")


def counting(tasks: int, extent: int, size: int) -> Any:
    """Returns a function that adds 1 to what every task did of every element, twice over."""

    def body() -> None:
        x = T.arg("x", T.buffer((tasks * extent,), "int32"))
        with root():
            pieces = SharedPieces(HOST, tasks, extent)
            with turns(2):
                pieces.begin()
                with (
                    turns(tasks, parallel=tasks > 1) as task,
                    pieces.of(task, size) as (first, count),
                    turns(count) as i,
                ):
                    at = task * extent + first + i
                    store(x, at, load(x, at, 1) + 1, 1)

    function = prim_func(body).with_attr("global_symbol", "counting")
    library: Any = tvm.compile(tvm.IRModule({"counting": function}), target=target_of(HOST))
    return library["counting"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("tasks", "extent", "size"), [(1, 7, 3), (2, 64, 4), (2, 7, 3), (3, 64, 5), (5, 3, 2)]
)
def test_no_piece_is_left_out(tasks: int, extent: int, size: int, threads: int) -> None:
    function, caller = counting(tasks, extent, size), Caller(threads)
    for _ in range(30):
        done = tvm.runtime.tensor(np.zeros(tasks * extent, np.int32))
        caller.call(function, done)
        times = done.numpy().reshape(tasks, extent).sum(0)
        assert times.min() >= 2  # twice over
        twice = times.sum() - 2 * extent
        assert twice <= 2 * tasks * size  # where two meet, in every share


def test_who_has_done_his_share_helps() -> None:
    """Tasks that run one after the other: the first one leaves nothing to do."""
    tasks, extent = 3, 60
    function = counting(tasks, extent, 5)
    done = tvm.runtime.tensor(np.zeros(tasks * extent, np.int32))
    Caller(1).call(function, done)
    assert done.numpy().sum() == 2 * extent
