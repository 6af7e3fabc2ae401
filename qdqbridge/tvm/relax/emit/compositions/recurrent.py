"""LSTM, GRU and RNN: one product for all steps, and one function of loops for what is carried.

Every length may be open; sums of float32. Source: ONNX LSTM-22, GRU-22, RNN-22.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.elementwise import Composition, CompositionContext, wide
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.recurrent.layers import DIRECTIONS, CellFunction, functions_of

# ---- the functions that LSTM, GRU and RNN may be given, as loops compute them --------------------

Activation = Callable[[Any], Any]
"""Makes an expression of float32 of another."""


def _float32_const(value: float) -> Any:
    return tirx.const(value, _REAL)


def _sigmoid(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return _float32_const(1.0) / (_float32_const(1.0) + tirx.exp(_float32_const(0.0) - x))


def _tanh(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return tirx.tanh(x)


def _relu(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return tirx.max(x, _float32_const(0.0))


def _affine_activation(x: Any, alpha: float, beta: float) -> Any:
    return _float32_const(alpha) * x + _float32_const(beta)


def _leaky_relu(x: Any, alpha: float, beta: float) -> Any:
    del beta
    return tirx.Select(x >= _float32_const(0.0), x, _float32_const(alpha) * x)


def _thresholded_relu(x: Any, alpha: float, beta: float) -> Any:
    del beta
    return tirx.Select(x > _float32_const(alpha), x, _float32_const(0.0))


def _scaled_tanh(x: Any, alpha: float, beta: float) -> Any:
    return _float32_const(alpha) * tirx.tanh(_float32_const(beta) * x)


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    return tirx.min(
        tirx.max(_affine_activation(x, alpha, beta), _float32_const(0.0)), _float32_const(1.0)
    )


def _elu(x: Any, alpha: float, beta: float) -> Any:
    del beta
    # A Select computes both sides, and exp of a large x would be infinite.
    below = _float32_const(alpha) * (
        tirx.exp(tirx.min(x, _float32_const(0.0))) - _float32_const(1.0)
    )
    return tirx.Select(x >= _float32_const(0.0), x, below)


def _softsign(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return x / (_float32_const(1.0) + tirx.abs(x))


def _softplus(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    # Not log(1 + exp(x)), which is infinite from x = 89 on.
    rest = tirx.exp(_float32_const(0.0) - tirx.abs(x))
    return tirx.max(x, _float32_const(0.0)) + tirx.log(_float32_const(1.0) + rest)


_FUNCTIONS: Mapping[str, Callable[[Any, float, float], Any]] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "relu": _relu,
    "affine": _affine_activation,
    "leakyrelu": _leaky_relu,
    "thresholdedrelu": _thresholded_relu,
    "scaledtanh": _scaled_tanh,
    "hardsigmoid": _hard_sigmoid,
    "elu": _elu,
    "softsign": _softsign,
    "softplus": _softplus,
}


def activation(function: CellFunction) -> Activation:
    """Returns what computes a function of an expression."""
    clip = function.clip

    def compute(x: Any) -> Any:
        # ONNX's `clip` bounds what goes into the functions, not what they give.
        within = (
            tirx.max(tirx.min(x, _float32_const(clip)), _float32_const(-clip)) if clip > 0 else x
        )
        return _FUNCTIONS[function.name](within, function.alpha, function.beta)

    return compute


_REAL = "float32"
_AT_ONCE = 8
"""Terms of a product that are added before a sum is stored."""

Extent = Any
At = Callable[[Any], Any]
"""An element of a gate's sum, by the place in the state."""


@dataclass(frozen=True, slots=True)
class _RecurrentLayer:
    """What the loops compute.

    Attributes:
        size: Elements of the state, H.
        reversed: Of each direction, whether it starts at the last step.
        activations: Of each direction, its functions.
        own: Operands beyond sums, weights, bias: ``lengths``, ``state``, ``cell``, ``peepholes``.
        reset_first: GRU: the state is reset before the product, not behind it.
        coupled: LSTM: what is kept of the cell is what the input gate does not let in.
    """

    size: int
    reversed: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    own: tuple[str, ...]
    reset_first: bool
    coupled: bool


