"""Threads of an executable: results, cores, refusals."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.errors import InputDataError
from qdqbridge.relax.threads import Caller, threads_and_cores

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


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed by Linux")
def test_the_pool_keeps_its_cores_apart() -> None:
    before = threads_and_cores()
    caller = Caller(2)
    own = caller.call(lambda: os.sched_getaffinity(0))
    new = [cores for task, cores in threads_and_cores().items() if task not in before]
    assert len(new) >= 2  # the thread that calls, and a worker
    pinned = [cores for cores in new if len(cores) == 1]
    assert len(pinned) < 2 or len(set.union(*pinned)) == len(pinned)
    assert own in new


def test_errors_come_back() -> None:
    with pytest.raises(ZeroDivisionError):
        Caller(2).call(lambda: 1 // 0)


def test_no_threads_are_refused() -> None:
    with pytest.raises(InputDataError):
        qb.compile(qb.load(MODEL), threads=0)
