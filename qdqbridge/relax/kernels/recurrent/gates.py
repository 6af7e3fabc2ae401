"""What the gates of LSTM, GRU and RNN make of their sums, and the states that steps carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qdqbridge.graph import exp32
from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    load,
    number,
    store,
)
from qdqbridge.relax.kernels.codegen.script import T
from qdqbridge.relax.kernels.recurrent.layers import RecurrentAttrs
from qdqbridge.relax.kernels.rows.softmax import exponential_parts

_REAL = "float32"


@dataclass(frozen=True, slots=True)
class StepPlace:
    """A step.

    Attributes:
        direction: Which direction.
        passed: How many steps came before it.
        before: Which half holds the state of the step before.
        after: Which half will hold the new one.
    """

    direction: Prim
    passed: Prim
    before: Prim
    after: Prim


@dataclass(frozen=True, slots=True)
class ElementPlace:
    """Some elements of the state of a row, one register.

    Attributes:
        step: The step.
        row: The row.
        element: The first of them.
    """

    step: StepPlace
    row: Prim
    element: Prim


class RecurrentStates:
    """Buffers of what steps carry; of the state two halves take turns.

    Args:
        layer: The layer.
        batch: Rows of the batch.
        lanes: Elements of a register.
    """

    def __init__(self, layer: RecurrentAttrs, batch: Prim, lanes: int) -> None:
        self.batch, self.lanes = batch, lanes
        self.pitch = -(-layer.size // lanes) * lanes
        count = len(layer.turns) * batch * self.pitch

        def buffer(halves: int) -> Buffer:
            return T.alloc_buffer((halves * count,), _REAL)

        self.state = buffer(2)
        self.cell: Buffer = buffer(1) if layer.kind == "LSTM" else None
        self.reset: Buffer = buffer(1) if layer.reset_first else None
        self.update: Buffer = buffer(1) if layer.reset_first else None

    def place(self, direction: Prim, row: Prim, half: Prim | None = None) -> Prim:
        """Returns where a row begins; of the state in one of its halves."""
        at = direction * self.batch + row
        if half is not None:
            at = at * 2 + half
        return at * self.pitch

    def room(self, index: int, direction: Prim, row: Prim, half: Prim) -> tuple[Buffer, Prim]:
        """Returns where the state (0) or the cell (1) of a row is kept."""
        if index:
            return self.cell, self.place(direction, row)
        return self.state, self.place(direction, row, half)

    def at(self, place: ElementPlace) -> Prim:
        """Returns where elements are in the buffers without halves."""
        return self.place(place.step.direction, place.row) + place.element

    def old(self, place: ElementPlace) -> Prim:
        """Returns the state that the step before has left."""
        start = self.place(place.step.direction, place.row, place.step.before)
        return load(self.state, start + place.element, self.lanes)

    def keep(self, place: ElementPlace, value: Prim) -> None:
        """Stores a part of the state for the next step."""
        start = self.place(place.step.direction, place.row, place.step.after)
        store(self.state, start + place.element, value, self.lanes)


# ---- gates --------------------------------------------------------------------------------------


def _lstm(states: RecurrentStates, at: ElementPlace, sums: Sequence[Prim], added: Prim) -> None:
    """Gates i, o, f, c: ``C = f C + i g`` and ``H = o tanh(C)``."""
    del added
    lanes = states.lanes
    taken, out, kept = (sigmoid(value, lanes) for value in sums[:3])
    place = bound(states.at(at))
    cell = bound(kept * load(states.cell, place, lanes) + taken * tanh(sums[3], lanes))
    store(states.cell, place, cell, lanes)
    states.keep(at, out * tanh(cell, lanes))


def _gru(states: RecurrentStates, at: ElementPlace, sums: Sequence[Prim], added: Prim) -> None:
    """Gates z, r, h, the state being reset behind the product."""
    update, reset = (bound(sigmoid(value, states.lanes)) for value in sums[:2])
    _mix(states, at, update, tanh(bound(added + reset * sums[2]), states.lanes))


def _gru_resets(
    states: RecurrentStates, at: ElementPlace, sums: Sequence[Prim], added: Prim
) -> None:
    """Gates z and r, where the state is reset before the product of the third."""
    del added
    place = bound(states.at(at))
    reset = sigmoid(sums[1], states.lanes) * states.old(at)
    store(states.reset, place, reset, states.lanes)
    store(states.update, place, sigmoid(sums[0], states.lanes), states.lanes)


def _gru_ends(states: RecurrentStates, at: ElementPlace, sums: Sequence[Prim], added: Prim) -> None:
    """Gate h, of a state that was reset."""
    del added
    update = bound(load(states.update, states.at(at), states.lanes))
    _mix(states, at, update, tanh(sums[0], states.lanes))


def _rnn(states: RecurrentStates, at: ElementPlace, sums: Sequence[Prim], added: Prim) -> None:
    """The only gate."""
    del added
    states.keep(at, tanh(sums[0], states.lanes))


def _mix(states: RecurrentStates, at: ElementPlace, update: Prim, new: Prim) -> None:
    """Keeps ``(1 - z) new + z old``."""
    one = number(1.0, _REAL, states.lanes)
    states.keep(at, (one - update) * new + update * states.old(at))


Gates = Callable[[RecurrentStates, ElementPlace, Sequence[Prim], Prim], None]
"""Makes new states of the sums of a stage's gates, and of what the input adds to the last one."""
GATES: Mapping[tuple[str, int, bool], Gates] = {
    ("LSTM", 0, False): _lstm,
    ("GRU", 0, False): _gru,
    ("GRU", 0, True): _gru_resets,
    ("GRU", 1, True): _gru_ends,
    ("RNN", 0, False): _rnn,
}
"""By operator, stage, and whether the state is reset first."""


# ---- functions ----------------------------------------------------------------------------------


def sigmoid(x: Prim, lanes: int) -> Prim:
    """Returns ``1 / (1 + exp(-x))``, of small results too with all digits."""
    one = number(1.0, _REAL, lanes)
    less, power = _powers(-tirx.abs(x), lanes)
    found = bound(less + power)
    return tirx.Select(x < number(0.0, _REAL, lanes), found, one) / (one + found)


def tanh(x: Prim, lanes: int) -> Prim:
    """Returns the hyperbolic tangent, ``-m / (2 + m)`` of ``m = exp(-2 |x|) - 1``."""
    one = number(1.0, _REAL, lanes)
    x = bound(x)
    less, power = _powers(number(-2.0, _REAL, lanes) * tirx.abs(x), lanes)
    m = bound(less + (power - one))
    found = bound(m / (number(2.0, _REAL, lanes) + m))
    return tirx.Select(x < number(0.0, _REAL, lanes), found, number(0.0, _REAL, lanes) - found)


def _powers(x: Prim, lanes: int) -> tuple[Prim, Prim]:
    """Returns two numbers whose sum is ``exp(x)`` of x <= 0, the second a power of 2.

    Of what is no number the first is none.
    """
    # of a comparison with what is no number the second operand remains
    clamped = bound(tirx.max(number(float(exp32.LOWEST), _REAL, lanes), x))
    small, power = exponential_parts(clamped, lanes)
    power = bound(power)
    return bound(small * power), power
