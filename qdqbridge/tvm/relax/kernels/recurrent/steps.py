"""The steps of LSTM, GRU and RNN: products of the state with weights, and what gates make of them.

A panel is some blocks of the state with all gates of a stage: its sums stay in registers while the
state is read once. So what is read of memory is the weights, in the order in which they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qdqbridge.core.graph import numerics
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    each_piece,
    flat,
    load,
    number,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import Open, turns
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.recurrent.layers import SUMS, RecurrentAttrs, Stage
from qdqbridge.tvm.relax.kernels.softmax import exponential_parts
from qdqbridge.tvm.relax.kernels.tiles.register_tile import Tile, elements_of, parts

# ---- What the gates of LSTM, GRU and RNN make of their sums, and the states that steps carry

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
        element: The first of them.
    """

    step: StepPlace
    row: Prim
    element: Prim


class RecurrentStates:
    """Buffers of what steps carry; of the state two halves take turns.

    Args:
        batch: Rows of the batch.
        lanes: Elements of a register.
        peepholes: Weights by which gates look at the cell, of each direction, gate and element.
    """

    def __init__(
        self, layer: RecurrentAttrs, batch: Prim, lanes: int, peepholes: Buffer | None
    ) -> None:
        self.layer, self.batch, self.lanes, self.peepholes = layer, batch, lanes, peepholes
        # Whole registers: what lies behind a state is computed with it and never stored.
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
    # Of the smaller of the two exponentials: exp(-x) of a large negative x would be infinite.
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
    # The power of 2 less 1 is exact, so that tanh of a small x keeps its digits.
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


_MANY, _ROWS = 3, 8
"""Rows of a batch from which on tiles are high, and the height of the highest."""
_SHARED = 1 << 20
"""Bytes of a direction's weights from which on threads share each step."""
_REAL = "float32"


