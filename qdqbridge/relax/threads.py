"""Several threads for kernels: a thread of our own that calls TVM, with a pool of its own.

TVM's pool, its size and the size up to which loops are shared at all belong to the thread that
calls it, and are what ``TVM_NUM_THREADS`` or half of the cores say when it first calls. So calls of
several threads come from a thread made for them, whose pool is set up for as many as are asked for;
neither the environment nor the pools of other threads change.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import tvm

_ONE_CORE_EACH, _ALL_CORES = -2, -3  # modes of TVM's runtime.config_threadpool


class Caller:
    """Calls functions one after the other, with a pool of ``count`` threads for TVM's loops.

    Callers may be many threads: TVM's machine holds the state of one run only. A child of a fork
    gets a thread of its own, since those of its parent do not live there.

    Args:
        count: Threads; with 1 functions are called where they are handed in.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._prepare()

    def _prepare(self) -> None:
        self._process, self._turn = os.getpid(), Lock()
        self._own = (
            None
            if self.count == 1
            else ThreadPoolExecutor(
                1, thread_name_prefix="qdqbridge", initializer=_start, initargs=(self.count,)
            )
        )

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns what ``function`` returns; raises what it raises."""
        if os.getpid() != self._process:
            self._prepare()
        if self._own is not None:
            return self._own.submit(function, *args).result()
        with self._turn:
            return function(*args)


def _start(count: int) -> None:
    """Sets up the pool of this thread.

    Where every core gets one thread, each keeps its core: TVM pins its workers, and this thread,
    which works too, takes the core that is left. With fewer threads than cores the system places
    them, so that several executables do not share cores while others idle.
    """
    own = cores()
    wanted = [str(own[i % len(own)]) for i in range(max(count, len(own)))]
    pinned = count == len(own)
    mode = _ONE_CORE_EACH if pinned else _ALL_CORES
    tvm.get_global_func("runtime.config_threadpool")(mode, count, wanted)
    if pinned and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, own[:1])


def cores() -> list[int]:
    """Returns the processors that this thread may use, by number."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
