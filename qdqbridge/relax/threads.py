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

from qdqbridge.relax.thread_pool import ThreadPool


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
        self._pool: ThreadPool | None = None
        self._own: ThreadPoolExecutor | None = None
        if self.count > 1:
            self._own = ThreadPoolExecutor(1, thread_name_prefix="qdqbridge")

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns what ``function`` returns; raises what it raises."""
        if os.getpid() != self._process:
            self._prepare()
        if self._own is not None:
            return self._own.submit(self._shared, function, *args).result()
        with self._turn:
            return function(*args)

    def _shared(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function in the thread of our own."""
        if self._pool is None:
            self._pool = ThreadPool(self.count)
        return self._pool.call(function, *args)
