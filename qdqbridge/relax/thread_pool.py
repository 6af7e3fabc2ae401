"""TVM's pool of threads, which leaves the cores to others where they want them.

Every loop that threads share ends when the last of them is done. A thread that shares its core
with another process gets it back after some milliseconds, at each of these loops, and so a network
of 60 of them takes a hundred times as long as one thread alone. No result depends on who does
which turn of a loop, so one thread then does them all, until the cores are free again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm

_ONE_CORE_EACH, _ALL_CORES = -2, -3  # modes of TVM's runtime.config_threadpool
_LEAST = 1e-3
"""Seconds of a call of which the clock of the processor's time says enough."""
_OWN = 0.85
"""Threads that wait spin: less of the cores' time than this is somebody else's."""
_PAUSES = 0.1, 10.0
"""Seconds until the pool is tried again: at first, and at most."""
_LOAD = Path("/proc/loadavg")


class ThreadPool:
    """The pool of the thread that this is made in.

    Args:
        count: Threads, more than one.
    """

    def __init__(self, count: int) -> None:
        self.count, self._cores = count, cores()
        self._pause, self._again = _PAUSES[0], 0.0
        self._share()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns what ``function`` returns, which TVM runs with all threads, or with one."""
        if self.alone and time.monotonic() >= self._again:
            self._try_again()
        if self.alone:
            return function(*args)
        wall, own = time.perf_counter(), time.process_time()
        try:
            return function(*args)
        finally:
            self._judge(time.perf_counter() - wall, time.process_time() - own)

    def _judge(self, wall: float, own: float) -> None:
        """Lets one thread go on alone if others had the cores in a call of all."""
        if wall < _LEAST:
            return
        if own >= _OWN * self.count * wall:
            self._pause = max(self._pause / 2, _PAUSES[0])
        elif running() > (os.cpu_count() or 1):
            self._retreat()
            self._pause = min(2 * self._pause, _PAUSES[1])

    def _try_again(self) -> None:
        if running() - 1 + self.count > (os.cpu_count() or 1):
            self._again = time.monotonic() + _PAUSES[0]
        else:
            self._share()

    def _share(self) -> None:
        """Sets up the pool for all threads.

        Where every core gets one thread, each keeps its core: TVM pins its workers, and this
        thread, which works too, takes the core that is left. With fewer threads than cores the
        system places them, so that several executables do not share cores while others idle.
        """
        self.alone = False
        pinned = self.count == len(self._cores)
        self._configure(_ONE_CORE_EACH if pinned else _ALL_CORES, self.count)
        if pinned:
            self._stay(self._cores[:1])

    def _retreat(self) -> None:
        self.alone, self._again = True, time.monotonic() + self._pause
        self._configure(_ALL_CORES, 1)
        self._stay(self._cores)

    def _configure(self, mode: int, count: int) -> None:
        own = self._cores
        wanted = [str(own[i % len(own)]) for i in range(max(self.count, len(own)))]
        tvm.get_global_func("runtime.config_threadpool")(mode, count, wanted)

    def _stay(self, own: list[int]) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, own)


def running() -> int:
    """Returns how many threads run or want to, this one among them; 0 where nobody says."""
    try:
        return int(_LOAD.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):  # no such file, or another form
        return 0


def cores() -> list[int]:
    """Returns the processors that this thread may use, by number."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