@dataclass(frozen=True, slots=True)
class _RecurrentStep:
    """Where one step of one row of the batch is: the buffers, and the places that stand still.

    Attributes:
        layer: What is computed.
        buffers: Buffers by name.
        direction: Which direction.
        row: Which row of the batch.
        time: Which step.
    """

    layer: _RecurrentLayer
    buffers: Mapping[str, Any]
    direction: int
    row: Any
    time: Any

    def state(self, name: str, j: Any) -> Any:
        """Returns an element of ``state`` or ``cell``."""
        return tirx.BufferLoad(self.buffers[name], [self.direction, self.row, j])

    def keep(self, name: str, j: Any, value: Any) -> None:
        """Stores an element of ``state`` or ``cell``."""
        T.buffer_store(self.buffers[name], value, [self.direction, self.row, j])

    def sum(self, gate: int, j: Any) -> Any:
        """Returns an element of a gate's sum."""
        return tirx.BufferLoad(self.buffers["sums"], [gate * self.layer.size + j])

    def store(self, gate: int, j: Any, value: Any) -> None:
        """Stores an element of a gate's sum, or what is made of it."""
        T.buffer_store(self.buffers["sums"], value, [gate * self.layer.size + j])

    def made(self, index: int, value: Any) -> Any:
        """Returns one of the direction's functions of a value."""
        return self.layer.activations[self.direction][index](value)

    def peeped(self, gate: int, j: Any, cell: Any) -> Any:
        """Returns the part of a gate that looks at the cell."""
        if "peepholes" not in self.buffers:
            return tirx.const(0.0, _REAL)
        return self.buffers["peepholes"][self.direction, gate * self.layer.size + j] * cell

    def add_product(self, sums: str, first: int, gates: int, source: At) -> None:
        """Adds the recurrent weights of some gates times a state to sums that stand side by side.

        Some terms at a time, so that a sum is read and stored once for them.
        """
        size, buffer = self.layer.size, self.buffers[sums]
        # A divisor, so that no rest needs loops of its own.
        at_once = math.gcd(size, _AT_ONCE)
        start = first * size if sums == "sums" else 0
        with T.serial(size // at_once) as block, T.serial(gates * size) as j:
            total = tirx.BufferLoad(buffer, [start + j])
            for term in range(at_once):
                k = block * at_once + term
                total += source(k) * self.buffers["weights"][self.direction, k, first * size + j]
            T.buffer_store(buffer, total, [start + j])


# ---- what a step does ---------------------------------------------------------------------------
def _lstm_step(step: _RecurrentStep) -> None:
    """Gates i, o, f, c; functions of gates, of the new part, of the cell."""
    step.add_product("sums", 0, 4, lambda k: step.state("state", k))
    with T.serial(step.layer.size) as j:
        # An expression that is loaded where it is used: nothing behind `keep` may use it.
        old = step.state("cell", j)
        taken = step.made(0, step.sum(0, j) + step.peeped(0, j, old))
        kept = step.made(0, step.sum(2, j) + step.peeped(2, j, old))
        if step.layer.coupled:
            kept = tirx.const(1.0, _REAL) - taken
        step.keep("cell", j, kept * old + taken * step.made(1, step.sum(3, j)))
        new = step.state("cell", j)
        out = step.made(0, step.sum(1, j) + step.peeped(1, j, new))
        step.keep("state", j, out * step.made(2, new))


def _gru_step(step: _RecurrentStep) -> None:
    """Gates z, r, h; functions of gates, of the new state."""
    size, inner = step.layer.size, step.buffers["inner"]
    step.add_product("sums", 0, 2, lambda k: step.state("state", k))
    with T.serial(size) as j:
        # All of r before any of the product: an element of that reads every one.
        step.store(1, j, step.made(0, step.sum(1, j)))
    if step.layer.reset_first:
        with T.serial(size) as j:
            T.buffer_store(inner, step.sum(1, j) * step.state("state", j), [j])
        step.add_product("sums", 2, 1, lambda k: inner[k])
    else:
        with T.serial(size) as j:
            T.buffer_store(inner, step.buffers["bias"][step.direction, 2 * size + j], [j])
        step.add_product("inner", 2, 1, lambda k: step.state("state", k))
        with T.serial(size) as j:
            step.store(2, j, step.sum(2, j) + step.sum(1, j) * inner[j])
    with T.serial(size) as j:
        update = step.made(0, step.sum(0, j))
        new = step.made(1, step.sum(2, j))
        one = tirx.const(1.0, _REAL)
        step.keep("state", j, (one - update) * new + update * step.state("state", j))


def _rnn_step(step: _RecurrentStep) -> None:
    step.add_product("sums", 0, 1, lambda k: step.state("state", k))
    with T.serial(step.layer.size) as j:
        step.keep("state", j, step.made(0, step.sum(0, j)))


@dataclass(frozen=True, slots=True)
class _RecurrentKind:
    """One of the three operators.

    Attributes:
        gates: How many sums a step makes.
        functions: Its default functions.
        states: What it carries.
        step: What a step does.
    """

    gates: int
    functions: tuple[str, ...]
    states: tuple[str, ...]
    step: Callable[[_RecurrentStep], None]


_KINDS: Mapping[str, _RecurrentKind] = {
    "LSTM": _RecurrentKind(4, ("Sigmoid", "Tanh", "Tanh"), ("state", "cell"), _lstm_step),
    "GRU": _RecurrentKind(3, ("Sigmoid", "Tanh"), ("state",), _gru_step),
    "RNN": _RecurrentKind(1, ("Tanh",), ("state",), _rnn_step),
}


# ---- the call -----------------------------------------------------------------------------------
def _recurrent(name: str) -> Composition:
    """Returns the composition of one of the three operators."""
    return lambda context: _composed(context, _KINDS[name])


def _composed(context: CompositionContext, kind: _RecurrentKind) -> Sequence[Expr]:
    direction = context.onnx.string("direction", "forward")
    if direction not in DIRECTIONS:
        raise NoRow(f"its direction is '{direction}'")
    turns = DIRECTIONS[direction]
    if context.onnx.int_("layout", 0):
        raise NoRow("its batch comes first")
    x = _float32_operand(context, 0)
    length, batch, _ = context.extents(x)
    weights = _float32_operand(context, 2)
    size = context.extents(weights)[2]
    if not isinstance(size, int):
        raise NoRow("the size of its state is open")
    operands, own = [_sums(context, kind, x, len(turns), size)], list[str]()
    operands.append(_transposed(context, 2, weights))
    reset_first = not context.onnx.int_("linear_before_reset", 0)
    if kind.step is _gru_step and not reset_first:
        operands.append(_recurrent_bias(context, kind, len(turns), size))
    if context.has(4):
        operands.append(context.cast(context.arg(4), "int64"))
        context.emitter.need_same(context.extents(operands[-1])[0], batch)
        own.append("lengths")
    for index, state in zip((5, 6), kind.states, strict=False):
        if context.has(index):
            operands.append(_float32_operand(context, index))
            context.emitter.need_same(context.extents(operands[-1])[1], batch)
            own.append(state)
    if kind.step is _lstm_step and context.has(7):
        operands.append(_float32_operand(context, 7))
        own.append("peepholes")
    functions = functions_of(context.onnx, kind.functions, len(turns))
    layer = _RecurrentLayer(
        size, turns, tuple(tuple(map(activation, each)) for each in functions), tuple(own),
        reset_first, coupled=bool(context.onnx.int_("input_forget", 0)),
    )  # fmt: skip
    shapes = [(length, len(turns), batch, size), *[(len(turns), batch, size)] * len(kind.states)]
    made = _call_recurrent_loops(context, kind, layer, operands, shapes)
    results = [context.cast(each, context.dtype(context.arg(0))) for each in made]
    return [each for index, each in enumerate(results) if context.asks(index)]


def _float32_operand(context: CompositionContext, index: int) -> Expr:
    """Returns an operand in float32.

    Raises:
        NoRow: It has more bits.
    """
    found = wide(context, context.arg(index))
    if context.dtype(found) != _REAL:
        raise NoRow(f"it computes in {context.dtype(found)}")
    return found


def _transposed(context: CompositionContext, index: int, weights: Expr) -> Expr:
    """Returns weights with the last two axes exchanged; TVM would do that of constants too."""
    held = context.onnx.operand(index).constant
    if held is None:
        return context("permute_dims", weights, (0, 2, 1))
    return context.number(held.numpy().astype(np.float32).transpose(0, 2, 1), _REAL)


def _sums(
    context: CompositionContext, kind: _RecurrentKind, x: Expr, directions: int, size: int
) -> Expr:
    """Returns what all steps add of their input and of biases, (steps, batch, directions, k H)."""
    length, batch, width = context.extents(x)
    count = kind.gates * size
    weights = _transposed(context, 1, _float32_operand(context, 1))
    if directions > 1:
        weights = context("permute_dims", weights, (1, 0, 2))
    sums = context("matmul", x, context("reshape", weights, (width, directions * count)))
    if context.has(3):
        halves = _biases(context, directions, count)
        whole = halves[0]
        if context.onnx.int_("linear_before_reset", 0) and kind.step is _gru_step:
            own = context.number([[1.0] * (2 * size) + [0.0] * size], _REAL)  # Rbh is added inside
            whole = context("add", whole, context("multiply", halves[1], own))
        else:
            whole = context("add", whole, halves[1])
        sums = context("add", sums, context("reshape", whole, (directions * count,)))
    return context("reshape", sums, (length, batch, directions, count))


def _biases(context: CompositionContext, directions: int, count: int) -> list[Expr]:
    """Returns the biases of the input's and of the recurrent product, (directions, k H) each."""
    both = context("reshape", _float32_operand(context, 3), (directions, 2 * count))
    return [
        context("strided_slice", both, axes=[1], begin=[start], end=[start + count])
        for start in (0, count)
    ]


def _recurrent_bias(
    context: CompositionContext, kind: _RecurrentKind, directions: int, size: int
) -> Expr:
    count = kind.gates * size
    if context.has(3):
        return _biases(context, directions, count)[1]
    return context.number([[0.0] * count] * directions, _REAL)


def _call_recurrent_loops(
    context: CompositionContext, kind: _RecurrentKind, layer: _RecurrentLayer,
    operands: Sequence[Expr],
    shapes: Sequence[tuple[Extent, ...]],
) -> list[Expr]:  # fmt: skip
    """Emits a call of the loops; returns the results of all steps, and what is carried last."""
    function = _recurrent_primfunc(
        kind, layer, [(context.extents(x), context.dtype(x)) for x in operands]
    )
    variable = context.emitter.builder.add_func(function, "recurrent")
    open_shapes: Any = shapes
    types: Any = [relax.TensorType(shape, _REAL) for shape in open_shapes]
    args: Any = list(operands)
    both = context.emitter.emit(relax.call_tir(variable, args, types))
    return [context.emitter.emit(context.emitter.item(both, index)) for index in range(len(shapes))]


def _recurrent_primfunc(
    kind: _RecurrentKind, layer: _RecurrentLayer, operands: Sequence[tuple[Sequence[Extent], str]]
) -> Any:
    """Returns the PrimFunc ``(sums, weights, bias?, own..., y, state, cell?)``."""
    opened: dict[str, Any] = {}

    def own(extent: Extent) -> Any:
        if isinstance(extent, int):
            return extent
        return opened.setdefault(str(extent), tirx.Var(f"n{len(opened)}", "int64"))

    shapes = [tuple(map(own, extents)) for extents, _ in operands]
    length, batch, directions, count = shapes[0]
    inside = kind.step is _gru_step and not layer.reset_first
    names = ["given", "weights", *["bias"] * inside, *(f"first_{name}" for name in layer.own)]

    def body() -> None:
        buffers = {
            name: T.arg(name, T.buffer(shape, dtype))
            for name, shape, (_, dtype) in zip(names, shapes, operands, strict=True)
        }
        y = T.arg("y", T.buffer((length, directions, batch, layer.size), _REAL))
        for name in kind.states:
            buffers[name] = T.arg(name, T.buffer((directions, batch, layer.size), _REAL))
        if "first_peepholes" in buffers:
            buffers["peepholes"] = buffers.pop("first_peepholes")
        lengths = buffers.get("first_lengths")
        with root():
            buffers["sums"] = T.alloc_buffer((count,), _REAL)
            if kind.step is _gru_step:
                buffers["inner"] = T.alloc_buffer((layer.size,), _REAL)
            for direction, turned in enumerate(layer.reversed):
                with T.serial(batch) as row:
                    _begin(kind, layer, buffers, direction, row)
                    steps = length
                    if lengths is not None:
                        zero, most = tirx.const(0, "int64"), tirx.Cast("int64", length)
                        steps = tirx.max(zero, tirx.min(most, lengths[row]))
                        _clear(y, layer, (direction, row))
                    with T.serial(steps) as passed:
                        time = steps - 1 - passed if turned else passed
                        step = _RecurrentStep(layer, buffers, direction, row, time)
                        with T.serial(count) as j:
                            added = buffers["given"][time, row, direction, j]
                            T.buffer_store(buffers["sums"], added, [j])
                        kind.step(step)
                        with T.serial(layer.size) as j:
                            T.buffer_store(y, step.state("state", j), [time, direction, row, j])
                    if lengths is not None:
                        _end(kind, layer, buffers, (direction, row), steps)

    return prim_func(body)


def _begin(
    kind: _RecurrentKind,
    layer: _RecurrentLayer,
    buffers: Mapping[str, Any],
    direction: int,
    row: Any,
) -> None:
    """Stores what a row starts with."""
    with T.serial(layer.size) as j:
        for name in kind.states:
            first = buffers.get(f"first_{name}")
            value = tirx.const(0.0, _REAL) if first is None else first[direction, row, j]
            T.buffer_store(buffers[name], value, [direction, row, j])


def _end(
    kind: _RecurrentKind, layer: _RecurrentLayer, buffers: Mapping[str, Any], at: tuple[int, Any],
    steps: Any,
) -> None:  # fmt: skip
    """Stores zeros as the last states of a sequence without a step, as onnxruntime does."""
    direction, row = at
    with T.If(steps == 0), T.Then(), T.serial(layer.size) as j:
        for name in kind.states:
            T.buffer_store(buffers[name], tirx.const(0.0, _REAL), [direction, row, j])


def _clear(y: Any, layer: _RecurrentLayer, at: tuple[int, Any]) -> None:
    """Stores zeros for all steps: those beyond a sequence's length keep them."""
    direction, row = at
    with T.serial(y.shape[0]) as time, T.serial(layer.size) as j:
        T.buffer_store(y, tirx.const(0.0, _REAL), [time, direction, row, j])


RECURRENT: Mapping[str, Composition] = {name: _recurrent(name) for name in _KINDS}
"""By the operator's name in ONNX's own domain."""
