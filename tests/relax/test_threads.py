"""Threads of an executable: results, cores, refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import qdqbridge as qb
from qdqbridge.errors import InputDataError
from qdqbridge.relax.kernels.loops import turns
from qdqbridge.relax.kernels.script import T, prim_func
from qdqbridge.relax.threads import Caller

MODEL = Path(__file__).parents[2] / "models" / "digits_cnn_u8s8_per_channel.onnx"


def test_two_threads_compute_the_same() -> None:
    graph = qb.load(MODEL)
    (value,) = graph.inputs
    shape = [e if isinstance(e, int) else 5 for e in value.type.shape or ()]
    data = {value.name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    one, two = (qb.compile(graph, threads=n) for n in (1, 2))
    assert (one.threads, two.threads) == (1, 2)
    meant = qb.evaluate(graph, data)
    for executable in (one, two, two):
        for name, array in executable.run(data).items():
            np.testing.assert_array_equal(array, meant[name])


def test_the_callers_thread_and_environment_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    caller = Caller(2)
    assert caller.call(lambda: os.environ["TVM_NUM_THREADS"]) == "1"
    assert before is None or os.sched_getaffinity(0) == before


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores are kept on Linux")
def test_one_thread_for_each_core_keeps_it() -> None:
    cores = sorted(os.sched_getaffinity(0))
    own = Caller(len(cores)).call(lambda: os.sched_getaffinity(0))
    assert own == (set(cores[:1]) if len(cores) > 1 else set(cores))
    assert os.sched_getaffinity(0) == set(cores)


@pytest.mark.parametrize("variable", ["1", None])
def test_loops_are_shared_whatever_the_environment_says(
    variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is None:
        monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("TVM_NUM_THREADS", variable)
    shared = tvm.compile(_which_thread(), "llvm")
    told = tvm.runtime.tensor(np.zeros(2, np.int64))

    def call() -> int:
        shared["which_thread"](told)
        return len(set(told.numpy().tolist()))

    assert Caller(2).call(call) == 2


def _which_thread() -> Any:
    """A loop of two turns, each of which stores the thread that does it."""

    def body() -> None:
        told = T.arg("told", T.buffer((2,), "int64"))
        with turns(2, parallel=True) as turn:
            T.buffer_store(told, T.call_extern("int64", "pthread_self"), [turn])

    function = prim_func(body).with_attr("global_symbol", "which_thread")
    return tvm.IRModule({"which_thread": function})


def test_errors_come_back() -> None:
    with pytest.raises(ZeroDivisionError):
        Caller(2).call(lambda: 1 // 0)


def test_no_threads_are_refused() -> None:
    with pytest.raises(InputDataError):
        qb.compile(qb.load(MODEL), threads=0)