@dataclass(frozen=True, slots=True)
class RecurrentLoops:
    """The steps of a layer.

    Attributes:
        layer: What is computed.
        shape: Steps and rows of the batch; None for open ones.
        tasks: How many threads the work is to be spread over.
    """

    cpu: Cpu
    layer: RecurrentAttrs
    shape: Open
    tasks: int

    @property
    def blocks(self) -> int:
        """How many registers a state takes."""
        return -(-self.layer.size // self.cpu.lanes)

    @property
    def columns(self) -> int:
        """How many sums a step of one row has."""
        return self.blocks * self.cpu.lanes * self.layer.gates

    @property
    def peeping(self) -> int:
        """How many weights a direction's peepholes have."""
        return 3 * self.blocks * self.cpu.lanes

    def tile(self, gates: int) -> tuple[int, int]:
        """Returns the rows and blocks of a tile for many rows, which read weights together."""
        blocks = max(1, SUMS // 2 // gates)
        return max(1, min(_ROWS, (self.cpu.registers - 2) // (blocks * gates) - 1)), blocks


def build_recurrent_steps(d: RecurrentLoops) -> Any:
    """Returns the PrimFunc ``(sums, lengths, states, weights, inner, peepholes, results...)``."""

    def body() -> None:
        names = [tirx.Var(name, "int64") for name in ("steps", "batch")]
        steps, batch = (n if e is None else e for n, e in zip(names, d.shape, strict=True))
        count = len(d.layer.turns)
        wide = d.columns * d.layer.size

        def arg(name: str, *shape: Any) -> Buffer:
            return T.arg(name, T.buffer(shape, _REAL))

        sums = arg("sums", steps, batch, count * d.columns)
        lengths = T.arg("lengths", T.buffer((batch,), "int32")) if d.layer.lengths else None
        firsts = [
            arg(f"first{i}", count, batch, d.layer.size) if given else None
            for i, given in enumerate(d.layer.given)
        ]
        weights = arg("weights", count, wide)
        inner = arg("inner", count, d.columns)
        peepholes = arg("peepholes", count, d.peeping) if d.layer.peepholes else None
        results: list[Buffer | None] = [None] * 3
        for index in d.layer.wanted:
            shape = (count, batch, d.layer.size) if index else (steps, count, batch, d.layer.size)
            results[index] = arg(f"result{index}", *shape)
        with root():
            views = [None if each is None else flat(each) for each in (*firsts, *results)]
            flats = flat(sums), flat(weights), flat(inner)
            peeping = None if peepholes is None else flat(peepholes)
            split = len(d.layer.given)
            states = RecurrentStates(d.layer, batch, d.cpu.lanes, peeping)
            _StepWriter(d, flats, states, lengths, views[:split], views[split:], steps).write()

    return prim_func(body)


class _StepWriter:
    """Writes the loops.

    Args:
        d: What is computed.
        operands: Sums of inputs, recurrent weights, what is added inside brackets.
        states: What steps carry.
        lengths: Steps of each row; None where all take all.
        firsts: The states that are given, None for zeros.
        results: All states, the last one, the last cell; None where nobody asks.
        steps: How many there are.
    """

    def __init__(
        self, d: RecurrentLoops, operands: tuple[Buffer, Buffer, Buffer], states: RecurrentStates,
        lengths: Buffer | None, firsts: list[Buffer | None], results: list[Buffer | None],
        steps: Prim,
    ) -> None:  # fmt: skip
        self.d, self.firsts, self.results = d, firsts, results
        self.sums, self.weights, self.inner = operands
        self.lengths = lengths
        self.states, self.steps, self.batch = states, steps, states.batch
        self.products = T.alloc_buffer((len(d.layer.turns) * self.batch * d.columns,), _REAL)
        rows = len(d.layer.turns) * self.batch
        self.times = None if lengths is None else T.alloc_buffer((rows,), "int32")
        # Threads wait for each other at every step; below this the waiting takes longer than the
        # step.
        large = 4 * d.columns * d.layer.size >= _SHARED and d.tasks > 1
        self.shares_directions = large and len(d.layer.turns) > 1
        self.shares_panels = large and len(d.layer.turns) == 1

    def write(self) -> None:
        d = self.d
        with turns(len(d.layer.turns), parallel=self.shares_directions) as direction:
            self._begin(direction)
            with turns(self.steps) as passed:
                self._step(direction, passed)
            self._finish(direction)

    def _begin(self, direction: Prim) -> None:
        """Stores what the first step reads."""
        for index, first in enumerate(self.firsts):
            with turns(self.batch) as row:
                room, at = self.states.room(index, direction, row, 0)
                whole = (direction * self.batch + row) * self.d.layer.size
                # Whole registers are cleared first: elements behind the state are computed with as
                # well.
                zero = number(0.0, _REAL, self.d.cpu.lanes)
                with turns(self.d.blocks) as block:
                    store(room, at + block * self.d.cpu.lanes, zero, self.d.cpu.lanes)
                if first is not None:
                    self._copy(first, whole, room, at)

    def _copy(self, source: Buffer, start: Prim, target: Buffer, to: Prim) -> None:
        """Copies the elements of a state."""

        def piece(j: Prim, lanes: int) -> None:
            store(target, to + j, load(source, start + j, lanes), lanes)

        each_piece(self.d.layer.size, self.d.cpu.lanes, piece)

    def _finish(self, direction: Prim) -> None:
        """Stores the last states; zeros of sequences without a step, as onnxruntime does."""
        for index, result in enumerate(self.results[1:]):
            if result is not None:
                with turns(self.batch) as row:
                    room, at = self.states.room(index, direction, row, self.steps % 2)
                    to = bound((direction * self.batch + row) * self.d.layer.size)
                    ran = None if self.lengths is None else self._count(row) > 0
                    self._copy_if(ran, room, at, result, to)

    def _copy_if(
        self, ran: Prim | None, source: Buffer, start: Prim, target: Buffer, to: Prim
    ) -> None:
        """Copies the elements of a state; zeros where ``ran`` is false."""
        if ran is None:
            self._copy(source, start, target, to)
            return
        with T.If(ran):
            with T.Then():
                self._copy(source, start, target, to)
            with T.Else(), turns(self.d.layer.size) as j:
                store(target, to + j, tirx.const(0.0, _REAL), 1)

    def _step(self, direction: Prim, passed: Prim) -> None:
        """Computes one step of all rows."""
        before, after = bound(passed % 2), bound((passed + 1) % 2)
        at = StepPlace(direction, passed, before, after)
        if self.times is not None:
            with turns(self.batch) as row:
                turned = self._turned(at, self._count(row)).astype("int32")
                own = tirx.Select(self._runs(at, row), turned, tirx.Cast("int32", passed))
                T.buffer_store(self.times, own, [direction * self.batch + row])
        column = weight = 0
        for number_, stage in enumerate(self.d.layer.stages):
            self._stage(at, _StagePlace(number_, stage, column, weight))
            column += self.states.pitch * len(stage.gates)
            weight += self.states.pitch * len(stage.gates) * self.d.layer.size
        every = self.results[0]
        if every is not None:
            with turns(self.batch) as row:
                to = (self._time(at, row) * len(self.d.layer.turns) + direction) * self.batch + row
                place = self.states.place(direction, row, after)
                ran = None if self.lengths is None else self._runs(at, row)
                self._copy_if(ran, self.states.state, place, every, bound(to * self.d.layer.size))

    def _turned(self, at: StepPlace, count: Prim) -> Prim:
        """Returns which step of a sequence is computed: the last direction may turn."""
        if not any(self.d.layer.turns):
            return at.passed
        last = count - 1 - at.passed
        if len(self.d.layer.turns) == 1:
            return last
        return at.passed + at.direction * (last - at.passed)

    def _time(self, at: StepPlace, row: Prim) -> Prim:
        """Returns which step of a row is computed."""
        if self.times is None:
            return self._turned(at, self.steps)
        return tirx.BufferLoad(self.times, [at.direction * self.batch + row])

    def _count(self, row: Prim) -> Prim:
        """Returns how many steps a row has."""
        own = tirx.BufferLoad(self.lengths, [row]).astype("int64")
        return tirx.max(tirx.const(0, "int64"), tirx.min(tirx.Cast("int64", self.steps), own))

    def _runs(self, at: StepPlace, row: Prim) -> Prim:
        """Returns whether a row's sequence has a step."""
        return at.passed < self._count(row)

    def _stage(self, at: StepPlace, stage: _StagePlace) -> None:
        """Computes the panels of a stage, and its gates."""
        most = stage.stage.blocks
        whole, rest = divmod(self.d.blocks, most)
        if whole:
            with turns(whole, parallel=self.shares_panels and whole > 1) as panel:
                self._panel(at, stage, panel * most, most)
        if rest:
            self._panel(at, stage, tirx.const(whole * most, "int32"), rest)
        self._gates(at, stage)

    def _panel(self, at: StepPlace, stage: _StagePlace, first: Prim, blocks: int) -> None:
        """Computes a panel of all rows, some of them at a time."""
        rows, width = self.d.tile(len(stage.stage.gates))
        panel = _PanelPlace(first, blocks)
        whole = (first, blocks)
        for start, count, size in self._rows(rows):
            with turns(count) as some:
                row = start + some * size
                if size < _MANY:
                    self._tile(at, stage, panel, whole, (row, size))
                    continue
                for block in range(0, blocks, width):
                    own = first + block, min(width, blocks - block)
                    self._tile(at, stage, panel, own, (row, size))

    def _rows(self, most: int) -> list[tuple[Prim, Prim, int]]:
        """Returns how the batch is shared out: (first row, tiles, rows of a tile)."""
        if isinstance(self.batch, int):
            return [*parts(self.batch, most).pieces()]
        start, found = self.batch - self.batch, list[tuple[Prim, Prim, int]]()
        for size in sorted({most, min(most, _MANY - 1), 1}, reverse=True):
            count = (self.batch - start) // size
            found.append((start, count, size))
            start = start + count * size
        return found

    def _tile(
        self, at: StepPlace, stage: _StagePlace, panel: _PanelPlace, own: tuple[Prim, int],
        rows: tuple[Prim, int],
    ) -> None:  # fmt: skip
        """Computes the sums of some rows and blocks of a panel."""
        d, lanes = self.d, self.d.cpu.lanes
        (first, blocks), (row, count) = own, rows
        gates = len(stage.stage.gates)
        registers = range(blocks * gates)
        tile = Tile(d.cpu, count, len(registers), elements_of(d.cpu, floats=True))
        column = stage.column + first * gates * lanes
        inner = at.direction * d.columns + column
        starts = [bound(self._sum(at, row + r) + column) for r in range(count)]
        # ``r * (h R + b)``: where the reset comes behind the product, the sum of the state must not
        # meet the sum of the input before it is multiplied, so it begins apart.
        bracketed = d.layer.kind == "GRU" and not d.layer.reset_first
        for r, start in enumerate(starts):
            for i in registers:
                inside = bracketed and i % gates == gates - 1
                source, place = (self.inner, inner) if inside else (self.sums, start)
                tile.put(r, i, load(source, place + i * lanes, lanes))
        resets = stage.number == 1
        source, half = (self.states.reset, None) if resets else (self.states.state, at.before)
        states = [bound(self.states.place(at.direction, row + r, half)) for r in range(count)]
        weights = at.direction * (d.columns * d.layer.size) + stage.weight
        weights = weights + panel.first * (gates * lanes * d.layer.size)
        weights = bound(weights + (first - panel.first) * (gates * lanes))
        with turns(d.layer.size) as k:
            place = weights + k * (panel.blocks * gates * lanes)
            vectors = [bound(load(self.weights, place + i * lanes, lanes)) for i in registers]
            tile.step(source, [state + k for state in states], [vectors])
        for r in range(count):
            place = self._product(at, row + r) + column
            for i in registers:
                store(self.products, place + i * lanes, tile.sums(r, i), lanes)

    def _sum(self, at: StepPlace, row: Prim) -> Prim:
        """Returns where what a row's input adds begins."""
        start = (self._time(at, row) * self.batch + row) * len(self.d.layer.turns) + at.direction
        return start * self.d.columns

    def _product(self, at: StepPlace, row: Prim) -> Prim:
        """Returns where the sums of a row begin."""
        return (at.direction * self.batch + row) * self.d.columns

    def _gates(self, at: StepPlace, stage: _StagePlace) -> None:
        """Makes of a stage's sums what its gates make of them; code that all panels share."""
        lanes, gates = self.d.cpu.lanes, len(stage.stage.gates)
        gate = GATES[self.d.layer.kind, stage.number, self.d.layer.reset_first]

        def computed(row: Prim, block: Prim) -> None:
            column = bound(stage.column + block * (gates * lanes))
            place = bound(self._product(at, row) + column)
            sums = [bound(load(self.products, place + g * lanes, lanes)) for g in range(gates)]
            added = load(self.sums, self._sum(at, row) + column + (gates - 1) * lanes, lanes)
            gate(self.states, ElementPlace(at, row, bound(block * lanes)), sums, added)

        with turns(self.batch) as row:
            if self.times is None:
                with turns(self.d.blocks) as block:
                    computed(row, block)
                return
            with T.If(self._runs(at, row)):
                with T.Then(), turns(self.d.blocks) as block:
                    computed(row, block)
                with T.Else(), turns(self.d.blocks) as block:
                    place = ElementPlace(at, row, bound(block * lanes))
                    self.states.keep(place, self.states.old(place))


@dataclass(frozen=True, slots=True)
class _PanelPlace:
    """A panel of weights: its first block, and how many it has."""

    first: Prim
    blocks: int


@dataclass(frozen=True, slots=True)
class _StagePlace:
    """Where a stage's numbers are.

    Attributes:
        number: Which stage.
        stage: Its gates.
        column: The first of its sums.
        weight: The first of its weights.
    """

    number: int
    stage: Stage
    column: int
    weight: int
