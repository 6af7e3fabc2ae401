"""A process that drives one engine, with limits: what happens in it stays in it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread, Timer
from typing import IO, Any

import qdqbridge
from qdqbridge.errors import UnsupportedTargetError

_GIGABYTE = 1 << 30
_SERVE = """
import sys
sys.path[:] = filter(None, sys.path)  # the working directory may hold an openvino.py
from qdqbridge.targets.engines.serve import main
main(*sys.argv[1:])
"""
_STARTING = 60.0
"""Seconds in which an engine has to be imported, on a busy machine."""
_EMULATED = 5.0
"""How many times as long that may take where an emulator translates all of it."""
_SAID = 2000
"""Bytes of what an engine said last that are worth a look."""
_ENDING = 5.0
"""Seconds that a process has to end by itself once it answers no more."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What an engine may take.

    Attributes:
        seconds: For loading a model, and for running it once.
        memory: Bytes of address space. Where the machine has less, the kernel ends the engine
            before any other process.
    """

    seconds: float = 600.0
    memory: int = 32 * _GIGABYTE


class EngineProcess:
    """A process that answers requests until something goes wrong in it.

    Args:
        worker: The module of :mod:`qdqbridge.targets.engines.workers` that drives the engine.
        label: The engine's name, for messages.
        limits: What it may take.
        install: The pip line that brings the engine.
        python: The command of the Python that drives it, an emulated one; by default this one.
    """

    def __init__(
        self,
        worker: str,
        label: str,
        limits: ProcessLimits,
        install: str = "pip install",
        python: Sequence[str] = (),
    ) -> None:
        self._label, self._limits = label, limits
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        numbers = [str(theirs_in), str(theirs_out), str(limits.memory)]
        self._process = subprocess.Popen(
            [*(python or (sys.executable,)), "-c", _SERVE, worker, *numbers],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs_in, theirs_out),
            env=_environment(),
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._answers = Connection(ours_in, writable=False)
        self._requests = Connection(ours_out, readable=False)
        assert self._process.stdout is not None
        self._said = _LastWords(self._process.stdout)
        self._end = weakref.finalize(self, _end, self._process, self._answers, self._requests)
        seconds = _STARTING * (_EMULATED if python else 1)
        try:
            self.version: str = self.ask("be imported", "version", seconds=seconds)
        except UnsupportedTargetError as error:
            self.close()
            again = install.replace("pip install", "pip install --force-reinstall", 1)
            error.fix = f"what is installed does not start here; to install it again: {again}"
            raise

    @property
    def seconds(self) -> float:
        """How long it may take for one request."""
        return self._limits.seconds

    @property
    def alive(self) -> bool:
        """False once it has crashed, hung or been closed."""
        return self._end.alive

    def ask(self, doing: str, request: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Returns the answer to a request.

        Args:
            doing: What it is asked to do, for messages: ``load the model``.
            request: The method of the worker.
            seconds: How long it may take; by default what the limits say.

        Raises:
            UnsupportedTargetError: The engine refuses, has crashed, or took too long. After the
                last two the process is gone.
        """
        limit = self.seconds if seconds is None else seconds
        start = time.monotonic()
        try:
            with self._ended_after(limit):
                self._requests.send((request, arguments, limit))
                # no answer is larger than what may hold it: a length that noise says is none
                message = self._answers.recv_bytes(self._limits.memory)
        except (EOFError, OSError) as error:  # the two ends of a pipe whose process is gone
            if time.monotonic() - start >= limit:
                why = f"it did not answer within {limit:g} s and was ended"
            elif (
                isinstance(error, OSError) and error.errno is None
            ):  # what a Connection itself says
                why = f"its answer cannot be read: {error}, more than it may hold"
            else:
                why = self._death()
            self.close()
            raise self._error(doing, why) from error
        except BaseException:  # interrupted: half an answer may be in the pipe
            self.close()
            raise
        kind, value = self._read(doing, message)
        if kind == "answer":
            return value
        raise self._error(doing, value)

    def _read(self, doing: str, message: bytes) -> tuple[str, Any]:
        try:
            kind, value = pickle.loads(message)
            if kind != "answer" and (kind != "error" or not isinstance(value, str)):
                raise ValueError("it has another form")
        except Exception as error:  # whatever was written to the pipe that is no answer of a worker
            self.close()
            raise self._error(doing, f"its answer cannot be read: {error}") from error
        return kind, value

    def close(self) -> None:
        """Ends the process, and what it has started, if it has not ended."""
        self._end()

    @contextmanager
    def _ended_after(self, seconds: float) -> Generator[None, None, None]:
        """Kills the process after a time, so that nobody waits for a pipe any longer."""
        watch = Timer(seconds, _kill, [self._process])
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()

    def _death(self) -> str:
        try:
            code = self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            return "its process runs, and answers no more"
        _kill(self._process)  # what it has started, and what may hold its output open
        said = self._said.text()
        ended = f"exit code {code}" if code >= 0 else _signal(-code)
        return f"its process crashed ({ended})" + (f"; it said: {said[-400:]}" if said else "")

    def _error(self, doing: str, why: str) -> UnsupportedTargetError:
        flat = _printable(why)
        return UnsupportedTargetError(
            f"{self._label} cannot {doing}",
            why=flat if len(flat) <= 600 else flat[:600] + " …",
            fix="see which nodes it names; another engine or profile may take the model",
        )


class _LastWords:
    """The end of what a process prints; the rest is passed over, however much it is."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._kept = bytearray()
        self._reading = Thread(target=self._read, args=[stream], daemon=True)
        self._reading.start()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while part := os.read(stream.fileno(), 1 << 16):
                self._kept = (self._kept + part)[-_SAID:]

    def text(self) -> str:
        """Returns the last words of a process that has ended, as one line."""
        self._reading.join(_ENDING)
        return _printable(self._kept.decode("utf-8", "replace"))


def _end(process: subprocess.Popen[bytes], *ends: Connection) -> None:
    if process.returncode is None:  # else its number may be that of another process by now
        _kill(process)
        with suppress(subprocess.TimeoutExpired):  # it waits for a device that never answers
            process.wait(_ENDING)
    for end in ends:
        with suppress(OSError):
            end.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and the processes that it has started; they are one session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _printable(text: str) -> str:
    """Returns a text as one line that changes nothing of a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


_SHORT_OF_MEMORY = "; so ends what takes more memory than there is"


def _signal(number: int) -> str:
    more = _SHORT_OF_MEMORY if number == signal.SIGKILL else ""
    with suppress(ValueError):
        return signal.Signals(number).name + more
    return f"signal {number}"


def _environment() -> dict[str, str]:
    """Returns the environment of the process: it finds this package, wherever that lies."""
    root = str(Path(qdqbridge.__file__).resolve().parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_WAIT_POLICY": "PASSIVE"}
