"""Recurrent layers, as ONNX's LSTM and RNN; what calls other subgraphs or keeps state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qdqbridge.onnx_io.assembly import Assembly
from qdqbridge.tflite_io.conversion import Resource, Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.schema import Op, TFLiteTensor

# ---- Recurrent layers, as ONNX's LSTM and RNN ----------------------------------------------------
# Quantized ones compute in real numbers here: TFLite rounds the gates of a fully integer LSTM to
# int16 on the way, and quantizes the activations of a hybrid one while it runs; both are noted.


_GATES = (0, 3, 1, 2)
"""TFLite keeps input, forget, cell, output; ONNX wants input, output, forget, cell."""
_MOST_UNITS = 1 << 20
_ACTIVATIONS: Mapping[int, str] = {1: "Relu", 4: "Tanh"}


def lstm(c: SubgraphConversion, op: Op) -> None:
    """UNIDIRECTIONAL_SEQUENCE_LSTM, peepholes as given."""
    if any(c.has(op, place) for place in range(20, 24)):
        raise UnknownForm("it normalizes its gates")
    _lstm(c, op, [_direction(c, op, 1)], state=18, steps=bool(op.option("TimeMajor", False)))


def bidirectional_lstm(c: SubgraphConversion, op: Op) -> None:
    """BIDIRECTIONAL_SEQUENCE_LSTM, its outputs joined or not."""
    if any(c.has(op, place) for place in range(39, 48)):
        raise UnknownForm("it has an auxiliary input")
    directions = [_direction(c, op, 1), _direction(c, op, 18)]
    _lstm(c, op, directions, state=35, steps=bool(op.option("TimeMajor", True)))


class _Direction:
    """The weights of one direction in ONNX's layout; empty names where there are none."""

    def __init__(self, weight: str, recurrent: str, bias: str, peepholes: str) -> None:
        self.weight, self.recurrent, self.bias, self.peepholes = weight, recurrent, bias, peepholes


def _direction(c: SubgraphConversion, op: Op, first: int) -> _Direction:
    """Reads four input weights, four recurrent ones, three peepholes, four biases.

    Without an input gate ``i = 1 - f``, which is ``sigmoid`` of what the forget gate's is of,
    negated.
    """
    if c.has(op, first + 15) or c.has(op, first + 16):
        raise UnknownForm("it projects its output")
    coupled = not c.has(op, first)

    def gate(place: int, number: int) -> str:
        if number == 0 and coupled:
            return c.to.node("Neg", [c.float_of(c.at(op, place + 1).index)])
        return c.float_of(c.at(op, place + number).index)

    def stacked(place: int, order: Sequence[int]) -> str:
        rows = c.to.node("Concat", [gate(place, number) for number in order], axis=0)
        return c.to.node("Unsqueeze", [rows, c.longs([0])])

    weight, recurrent = stacked(first, _GATES), stacked(first + 4, _GATES)
    peepholes = ""
    if c.has(op, first + 9):  # cell to input, forget, output; ONNX wants input, output, forget
        peepholes = stacked(first + 8, (0, 2, 1))
    return _Direction(weight, recurrent, stacked(first + 11, _GATES), peepholes)


def _lstm(
    c: SubgraphConversion, op: Op, directions: Sequence[_Direction], *, state: int, steps: bool
) -> None:
    kind = int(op.option("FusedActivationFunction"))
    if kind not in _ACTIVATIONS:
        raise UnknownForm(f"its fused activation is number {kind}")
    if float(op.option("ProjClip", 0.0)):
        raise UnknownForm("it clips its projection")
    clip, act = float(op.option("CellClip", 0.0)), _ACTIVATIONS[kind]
    if c.quantization(c.at(op, 2)) is not None:
        c.note("quantized-recurrence", op, f"{op.name} is quantized; it computes in float here")
    _zero_states(c, op, range(state, state + 2 * len(directions)))
    units = _units(c, op, 6)
    x = c.float_of(op.inputs[0])
    if not steps:
        x = c.to.node("Transpose", [x], perm=[1, 0, 2])

    # ONNX's `clip` bounds what goes into the gates, not the cell, so that only steps of a Scan can
    # say this; where nothing is ever clipped it stays one LSTM.
    if clip and not _cell_clip_is_noop(c, op, clip, kind, steps=steps):
        ways = [
            c.to.node(
                "Unsqueeze",
                [_clipped(c, op, x, d, units, act, clip, backwards=bool(k)), c.longs([1])],
            )
            for k, d in enumerate(directions)
        ]
        result = _joined(c, ways, axis=1)
    else:
        result = _as_lstm(c, op, x, directions, units, act)
    result = c.to.node("Transpose", [result], perm=[0, 2, 1, 3] if steps else [2, 0, 1, 3])
    if len(directions) == 2 and not op.option("MergeOutputs", False):
        for place in range(2):
            way = c.to.constant(np.int64(place))
            c.put(op, c.to.node("Gather", [result, way], label=c.label(op), axis=2), place)
        return
    target = c.longs([0, 0, units * len(directions)])
    c.put(op, c.to.node("Reshape", [result, target], label=c.label(op)))


