"""Several processes, here or on a cluster, that look at samples side by side.

What they find merges exactly, so that the profile is the one a single process makes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

from qdqbridge.autoquant.profiling.control_flow import ModelRecipe
from qdqbridge.autoquant.profiling.samples import Sample
from qdqbridge.autoquant.profiling.stats import TensorStats, running
from qdqbridge.core.graph.graph import Value
from qdqbridge.errors import InputDataError, UnsupportedTargetError

_BATCH = 16
"""Samples that a worker gets at once."""
_ATTEMPTS = 5
"""Workers that may die at one share: something else may end them, but not again and again."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to know.

    Attributes:
        recipe: The model.
        axes: The channel axis of each of its values.
        histograms: Count values as well.
    """

    recipe: ModelRecipe
    axes: tuple[int | None, ...]
    histograms: bool

    def worker(self) -> JobWorker:
        """Returns what runs the model."""
        return JobWorker(self)


class JobWorker:
    """Runs a job's model on samples."""

    def __init__(self, job: Job) -> None:
        self._execution = job.recipe.execution()
        self._running = [running(axis, histogram=job.histograms) for axis in job.axes]

    def seen(self, samples: Sequence[Sample]) -> list[TensorStats]:
        """Returns the statistics over ``samples``."""
        for sample in samples:
            for arrays, tensor in zip(self._execution.run(sample), self._running, strict=True):
                for array in arrays:
                    tensor.add(array)
        return [tensor.taken() for tensor in self._running]


class Worker(Protocol):
    """What a process has made of a job."""

    def seen(self, share: Sequence[Any], /) -> Any:
        """Returns what is found about a share; nothing of it stays behind."""
        ...


class Work(Protocol):
    """A job in plain data: it goes to other processes and machines."""

    def worker(self) -> Worker:
        """Returns what does it."""
        ...


class Team(Protocol):
    """Workers that know a job.

    Attributes:
        size: How many there are.
    """

    size: int

    def seen(self, shares: Sequence[Sequence[Any]]) -> list[Any]:
        """Returns what is found about each share, a share going to one worker.

        A share whose worker dies is given to another one, which begins it anew: what comes back
        is the same.

        Raises:
            UnsupportedTargetError: Workers die again and again.
        """
        ...

    def close(self) -> None:
        """Lets the workers go."""
        ...


def team_of(job: Work, workers: int | str) -> Team:
    """Returns a team of so many processes, or of Ray's.

    Raises:
        InputDataError: It is not a number of workers.
        UnsupportedTargetError: Ray is not installed.
    """
    check_workers(workers)
    return Ray(job) if isinstance(workers, str) else Processes(job, workers)


def check_workers(workers: int | str) -> None:
    """Raises an InputDataError for what is neither a number of workers nor ``ray``."""
    if workers != "ray" and not (isinstance(workers, int) and 0 < workers <= MOST):
        raise InputDataError(
            f"{workers!r} is not a number of workers", fix=f"give a number up to {MOST}, or 'ray'"
        )


MOST = 4096
"""Processes, or threads, of which there may be."""


def _all_seen(
    shares: Sequence[Sequence[Any]],
    begin: Callable[[int, Sequence[Any]], Callable[[], Any]],
    renew: Callable[[int], None],
    died: type[BaseException],
) -> list[Any]:
    """Returns what is found about each share.

    Args:
        shares: At most one for each worker.
        begin: Gives a worker a share; what it returns waits for the result.
        renew: Puts another worker in the place of a dead one.
        died: What waiting raises where a worker died.
    """
    found: dict[int, Any] = {}
    for _ in range(_ATTEMPTS):
        waiting: dict[int, Callable[[], Any]] = {}
        for index, share in enumerate(shares):
            if index not in found:
                try:
                    waiting[index] = begin(index, share)
                except died:  # since its last share
                    renew(index)
        for index, wait in waiting.items():
            try:
                found[index] = wait()
            except died:
                renew(index)
        if len(found) == len(shares):
            return [found[index] for index in range(len(shares))]
    raise UnsupportedTargetError(
        "workers die again and again",
        why=f"{_ATTEMPTS} died at the same share",
        fix="look at the memory that they have, or take fewer of them",
    )


class Processes:
    """Processes on this machine."""

    def __init__(self, job: Work, size: int) -> None:
        """Starts them."""
        self.size = size
        self._job = job
        self._processes = [WorkerProcess(job) for _ in range(size)]

    def seen(self, shares: Sequence[Sequence[Any]]) -> list[Any]:
        """Returns what is found about each share."""

        def begin(index: int, share: Sequence[Any]) -> Callable[[], Any]:
            self._processes[index].give(share)
            return self._processes[index].found

        def renew(index: int) -> None:
            self._processes[index].close()
            self._processes[index] = WorkerProcess(self._job)

        return _all_seen(shares, begin, renew, WorkerDiedError)

    def close(self) -> None:
        """Ends them."""
        for process in self._processes:
            process.close()


