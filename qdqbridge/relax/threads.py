"""Several threads for kernels: a thread of our own that calls TVM, on a core that it keeps.

TVM's pool belongs to the thread that calls it, and has the size that it first had there. TVM pins
the workers to cores but not the caller, which the system may then put on a worker's core: with two
threads on two cores that halves the speed. So calls of several threads come from a thread made for
them, which starts its own pool and is pinned to a core that no worker has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tvm

_VARIABLE = "TVM_NUM_THREADS"
_STARTING = threading.Lock()


class Caller:
    """Calls functions one after the other, with a pool of ``count`` threads for TVM's loops.

    Args:
        count: Threads; with 1 functions are called where they are handed in.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._own = None if count == 1 else ThreadPoolExecutor(
            1, thread_name_prefix="qdqbridge", initializer=_start, initargs=(count,)
        )

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns what ``function`` returns; raises what it raises."""
        return function(*args) if self._own is None else self._own.submit(function, *args).result()


def _start(count: int) -> None:
    """Starts the pool of this thread, and pins this thread."""
    with _STARTING:
        before, known = os.environ.get(_VARIABLE), threads_and_cores()
        os.environ[_VARIABLE] = str(count)
        try:
            tvm.runtime.num_threads()  # starts the pool
        finally:
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before
        workers = [cores for task, cores in threads_and_cores().items() if task not in known]
    _pin({core for cores in workers if len(cores) == 1 for core in cores})


def _pin(taken: set[int]) -> None:
    """Keeps this thread on a core that is not taken; leaves it free where that is not known."""
    if not taken or not hasattr(os, "sched_setaffinity"):
        return
    left = sorted(os.sched_getaffinity(0) - taken)
    if left:
        os.sched_setaffinity(0, left[:1])


def threads_and_cores() -> dict[str, set[int]]:
    """Returns the cores that each thread of this process may use; nothing where that is hidden."""
    tasks = Path("/proc/self/task")
    if not hasattr(os, "sched_getaffinity") or not tasks.exists():
        return {}
    found: dict[str, set[int]] = {}
    for task in tasks.iterdir():
        try:
            found[task.name] = set(os.sched_getaffinity(int(task.name)))
        except OSError:  # it has ended
            continue
    return found