def _joined(c: SubgraphConversion, parts: Sequence[str], axis: int = 0) -> str:
    return parts[0] if len(parts) == 1 else c.to.node("Concat", list(parts), axis=axis)


def _as_lstm(
    c: SubgraphConversion, op: Op, x: str, directions: Sequence[_Direction], units: int, act: str
) -> str:
    """Returns ONNX's LSTM: steps, directions, batch, units."""
    # ONNX has a bias of the input's product and one of the state's; TFLite has their sum.
    nothing = c.to.constant(np.zeros((1, 4 * units), np.float32))
    biases = [c.to.node("Concat", [d.bias, nothing], axis=1) for d in directions]
    operands = [
        x, _joined(c, [d.weight for d in directions]),
        _joined(c, [d.recurrent for d in directions]), _joined(c, biases),
    ]  # fmt: skip
    if directions[0].peepholes:
        operands += ["", "", "", _joined(c, [d.peepholes for d in directions])]
    more = {"direction": "bidirectional"} if len(directions) == 2 else {}
    return c.to.node(
        "LSTM", operands, label=c.label(op), hidden_size=units,
        activations=["Sigmoid", act, act] * len(directions), **more,
    )  # fmt: skip


def _cell_clip_is_noop(
    c: SubgraphConversion, op: Op, clip: float, kind: int, *, steps: bool
) -> bool:
    """True where no cell can come to be clipped: each step adds at most what a Tanh gives.

    ``c' = f·c + i·tanh``, and f and i are at most 1; where ``i = 1 - f`` it is a mean.
    """
    if _ACTIVATIONS[kind] != "Tanh":
        return False
    count = c.shape(op.inputs[0])[0 if steps else 1]
    return 0 <= count <= clip or (clip >= 1 and not c.has(op, 1) and not c.has(op, 18))


def _clipped(
    c: SubgraphConversion, op: Op, x: str, d: _Direction, units: int, act: str, clip: float,
    *, backwards: bool,
) -> str:  # fmt: skip
    """Returns steps, batch, units of an LSTM whose cell is clipped: ONNX clips the gates instead.

    What the steps have in common is computed before them.
    """
    first = c.longs([0])
    w, r = (
        c.to.node("Transpose", [c.to.node("Squeeze", [m, first])], perm=[1, 0])
        for m in (d.weight, d.recurrent)
    )
    pre = c.to.node("Add", [c.to.node("MatMul", [x, w]), d.bias])
    looks: list[str] = []
    if d.peepholes:
        row = c.to.node("Squeeze", [d.peepholes, first])
        looks = c.to.nodes("Split", [row], 3, axis=0, num_outputs=3)
    bounds = [c.to.constant(np.float32(end)) for end in (-clip, clip)]

    def step(to: Assembly, states: Sequence[str], part: str) -> tuple[Sequence[str], str]:
        h, cell = states
        whole = to.node("Add", [part, to.node("MatMul", [h, r])])
        i, o, f, g = to.nodes("Split", [whole], 4, axis=-1, num_outputs=4)

        def gate(number: str, place: int, seen: str) -> str:
            if looks:
                number = to.node("Add", [number, to.node("Mul", [seen, looks[place]])])
            return to.node("Sigmoid", [number])

        added = to.node("Mul", [gate(i, 0, cell), to.node(act, [g])])
        kept = to.node("Mul", [gate(f, 2, cell), cell])
        after = to.node("Clip", [to.node("Add", [kept, added]), *bounds])
        made = to.node("Mul", [gate(o, 1, after), to.node(act, [after])])
        return (made, after), made

    batch = c.to.node("Shape", [x], start=1, end=2)
    extents = c.to.node("Concat", [batch, c.longs([units])], axis=0)
    zeros = c.to.node("Expand", [c.to.constant(np.float32(0)), extents])
    return c.to.scan([zeros, zeros], pre, step, backwards=backwards, label=c.label(op))


