"""Threads leave the cores to other processes, and take them again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.tvm.relax import threads
from qdqbridge.tvm.relax.executable import Executable
from qdqbridge.tvm.relax.threads import Caller, ThreadPool, cores, running
from tests.tvm.relax.digits import MODEL
from tests.tvm.relax.thread_loops import which_thread

SECONDS = 30
"""How long what is awaited may take."""
FED = {"input": np.random.default_rng(0).normal(size=(3000, 1, 8, 8)).astype(np.float32)}


def test_where_nobody_says_what_runs_all_threads_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(threads, "_LOAD", tmp_path / "loadavg")
    for told in (None, "", "0.1 0.2 0.3 many/90 1"):
        if told is not None:
            (tmp_path / "loadavg").write_text(told)
        assert running() == 0


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], None]:
    """Says how many threads of the machine run; at first this one alone."""
    file = tmp_path / "loadavg"
    monkeypatch.setattr(threads, "_LOAD", file)

    def say(count: int) -> None:
        file.write_text(f"0.1 0.2 0.3 {count}/999 1")

    say(1)
    return say


needs_cores = pytest.mark.skipif(len(cores()) < 2, reason="there is one core")
PAUSES = 0.02, 0.2


@needs_cores
def test_one_thread_goes_on_alone_and_others_come_back(
    load: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_PAUSES", PAUSES)
    count = len(cores())
    caller, place = Caller(count), getattr(os, "sched_getaffinity", lambda _: None)
    shared = tvm.compile(which_thread(), tvm.target.Target("llvm"))
    told = tvm.runtime.tensor(np.zeros(2, np.int64))

    def taken() -> tuple[int, Any]:
        shared["which_thread"](told)
        return len(set(told.numpy().tolist())), place(0)

    everywhere, at_first = place(0), caller.call(taken)
    assert at_first[0] == 2 and (everywhere is None or at_first[1] == set(cores()[:1]))
    assert caller.pool is not None
    load(10 * (os.cpu_count() or 1))
    caller.call(caller.pool.judge, 1.0, 0.5)
    time.sleep(PAUSES[0])
    assert caller.call(taken) == (1, everywhere)  # others run still
    load(1)
    assert caller.call(taken) == at_first


@needs_cores
def test_who_is_told_of_others_for_long_tries_again(
    load: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container is told what its host does."""
    monkeypatch.setattr(threads, "_PAUSES", PAUSES)
    caller = Caller(2)
    caller.call(int)
    assert caller.pool is not None
    load(10 * (os.cpu_count() or 1))
    caller.call(caller.pool.judge, 1.0, 0.5)
    assert caller.call(int) == 0 and caller.pool.alone
    time.sleep(PAUSES[1])
    assert caller.call(int) == 0 and not caller.pool.alone


@pytest.mark.parametrize("more", [1, 2])
def test_own_threads_are_not_others(load: Callable[[int], None], more: int) -> None:
    """More of them than cores run when a call ends; in one of one long step they did not."""
    count = (os.cpu_count() or 1) + more
    caller = Caller(count)
    caller.call(int)
    assert caller.pool is not None
    load(count)
    caller.call(caller.pool.judge, 1.0, 1.0)
    assert not caller.pool.alone


@needs_cores
def test_short_calls_and_calls_of_our_own_are_not_judged(load: Callable[[int], None]) -> None:
    caller, count = Caller(2), len(cores())
    caller.call(int)
    assert caller.pool is not None
    load(10 * (os.cpu_count() or 1))
    caller.call(caller.pool.judge, 1e-4, 0.0)
    caller.call(caller.pool.judge, 1.0, 0.9 * min(2, count))
    assert not caller.pool.alone


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores are kept on Linux")
def test_cores_that_are_gone_cost_no_result(
    load: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(len(cores()) if len(cores()) > 1 else 2)
    caller.call(int)
    assert caller.pool is not None

    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    load(10 * (os.cpu_count() or 1))
    assert caller.call(caller.pool.judge, 1.0, 0.1) is None
    assert caller.pool.alone


@needs_cores
def test_beside_busy_processes_bits_stay(load: Callable[[int], None]) -> None:
    executable = qb.compile(qb.load(MODEL), threads=2)
    meant = executable.run(FED)["logits"]
    with busy(2 * len(cores())):
        load(10 * (os.cpu_count() or 1))
        assert comes(executable, meant, alone=True)
    load(1)
    assert comes(executable, meant, alone=False)


def pool_of(executable: Executable) -> ThreadPool:
    made = executable._caller.pool
    assert made is not None
    return made


def comes(executable: Executable, meant: NDArray[Any], *, alone: bool) -> bool:
    """Runs until one thread does all, or all threads take part; False where that does not come."""
    end = time.monotonic() + SECONDS
    while pool_of(executable).alone != alone:
        if time.monotonic() > end:
            return False
        assert np.array_equal(executable.run(FED)["logits"], meant)
    return True


@contextmanager
def busy(count: int) -> Generator[None]:
    """Processes that each want a core."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait(timeout=240)
