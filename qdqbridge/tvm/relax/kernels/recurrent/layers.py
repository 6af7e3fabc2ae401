"""What LSTM, GRU and RNN are: gates, functions, states, and the products of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdqbridge.core.graph.operator import Attributes
from qdqbridge.tvm.relax.kernels.recurrent.functions import CellFunction

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