class WorkerDiedError(Exception):
    """A worker's end of its pipe is closed."""


class WorkerProcess:
    """A worker in a process of its own.

    Its end of the pipe is open in it alone, so that its death ends what waits for it, whatever it
    was doing. A ``ProcessPoolExecutor`` holds both ends of its pipes and waits for the rest of a
    result forever where a worker is killed while it sends one.
    """

    def __init__(self, job: Work) -> None:
        """Starts it."""
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(job, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._owed = 0
        """Results that are not fetched yet: another worker's error can leave some behind."""

    @property
    def pid(self) -> int | None:
        """The number of the process."""
        return self._process.pid

    def give(self, share: Sequence[Any]) -> None:
        """Gives it a share, what was found about earlier ones being of no interest any more.

        Raises:
            WorkerDiedError: It has died.
        """
        while self._owed:
            self._received()
        with _death():
            self._pipe.send([*share])
        self._owed += 1

    def found(self) -> Any:
        """Waits for what is found about the share that it was given last.

        Raises:
            WorkerDiedError: It has died.
        """
        found, error = self._received()
        if error is not None:
            raise error
        return found

    def _received(self) -> tuple[Any, Exception | None]:
        with _death():
            received = self._pipe.recv()
        self._owed -= 1
        return received

    def close(self) -> None:
        """Lets it go, once it has done what it does."""
        self._pipe.close()
        self._process.join()


@contextmanager
def _death() -> Generator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise WorkerDiedError from error


def _serve(job: Work, pipe: Connection) -> None:
    """Answers each share with what is found about it and an error, until nobody asks any more."""
    worker: Worker | None = None
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            share = pipe.recv()
            answer: tuple[Any, Exception | None]
            try:
                worker = worker or job.worker()
                answer = worker.seen(share), None
            except Exception as error:  # who gave the share raises it
                answer = None, error
            pipe.send(answer)


class _Actor:
    """A worker as Ray starts it."""

    def __init__(self, job: Work) -> None:
        self._worker = job.worker()

    def seen(self, share: Sequence[Any]) -> Any:
        return self._worker.seen(share)


class Ray:
    """Workers of Ray: those of the cluster this process is connected to, else of this machine."""

    def __init__(self, job: Work, size: int | None = None) -> None:
        """Starts them.

        Args:
            job: What they do.
            size: Their number; by default one per processor, and two at least.

        Raises:
            UnsupportedTargetError: Ray is not installed.
        """
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UnsupportedTargetError(
                "Ray is not installed", fix="pip install 'qdqbridge[ray]', or give a number"
            ) from error
        self._ray: Any = ray
        self._ours = not self._ray.is_initialized()
        if self._ours:
            quiet = {"log_to_driver": False, "logging_level": "ERROR"}
            self._ray.init(num_cpus=size, include_dashboard=False, **quiet)
        self.size = size or max(2, int(self._ray.available_resources().get("CPU", 2)))
        self._shared = self._ray.put(job)
        self._actors = [self._actor() for _ in range(self.size)]

    def _actor(self) -> Any:
        return self._ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_Actor).remote(
            self._shared
        )

    def seen(self, shares: Sequence[Sequence[Any]]) -> list[Any]:
        """Returns what is found about each share."""

        def begin(index: int, share: Sequence[Any]) -> Callable[[], Any]:
            return partial(self._ray.get, self._actors[index].seen.remote([*share]))

        def renew(index: int) -> None:
            self._actors[index] = self._actor()

        return _all_seen(shares, begin, renew, self._ray.exceptions.RayActorError)

    def close(self) -> None:
        """Ends them, and Ray where this object started it."""
        for actor in self._actors:
            with suppress(Exception):  # it may be gone already
                self._ray.kill(actor)
        if self._ours:
            self._ray.shutdown()


class TeamObserver:
    """An observer that hands samples to a team."""

    def __init__(self, values: Sequence[Value], team: Team) -> None:
        self.values: Sequence[Value] = values
        self._team = team
        self._waiting: list[Sample] = []
        self._stats = self._nothing()

    def observe(self, sample: Sample) -> None:
        """Looks at one sample, or keeps it until there is something to do for everybody."""
        self._waiting.append(sample)
        if len(self._waiting) == self._team.size * _BATCH:
            self._work()

    def _work(self) -> None:
        waiting, self._waiting = self._waiting, []
        count = min(self._team.size, len(waiting))
        shares = [[dict(sample) for sample in waiting[i::count]] for i in range(count)]
        for found in self._team.seen(shares) if waiting else ():
            pairs = zip(self._stats, found, strict=True)
            self._stats = [one.merged(other) for one, other in pairs]

    def taken(self) -> Sequence[TensorStats]:
        """Returns the statistics over what was seen since, and starts anew."""
        self._work()
        stats, self._stats = self._stats, self._nothing()
        return stats

    def _nothing(self) -> list[TensorStats]:
        return [TensorStats() for _ in self.values]
