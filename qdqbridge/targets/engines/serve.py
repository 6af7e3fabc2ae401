"""The other end of :mod:`qdqbridge.targets.engines.process`: a worker that answers requests.

What an engine prints goes to the standard streams, of which the last
words are kept for the case that it crashes.
"""

from __future__ import annotations

import os
import pickle
import signal
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_GRACE = 10.0
"""Seconds after which a request is over where even who asked for it is gone."""
_WORDS = 10_000
"""Characters of an error that are sent."""


def serve(worker: Any, requests: Connection, answers: Connection) -> None:
    """Answers requests until nobody asks any more.

    Args:
        worker: What has the methods that are asked for.
        requests: Where ``(method, arguments, seconds)`` come from.
        answers: Where ``("answer", value)`` or ``("error", text)`` go to, pickled.
    """
    while True:
        try:
            method, arguments, seconds = requests.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE)
        try:
            answer = pickle.dumps(("answer", getattr(worker, method)(*arguments)), protocol=5)
        except Exception as error:  # an engine raises whatever it likes
            answer = _failure(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.send_bytes(answer)


def _failure(error: Exception) -> bytes:
    return pickle.dumps(("error", f"{type(error).__name__}: {error}"[:_WORDS]))


def _die_first() -> None:
    """Tells the kernel to end this process before others where memory is short."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit_memory(size: int) -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        fits = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (fits, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(name: str, requests: str, answers: str, memory: str) -> None:
    """Drives one engine.

    Args:
        name: Its module of :mod:`qdqbridge.targets.engines.workers`, or the whole name of another.
        requests: A file descriptor, in digits.
        answers: Another one.
        memory: How many bytes of addresses it may have.
    """
    _limit_memory(int(memory))
    _die_first()
    for number in (requests, answers):  # an engine's own processes shall not hold them open
        os.set_inheritable(int(number), False)
    ends = (Connection(int(requests), writable=False), Connection(int(answers), readable=False))
    try:
        module = name if "." in name else f"qdqbridge.targets.engines.workers.{name}"
        worker = import_module(module).WORKER()
    except Exception as error:  # whatever is wrong with an installation
        said = _failure(error)
        ends[0].recv()
        ends[1].send_bytes(said)
        return
    serve(worker, *ends)
