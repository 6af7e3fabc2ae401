"""Which combinations of parameters the gate takes, and which the slow sweep takes besides."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def each_once(*axes: Iterable[Any]) -> list[Any]:
    """Returns all combinations of some values; the gate takes as many as show each value once.

    Args:
        axes: Values of each parameter; tuples are values of several parameters.

    Returns:
        For ``pytest.mark.parametrize``; all others are marked slow.
    """
    every = [list(axis) for axis in axes]
    if not all(every):
        return []
    quick = {tuple(i % len(axis) for axis in every) for i in range(max(map(len, every)))}
    found: list[Any] = []
    for places in product(*(range(len(axis)) for axis in every)):
        given = [axis[place] for axis, place in zip(every, places, strict=True)]
        values = [each for value in given for each in (value if type(value) is tuple else (value,))]
        told = "-".join(str(getattr(value, "name", value)) for value in values)
        marks = () if places in quick else pytest.mark.slow
        found.append(pytest.param(*values, marks=marks, id=told))
    return found
