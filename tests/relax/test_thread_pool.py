"""Threads leave the cores to other processes, and take them again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from qdqbridge.relax import thread_pool
from qdqbridge.relax.executable import Executable
from qdqbridge.relax.thread_pool import ThreadPool, cores, running
from tests.relax.digits import digits

SECONDS = 30
"""How long what is awaited may take."""
FED = {"input": np.random.default_rng(0).normal(size=(3000, 1, 8, 8)).astype(np.float32)}


@pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="nobody says what runs")
def test_this_thread_runs() -> None:
    assert running() >= 1


def test_where_nobody_says_what_runs_all_threads_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for told in (None, "", "0.1 0.2 0.3 many/90 1"):
        monkeypatch.setattr(thread_pool, "_LOAD", tmp_path / "loadavg")
        if told is not None:
            (tmp_path / "loadavg").write_text(told)
        assert running() == 0


@pytest.mark.skipif(len(cores()) < 2, reason="there is one core")
def test_others_get_the_cores_they_want(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside busy processes one thread goes on alone, with the same bits; later all do again."""
    load = tmp_path / "loadavg"
    monkeypatch.setattr(thread_pool, "_LOAD", load)
    load.write_text("0 0 0 1/99 1")
    executable = digits(len(cores()))
    meant = executable.run(FED)["logits"]
    with busy(2 * len(cores())):
        assert not pool_of(executable).alone
        load.write_text("0 0 0 999/999 1")
        assert comes(executable, meant, alone=True)
    assert not comes(executable, meant, alone=False, seconds=1)  # others run still, it is said
    load.write_text("0 0 0 1/99 1")
    assert comes(executable, meant, alone=False)


def pool_of(executable: Executable) -> ThreadPool:
    made = executable._caller._pool
    assert made is not None
    return made


def comes(
    executable: Executable, meant: np.ndarray, *, alone: bool, seconds: float = SECONDS
) -> bool:
    """Runs until one thread does all, or all threads take part; False where that does not come."""
    end = time.monotonic() + seconds
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
            other.wait()
