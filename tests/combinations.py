"""Which combinations of parameters the gate takes, and which the slow sweep takes besides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest


def each_once(*axes: Iterable[Any]) -> list[Any]:
    """Returns all combinations of some values; the gate takes some that show each once or more.

    Args:
        axes: Values of each parameter; tuples are values of several parameters.

    Returns:
        For ``pytest.mark.parametrize``; all others are marked slow.
    """
    every = [list(axis) for axis in axes]
    if not all(every):
        return []
    quick = {tuple(i % len(axis) for axis in every) for i in range(max(map(len, every)))}
    return [
        _row([axis[i] for axis, i in zip(every, places, strict=True)], quick=places in quick)
        for places in product(*(range(len(axis)) for axis in every))
    ]


def first_with_all(firsts: Sequence[Any], *axes: Sequence[Any]) -> list[Any]:
    """Returns all combinations; the gate takes those of the first of ``firsts``, of others a few.

    Args:
        firsts: Values of the first parameter, such as CPUs, of which the host's is the first.
        axes: Values of the other parameters, as for :func:`each_once`.
    """
    whole = [_row([firsts[0], *given], quick=True) for given in product(*axes)]
    return whole + each_once(firsts[1:], *axes)


def _row(given: Iterable[Any], *, quick: bool) -> Any:
    values = [each for value in given for each in (value if type(value) is tuple else (value,))]
    return pytest.param(
        *values, marks=() if quick else pytest.mark.slow, id="-".join(map(_told, values))
    )


def _told(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value.stem if isinstance(value, Path) else str(getattr(value, "name", value))
