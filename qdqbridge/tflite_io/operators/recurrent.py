"""Recurrent layers, as ONNX's LSTM and RNN.

Quantized ones compute in real numbers here: TFLite rounds the gates of a fully integer LSTM to
int16 on the way, and quantizes the activations of a hybrid one while it runs; both are noted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.schema import Op

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
    if clip:  # ONNX clips what goes into gates
        raise UnknownForm(f"it clips its cell state at {clip:g}")
    _zero_states(c, op, range(state, state + 2 * len(directions)))
    units = _units(c, op, 6)
    x = c.float_of(op.inputs[0])
    if not steps:
        x = c.to.node("Transpose", [x], perm=[1, 0, 2])

    def joined(parts: Sequence[str]) -> str:
        return parts[0] if len(parts) == 1 else c.to.node("Concat", list(parts), axis=0)

    weight = joined([d.weight for d in directions])
    recurrent = joined([d.recurrent for d in directions])
    biases = [
        c.to.node("Concat", [d.bias, c.to.constant(np.zeros((1, 4 * units), np.float32))], axis=1)
        for d in directions
    ]
    operands = [x, weight, recurrent, joined(biases)]
    if directions[0].peepholes:
        operands += ["", "", "", joined([d.peepholes for d in directions])]
    more = {"direction": "bidirectional"} if len(directions) == 2 else {}
    result = c.to.node(
        "LSTM", operands, label=c.label(op), hidden_size=units,
        activations=["Sigmoid", act, act] * len(directions), **more,
    )  # fmt: skip
    result = c.to.node("Transpose", [result], perm=[0, 2, 1, 3] if steps else [2, 0, 1, 3])
    if len(directions) == 2 and not op.option("MergeOutputs", False):
        for place in range(2):
            way = c.to.constant(np.int64(place))
            c.put(op, c.to.node("Gather", [result, way], label=c.label(op), axis=2), place)
        return
    target = c.longs([0, 0, units * len(directions)])
    c.put(op, c.to.node("Reshape", [result, target], label=c.label(op)))


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


ROWS: Mapping[str, Row] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": bidirectional_lstm,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": rnn,
}
