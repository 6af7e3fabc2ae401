"""What the gates of LSTM, GRU and RNN make of their sums, and the states that steps carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qdqbridge.core.graph import numerics
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    load,
    number,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.recurrent.layers import RecurrentAttrs
from qdqbridge.tvm.relax.kernels.rows.softmax import exponential_parts

_REAL = "float32"
_PEEPING = 3
"""Gates of an LSTM that look at its cell: i, o, f."""


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
        peepholes: Weights by which gates look at the cell, of each direction, gate and element.
    """

    def __init__(
        self, layer: RecurrentAttrs, batch: Prim, lanes: int, peepholes: Buffer | None
    ) -> None:
        self.layer, self.batch, self.lanes, self.peepholes = layer, batch, lanes, peepholes
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

    def made(self, index: int, value: Prim) -> Prim:
        """Returns one of the layer's functions of a value."""
        function, lanes = self.layer.functions[index], self.lanes
        if function.clip:
            most = number(function.clip, _REAL, lanes)
            value = tirx.max(tirx.min(value, most), number(-function.clip, _REAL, lanes))
        return FUNCTIONS[function.name](value, lanes, function.alpha, function.beta)

    def peeped(self, place: ElementPlace, gate: int, sum_: Prim, cell: Prim) -> Prim:
        """Returns a gate's sum with what it sees of the cell."""
        if self.peepholes is None:
            return sum_
        at = (place.step.direction * _PEEPING + gate) * self.pitch + place.element
        return sum_ + load(self.peepholes, at, self.lanes) * cell


# ---- gates --------------------------------------------------------------------------------------


def _lstm(states: RecurrentStates, at: ElementPlace, sums: Sequence[Prim], added: Prim) -> None:
    """Gates i, o, f, c: ``C = f C + i g`` and ``H = o tanh(C)``."""
    del added
    place = bound(states.at(at))
    old = bound(load(states.cell, place, states.lanes))
    taken = bound(states.made(0, states.peeped(at, 0, sums[0], old)))
    if states.layer.coupled:
        kept = number(1.0, _REAL, states.lanes) - taken
    else:
        kept = states.made(0, states.peeped(at, 2, sums[2], old))
    store(states.cell, place, kept * old + taken * states.made(1, sums[3]), states.lanes)
    # read again: TVM puts a bound value into each place that reads it, a tanh many times over
    cell = bound(load(states.cell, place, states.lanes))
    out = states.made(0, states.peeped(at, 1, sums[1], cell))
    states.keep(at, out * states.made(2, cell))


def _gru(states: RecurrentStates, at: ElementPlace, sums: Sequence[Prim], added: Prim) -> None:
    """Gates z, r, h, the state being reset behind the product."""
    update, reset = (bound(states.made(0, value)) for value in sums[:2])
    _mix(states, at, update, states.made(1, bound(added + reset * sums[2])))


def _gru_resets(
    states: RecurrentStates, at: ElementPlace, sums: Sequence[Prim], added: Prim
) -> None:
    """Gates z and r, where the state is reset before the product of the third."""
    del added
    place = bound(states.at(at))
    reset = states.made(0, sums[1]) * states.old(at)
    store(states.reset, place, reset, states.lanes)
    store(states.update, place, states.made(0, sums[0]), states.lanes)


def _gru_ends(states: RecurrentStates, at: ElementPlace, sums: Sequence[Prim], added: Prim) -> None:
    """Gate h, of a state that was reset."""
    del added
    update = bound(load(states.update, states.at(at), states.lanes))
    _mix(states, at, update, states.made(1, sums[0]))


def _rnn(states: RecurrentStates, at: ElementPlace, sums: Sequence[Prim], added: Prim) -> None:
    """The only gate."""
    del added
    states.keep(at, states.made(0, sums[0]))


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


def _sigmoid(x: Prim, lanes: int, alpha: float, beta: float) -> Prim:
    """Returns ``1 / (1 + exp(-x))``, of small results too with all digits."""
    del alpha, beta
    x = bound(x)
    one = number(1.0, _REAL, lanes)
    less, power = _powers(-tirx.abs(x), lanes)
    found = bound(less + power)
    return tirx.Select(x < number(0.0, _REAL, lanes), found, one) / (one + found)


def _tanh(x: Prim, lanes: int, alpha: float = 0.0, beta: float = 0.0) -> Prim:
    """Returns the hyperbolic tangent, ``-m / (2 + m)`` of ``m = exp(-2 |x|) - 1``."""
    del alpha, beta
    one = number(1.0, _REAL, lanes)
    x = bound(x)
    less, power = _powers(number(-2.0, _REAL, lanes) * tirx.abs(x), lanes)
    m = bound(less + (power - one))
    found = bound(m / (number(2.0, _REAL, lanes) + m))
    return tirx.Select(x < number(0.0, _REAL, lanes), found, number(0.0, _REAL, lanes) - found)


def _powers(x: Prim, lanes: int) -> tuple[Prim, Prim]:
    """Returns two numbers whose sum is ``exp(x)`` of x <= 0, the second a power of 2.

    Of what is not a number the first is none.
    """
    # of a comparison with what is not a number the second operand remains
    clamped = bound(tirx.max(number(float(numerics.LOWEST), _REAL, lanes), x))
    small, power = exponential_parts(clamped, lanes)
    power = bound(power)
    return bound(small * power), power


def _relu(x: Prim, lanes: int, alpha: float, beta: float) -> Prim:
    del alpha, beta
    return tirx.max(x, number(0.0, _REAL, lanes))


def _affine_gate(x: Prim, lanes: int, alpha: float, beta: float) -> Prim:
    return number(alpha, _REAL, lanes) * x + number(beta, _REAL, lanes)


def _hard_sigmoid(x: Prim, lanes: int, alpha: float, beta: float) -> Prim:
    low, high = (number(value, _REAL, lanes) for value in (0.0, 1.0))
    return tirx.min(tirx.max(_affine_gate(x, lanes, alpha, beta), low), high)


def _leaky_relu(x: Prim, lanes: int, alpha: float, beta: float) -> Prim:
    del beta
    x = bound(x)
    return tirx.Select(x >= number(0.0, _REAL, lanes), x, number(alpha, _REAL, lanes) * x)


def _thresholded_relu(x: Prim, lanes: int, alpha: float, beta: float) -> Prim:
    del beta
    x = bound(x)
    return tirx.Select(x > number(alpha, _REAL, lanes), x, number(0.0, _REAL, lanes))


def _scaled_tanh(x: Prim, lanes: int, alpha: float, beta: float) -> Prim:
    return number(alpha, _REAL, lanes) * _tanh(number(beta, _REAL, lanes) * x, lanes)


def _softsign(x: Prim, lanes: int, alpha: float, beta: float) -> Prim:
    del alpha, beta
    x = bound(x)
    return x / (number(1.0, _REAL, lanes) + tirx.abs(x))


FUNCTIONS: Mapping[str, Callable[[Prim, int, float, float], Prim]] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "relu": _relu,
    "affine": _affine_gate,
    "leakyrelu": _leaky_relu,
    "thresholdedrelu": _thresholded_relu,
    "scaledtanh": _scaled_tanh,
    "hardsigmoid": _hard_sigmoid,
    "softsign": _softsign,
}
"""By their names: of registers, and of alpha and beta."""
