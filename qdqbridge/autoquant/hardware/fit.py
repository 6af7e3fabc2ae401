"""Formats and choosers for hardware that adds or rounds otherwise, by trying them on it.

What is tried is quantized plainly and computed with the target's own arithmetic
(:mod:`qdqbridge.autoquant.hardware.arithmetic`); what comes closest to the float model is taken.
Scales of weights follow from it (:mod:`qdqbridge.autoquant.hardware.scales`).
"""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.arithmetic import CONTRACT, IntegerArithmetic, Rescaling, run
from qdqbridge.autoquant.hardware.products import ProductAccumulator, accumulators, observe
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.profiling.collect import Data, prepared
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.quantize import Quantized, QuantizeOptions, quantized
from qdqbridge.autoquant.repair.steps import GRAPH_STEPS, StepRecord
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.autoquant.simulation.metrics import measured, outputs_of
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.errors import UnsupportedModelError, UnsupportedTargetError

STEP = "arithmetic"
"""The name of this step in records."""
_SAMPLES = 32
_BITS = (7, 6, 5, 4, 3)
_ROUNDS = 8
_IN_TARGET: Mapping[str, Any] = {
    "chooser": None, "weight_chooser": None, "weights": None, "block": None,
    "accumulator_bits": None, "avoid_pairs": False, "requantize": None,
}  # fmt: skip
"""Options that a described target has taken up."""
_SLACK = 2.0
"""How much larger than needed scales become that data asked for: other data asks for more."""
_SEEN = 256


def fitted(
    graph: Graph, data: Data | None, options: QuantizeOptions
) -> tuple[QuantizeOptions, StepRecord | None]:
    """Returns options that suit the arithmetic of their target, and what that costs.

    Args:
        graph: The float graph.
        data: Samples to try formats and choosers on.
        options: What the user wants; as they are where the target's arithmetic is the contract's,
            or so near that repair and tuning choose for it as well (see :func:`rounding_cost`).

    Raises:
        UnsupportedTargetError: There are no samples.
    """
    target = options.described()
    if target.arithmetic == CONTRACT or (
        target.arithmetic.near_contract and (options.tune or data is None)
    ):
        return options, None
    if data is None:
        raise UnsupportedTargetError(
            f"target {target.name} has an arithmetic of its own",
            why="what suits it is found by trying it on samples",
            fix="give data, not only a profile",
        )
    trial = _HardwareTrials(graph, data, options)
    start = replace(target, arithmetic=CONTRACT, avoided_pairs=None)
    before = trial.of(start).sqnr
    best = trial.of(target)
    if target.arithmetic.narrow:
        best = max([best, *(trial.of(other) for other in _fewer_bits(target))], key=_closeness)
    for chooser in target.candidates:
        best = max(best, trial.of(replace(best.target, chooser=chooser)), key=_closeness)
    repair = [step for step in options.repair if step in GRAPH_STEPS and target.proven]
    tune = options.tune and target.proven
    if target.arithmetic.requantize in (Rescaling.TRUNCATION, Rescaling.SHIFT):
        repair, tune = [], False
    found = replace(
        options,
        target=best.target,
        exclude=(*options.exclude, *best.excluded),
        repair=repair,
        tune=tune,
        **_IN_TARGET,
    )
    return found, StepRecord(STEP, True, _fit_in_words(best, before), before, best.sqnr)


def rounding_cost(made: Quantized, original: Graph, data: Data) -> StepRecord | None:
    """Returns what its target's arithmetic costs a graph; None for that of the contract.

    Args:
        made: What was quantized.
        original: The float graph.
        data: Samples to compute on.
    """
    arithmetic = made.target.arithmetic
    if arithmetic == CONTRACT:
        return None
    pieces = spread(data, _SAMPLES).batches(original.inputs)
    wanted = list(outputs_of(original, pieces))
    before, after = (
        _closeness_of(made.graph, pieces, wanted, each) for each in (CONTRACT, arithmetic)
    )
    words = f"rounded by {arithmetic.requantize.value}; it costs {before - after:.2f} dB"
    return StepRecord(STEP, True, words, before, after)


def check_fitted(made: Quantized, data: Data) -> None:
    """Refuses a graph whose sums may be lost although its target forbids that.

    Raises:
        UnsupportedTargetError: It names the products.
    """
    lossy = list(lossy_products(made.graph, made.target, spread(data, _SEEN)))
    if lossy:
        raise UnsupportedTargetError(
            f"sums of {made.target.arithmetic.accumulator_bits} bits may be lost",
            why=", ".join(row.node for row in lossy[:5]),
            fix="leave these nodes float (--exclude), or allow more bits",
        )


def lossy_products(graph: Graph, target: Target, samples: Samples) -> Iterable[ProductAccumulator]:
    """Yields the products whose sums an input may lose, or, where that is enough, samples do.

    Args:
        graph: A quantized graph.
        target: Its arithmetic, and whether samples are enough.
        samples: Inputs.
    """
    arithmetic = target.arithmetic
    if not arithmetic.narrow:
        return
    seen = None if target.proven else observe(graph, samples)
    order = arithmetic.pairs or "channels-last"
    for row in accumulators(graph, seen=seen, order=order):
        bits = row.bits if seen is None else row.observed_bits
        pairs = row.saturating_pairs if seen is None else row.calibrated_pairs
        wide = bits is not None and int(bits.max()) > arithmetic.accumulator_bits
        if wide or (arithmetic.pairs is not None and pairs is not None and pairs.any()):
            yield row


@dataclass(frozen=True, slots=True, eq=False)
class _HardwareTrial:
    """A target that was tried, how close it comes, and nodes that it leaves float."""

    target: Target
    sqnr: float
    excluded: tuple[str, ...]


