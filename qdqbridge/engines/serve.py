"""The other end of :mod:`qdqbridge.engines.process`: a worker that answers requests.

Run as ``python -m qdqbridge.engines.serve WORKER REQUESTS ANSWERS MEMORY``, where the numbers are
file descriptors and bytes. What an engine prints goes to the standard streams, which nobody reads
unless it crashes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any


def serve(worker: Any, requests: Connection, answers: Connection) -> None:
    """Answers requests until nobody asks any more.

    Args:
        worker: What has the methods that are asked for.
        requests: Where ``(method, arguments)`` come from.
        answers: Where ``("answer", value)`` or ``("error", text)`` go to.
    """
    while True:
        try:
            method, arguments = requests.recv()
        except EOFError:
            return
        try:
            answer = ("answer", getattr(worker, method)(*arguments))
        except Exception as error:  # an engine raises whatever it likes
            answer = ("error", f"{type(error).__name__}: {error}")
        answers.send(answer)


def _limit_memory(size: int) -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        fits = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (fits, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(name: str, requests: str, answers: str, memory: str) -> None:
    """Drives one engine."""
    _limit_memory(int(memory))
    ends = (Connection(int(requests), writable=False), Connection(int(answers), readable=False))
    try:
        worker = import_module(f"qdqbridge.engines.workers.{name}").WORKER()
    except Exception as error:  # whatever is wrong with an installation
        said = f"{type(error).__name__}: {error}"
        ends[0].recv()
        ends[1].send(("error", said))
        return
    serve(worker, *ends)


if __name__ == "__main__":
    main(*sys.argv[1:])
