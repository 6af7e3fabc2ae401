"""What LSTM, GRU and RNN are: gates, functions, states, and the products of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qdqbridge.core.graph.operator import Attributes
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow

SUMS = 8
"""Registers of sums of one row: as many as the latency of a fused multiplication and addition."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Gates whose products are formed together.

    Attributes:
        gates: Which, in ONNX's order.
    """

    gates: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """How many blocks of the state a panel has."""
        return max(1, SUMS // len(self.gates))


@dataclass(frozen=True, slots=True)
class RecurrentKind:
    """One of the three operators.

    Attributes:
        gates: The names of its gates, in ONNX's order.
        functions: Its usual functions.
        states: How many tensors a step hands on.
    """

    gates: str
    functions: tuple[str, ...]
    states: int

    def stages(self, *, reset_first: bool) -> tuple[Stage, ...]:
        """Returns which products of a step follow each other."""
        if reset_first:
            return Stage((0, 1)), Stage((2,))
        return (Stage(tuple(range(len(self.gates)))),)


KINDS: Mapping[str, RecurrentKind] = {
    "LSTM": RecurrentKind("iofc", ("sigmoid", "tanh", "tanh"), 2),
    "GRU": RecurrentKind("zrh", ("sigmoid", "tanh"), 1),
    "RNN": RecurrentKind("h", ("tanh",), 1),
}

DIRECTIONS: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}
"""Of every direction that ONNX names, whether its parts start at the last step."""


@dataclass(frozen=True, slots=True)
class RecurrentAttrs(Attributes):
    """Steps of a layer.

    Attributes:
        kind: ``LSTM``, ``GRU`` or ``RNN``.
        turns: Of each direction, whether it starts at the last step.
        size: Elements of the state.
        reset_first: GRU: the state is reset before the product, not behind it.
        given: Which of state and cell are operands.
        lengths: True where sequences have lengths of their own, which are the operand before them.
        functions: Of its gates and its cell, in every direction.
        peepholes: LSTM: gates look at the cell, by weights that are a constant more.
        coupled: LSTM: what is kept of the cell is what the input gate does not let in.
        wanted: Which of all states, the last one and the last cell are results.
    """

    kind: str
    turns: tuple[bool, ...]
    size: int
    reset_first: bool
    given: tuple[bool, ...]
    lengths: bool
    functions: tuple[CellFunction, ...]
    peepholes: bool
    coupled: bool
    wanted: tuple[int, ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Which products of a step follow each other."""
        return KINDS[self.kind].stages(reset_first=self.reset_first)

    @property
    def gates(self) -> int:
        """How many gates there are."""
        return len(KINDS[self.kind].gates)


# ---- The functions that LSTM, GRU and RNN may be given: their names and numbers
#
# Source: ONNX LSTM-22: ``activations``, ``activation_alpha``, ``activation_beta``, ``clip``.

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
