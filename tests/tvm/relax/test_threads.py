"""Threads of an executable: results, cores, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
import tvm

import qdqbridge as qb
from qdqbridge.errors import InputDataError
from qdqbridge.tvm.relax.threads import Caller
from tests.tvm.relax.digits import MODEL, digits
from tests.tvm.relax.thread_loops import which_thread


def test_two_threads_compute_the_same() -> None:
    one, two = digits(1), digits(2)
    assert (one.threads, two.threads) == (1, 2)
    (value,) = one.graph.inputs
    shape = [e if isinstance(e, int) else 5 for e in value.type.shape or ()]
    data = {value.name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    meant = qb.evaluate(one.graph, data)
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
    shared = tvm.compile(which_thread(), tvm.target.Target("llvm"))
    told = tvm.runtime.tensor(np.zeros(2, np.int64))

    def call() -> int:
        shared["which_thread"](told)
        return len(set(told.numpy().tolist()))

    assert Caller(2).call(call) == 2


def test_errors_come_back() -> None:
    with pytest.raises(ZeroDivisionError):
        Caller(2).call(lambda: 1 // 0)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_no_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(InputDataError, match="threads is"):
        qb.compile(qb.load(MODEL), threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_many_callers_of_one_executable(threads: int) -> None:
    """TVM's machine holds one run: two at once end the process."""
    executable = digits(threads)
    rng = np.random.default_rng(0)
    fed = [{"input": rng.normal(size=(n, 1, 8, 8)).astype(np.float32)} for n in range(1, 9)]
    meant = [qb.evaluate(executable.graph, data)["logits"] for data in fed]

    def call(turn: int) -> bool:
        got = executable.run(fed[turn % 8])["logits"]
        return np.array_equal(got, meant[turn % 8])

    with ThreadPoolExecutor(6) as callers:
        assert all(callers.map(call, range(240)))


needs_forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")


def child_says(check: Callable[[], bool]) -> int:
    """Returns how the child of a fork ends that checks something: with 0 if it is true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on forks beside threads
        child = os.fork()
    if not child:
        signal.alarm(20)
        held = False
        try:
            held = check()
        finally:
            os._exit(0 if held else 1)
    return os.waitpid(child, 0)[1]


@needs_forks
def test_a_child_of_a_fork_runs_on() -> None:
    caller = Caller(2)
    assert caller.call(os.getpid) == os.getpid()
    assert child_says(lambda: caller.call(os.getpid) == os.getpid()) == 0


@needs_forks
@pytest.mark.parametrize("threads", [1, 2])
def test_a_fork_waits_for_runs(threads: int) -> None:
    """Its child would find TVM's machine, and its memory, in the middle of one."""
    executable, done = digits(threads), Event()
    data = {"input": np.random.default_rng(0).normal(size=(2000, 1, 8, 8)).astype(np.float32)}
    meant = executable.run(data)["logits"]

    def run() -> bool:
        return np.array_equal(executable.run(data)["logits"], meant)

    def keep_busy() -> None:
        while not done.is_set():
            executable.run(data)

    with ThreadPoolExecutor(1) as other:
        busy = other.submit(keep_busy)
        try:
            ended = [child_says(run) for _ in range(12)]
        finally:
            done.set()
        busy.result()
    assert ended == [0] * 12


@needs_forks
def test_several_threads_of_a_child_call_at_once() -> None:
    executable = digits(2)
    data = {"input": np.random.default_rng(0).normal(size=(5, 1, 8, 8)).astype(np.float32)}
    meant = executable.run(data)["logits"]

    def run(_: int) -> bool:
        return np.array_equal(executable.run(data)["logits"], meant)

    def together() -> bool:
        with ThreadPoolExecutor(6) as callers:
            return all(callers.map(run, range(60)))

    assert child_says(together) == 0


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores are kept on Linux")
def test_compiling_and_running_leave_the_process_its_cores() -> None:
    """TVM keeps a thread that asks how many threads there are on the first half of the cores."""
    program = (
        "import os, sys, numpy as np, qdqbridge as qb\n"
        "cores = os.sched_getaffinity(0)\n"
        "made = qb.compile(qb.load(sys.argv[1]))\n"
        "made.run({'input': np.zeros([1, *made.graph.inputs[0].type.shape[1:]], np.float32)})\n"
        "assert os.sched_getaffinity(0) == cores, os.sched_getaffinity(0)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TVM_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(MODEL)],
        env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
