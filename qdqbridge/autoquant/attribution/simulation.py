"""A graph on data, with some of its tensors changed: only what follows is computed again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.batches import batches
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import check_inputs, computed
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import QuantParams

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Recomputed:
    """A tensor that another node computes, from what the graph holds.

    Attributes:
        operands: What it reads: values of the graph, and constants.
        index: Which of its results it is.
    """

    node: Node
    operands: tuple[Value | Array | None, ...]
    index: int


Change: TypeAlias = "Callable[[Array], Array] | Recomputed"
"""What is done to a tensor: an activation is rounded, a constant is another one."""
_NOTHING: Mapping[Value, Sequence[Array]] = MappingProxyType({})


def rounding(*params: QuantParams) -> Callable[[Array], Array]:
    """Returns what rounds a tensor to stored numbers and back, one quantization after another."""

    def change(real: Array) -> Array:
        for each in params:
            real = dequantize(quantize(real.astype(np.float32), each), each)
        return real

    return change


class GraphRuns:
    """Runs of one graph on the same data, batch by batch as the graph takes it.

    Attributes:
        places: The place of every node in it.
        clean: What every value holds in each batch.
        rows: The share of each batch that is data; the rest fills it up.

    Args:
        graph: A graph of floats or a quantized one.
        data: One array per graph input.
    """

    def __init__(self, graph: Graph, data: Mapping[str, Array]) -> None:
        self.graph = graph
        self.places = {node: index for index, node in enumerate(graph.nodes)}
        self.clean: list[dict[Value, Array]] = []
        self.rows: list[float] = []
        self._joined: dict[Value, Array] = {}
        for batch in batches(graph.inputs, data):
            values = dict(zip(graph.inputs, check_inputs(graph.inputs, batch.inputs), strict=True))
            for node in graph.nodes:
                operands = [
                    None if v is None else _constant_or_simulated(v, values) for v in node.inputs
                ]
                values.update(zip(node.outputs, computed(node, operands), strict=False))
            self.clean.append(values)
            # The last batch is filled up with copies, which would count twice in any mean.
            self.rows.append(batch.rows / batch.size if batch.size else 1.0)

    def stored(self, value: Value) -> Array:
        """Returns what a value holds without any change, all batches one after the other."""
        if value.constant is not None:
            return value.constant.numpy()
        if value not in self._joined:
            parts = [values[value] for values in self.clean]
            self._joined[value] = self.joined(parts)
        return self._joined[value]

    def real(self, value: Value) -> Array:
        """Returns the real numbers of :meth:`stored`."""
        return _dequantize_run_value(value, self.stored(value))

    def joined(self, parts: Sequence[Array]) -> Array:
        """Returns what the batches hold as one array, without the examples that fill one up."""
        if len(parts) == 1:
            return parts[0]
        if not parts[0].ndim:
            return np.stack(parts)
        kept = [
            part[: round(len(part) * share)] for part, share in zip(parts, self.rows, strict=True)
        ]
        return np.concatenate(kept)

    def parted(self, array: Array) -> list[Array] | None:
        """Returns one array as :meth:`joined` makes it in pieces that the graph takes.

        None where it does not go into as many.
        """
        count = len(self.clean)
        if count == 1:
            return [array]
        if not array.ndim or round(len(array) % sum(self.rows)):
            return None
        whole = round(len(array) / sum(self.rows))
        parts = [array[start : start + whole] for start in range(0, whole * count, whole)]
        missing = whole - len(parts[-1])
        if missing:
            parts[-1] = np.concatenate([parts[-1], np.repeat(parts[-1][-1:], missing, axis=0)])
        return parts

    def outputs(
        self, changes: Mapping[Value, Change], instead: Mapping[Value, Sequence[Array]] = _NOTHING
    ) -> list[Array]:
        """Returns the outputs where some tensors are changed.

        Args:
            changes: What is done to which value.
            instead: What values hold in each batch, whatever their operands are.
        """
        runs = [
            self._run(clean, changes, {value: parts[index] for value, parts in instead.items()})
            for index, clean in enumerate(self.clean)
        ]
        return [self.joined(list(parts)) for parts in zip(*runs, strict=True)]

    def _run(
        self, clean: Mapping[Value, Array], changes: Mapping[Value, Change],
        instead: Mapping[Value, Array],
    ) -> list[Array]:  # fmt: skip
        moved = {
            value: change(_constant_or_simulated(value, clean))
            for value, change in changes.items()
            if value.producer is None and not isinstance(change, Recomputed)
        }
        moved.update((value, array) for value, array in instead.items() if value.producer is None)
        for node in self.graph.nodes:
            touched = any(value in moved for value in node.inputs if value is not None)
            asked = any(value in changes or value in instead for value in node.outputs)
            # Only what lies behind a change is computed again: a network is run once per tensor.
            if not touched and not asked:
                continue
            if touched and not all(value in instead for value in node.outputs):
                operands = [
                    None
                    if v is None
                    else (moved[v] if v in moved else _constant_or_simulated(v, clean))
                    for v in node.inputs
                ]
                results = computed(node, operands)
            else:
                results = [clean[value] for value in node.outputs]
            for value, result in zip(node.outputs, results, strict=False):
                moved[value] = instead.get(value, self._changed(changes.get(value), result,
                                                                moved, clean))  # fmt: skip
        return [
            moved[value] if value in moved else _constant_or_simulated(value, clean)
            for value in self.graph.outputs
        ]

    def changed(self, value: Value, change: Change) -> Array:
        """Returns what a value holds where it alone is changed."""
        return self.joined([
            self._changed(change, clean[value], {}, clean) for clean in self.clean
        ])  # fmt: skip

    def _changed(
        self, change: Change | None, result: Array, moved: Mapping[Value, Array],
        clean: Mapping[Value, Array],
    ) -> Array:  # fmt: skip
        if not isinstance(change, Recomputed):
            return result if change is None else change(result)
        operands = [
            (moved[v] if v in moved else _constant_or_simulated(v, clean))
            if isinstance(v, Value)
            else v
            for v in change.operands
        ]
        return computed(change.node, operands)[change.index].astype(result.dtype)

    def noise(self, outputs: Sequence[Array]) -> float:
        """Returns noise over signal of outputs as they are stored, the mean over them."""
        real = [
            _dequantize_run_value(value, a)
            for value, a in zip(self.graph.outputs, outputs, strict=True)
        ]
        return noise([self.real(value) for value in self.graph.outputs], real)


def _constant_or_simulated(value: Value, values: Mapping[Value, Array]) -> Array:
    return values[value] if value.constant is None else value.constant.numpy()


def lost_samples(runs: GraphRuns, data: Mapping[str, Array]) -> tuple[int, ...]:
    """Returns the places along axis 0 of samples of which a graph's outputs tell nothing.

    These are samples that hold a NaN themselves, or whose outputs hold one, or nothing finite; an
    infinity alone may be meant, in a mask. Empty where no sample is left then, and where the
    arrays, or what the graph takes of them, do not go by samples.
    """
    totals = {len(array) if array.ndim else 0 for array in data.values()}
    extents = {value.type.shape[0] if value.type.shape else None for value in runs.graph.inputs}
    fixed = [extent for extent in extents if not isinstance(extent, str)]
    if len(totals) != 1 or (fixed and (len(extents) > 1 or fixed == [None])):
        return ()
    total = totals.pop()
    lost = np.zeros(total, bool)
    for array in data.values():
        lost |= _test_sample_elements(np.isnan, array).any(axis=1)
    for value in runs.graph.outputs:
        array = runs.stored(value)
        if array.ndim and len(array) == total:
            finite = _test_sample_elements(np.isfinite, array)
            lost |= _test_sample_elements(np.isnan, array).any(axis=1)
            # A row of infinities alone compares with nothing; of no elements there is nothing to
            # lose.
            lost |= ~finite.any(axis=1) & bool(finite.size)
    return () if lost.all() else tuple(int(place) for place in np.flatnonzero(lost))


def _test_sample_elements(
    test: Callable[[Array], NDArray[np.bool_]], array: Array
) -> NDArray[np.bool_]:
    """Returns a test of every element, a row per sample; what is no float is finite."""
    wide = array.reshape(len(array), -1)
    if wide.dtype.kind in "biuOSU":
        return np.full(wide.shape, test is np.isfinite)
    return test(wide if wide.dtype.kind == "f" else wide.astype(np.float64))


def _dequantize_run_value(value: Value, stored: Array) -> Array:
    return stored if value.quant is None else dequantize(stored, value.quant.params)


def noise(clean: Sequence[Array], moved: Sequence[Array]) -> float:
    """Returns the power of the difference over that of the clean outputs, the mean over them."""
    ratios = [
        ratio(a, b.astype(np.float64) - a.astype(np.float64))
        for a, b in zip(clean, moved, strict=True)
        if a.dtype.kind == "f"
    ]
    return float(np.mean(ratios)) if ratios else 0.0


def ratio(clean: Array, gap: Array) -> float:
    """Returns the power of an error over that of what it is an error of.

    Elements that are no numbers without an error tell nothing; those that become none are lost.
    """
    wide = clean.astype(np.float64)
    usable = np.isfinite(wide)
    with np.errstate(over="ignore"):
        signal = float(np.square(wide[usable]).sum())
        power = float(np.square(np.nan_to_num(gap[usable], nan=np.inf)).sum())
    return power / signal if signal else float(power > 0)


def decibels(noise_to_signal: float) -> float:
    """Returns signal to noise in dB: infinite where there is no noise."""
    if not math.isfinite(noise_to_signal):
        return -math.inf
    return -10 * math.log10(noise_to_signal) if noise_to_signal > 0 else math.inf
