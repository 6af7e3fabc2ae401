"""The functions that LSTM, GRU and RNN may be given: their names and numbers.

Source: ONNX LSTM-22: ``activations``, ``activation_alpha``, ``activation_beta``, ``clip``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qdqbridge.onnx_io.codecs.view import NodeView, NoRow

_OF_SUMS = 2
"""How many functions of an operator are of sums; an LSTM's third is of its cell."""
_NUMBERS: Mapping[str, tuple[float | None, float | None]] = {
    "sigmoid": (None, None),
    "tanh": (None, None),
    "relu": (None, None),
    "affine": (math.nan, math.nan),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (math.nan, None),
    "scaledtanh": (math.nan, math.nan),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
    "softsign": (None, None),
    "softplus": (None, None),
}
"""``alpha`` and ``beta`` of a function where none is given: None where it has none, NaN where it
must be. ThresholdedRelu's ``alpha`` is 1 by default in ONNX and 0 in onnxruntime 1.32, which
computes zeros for the two that have no default in ONNX."""


class CellFunction(NamedTuple):
    """What a gate makes of its sum, or of the cell.

    Attributes:
        name: ONNX's, in small letters.
        alpha: Its first number; 0 where it has none.
        beta: Its second number.
        clip: What is read is cut to it on both sides; 0 where it is not.
    """

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    clip: float = 0.0


def functions_of(
    node: NodeView, default: Sequence[str], directions: int
) -> tuple[tuple[CellFunction, ...], ...]:
    """Returns the functions of each direction.

    ``alpha`` and ``beta`` are taken in the order of the functions that have them. What a function
    of a sum reads is cut to ``clip`` on both sides; the cell is not (an LSTM's third function).

    Raises:
        NoRow: There are other functions than ONNX's, not as many as it has, or one lacks a number.
    """
    names = list(node.strings("activations")) or [*default] * directions
    if len(names) != len(default) * directions:
        raise NoRow(f"it has {len(names)} activations")
    given = {name: list(node.floats(f"activation_{name}", ())) for name in ("alpha", "beta")}
    clip, found = node.float_("clip", 0.0), list[CellFunction]()
    for index, name in enumerate(names):
        numbers = _NUMBERS.get(name.lower())
        if numbers is None:
            raise NoRow(f"its activation is '{name}'")
        alpha, beta = (
            0.0 if own is None else given[which].pop(0) if given[which] else own
            for which, own in zip(("alpha", "beta"), numbers, strict=True)
        )
        if math.isnan(alpha + beta):
            raise NoRow(f"its activation {name} is given no alpha or beta")
        limit = max(clip, 0.0) if index % len(default) < _OF_SUMS else 0.0
        found.append(CellFunction(name.lower(), alpha, beta, limit))
    per = len(default)
    return tuple(tuple(found[start : start + per]) for start in range(0, len(found), per))
