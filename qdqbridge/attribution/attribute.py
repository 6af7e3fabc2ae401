"""Errors of a quantized model, tensor by tensor: how much, why, and what would help."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.attribution.causes import causes, changed
from qdqbridge.attribution.correspondence import Correspondence, Rounded, correspondence, share
from qdqbridge.attribution.repairs import repairs
from qdqbridge.attribution.simulation import Change, FloatRuns, noise
from qdqbridge.errors import InputDataError, UnsupportedModelError
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.interpreter import evaluate
from qdqbridge.graph.numerics import dequantize

Array = NDArray[Any]
Progress = Callable[[int, int], None]
_ENOUGH = 0.9
"""The share of what a float tensor gains at which a cheaper repair is proposed."""
_WORTH = 0.3
"""Decibels that a repair must gain to be proposed."""


@dataclass(frozen=True, slots=True, eq=False)
class SuspectTensor:
    """One rounded tensor.

    Attributes:
        name: Its name, in the float model where it has one.
        quantized_name: Its name in the quantized model.
        kind: ``activation``, ``weight``, ``bias`` or ``constant``.
        node: The node of the quantized model that makes it, or that reads the constant.
        alone_db: The outputs' signal to noise where only this tensor is rounded, in dB.
        added_db: The tensor's own signal to noise, in dB.
        gain_db: What the outputs gain where it is not rounded and the worse tensors are repaired.
        cause: The cause of most of its error.
        causes: Shares of its error by cause.
        repair: What was tried and helps; empty where nothing was tried or nothing helps.
        repair_db: What the outputs gain by the repair, the worse tensors being repaired, in dB.
        place: The node of the quantized graph.
    """

    name: str
    quantized_name: str
    kind: str
    node: str
    alone_db: float
    added_db: float
    gain_db: float
    cause: str
    causes: Mapping[str, float]
    repair: str = ""
    repair_db: float = 0.0
    place: Node | None = None


@dataclass(frozen=True, slots=True)
class Attribution:
    """Whose fault the error of a quantized model is.

    Attributes:
        tensors: What is rounded, the worst first.
        quantized_db: The outputs' signal to noise of the quantized model, in dB.
        simulated_db: That of the float model with the same tensors rounded.
        repaired_db: The same, where every tensor with a repair is repaired.
        aligned: The share of the quantized model's nodes to which one of the float model
            corresponds.
        unknown: The nodes to which none does.
    """

    tensors: tuple[SuspectTensor, ...]
    quantized_db: float
    simulated_db: float
    repaired_db: float
    aligned: float
    unknown: tuple[str, ...]


def attribute(
    reference: Graph,
    quantized: Graph,
    data: Mapping[str, Array],
    *,
    repaired: int = 5,
    progress: Progress | None = None,
) -> Attribution:
    """Returns which tensors of a quantized model lose its accuracy.

    Args:
        reference: The float model.
        quantized: The model that claims to be it.
        data: One array per input of the float model.
        repaired: For how many of the worst tensors repairs are tried.
        progress: Called with the tensors done and their number.

    Raises:
        InputDataError: The data does not fit.
        UnsupportedModelError: The models have other inputs or outputs, or nothing corresponds.
    """
    found = correspondence(reference, quantized)
    _check(reference, quantized, found)
    simulation = FloatRuns(reference, data)
    everything = _changes(found)
    together = simulation.noise(simulation.outputs(everything))
    rows: list[tuple[float, SuspectTensor, Rounded]] = []
    for number, rounded in enumerate(found.rounded, 1):
        alone = simulation.noise(simulation.outputs({rounded.value: _change(rounded)}))
        rows.append((alone, _row(rounded, simulation, alone), rounded))
        if progress is not None:
            progress(number, len(found.rounded))
    rows.sort(key=lambda row: -row[0])
    attempts = _Attempts(simulation, everything, together)
    tensors = [
        attempts.row(row, rounded) if index < repaired else row
        for index, (_, row, rounded) in enumerate(rows)
    ]
    return Attribution(
        tuple(tensors),
        _db(_measured(simulation, quantized, data)),
        _db(together),
        _db(attempts.noise),
        share(found, quantized),
        tuple(node.name for node in found.unknown),
    )


def _check(reference: Graph, quantized: Graph, found: Correspondence) -> None:
    pairs = ((reference.inputs, quantized.inputs), (reference.outputs, quantized.outputs))
    for what, (a, b) in zip(("inputs", "outputs"), pairs, strict=True):
        if len(a) != len(b):
            raise UnsupportedModelError(
                f"the models have {len(a)} and {len(b)} {what}",
                why="the quantized model has to be the float one in other numbers",
                fix="give the float model that was quantized",
            )
    if not found.rounded:
        raise UnsupportedModelError(
            "nothing of the second model is quantized, or nothing corresponds to the first",
            fix="give the float model first, then the quantized one",
        )


def _changes(found: Correspondence) -> dict[Value, Change]:
    """Returns what happens to every tensor; one that is rounded several times, all in turn."""
    changes: dict[Value, Change] = {}
    for rounded in found.rounded:
        before, own = changes.get(rounded.value), _change(rounded)
        changes[rounded.value] = own if before is None else _then(before, own)
    return changes


def _then(first: Change, second: Change) -> Change:
    return lambda real: second(first(real))


def _change(rounded: Rounded) -> Change:
    return lambda real: changed(rounded, real)


def _row(rounded: Rounded, simulation: FloatRuns, alone: float) -> SuspectTensor:
    original = simulation.stored(rounded.value)
    split = causes(rounded, original)
    whole = sum(split.values())
    signal = float(np.square(original.astype(np.float64)).sum())
    node = rounded.their_node
    return SuspectTensor(
        name=rounded.name,
        quantized_name=rounded.theirs.name,
        kind=rounded.kind,
        node="" if node is None else f"{node.op.name} {node.name}".strip(),
        alone_db=_db(alone),
        added_db=_db(whole / signal if signal else 0.0),
        gain_db=0.0,
        cause=next(iter(split), ""),
        causes={key: power / whole for key, power in split.items() if power and whole},
        place=node,
    )


@dataclass(slots=True)
class _Attempts:
    """Repairs one tensor after the other, and keeps what helps.

    Attributes:
        simulation: The float model.
        changes: What happens to every tensor.
        noise: Noise over signal of the outputs then.
    """

    simulation: FloatRuns
    changes: dict[Value, Change]
    noise: float

    def row(self, row: SuspectTensor, rounded: Rounded) -> SuspectTensor:
        """Returns a row with the repair that was tried and helps."""
        original = self.simulation.stored(rounded.value)
        tried = [(w, c, self._noise(rounded, c)) for w, c in repairs(rounded, original)]
        gains = [_gain(self.noise, left) for _, _, left in tried]
        whole = gains[-1]
        helps = (i for i, gain in enumerate(gains) if gain >= max(_ENOUGH * whole, _WORTH))
        best = next(helps, None)
        if best is None:
            return replace(row, gain_db=whole)
        words, change, left = tried[best]
        self.changes = {**self.changes, rounded.value: change}
        self.noise = left
        return replace(row, gain_db=whole, repair=words, repair_db=gains[best])

    def _noise(self, rounded: Rounded, change: Change) -> float:
        changes = {**self.changes, rounded.value: change}
        return self.simulation.noise(self.simulation.outputs(changes))


def _gain(before: float, after: float) -> float:
    if not math.isfinite(before):
        return 0.0 if not math.isfinite(after) else math.inf
    return _db(after) - _db(before) if before else 0.0


def _measured(simulation: FloatRuns, quantized: Graph, data: Mapping[str, Array]) -> float:
    """Returns the noise of the quantized model's own outputs."""
    named = dict(zip((v.name for v in simulation.graph.inputs), data.values(), strict=False))
    given = {
        value.name: data.get(value.name, named.get(simulation.graph.inputs[index].name))
        for index, value in enumerate(quantized.inputs)
    }
    missing = [name for name, array in given.items() if array is None]
    if missing:
        raise InputDataError(f"there is no data for {', '.join(missing)}")
    outputs, _ = evaluate(quantized, {k: v for k, v in given.items() if v is not None})
    real = [
        outputs[name] if value.quant is None else dequantize(outputs[name], value.quant.params)
        for name, value in zip(quantized.output_names, quantized.outputs, strict=True)
    ]
    return noise([simulation.stored(value) for value in simulation.graph.outputs], real)


def _db(ratio: float) -> float:
    if not math.isfinite(ratio):
        return -math.inf
    return -10 * math.log10(ratio) if ratio > 0 else math.inf
