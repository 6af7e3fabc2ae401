"""A process that drives one engine, with limits: what happens in it stays in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from qdqbridge.errors import UnsupportedTargetError

_GIGABYTE = 1 << 30
_STARTING = 60.0
"""Seconds in which an engine has to be imported, on a busy machine."""
_SAID = 2000
"""Bytes of what an engine said last that are worth a look."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What an engine may take.

    Attributes:
        seconds: For loading a model, and for running it once.
        memory: Bytes of address space.
    """

    seconds: float = 600.0
    memory: int = 32 * _GIGABYTE


class EngineProcess:
    """A process that answers requests until something goes wrong in it.

    Args:
        worker: The module of :mod:`qdqbridge.engines.workers` that drives the engine.
        label: The engine's name, for messages.
        limits: What it may take.
    """

    def __init__(self, worker: str, label: str, limits: ProcessLimits) -> None:
        self._label, self._limits = label, limits
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        numbers = [str(theirs_in), str(theirs_out), str(limits.memory)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qdqbridge.engines.serve", worker, *numbers],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            pass_fds=(theirs_in, theirs_out),
            env=_environment(),
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._answers = Connection(ours_in, writable=False)
        self._requests = Connection(ours_out, readable=False)
        try:
            self.version: str = self.ask("be imported", "version", seconds=_STARTING)
        except UnsupportedTargetError:
            self.close()
            raise

    @property
    def seconds(self) -> float:
        """How long it may take for one request."""
        return self._limits.seconds

    @property
    def alive(self) -> bool:
        """False once it has crashed, hung or been closed."""
        return not self._answers.closed

    def ask(self, doing: str, request: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Returns the answer to a request.

        Args:
            doing: What it is asked to do, for messages: ``load the model``.
            request: The method of the worker.
            arguments: Its arguments.
            seconds: How long it may take; by default what the limits say.

        Raises:
            UnsupportedTargetError: The engine refuses, has crashed, or took too long. After the
                last two the process is gone.
        """
        limit = self.seconds if seconds is None else seconds
        try:
            self._requests.send((request, arguments))
            if not self._answers.poll(limit):
                self.close()
                raise self._error(doing, f"it did not answer within {limit:g} s and was ended")
            kind, value = self._answers.recv()
        except (EOFError, OSError) as error:  # the two ends of a pipe whose process is gone
            raise self._error(doing, self._death()) from error
        if kind == "answer":
            return value
        raise self._error(doing, value)

    def close(self) -> None:
        """Ends the process, if it has not ended."""
        if not self.alive:
            return
        self._process.kill()
        self._process.wait()
        for end in (self._answers, self._requests):
            with suppress(OSError):
                end.close()
        self._said.close()

    def _death(self) -> str:
        code = self._process.wait()
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - _SAID))
        said = " ".join(self._said.read().decode("utf-8", "replace").split())
        self.close()
        ended = f"exit code {code}" if code >= 0 else _signal(-code)
        return f"its process crashed ({ended})" + (f"; it said: {said[-400:]}" if said else "")

    def _error(self, doing: str, why: str) -> UnsupportedTargetError:
        flat = " ".join(why.split())
        return UnsupportedTargetError(
            f"{self._label} cannot {doing}",
            why=flat if len(flat) <= 600 else flat[:600] + " …",
            fix="see which nodes it names; another engine or profile may take the model",
        )


def _signal(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _environment() -> dict[str, str]:
    """Returns the environment of the process: it finds this package, wherever that lies."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_WAIT_POLICY": "PASSIVE"}
