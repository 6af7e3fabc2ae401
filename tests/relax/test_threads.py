"""Threads of an executable: results, cores, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
import tvm

import qdqbridge as qb
from qdqbridge.errors import InputDataError
from qdqbridge.relax.kernels.codegen.loops import turns
from qdqbridge.relax.kernels.codegen.script import T, prim_func
from qdqbridge.relax.threads import Caller
from tests.relax.digits import MODEL, digits


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
    shared = tvm.compile(_which_thread(), tvm.target.Target("llvm"))
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_child_of_a_fork_runs_on() -> None:
    caller = Caller(2)
    assert caller.call(os.getpid) == os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on forks beside threads
        child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if caller.call(os.getpid) == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_child_of_a_fork_in_the_middle_of_a_run_has_a_machine_of_its_own() -> None:
    executable = digits(1)
    data = {"input": np.random.default_rng(0).normal(size=(20000, 1, 8, 8)).astype(np.float32)}
    meant = executable.run(data)["logits"]
    done = Event()
    with ThreadPoolExecutor(1) as other, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on forks beside threads
        busy = other.submit(lambda: [executable.run(data) for _ in iter(done.is_set, True)])
        ended = []
        for _ in range(4):
            time.sleep(0.01)
            child = os.fork()
            if not child:
                signal.alarm(20)
                os._exit(0 if np.array_equal(executable.run(data)["logits"], meant) else 1)
            ended.append(os.waitpid(child, 0)[1])
        done.set()
        busy.result()
    assert ended == [0] * 4


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
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
