"""Several threads for kernels: a thread of our own that calls TVM, with a pool of its own.

TVM's pool, its size and the size up to which loops are shared at all belong to the thread that
calls it, and are what ``TVM_NUM_THREADS`` or half of the cores say when it first calls. So calls of
several threads come from a thread made for them, whose pool is set up for as many as are asked for;
neither the environment nor the pools of other threads change.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any
from weakref import WeakSet

import tvm

# ---- TVM's pool of threads, which leaves the cores to others where they want them ----------------
# Every loop that threads share ends when the last of them is done. A thread that shares its core
# with another process gets it back after some milliseconds, at each of these loops, and so a
# network of 60 of them takes up to 70 times as long as one thread alone. No result depends on who
# does which turn of a loop, so one thread then does them all, until the cores are free again.

_ONE_CORE_EACH, _ALL_CORES = -2, -3  # modes of TVM's runtime.config_threadpool
_LEAST = 1e-3
"""Seconds; shorter calls are not judged, for the clock of processor time is too coarse."""

_OWN = 0.85
"""TVM's threads spin while they wait, so that all of them use this much of the cores' time."""

_PAUSES = 0.1, 10.0
"""Seconds until all threads are tried again: at first, and at most, whatever runs then."""

_LOAD = Path("/proc/loadavg")


class ThreadPool:
    """The pool of the thread that this is made in.

    Args:
        count: Threads, more than one.
    """

    def __init__(self, count: int) -> None:
        self.count, self._cores = count, cores()
        self._wanted = min(count, len(self._cores))
        self._pinned = count == len(self._cores)
        self._pause, self._retreated = _PAUSES[0], -math.inf
        self._share()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns what ``function`` returns, which TVM runs with all threads, or with one."""
        if self.alone:
            self._try_again()
        if self.alone:
            return function(*args)
        wall, own = time.perf_counter(), time.process_time()
        result = function(*args)
        self.judge(time.perf_counter() - wall, time.process_time() - own)
        return result

    def judge(self, wall: float, own: float) -> None:
        """Lets one thread go on alone if others had the cores in a call of all.

        Other threads of this process that compute meanwhile hide it.

        Args:
            wall: Seconds that the call took.
            own: Seconds of processors' time that this process used in them.
        """
        if wall < _LEAST or own >= _OWN * self._wanted * wall:
            return
        others = running() - self.count  # all threads of the pool spin for a while behind a call
        if others + self._wanted > (os.cpu_count() or 1):
            self._retreat()

    def _try_again(self) -> None:
        """Takes all threads again when the cores are free, or have been asked for long enough."""
        waited = time.monotonic() - self._retreated
        if waited < self._pause:
            return
        if waited > _PAUSES[1] or running() - 1 + self._wanted <= (os.cpu_count() or 1):
            self._share()

    def _share(self) -> None:
        """Sets up the pool for all threads.

        Where every core gets one thread, each keeps its core: TVM pins its workers, and this
        thread, which works too, takes the core that is left. With fewer threads than cores the
        system places them, so that several executables do not share cores while others idle.
        """
        self.alone = False
        self._configure(_ONE_CORE_EACH if self._pinned else _ALL_CORES, self.count)
        self._stay(self._cores[:1])

    def _retreat(self) -> None:
        """Leaves all to one thread, which may go where it finds a core, for longer each time."""
        now = time.monotonic()
        again = now - self._retreated < 2 * _PAUSES[1]
        self._pause = min(2 * self._pause, _PAUSES[1]) if again else _PAUSES[0]
        self.alone, self._retreated = True, now
        self._configure(_ALL_CORES, 1)
        self._stay(self._cores)

    def _configure(self, mode: int, count: int) -> None:
        own = self._cores
        # as many as there are threads: TVM takes no more threads than it is told cores
        wanted = [str(own[i % len(own)]) for i in range(max(self.count, len(own)))]
        tvm.get_global_func("runtime.config_threadpool")(mode, count, wanted)

    def _stay(self, own: list[int]) -> None:
        """Keeps this thread on some cores, where threads keep theirs."""
        if self._pinned and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):  # they are not the process's any more
                os.sched_setaffinity(0, own)


def running() -> int:
    """Returns how many threads of the machine run or want to; 0 where nobody says.

    This one is among them. Linux says it, of a container's host where that has other cores.
    """
    try:
        return int(_LOAD.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):  # no such file, or another form
        return 0


def cores() -> list[int]:
    """Returns the processors that this thread may use, by number."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


class Caller:
    """Calls functions one after the other, with a pool of ``count`` threads for TVM's loops.

    Callers may be many threads: TVM's machine holds the state of one run only. A fork waits until
    no function runs, since its child would find that machine, and TVM's memory, in the middle of
    it. The child gets a thread of its own: those of its parent do not live there.

    Args:
        count: Threads; with 1 functions are called where they are handed in.
    """

    def __init__(self, count: int) -> None:
        self.count, self.turn = count, RLock()
        self.renew()
        with _FORKING:
            _CALLERS.add(self)

    def renew(self) -> None:
        """Forgets the thread of a parent."""
        self.pool: ThreadPool | None = None
        self._own: ThreadPoolExecutor | None = None
        if self.count > 1:
            self._own = ThreadPoolExecutor(1, thread_name_prefix="qdqbridge")

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns what ``function`` returns; raises what it raises."""
        with self.turn:
            if self._own is None:
                return function(*args)
            return self._own.submit(self._shared, function, *args).result()

    def _shared(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function in the thread of our own."""
        if self.pool is None:
            self.pool = ThreadPool(self.count)
        return self.pool.call(function, *args)


_CALLERS: WeakSet[Caller] = WeakSet()
"""What a fork waits for."""

_FORKING = RLock()
_held: list[Caller] = []


def _wait() -> None:
    _FORKING.acquire()
    _held.extend(sorted(_CALLERS, key=id))
    for caller in _held:
        caller.turn.acquire()


def _go_on() -> None:
    while _held:
        _held.pop().turn.release()
    _FORKING.release()


def _begin_anew() -> None:
    for caller in _held:
        caller.renew()
    _go_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_begin_anew)


# ---- One thread at a time where TVM keeps something for all of them ------------------------------
# TVM 0.27 has one list of the block builders that are open, and a function that ends has to be the
# last one's (``BlockBuilder._stack``): two threads that build functions at once end in an
# assertion.


# ---- ctrl-C during TVM's work --------------------------------------------------------------------


def raise_interrupt(error: Exception) -> None:
    """Raises KeyboardInterrupt where ``error`` is what TVM makes of one.

    One that comes up in a pass written in Python leaves TVM as a RuntimeError without a word
    (measured, apache-tvm-ffi 0.1.14); errors of TVM's own say something.
    """
    if type(error) is RuntimeError and not str(error):
        raise KeyboardInterrupt from error


BUILDING = RLock()
"""Held by whoever builds functions of Relax, or has TVM legalize them."""

if hasattr(os, "register_at_fork"):  # a child finds it free, and TVM's list as it was before
    os.register_at_fork(
        before=BUILDING.acquire, after_in_parent=BUILDING.release, after_in_child=BUILDING.release
    )
