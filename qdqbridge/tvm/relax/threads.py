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
from threading import RLock
from typing import Any
from weakref import WeakSet

from qdqbridge.tvm.relax.thread_pool import ThreadPool


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