def _closeness(trial: _HardwareTrial) -> tuple[int, float]:
    """Returns what is maximized: first that as little as possible stays float."""
    return -len(trial.excluded), trial.sqnr


class _HardwareTrials:
    """Quantizes plainly, and computes as the hardware does."""

    def __init__(self, graph: Graph, data: Data, options: QuantizeOptions) -> None:
        self._graph, self._data = prepared(graph), data  # the profile is of it
        samples, self._seen = spread(data, _SAMPLES), spread(data, _SEEN)
        self._plain = replace(options, tune=False, repair=(), **_IN_TARGET)
        self._profile = None
        self._pieces = samples.batches(graph.inputs)
        self._wanted = list(outputs_of(graph, self._pieces))

    def of(self, target: Target) -> _HardwareTrial:
        made, excluded = self._made(target, ()), tuple[str, ...]()
        for number in range(_ROUNDS):
            lossy = list(lossy_products(made.graph, target, self._seen))
            if not lossy:
                break
            least = {} if target.proven or number == _ROUNDS - 1 else _raised(made, lossy, target)
            if least:
                target = replace(target, least_scales={**target.least_scales, **least})
            else:
                excluded = (*excluded, *_patterns(made, lossy))
            try:
                made = self._made(target, excluded)
            except UnsupportedModelError:  # nothing is left; other formats may leave something
                return _HardwareTrial(target, -math.inf, excluded)
        return _HardwareTrial(target, self._sqnr(made.graph, target.arithmetic), excluded)

    def _made(self, target: Target, excluded: Sequence[str]) -> Quantized:
        if not target.proven and not target.least_scales:
            target = replace(target, least_scales=_NothingYet())
        options = replace(self._plain, target=target, exclude=(*self._plain.exclude, *excluded))
        data = self._data if self._profile is None else None
        made = quantized(self._graph, data, options, profile=self._profile)
        self._profile = made.profile
        return made

    def _sqnr(self, graph: Graph, arithmetic: IntegerArithmetic) -> float:
        arithmetic = IntegerArithmetic(requantize=arithmetic.requantize)  # nothing is lost any more
        return _closeness_of(graph, self._pieces, self._wanted, arithmetic)


def _closeness_of(
    graph: Graph,
    pieces: Sequence[Mapping[str, NDArray[Any]]],
    wanted: Sequence[Sequence[NDArray[Any]]],
    arithmetic: IntegerArithmetic,
) -> float:
    found = (_dequantized_outputs(graph, run(graph, piece, arithmetic).outputs) for piece in pieces)
    return measured(graph.output_names, wanted, found).sqnr


class _NothingYet(dict[str, NDArray[np.float64]]):
    """No scale is asked for by data yet: all weights keep theirs."""

    def __missing__(self, key: str) -> NDArray[np.float64]:
        return np.zeros(1)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a scale that everything is above."""
        del default
        return self[key]


def _dequantized_outputs(graph: Graph, outputs: Any) -> list[NDArray[Any]]:
    return [
        array if value.quant is None else dequantize(array, value.quant.params)
        for value, array in zip(graph.outputs, outputs.values(), strict=True)
    ]


def _fewer_bits(target: Target) -> Iterable[Target]:
    """Yields the target with activations of fewer bits, which leave room for larger weights."""
    own = target.activations
    if isinstance(own, Format):
        for bits in _BITS:
            if bits < own.storage.bits:
                yield replace(target, activations=replace(own, bits=bits))


def _raised(
    made: Quantized, lossy: Sequence[ProductAccumulator], target: Target
) -> dict[str, NDArray[np.float64]]:
    """Returns scales for which the sums seen would fit, by the product's name."""
    low, high = target.arithmetic.limits
    params = {weight.node.name: p for weight, p in made.decision.weights.items()}
    found: dict[str, NDArray[np.float64]] = {}
    for row in lossy:
        if row.node not in params or row.observed is None:
            continue
        smallest, largest = row.observed
        factor = np.maximum(np.maximum(smallest / low, largest / high), 1.0) * _SLACK
        if target.arithmetic.pairs is not None:
            factor = np.maximum(factor, row.remedy)
        scale = params[row.node].scale.astype(np.float64).reshape(-1)
        factor = factor.reshape(-1, scale.size).max(axis=0) if scale.size > 1 else factor.max()
        found[row.node] = scale * factor
    return found


def _patterns(made: Quantized, lossy: Sequence[ProductAccumulator]) -> Iterable[str]:
    names = {row.node for row in lossy}
    nodes = [node for node in made.decision.plan.graph.nodes if node.name in names]
    return [glob.escape(node.origin.nodes[0]) for node in nodes if node.origin.nodes]


def _fit_in_words(best: _HardwareTrial, before: float) -> str:
    target, parts = best.target, list[str]()
    own = target.activations
    if target.arithmetic.narrow:
        sums = f"sums of {target.arithmetic.accumulator_bits} bits"
        sums += " and their pairs of 16" if target.arithmetic.pairs else ""
        parts.append(f"{sums} hold {'any input' if target.proven else 'the data'}")
    if target.arithmetic.requantize is not Rescaling.HALF_EVEN:
        parts.append(f"rounded by {target.arithmetic.requantize.value}")
    if isinstance(own, Format) and own.bits:
        parts.append(f"activations of {own.bits} bits")
    parts.append(f"{target.chooser!r}")
    if best.excluded:
        parts.append(f"float: {', '.join(best.excluded)}")
    return f"{'; '.join(parts)}; it costs {before - best.sqnr:.2f} dB"
