"""What workers share: the plain rows that they send."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array = NDArray[Any]
Row: TypeAlias = "tuple[str, str, str, bool, str]"
"""Name, operator, place, taken, why: a ``Placement`` that needs no import to be read."""
TimeRow: TypeAlias = "tuple[str, str, float, tuple[str, ...]]"
"""Node, operator, seconds, names of the model: a ``NodeTime``."""
Loaded: TypeAlias = "tuple[list[Row], int]"
