"""Progress over several passes through the data, some of which may not be needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qdqbridge.autoquant.repair.steps import GRAPH_STEPS

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Rounds:
    """Tells one callback about passes one after the other.

    Attributes:
        number: How many passes there will be at most.
        progress: The callback; None for silence.
        begun: How many passes began.
        total: The last total reported.
    """

    number: int
    progress: Progress | None
    begun: int = 0
    total: int = 0

    @staticmethod
    def of(steps: Sequence[str], progress: Progress | None) -> Rounds:
        """Returns the passes that steps of repair may need: one, and one for each scaled graph."""
        return Rounds(1 + sum(name in GRAPH_STEPS for name in set(steps)), progress)

    def next(self) -> Progress | None:
        """Returns the callback for the next pass."""
        before, self.begun = self.begun, self.begun + 1
        progress = self.progress
        if progress is None:
            return None

        def tell(done: int, count: int) -> None:
            self.total = count * self.number
            progress(before * count + done, self.total)

        return tell

    def finish(self) -> None:
        """Tells that all is done, where passes were not needed."""
        if self.progress is not None and self.total and self.begun < self.number:
            self.progress(self.total, self.total)
