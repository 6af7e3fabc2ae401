"""Decisions that are tried side by side, in several processes or on a cluster.

A worker holds the parts of simulated graphs, as they are compiled here, and their samples; it is
sent the parameters that a decision has otherwise than the float model, and returns the outputs.
They are the same, bit for bit, whoever computes them and however often a worker dies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from qdqbridge.autoquant.planning.decide import Decision
from qdqbridge.autoquant.profiling.workers import Team, team_of
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.targets.running import Execution, Recipe

Array = NDArray[Any]
Outputs = Sequence[Array]
Trial: TypeAlias = "tuple[Simulation, Decision]"


@dataclass(frozen=True, slots=True)
class SentSimulation:
    """A simulation in plain data.

    Attributes:
        parts: Its parts, each with the names of its outputs.
        feeds: The inputs that are no samples, for the float model.
        batches: The samples.
        wanted: The names of what it returns.
    """

    parts: tuple[tuple[Recipe, tuple[str, ...]], ...]
    feeds: Mapping[str, Array]
    batches: tuple[Mapping[str, Array], ...]
    wanted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrialJob:
    """What a worker needs to know: all simulations that trials are of."""

    simulations: tuple[SentSimulation, ...]

    def worker(self) -> TrialWorker:
        """Returns what runs trials."""
        return TrialWorker(self)


class TrialWorker:
    """Runs trials."""

    def __init__(self, job: TrialJob) -> None:
        """Loads the parts of every simulation."""
        self._job = job
        self._parts = [
            [(Execution(recipe), recipe.inputs, names) for recipe, names in each.parts]
            for each in job.simulations
        ]

    def seen(self, share: Sequence[tuple[int, Mapping[str, Array]]]) -> list[list[Outputs]]:
        """Returns the outputs of every trial, batch by batch.

        Args:
            share: Of which simulation a trial is, and what it feeds otherwise.
        """
        return [list(self._outputs(number, feeds)) for number, feeds in share]

    def _outputs(self, number: int, feeds: Mapping[str, Array]) -> Iterator[Outputs]:
        job = self._job.simulations[number]
        for batch in job.batches:
            arrays = {**job.feeds, **feeds, **batch}
            for execution, inputs, names in self._parts[number]:
                if names:
                    found = execution.run({name: arrays[name] for name in inputs})
                    arrays.update(zip(names, found, strict=True))
            yield [arrays[name] for name in job.wanted]


class TrialTeam:
    """Workers for some simulations, which have to cover all that is tried."""

    def __init__(self, simulations: Sequence[Simulation], workers: int | str) -> None:
        """Starts them.

        Args:
            simulations: Of onnxruntime.
            workers: A number of processes, or ``ray``.

        Raises:
            InputDataError: It is not a number of workers.
            UnsupportedTargetError: Ray is not installed, or another engine runs the simulations.
        """
        self._simulations = list(simulations)
        self._sent = [simulation.sent() for simulation in self._simulations]
        self._team: Team = team_of(TrialJob(tuple(self._sent)), workers)

    def outputs(self, trials: Sequence[Trial]) -> list[list[Outputs]]:
        """Returns the outputs of every trial, batch by batch, in order."""
        tasks: list[tuple[int, Mapping[str, Array]]] = []
        for simulation, decision in trials:
            number = self._simulations.index(simulation)
            feeds, known = simulation.feeds_by_name(decision), self._sent[number].feeds
            if feeds.keys() != known.keys():
                raise UnsupportedTargetError(
                    "a decision rounds what the workers' simulation does not",
                    fix="cover its plan before workers are started",
                )
            other = {name: a for name, a in feeds.items() if a is not known[name]}
            tasks.append((number, other))
            simulation.trials += 1
        count = min(self._team.size, len(tasks))
        found = self._team.seen([tasks[i::count] for i in range(count)])
        return [found[i % count][i // count] for i in range(len(tasks))]

    def close(self) -> None:
        """Lets the workers go."""
        self._team.close()

    def __enter__(self) -> TrialTeam:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
