"""The steps of LSTM, GRU and RNN: products of the state with weights, and what gates make of them.

A panel is some blocks of the state with all gates of a stage: its sums stay in registers while the
state is read once. So what is read of memory is the weights, in the order in which they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qdqbridge.graph import exp32
from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.relax.kernels.broadcasting import Open
from qdqbridge.relax.kernels.cpu import Cpu
from qdqbridge.relax.kernels.lanes import (
    Buffer,
    Prim,
    bound,
    each_piece,
    fence,
    flat,
    floats,
    load,
    nearest,
    number,
    store,
    typed,
)
from qdqbridge.relax.kernels.loops import turns
from qdqbridge.relax.kernels.micro import Tile, elements_of, parts
from qdqbridge.relax.kernels.script import T, prim_func, root

_SUMS = 8
"""Registers of sums of one row: as many as the latency of a fused multiplication and addition."""
_MANY, _ROWS = 3, 8
"""Rows of a batch from which on tiles are high, and the height of the highest."""
_SHARED = 1 << 20
"""Bytes of a direction's weights from which on threads share each step."""
_REAL = "float32"


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
        return max(1, _SUMS // len(self.gates))


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


@dataclass(frozen=True, slots=True)
class RecurrentLoops:
    """The steps of a layer; see :class:`~.recurrent.RecurrentAttrs`.

    Attributes:
        cpu: The CPU.
        kind: The operator.
        turns: Of each direction, whether it starts at the last step.
        size: Elements of the state.
        reset_first: Whether the state is reset before the product.
        given: Which states are operands.
        lengths: True where sequences have lengths of their own.
        wanted: Which results there are.
        shape: Steps and rows of the batch; None for open ones.
        tasks: How many threads the work is to be spread over.
    """

    cpu: Cpu
    kind: str
    turns: tuple[bool, ...]
    size: int
    reset_first: bool
    given: tuple[bool, ...]
    lengths: bool
    wanted: tuple[int, ...]
    shape: Open
    tasks: int

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Which products of a step follow each other."""
        return KINDS[self.kind].stages(reset_first=self.reset_first)

    @property
    def blocks(self) -> int:
        """How many registers a state takes."""
        return -(-self.size // self.cpu.lanes)

    @property
    def gates(self) -> int:
        """How many gates there are."""
        return len(KINDS[self.kind].gates)

    @property
    def columns(self) -> int:
        """How many sums a step of one row has."""
        return self.blocks * self.cpu.lanes * self.gates

    def tile(self, gates: int) -> tuple[int, int]:
        """Returns the rows and blocks of a tile for many rows, which read weights together."""
        blocks = max(1, _SUMS // 2 // gates)
        return max(1, min(_ROWS, (self.cpu.registers - 2) // (blocks * gates) - 1)), blocks


def build(d: RecurrentLoops) -> Any:
    """Returns the PrimFunc ``(sums, lengths, states..., weights, inner, results...)``."""

    def body() -> None:
        names = [tirx.Var(name, "int64") for name in ("steps", "batch")]
        steps, batch = (n if e is None else e for n, e in zip(names, d.shape, strict=True))
        count = len(d.turns)
        wide = d.columns * d.size

        def arg(name: str, *shape: Any) -> Buffer:
            return T.arg(name, T.buffer(shape, _REAL))

        sums = arg("sums", steps, batch, count * d.columns)
        lengths = T.arg("lengths", T.buffer((batch,), "int32")) if d.lengths else None
        firsts = [
            arg(f"first{i}", count, batch, d.size) if given else None
            for i, given in enumerate(d.given)
        ]
        weights = arg("weights", count, wide)
        inner = arg("inner", count, d.columns)
        results: list[Buffer | None] = [None] * 3
        for index in d.wanted:
            shape = (count, batch, d.size) if index else (steps, count, batch, d.size)
            results[index] = arg(f"result{index}", *shape)
        with root():
            views = [None if each is None else flat(each) for each in (*firsts, *results)]
            flats = flat(sums), flat(weights), flat(inner)
            split = len(d.given)
            _StepWriter(d, flats, lengths, views[:split], views[split:], (steps, batch)).write()

    return prim_func(body)


class _StepWriter:
    """Writes the loops.

    Args:
        d: What is computed.
        operands: Sums of inputs, recurrent weights, what is added inside brackets.
        lengths: Steps of each row; None where all take all.
        firsts: The states that are given, None for zeros.
        results: All states, the last one, the last cell; None where nobody asks.
        extents: Steps, and rows of the batch.
    """

    def __init__(
        self, d: RecurrentLoops, operands: tuple[Buffer, Buffer, Buffer], lengths: Buffer | None,
        firsts: list[Buffer | None], results: list[Buffer | None], extents: tuple[Prim, Prim],
    ) -> None:  # fmt: skip
        self.d, self.firsts, self.results = d, firsts, results
        self.sums, self.weights, self.inner = operands
        self.lengths = lengths
        self.steps, self.batch = extents
        self.pitch = d.blocks * d.cpu.lanes
        count = len(d.turns) * self.batch * self.pitch
        self.state = T.alloc_buffer((2 * count,), _REAL)
        self.second: Buffer | None = T.alloc_buffer((count,), _REAL) if d.kind == "LSTM" else None
        self.products = T.alloc_buffer((len(d.turns) * self.batch * d.columns,), _REAL)
        self.reset = [T.alloc_buffer((count,), _REAL) for _ in range(2 * d.reset_first)]
        rows = len(d.turns) * self.batch
        self.times = None if lengths is None else T.alloc_buffer((rows,), "int32")
        large = 4 * d.columns * d.size >= _SHARED and d.tasks > 1
        self.shares_directions = large and len(d.turns) > 1
        self.shares_panels = large and len(d.turns) == 1

    def write(self) -> None:
        d = self.d
        with turns(len(d.turns), parallel=self.shares_directions) as direction:
            self._begin(direction)
            with turns(self.steps) as passed:
                self._step(direction, passed)
            self._finish(direction)

    def place(self, direction: Prim, row: Prim, half: Prim | None = None) -> Prim:
        """Returns where the state of a row begins; of both halves the last steps take turns."""
        at = direction * self.batch + row
        if half is not None:
            at = at * 2 + half
        return at * self.pitch

    def _begin(self, direction: Prim) -> None:
        """Stores what the first step reads."""
        for index, first in enumerate(self.firsts):
            with turns(self.batch) as row:
                room, at = self._room(index, direction, row, 0)
                whole = (direction * self.batch + row) * self.d.size
                zero = number(0.0, _REAL, self.d.cpu.lanes)
                with turns(self.d.blocks) as block:
                    store(room, at + block * self.d.cpu.lanes, zero, self.d.cpu.lanes)
                if first is not None:
                    self._copy(first, whole, room, at)

    def _room(self, index: int, direction: Prim, row: Prim, half: Prim) -> tuple[Buffer, Prim]:
        """Returns where a state of a row is kept."""
        if index:
            assert self.second is not None
            return self.second, self.place(direction, row)
        return self.state, self.place(direction, row, half)

    def _copy(self, source: Buffer, start: Prim, target: Buffer, to: Prim) -> None:
        """Copies the elements of a state."""

        def piece(j: Prim, lanes: int) -> None:
            store(target, to + j, load(source, start + j, lanes), lanes)

        each_piece(self.d.size, self.d.cpu.lanes, piece)

    def _finish(self, direction: Prim) -> None:
        """Stores the last states; zeros of sequences without a step, as onnxruntime does."""
        for index, result in enumerate(self.results[1:]):
            if result is not None:
                with turns(self.batch) as row:
                    room, at = self._room(index, direction, row, self.steps % 2)
                    to = bound((direction * self.batch + row) * self.d.size)
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
            with T.Else(), turns(self.d.size) as j:
                store(target, to + j, tirx.const(0.0, _REAL), 1)

    def _step(self, direction: Prim, passed: Prim) -> None:
        """Computes one step of all rows."""
        before, after = bound(passed % 2), bound((passed + 1) % 2)
        at = _StepPlace(direction, passed, before, after)
        if self.times is not None:
            with turns(self.batch) as row:
                turned = self._turned(at, self._count(row)).astype("int32")
                own = tirx.Select(self._runs(at, row), turned, tirx.Cast("int32", passed))
                T.buffer_store(self.times, own, [direction * self.batch + row])
        column = weight = 0
        for number_, stage in enumerate(self.d.stages):
            self._stage(at, _StagePlace(number_, stage, column, weight))
            column += self.pitch * len(stage.gates)
            weight += self.pitch * len(stage.gates) * self.d.size
        every = self.results[0]
        if every is not None:
            with turns(self.batch) as row:
                to = (self._time(at, row) * len(self.d.turns) + direction) * self.batch + row
                place = self.place(direction, row, after)
                ran = None if self.lengths is None else self._runs(at, row)
                self._copy_if(ran, self.state, place, every, bound(to * self.d.size))

    def _turned(self, at: _StepPlace, count: Prim) -> Prim:
        """Returns which step of a sequence is computed: the last direction may turn."""
        if not any(self.d.turns):
            return at.passed
        last = count - 1 - at.passed
        if len(self.d.turns) == 1:
            return last
        return at.passed + at.direction * (last - at.passed)

    def _time(self, at: _StepPlace, row: Prim) -> Prim:
        """Returns which step of a row is computed."""
        if self.times is None:
            return self._turned(at, self.steps)
        return tirx.BufferLoad(self.times, [at.direction * self.batch + row])

    def _count(self, row: Prim) -> Prim:
        """Returns how many steps a row has."""
        own = tirx.BufferLoad(self.lengths, [row]).astype("int64")
        return tirx.max(tirx.const(0, "int64"), tirx.min(tirx.Cast("int64", self.steps), own))

    def _runs(self, at: _StepPlace, row: Prim) -> Prim:
        """Returns whether a row's sequence has a step."""
        return at.passed < self._count(row)

    def _stage(self, at: _StepPlace, stage: _StagePlace) -> None:
        """Computes the panels of a stage, and its gates."""
        most = stage.stage.blocks
        whole, rest = divmod(self.d.blocks, most)
        if whole:
            with turns(whole, parallel=self.shares_panels and whole > 1) as panel:
                self._panel(at, stage, panel * most, most)
        if rest:
            self._panel(at, stage, tirx.const(whole * most, "int32"), rest)
        self._gates(at, stage)

    def _panel(self, at: _StepPlace, stage: _StagePlace, first: Prim, blocks: int) -> None:
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
        self, at: _StepPlace, stage: _StagePlace, panel: _PanelPlace, own: tuple[Prim, int],
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
        bracketed = d.kind == "GRU" and not d.reset_first
        for r, start in enumerate(starts):
            for i in registers:
                inside = bracketed and i % gates == gates - 1
                source, place = (self.inner, inner) if inside else (self.sums, start)
                tile.put(r, i, load(source, place + i * lanes, lanes))
        resets = stage.number == 1
        source, half = (self.reset[0], None) if resets else (self.state, at.before)
        states = [bound(self.place(at.direction, row + r, half)) for r in range(count)]
        weights = at.direction * (d.columns * d.size) + stage.weight
        weights = weights + panel.first * (gates * lanes * d.size)
        weights = bound(weights + (first - panel.first) * (gates * lanes))
        with turns(d.size) as k:
            place = weights + k * (panel.blocks * gates * lanes)
            vectors = [bound(load(self.weights, place + i * lanes, lanes)) for i in registers]
            tile.step(source, [state + k for state in states], vectors)
        for r in range(count):
            place = self._product(at, row + r) + column
            for i in registers:
                store(self.products, place + i * lanes, tile.sums(r, i), lanes)

    def _sum(self, at: _StepPlace, row: Prim) -> Prim:
        """Returns where what a row's input adds begins."""
        start = (self._time(at, row) * self.batch + row) * len(self.d.turns) + at.direction
        return start * self.d.columns

    def _product(self, at: _StepPlace, row: Prim) -> Prim:
        """Returns where the sums of a row begin."""
        return (at.direction * self.batch + row) * self.d.columns

    def _gates(self, at: _StepPlace, stage: _StagePlace) -> None:
        """Makes of a stage's sums what its gates make of them; code that all panels share."""
        lanes, gates = self.d.cpu.lanes, len(stage.stage.gates)
        gate = _GATES[self.d.kind, stage.number, self.d.reset_first]

        def block_of(row: Prim, block: Prim) -> None:
            column = bound(stage.column + block * (gates * lanes))
            place = bound(self._product(at, row) + column)
            sums = [bound(load(self.products, place + g * lanes, lanes)) for g in range(gates)]
            own = self._sum(at, row) + column + (gates - 1) * lanes
            gate(self, at, row, bound(block * lanes), sums, own)

        with turns(self.batch) as row:
            if self.times is None:
                with turns(self.d.blocks) as block:
                    block_of(row, block)
                return
            with T.If(self._runs(at, row)):
                with T.Then(), turns(self.d.blocks) as block:
                    block_of(row, block)
                with T.Else(), turns(self.d.blocks) as block:
                    place = self.place(at.direction, row, at.before) + block * lanes
                    self._keep(at, row, block * lanes, load(self.state, place, lanes))

    # ---- gates ------------------------------------------------------------------------------

    def lstm(self, at: _StepPlace, row: Prim, element: Prim, sums: list[Prim], own: Prim) -> None:
        """Gates i, o, f, c: ``C = f C + i g`` and ``H = o tanh(C)``."""
        del own
        assert self.second is not None
        lanes = self.d.cpu.lanes
        taken, out, kept = (sigmoid(value, lanes) for value in sums[:3])
        place = bound(self.place(at.direction, row) + element)
        cell = bound(kept * load(self.second, place, lanes) + taken * tanh(sums[3], lanes))
        store(self.second, place, cell, lanes)
        self._keep(at, row, element, out * tanh(cell, lanes))

    def gru(self, at: _StepPlace, row: Prim, element: Prim, sums: list[Prim], own: Prim) -> None:
        """Gates z, r, h, the state being reset behind the product."""
        lanes = self.d.cpu.lanes
        update, reset = (bound(sigmoid(value, lanes)) for value in sums[:2])
        new = tanh(bound(load(self.sums, own, lanes) + reset * sums[2]), lanes)
        self._mix(at, row, element, (update, new))

    def gru_resets(
        self, at: _StepPlace, row: Prim, element: Prim, sums: list[Prim], own: Prim
    ) -> None:
        """Gates z and r, where the state is reset before the product of the third."""
        del own
        lanes = self.d.cpu.lanes
        place = bound(self.place(at.direction, row) + element)
        old = load(self.state, self.place(at.direction, row, at.before) + element, lanes)
        store(self.reset[0], place, sigmoid(sums[1], lanes) * old, lanes)
        store(self.reset[1], place, sigmoid(sums[0], lanes), lanes)

    def gru_ends(
        self, at: _StepPlace, row: Prim, element: Prim, sums: list[Prim], own: Prim
    ) -> None:
        """Gate h, of a state that was reset."""
        del own
        lanes = self.d.cpu.lanes
        update = load(self.reset[1], self.place(at.direction, row) + element, lanes)
        self._mix(at, row, element, (bound(update), tanh(sums[0], lanes)))

    def rnn(self, at: _StepPlace, row: Prim, element: Prim, sums: list[Prim], own: Prim) -> None:
        """The only gate."""
        del own
        self._keep(at, row, element, tanh(sums[0], self.d.cpu.lanes))

    def _mix(self, at: _StepPlace, row: Prim, element: Prim, parts: tuple[Prim, Prim]) -> None:
        """Keeps ``(1 - z) new + z old``."""
        lanes = self.d.cpu.lanes
        update, new = parts
        old = load(self.state, self.place(at.direction, row, at.before) + element, lanes)
        self._keep(at, row, element, (number(1.0, _REAL, lanes) - update) * new + update * old)

    def _keep(self, at: _StepPlace, row: Prim, element: Prim, value: Prim) -> None:
        """Stores a part of the state for the next step."""
        place = self.place(at.direction, row, at.after) + element
        store(self.state, place, value, self.d.cpu.lanes)


@dataclass(frozen=True, slots=True)
class _StepPlace:
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


_GATES: Mapping[tuple[str, int, bool], Callable[..., None]] = {
    ("LSTM", 0, False): _StepWriter.lstm,
    ("GRU", 0, False): _StepWriter.gru,
    ("GRU", 0, True): _StepWriter.gru_resets,
    ("GRU", 1, True): _StepWriter.gru_ends,
    ("RNN", 0, False): _StepWriter.rnn,
}
"""What a stage makes of its sums, by operator, stage, and whether the state is reset first."""


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

    def f32(value: Any) -> Prim:
        return number(float(value), _REAL, lanes)

    # of a comparison with what is no number the second operand remains
    clamped = bound(tirx.max(f32(exp32.LOWEST), x))
    whole = bound(nearest(clamped * f32(exp32.LOG2E), lanes))
    n = bound(floats(whole, lanes))
    rest = clamped - fence(n * f32(exp32.LN2_HIGH))
    r = bound(rest - fence(n * f32(exp32.LN2_LOW)))
    p = f32(exp32.POLYNOMIAL[0])
    for coefficient in exp32.POLYNOMIAL[1:]:
        p = p * r + f32(coefficient)
    bits = (whole + number(127, "int32", lanes)) << number(23, "int32", lanes)
    power = bound(tirx.reinterpret(typed(_REAL, lanes), bits))
    return bound(((p * r) * r + r) * power), power
