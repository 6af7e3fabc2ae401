"""Several processes, here or on a cluster, that look at samples side by side.

What they find merges exactly, so that the profile is the one a single process makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Protocol

from qdqbridge.autoquant.running import running
from qdqbridge.autoquant.samples import Sample
from qdqbridge.autoquant.stats import TensorStats
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.graph import Value
from qdqbridge.onnx_io.running import Execution, Recipe

_BATCH = 16
"""Samples that a worker gets at once."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to know.

    Attributes:
        recipe: The model.
        axes: The channel axis of each of its values.
        histograms: Count values as well.
    """

    recipe: Recipe
    axes: tuple[int | None, ...]
    histograms: bool


class JobWorker:
    """Runs a job's model on samples."""

    def __init__(self, job: Job) -> None:
        self._execution = Execution(job.recipe)
        self._running = [running(axis, histogram=job.histograms) for axis in job.axes]

    def seen(self, samples: Sequence[Sample]) -> list[TensorStats]:
        """Returns the statistics over ``samples``."""
        for sample in samples:
            for array, tensor in zip(self._execution.run(sample), self._running, strict=True):
                tensor.add(array)
        return [tensor.taken() for tensor in self._running]


class Team(Protocol):
    """Workers that know a job.

    Attributes:
        size: How many there are.
    """

    size: int

    def seen(self, shares: Sequence[Sequence[Sample]]) -> list[list[TensorStats]]:
        """Returns the statistics over each share, a share going to one worker."""
        ...

    def close(self) -> None:
        """Lets the workers go."""
        ...


class Processes:
    """Processes on this machine."""

    def __init__(self, job: Job, size: int) -> None:
        """Starts them."""
        self.size = size
        self._pool = get_context("spawn").Pool(size, _begin, (job,))

    def seen(self, shares: Sequence[Sequence[Sample]]) -> list[list[TensorStats]]:
        """Returns the statistics over each share."""
        return self._pool.map(_seen, [[dict(s) for s in share] for share in shares], chunksize=1)

    def close(self) -> None:
        """Ends them."""
        self._pool.terminate()
        self._pool.join()


_HERE: list[JobWorker] = []
"""The worker that this process is; a pool hands its processes nothing but a module."""


def _begin(job: Job) -> None:
    _HERE[:] = [JobWorker(job)]


def _seen(samples: Sequence[Sample]) -> list[TensorStats]:
    return _HERE[0].seen(samples)


class Ray:
    """Workers of Ray: those of the cluster this process is connected to, else of this machine."""

    def __init__(self, job: Job, size: int | None = None) -> None:
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
        remote = self._ray.remote(num_cpus=0)(JobWorker)
        shared = self._ray.put(job)
        self._actors = [remote.remote(shared) for _ in range(self.size)]

    def seen(self, shares: Sequence[Sequence[Sample]]) -> list[list[TensorStats]]:
        """Returns the statistics over each share."""
        pairs = zip(self._actors, shares, strict=False)
        return self._ray.get([actor.seen.remote(list(share)) for actor, share in pairs])

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
        shares = [waiting[i::count] for i in range(count)]
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
