"""Times of nodes where the machine does something else meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qdqbridge.app import judging
from qdqbridge.targets.engines.kinds import NodeTime


class _Clock:
    """Tells the times of two nodes, one that is measured and one that is quick, round by round."""

    def __init__(self, rounds: Sequence[float]) -> None:
        self.rounds, self.asked = list(rounds), list[int]()

    def __call__(self, repeats: int) -> list[NodeTime]:
        self.asked.append(repeats)
        place = min(len(self.asked), len(self.rounds)) - 1
        names = ("long", "short", "short")
        seconds = (self.rounds[place], 1e-6 * (20 - len(self.asked)), 2e-6)
        return [NodeTime(n, "Conv", s) for n, s in zip(names, seconds, strict=True)]


@pytest.mark.parametrize(
    ("rounds", "least", "count"),
    [
        ([1.0], 1.0, judging.ROUNDS),
        ([1.5, 1.4, 1.0, 1.2, 1.1], 1.0, 5),  # disturbed at first
        ([1.0, 1.5, 1.6], 1.0, judging.ROUNDS),  # disturbed afterwards
        ([0.9**i for i in range(99)], 0.9 ** (judging.MOST_ROUNDS - 1), judging.MOST_ROUNDS),
    ],
)
def test_the_shortest_run_of_all_rounds_counts(
    rounds: list[float], least: float, count: int
) -> None:
    clock = _Clock(rounds)
    found = judging._shortest(clock, 0.15)
    assert [each.node for each in found] == ["long", "short", "short"]
    assert [each.seconds for each in found] == [least, 1e-6 * (20 - count), 2e-6]
    assert clock.asked == [judging.LEAST] * count


def test_quick_models_run_often_in_each_round() -> None:
    clock = _Clock([3e-4])
    judging._shortest(clock, 0.03)
    assert clock.asked[0] == judging.LEAST
    assert judging.LEAST < clock.asked[1] < judging.MOST