def svdf(c: SubgraphConversion, op: Op) -> None:
    """SVDF (x, weights of features, weights of time, bias, state): a memory of M past features.

    ``state' = [state without its oldest, feature(x)]``, ``y = sum over time and rank + bias``. The
    state is an input of the graph and its next value an output. Of an integer one the state is
    rounded to int16, as TFLite does, and nothing else before the result.
    """
    state, time = c.at(op, 4), c.at(op, 2)
    features, memory = c.shape(time.index)
    rank = int(op.option("Rank"))
    if not state.variable or rank < 1 or features % rank:
        raise UnknownForm("its state is no variable, or its rank does not divide its features")
    if c.quantization(c.at(op, 1)) is not None and c.quantization(c.at(op, 0)) is None:
        c.note("quantized-recurrence", op, f"{op.name} is quantized; it computes in float here")
    kept = c.kept(op, state.name or f"{c.label(op)}:state", state, "; it begins with 0 everywhere")
    weight = c.to.node("Transpose", [c.float_of(op.inputs[1])], perm=[1, 0])
    feature = c.to.node("MatMul", [c.float_of(op.inputs[0]), weight])
    last = c.longs([-1])
    newest = c.to.node("Unsqueeze", [c.quantized(feature, state), last])
    before = c.to.node("Reshape", [kept.stored, c.longs([0, features, memory])])
    bounds = [c.longs([1]), c.longs([memory]), last]
    now = c.to.node("Concat", [c.to.node("Slice", [before, *bounds]), newest], axis=-1)
    kept.stored = c.to.node("Reshape", [now, c.longs([0, features * memory])])
    seen = c.to.node("Mul", [c.dequantized(now, state), c.float_of(time.index)])
    over = c.to.node("ReduceSum", [seen, last], keepdims=0)
    ranks = c.to.node("Reshape", [over, c.longs([0, features // rank, rank])])
    result = c.to.node("ReduceSum", [ranks, last], keepdims=0)
    if c.has(op, 3):
        result = c.to.node("Add", [result, c.float_of(op.inputs[3])])
    c.put(op, c.activated(result, op, int(op.option("FusedActivationFunction"))))


def _units(c: SubgraphConversion, op: Op, place: int) -> int:
    units = c.shape(c.at(op, place).index)[0]
    if not 0 < units <= _MOST_UNITS:
        raise ValueError(f"it has {units} units")
    return units


def _zero_states(c: SubgraphConversion, op: Op, places: Sequence[int]) -> None:
    """Checks that the states are variables, which a fresh interpreter fills with zeros."""
    for place in places:
        if c.has(op, place) and not c.at(op, place).variable:
            array = c.array(op.inputs[place])
            if array is None or array.any():
                raise UnknownForm("its first state is not zero")


def rnn(c: SubgraphConversion, op: Op) -> None:
    """UNIDIRECTIONAL_SEQUENCE_RNN (x, weights, recurrent weights, bias, state)."""
    kind = int(op.option("FusedActivationFunction"))
    if kind not in _ACTIVATIONS:
        raise UnknownForm(f"its fused activation is number {kind}")
    _zero_states(c, op, [4])
    units, steps = _units(c, op, 1), bool(op.option("TimeMajor", False))
    x = c.float_of(op.inputs[0])
    if not steps:
        x = c.to.node("Transpose", [x], perm=[1, 0, 2])
    # ONNX's operands have an axis of directions in front.
    lead = c.longs([0])
    weights = [c.to.node("Unsqueeze", [c.float_of(op.inputs[i]), lead]) for i in (1, 2, 3)]
    bias = c.to.node(
        "Concat", [weights[2], c.to.constant(np.zeros((1, units), np.float32))], axis=1
    )
    result = c.to.node(
        "RNN", [x, weights[0], weights[1], bias], label=c.label(op), hidden_size=units,
        activations=[_ACTIVATIONS[kind]],
    )  # fmt: skip
    result = c.to.node("Squeeze", [result, c.longs([1])])
    if not steps:
        result = c.to.node("Transpose", [result], perm=[1, 0, 2])
    c.put(op, result)


# ---- What calls other subgraphs or keeps state: branches, composites, variables ------------------


_SCALAR = np.zeros(0, np.int64)


def composite(c: SubgraphConversion, op: Op) -> None:
    """STABLEHLO_COMPOSITE: what it is composed of."""
    operands = [c.stored(i) for i in op.inputs]
    results = c.called(int(op.option("DecompositionSubgraphIndex")), operands)
    for place, result in enumerate(results[: len(op.outputs)]):
        c.put_stored(op, result, place)


def call(c: SubgraphConversion, op: Op) -> None:
    """CALL: another subgraph in place."""
    results = c.called(int(op.option("Subgraph")), [c.stored(i) for i in op.inputs])
    for place, result in enumerate(results[: len(op.outputs)]):
        c.put_stored(op, result, place)


def branch(c: SubgraphConversion, op: Op) -> None:
    """IF: ONNX's If of the two subgraphs."""
    condition = c.to.node("Reshape", [c.stored(op.inputs[0]), c.to.constant(_SCALAR)])
    operands = [c.stored(i) for i in op.inputs[1:]]

    def body(index: int) -> Callable[[Assembly], Sequence[str]]:
        return lambda inner: c.called(index, operands, inner)[: len(op.outputs)]

    bodies = [body(int(op.option(f"{kind}SubgraphIndex"))) for kind in ("Then", "Else")]
    results = c.to.branch(condition, bodies, len(op.outputs), label=c.label(op))
    for place, result in enumerate(results):
        c.put_stored(op, result, place)


def call_once(c: SubgraphConversion, op: Op) -> None:
    """CALL_ONCE: what variables hold before the first run."""
    index = int(op.option("InitSubgraphIndex"))
    if not 0 < index < len(c.state.model.subgraphs):
        raise UnknownForm(f"subgraph {index} does not exist")
    inner = SubgraphConversion(c.state, c.state.model.subgraphs[index], c.to)
    for each in inner.subgraph.ops:
        if each.name == "VAR_HANDLE":
            handle(inner, each)
        elif each.name == "ASSIGN_VARIABLE":
            name = inner.resources.get(each.inputs[0])
            if name is not None:
                c.state.initial[name] = (inner, each.inputs[1])
        else:
            raise UnknownForm(f"variables begin with what {each.name} computes")


def handle(c: SubgraphConversion, op: Op) -> None:
    """VAR_HANDLE: a variable by name."""
    if op.options is None:
        raise UnknownForm("its variable has no name")
    parts = [
        bytes(part or b"").decode("utf-8", "replace")
        for part in (op.option("Container"), op.option("SharedName"))
    ]
    c.resources[op.outputs[0]] = "/".join(part for part in parts if part)


def read_variable(c: SubgraphConversion, op: Op) -> None:
    """READ_VARIABLE: what it holds now; before anything is written, an input of the graph."""
    c.put_stored(op, _resource(c, op, c.tensor(op.outputs[0])).stored)


def assign_variable(c: SubgraphConversion, op: Op) -> None:
    """ASSIGN_VARIABLE: what it holds from here on; at the end, an output of the graph."""
    resource = _resource(c, op, c.at(op, 1))
    resource.stored = c.stored(op.inputs[1])


def _beginning(c: SubgraphConversion, name: str) -> str:
    """Returns what a variable holds before the first run, in words."""
    if name not in c.state.initial:
        return ""
    inner, index = c.state.initial[name]
    array = inner.array(index)
    if array is not None and array.size and (array == array.flat[0]).all():
        return f"; it begins with {array.flat[0]} everywhere"
    return f"; it begins with the file's tensor '{inner.tensor(index).label}'"


def _resource(c: SubgraphConversion, op: Op, tensor: TFLiteTensor) -> Resource:
    name = c.resources.get(op.inputs[0])
    if name is None:
        raise UnknownForm("its variable is not known")
    return c.kept(op, name, tensor, _beginning(c, name))


ROWS: Mapping[str, Row] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": bidirectional_lstm,
    "SVDF": svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": rnn,
    "ASSIGN_VARIABLE": assign_variable,
    "CALL": call,
    "CALL_ONCE": call_once,
    "IF": branch,
    "READ_VARIABLE": read_variable,
    "STABLEHLO_COMPOSITE": composite,
    "VAR_HANDLE": handle,
}
