"""Axes of an operand, from the front or from the end."""

from __future__ import annotations

from tests.fuzzing.graph_grower import Grower


def axis_of(g: Grower, rank: int) -> int:
    axis = g.rng.randrange(max(rank, 1))
    return axis - rank if g.b.opset >= 11 and g.chance(0.4) else axis


def axes_of(g: Grower, rank: int, least: int = 0) -> list[int]:
    axes = g.rng.sample(range(rank), g.rng.randint(min(least, rank), rank))
    return [a - rank if g.b.opset >= 11 and g.chance(0.3) else a for a in axes]
