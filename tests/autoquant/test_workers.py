"""Work that is shared out, also where workers are killed: the same bytes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.profiling import profile
from qdqbridge.app.quantizing import Quantization, quantization
from qdqbridge.autoquant.profiling import workers
from qdqbridge.autoquant.profiling.profile import profile_text
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from tests.places import MODELS

MODEL = MODELS / "digits_cnn_float.onnx"
IMAGES = np.load(MODELS / "digits_test.npz")["x"][:64]
DATA = {"input": IMAGES}


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of Ray of several processes on this machine, which is there before."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'qdqbridge[ray]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def alone() -> str:
    return profile_text(profile(MODEL, DATA, threads=1))


def pids(team: Any) -> list[int]:
    """Returns the processes of a team."""
    if isinstance(team, workers.Ray):
        asked = [actor.__ray_call__.remote(lambda self: os.getpid()) for actor in team._actors]
        return team._ray.get(asked)
    return [process.pid for process in team._processes]


class Killing:
    """Kills a worker while a team is at work, as often as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.killed: list[int] = []
        self._left = times
        for kind in (workers.Ray, workers.Processes):
            monkeypatch.setattr(kind, "seen", self._around(kind.seen))

    def _around(self, seen: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def around(team: Any, shares: Any) -> list[Any]:
            if self._left <= 0:
                return seen(team, shares)
            if isinstance(team, workers.Processes):
                seen(team, shares)  # processes start with their first share
            self._left -= 1
            try:
                pid = pids(team)[0]
            except Exception as error:  # killed between two shares: the next one fills its place
                assert type(error).__name__ == "ActorDiedError", error
                seen(team, shares)
                pid = pids(team)[0]
            delay = np.random.default_rng(self._left).uniform(0, 0.02)
            timer = threading.Timer(delay, self._kill, [pid])
            timer.start()
            try:
                return seen(team, shares)
            finally:
                timer.join()

        return around

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.killed.append(pid)


@pytest.mark.parametrize("several", [2, "ray"])
def test_a_killed_worker_changes_no_byte_of_a_profile(
    several: Any, alone: str, monkeypatch: pytest.MonkeyPatch, ray: Any
) -> None:
    killing = Killing(monkeypatch, 2)
    assert profile_text(profile(MODEL, DATA, workers=several)) == alone
    assert len(killing.killed) == 2


def found(several: int | str | None) -> tuple[Quantization, Quantization]:
    """Returns a network with choosers tried, and one with layers in more bits."""
    graph = qb.load(MODEL)
    tuned = quantization(graph, DATA, repair=(), preset="full", workers=several)
    rough = quantization(graph, DATA, repair=(), chooser="minmax", weights="int4", workers=several)
    return tuned, rough.meeting(min_sqnr=22.0)


@pytest.mark.parametrize("several", [pytest.param(2, marks=pytest.mark.slow), "ray"])
def test_choosers_and_layers_are_those_that_one_process_finds(
    several: int | str, monkeypatch: pytest.MonkeyPatch, ray: Any
) -> None:
    expected = found(None)
    killing = Killing(monkeypatch, 2)
    shared = found(several)
    assert len(killing.killed) == 2
    for one, other in zip(expected, shared, strict=True):
        assert one.graph.digest == other.graph.digest
    assert expected[0].made.tuning == shared[0].made.tuning
    assert expected[1].fallback is not None and shared[1].fallback is not None
    assert len(expected[1].fallback.reverted) == len(shared[1].fallback.reverted) > 0


class Dying:
    """A job whose workers die at whatever they get."""

    def worker(self) -> workers.Worker:
        return _Dead()


class _Dead:
    def seen(self, share: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_workers_that_always_die_end_in_an_error() -> None:
    team = workers.team_of(Dying(), 1)
    with pytest.raises(UnsupportedTargetError, match="die again and again"):
        team.seen([[1]])
    team.close()


class Sending:
    """A job whose worker dies when it has sent half of its first result."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def worker(self) -> workers.Worker:
        return _Sender(self.mark)


class _Sender:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def seen(self, share: Any) -> Any:
        if self.mark.exists():
            return sum(share)
        self.mark.touch()
        Connection._send = _send_half  # pyright: ignore[reportAttributeAccessIssue]
        return bytes(1000)


def _send_half(connection: Connection, message: memoryview, *_: Any) -> None:
    os.write(connection.fileno(), message[: len(message) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_while_it_sends_is_not_waited_for(tmp_path: Path) -> None:
    team = workers.team_of(Sending(tmp_path / "mark"), 1)
    assert team.seen([[1, 2]]) == [3]
    team.close()


class Refusing:
    """A job that is refused where a share holds a 0."""

    def worker(self) -> workers.Worker:
        return _Refusing()


class _Refusing:
    def seen(self, share: Any) -> Any:
        if 0 in share:
            raise InputDataError("a 0")
        return share


def test_an_error_comes_through_and_no_result_is_taken_for_another() -> None:
    team = workers.team_of(Refusing(), 2)
    with pytest.raises(InputDataError, match="a 0"):
        team.seen([[0], [1]])
    assert team.seen([[2], [3]]) == [[2], [3]]
    team.close()


@pytest.mark.parametrize("wrong", [0, -1, "dask"])
def test_no_number_of_workers(wrong: int | str) -> None:
    with pytest.raises(InputDataError, match="not a number of workers"):
        quantization(MODEL, DATA, repair=(), workers=wrong)
