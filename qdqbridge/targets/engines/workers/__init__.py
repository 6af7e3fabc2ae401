"""What drives an engine, a module each; only :mod:`..serve` runs them.

The class ``WORKER`` of a module has the methods: ``version()``, a text; ``load(key, file)``, that
keeps a model under a key and returns rows of :class:`~qdqbridge.targets.engines.kinds.Placement`
and the
number of partitions; ``run(key, inputs, names)``, which returns arrays by name. Inputs, and outputs
among the names, come in the model's order. Where the engine tells times, ``times(key, inputs,
repeats)`` returns rows of :class:`~qdqbridge.targets.engines.kinds.NodeTime`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

# ---- What workers share: the plain rows that they send -------------------------------------------


Array = NDArray[Any]
Row: TypeAlias = "tuple[str, str, str, bool, str]"
"""Name, operator, place, taken, why: a ``Placement`` that needs no import to be read."""
TimeRow: TypeAlias = "tuple[str, str, float, tuple[str, ...]]"
"""Node, operator, seconds, names of the model: a ``NodeTime``."""
Loaded: TypeAlias = "tuple[list[Row], int]"
