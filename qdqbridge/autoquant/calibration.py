"""What is seen of a float model, once, for all that is tried of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

from qdqbridge.autoquant.advice.few_samples import HALVED
from qdqbridge.autoquant.profiling.collect import (
    Data,
    Observer,
    Progress,
    collect,
    onnxruntime_observer,
    prepared,
)
from qdqbridge.autoquant.profiling.profile import Profile
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.sweep import DecisionJudge
from qdqbridge.autoquant.search.tuning import (
    ELEMENTS,
    SAMPLES,
    TimeBudget,
    spread,
    spread_unlike,
    taken,
)
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError

_REPAIRING = 256
"""How many samples are held in memory, for what looks at them again and again."""


@dataclass(eq=False)
class Calibration:
    """A float graph, made ready, and its samples.

    Attributes:
        given: The float graph.
        graph: The same, prepared: of which profiles are.
        data: The samples; None where there is only a profile.
        known: What was seen of all of them, once it was asked for.
        begun: When this was made, by :func:`time.monotonic`.
        looked: Seconds that it took to look at all samples once.
    """

    given: Graph
    graph: Graph
    data: Data | None
    known: Profile | None = None
    begun: float = 0.0
    looked: float = 0.0
    _observer: Observer | None = field(default=None, repr=False)

    @staticmethod
    def of(graph: Graph, data: Data | None, profile: Profile | None = None) -> Calibration:
        """Returns a float graph made ready.

        Args:
            graph: A canonical float graph; it is not changed.
            data: Its samples.
            profile: What was seen of them before.
        """
        return Calibration(graph, prepared(graph), data, profile, time.monotonic())

    @cached_property
    def few(self) -> Samples | None:
        """Samples that are looked at again and again, each of them once."""
        return None if self.data is None else spread_unlike(self.data, _REPAIRING)

    @cached_property
    def tried(self) -> Samples:
        """Samples that choices are tried on: some of those, fewer of large pictures."""
        assert self.few is not None
        most = ELEMENTS // max(self.few.elements, 1)
        return spread(self.few, max(HALVED, min(SAMPLES, most)))

    @cached_property
    def judge(self) -> DecisionJudge:
        """What decisions about the graph are judged by."""
        assert self.few is not None
        return DecisionJudge(self.graph, self.few)

    @cached_property
    def halves(self) -> tuple[Calibration, Calibration]:
        """Those of :attr:`tried` with even numbers, and those with odd ones, each seen alone."""
        found: list[Calibration] = []
        for first in (0, 1):
            half = taken(self.tried, range(first, len(self.tried), 2))
            seen, begun = self._seen(half), self.begun
            found.append(Calibration(self.given, self.graph, half, seen, begun))
        return found[0], found[1]

    def profile(self, progress: Progress | None = None) -> Profile:
        """Returns what was seen of all samples.

        Args:
            progress: Called with the number of samples done, and of all.

        Raises:
            InputDataError: There are no samples.
            UnsupportedTargetError: onnxruntime cannot run the float model.
        """
        data = self.data
        if self.known is None:
            if data is None:
                raise InputDataError(
                    "there is nothing to choose parameters by",
                    fix="give samples, or a profile of the model",
                )
            if self.few is not None and len(self.tried) == len(data) >= 2:
                first, second = (half.known for half in self.halves)
                assert first is not None and second is not None
                self.known = first.merged(second)
                if progress is not None:
                    progress(len(data), len(data))
            else:
                self.known = self._seen(data, progress)
            self._observer = None  # it holds the weights
        return self.known

    def budget(self, seconds: float) -> TimeBudget:
        """Returns how long may be tried, from when this was made on.

        Args:
            seconds: All that there are; what was chosen has to be made and measured in these too.
        """
        return TimeBudget(seconds, self.begun, self.looked)

    def _seen(self, data: Data, progress: Progress | None = None) -> Profile:
        begun = time.monotonic()
        if self._observer is None:
            self._observer = onnxruntime_observer(self.graph)
        found = collect(self.graph, data, self._observer, progress=progress)
        self.looked += time.monotonic() - begun
        return found
