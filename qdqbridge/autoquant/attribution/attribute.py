"""Errors of a quantized model, tensor by tensor: how much, why, and what would help."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.attribution.causes import (
    KERNEL,
    KernelShare,
    NodeError,
    causes,
    changed,
    kernel_share,
    node_errors,
)
from qdqbridge.autoquant.attribution.correspondence import (
    BODY,
    Correspondence,
    Rounded,
    correspondence,
    fed,
    share,
)
from qdqbridge.autoquant.attribution.repairs import (
    options_of,
    repairs,
    rescaled_as,
    rounded_anew,
)
from qdqbridge.autoquant.attribution.simulation import (
    Change,
    GraphRuns,
    Recomputed,
    decibels,
    lost_samples,
    noise,
    ratio,
)
from qdqbridge.autoquant.hardware.arithmetic import outputs_in_pairs
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.errors import InputDataError, UnsupportedModelError
from qdqbridge.onnx_io.runtime.products import StoredWeights
from qdqbridge.targets.comparison.compare import Engine

Array = NDArray[Any]
Progress = Callable[[int, int], None]
_ENOUGH = 0.9
"""The share of what a float tensor gains at which a cheaper repair is proposed."""
_WORTH = 0.3
"""Decibels that a repair must gain to be proposed."""
CORRECTION = "correction of other errors"
"""The cause of a constant that is no rounding of the original's, and better so."""
_OF_OTHER_NUMBERS = ("bias of other numbers", "weight of other numbers")
_RELATED = 0.5
"""The share of nodes below which a model is another network: pairs of other networks have at most
0.36, those of one network above 0.98 (``scripts/checks/alignment.py``)."""
_KIN = 0.2
"""The cosine of two weights below which they are no roundings of one another: those of 3 bits,
retrained, have 0.96, those of other networks at most 0.08."""


@dataclass(frozen=True, slots=True, eq=False)
class SuspectTensor:
    """One rounded tensor.

    Attributes:
        name: Its name, in the float model where it has one.
        quantized_name: Its name in the quantized model.
        kind: ``activation``, ``weight``, ``bias``, ``constant``, ``kernel``, or ``body``: what a
            node rounds in its body, an If, a Loop or a Scan.
        node: The node of the quantized model that makes it, or that reads the constant.
        alone_db: The outputs' signal to noise where only this tensor is rounded, in dB.
        added_db: The tensor's own signal to noise, in dB.
        gain_db: What the outputs gain where it is not rounded and the worse tensors are repaired.
        cause: The cause of most of its error; ``correction`` for a constant that is no rounding
            of the original's and makes up for other errors.
        causes: Shares of its error by cause.
        repair: What was tried and helps; empty where nothing was tried or nothing helps.
        repair_db: What the outputs lose without the repair, all others being made, in dB.
        options: The options of ``quantize`` that do it; empty where it does so by itself, or
            cannot.
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
    options: tuple[str, ...] = ()
    place: Node | None = None


@dataclass(frozen=True, slots=True)
class Attribution:
    """Whose fault the error of a quantized model is.

    Attributes:
        tensors: What is rounded, and what an engine stores otherwise; the worst first.
        quantized_db: The outputs' signal to noise of the quantized model, in dB.
        simulated_db: That of the float model with the same tensors rounded.
        repaired_db: The same, where every tensor with a repair is repaired.
        aligned: The share of the quantized model's nodes to which one of the float model
            corresponds.
        unknown: The nodes to which none does.
        nodes: What each node adds and inherits, in the order of the graph.
        engine: The engine whose kernels are charged as well; empty for none.
        unseen: Values that the engine does not show.
        left_out: Places along axis 0 of samples that are left out: with NaN, or such that the
            float model makes no finite number of them.
        paired_db: The outputs' signal to noise where onnxruntime adds products in pairs that
            saturate, on x86 without VNNI; None with an engine, or where it has no such products.
        scaled: Tensors whose channels the quantized model has scaled, with the weights that take
            the factors back: the float model was given the same ones first.
    """

    tensors: tuple[SuspectTensor, ...]
    quantized_db: float
    simulated_db: float
    repaired_db: float
    aligned: float
    unknown: tuple[str, ...]
    nodes: tuple[NodeError, ...] = ()
    engine: str = ""
    unseen: tuple[str, ...] = ()
    left_out: tuple[int, ...] = ()
    scaled: tuple[str, ...] = ()
    paired_db: float | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The options of ``quantize`` that do the proposed repairs, each once."""
        pairs = (zip(each.options[::2], each.options[1::2], strict=True) for each in self.tensors)
        return tuple(part for pair in dict.fromkeys(chain(*pairs)) for part in pair)

    @property
    def repaired(self) -> bool:
        """Whether a repair is proposed."""
        return any(each.repair for each in self.tensors)


def attribute(
    reference: Graph,
    quantized: Graph,
    data: Mapping[str, Array],
    *,
    repaired: int = 5,
    nodes: bool = True,
    engine: Engine | None = None,
    saturating: Mapping[str, StoredWeights] | None = None,
    progress: Progress | None = None,
) -> Attribution:
    """Returns which tensors of a quantized model lose its accuracy.

    Args:
        reference: The float model.
        quantized: The model that claims to be it.
        data: One array per input of the float model.
        repaired: For how many of the worst tensors repairs are tried.
        nodes: Say of every node what it adds and inherits as well.
        engine: What runs the quantized model: what its kernels store otherwise than the contract,
            on the same operands, is charged to them.
        saturating: Which products of the quantized model's file have pairs that saturate; None for
            those that the graph has where it is written.
        progress: Called with the tensors done and their number.

    Raises:
        InputDataError: The data does not fit.
        UnsupportedModelError: The inputs or outputs differ, or no nodes correspond.
        UnsupportedTargetError: The engine cannot run the model.
    """
    _check_model_pair(reference, quantized)
    found = correspondence(reference, quantized)
    scaled = rescaled_as(found)
    if scaled is not None:
        # The factors are exact in both models: without them in the float one, every scaled weight
        # would look as if it were rounded wrong.
        found = correspondence(scaled[0], quantized)
    _same_network(found)
    floats = GraphRuns(found.reference, data)
    if not any(np.isfinite(floats.stored(value)).any() for value in floats.graph.outputs):
        raise InputDataError(
            "the float model's outputs are no finite numbers on this data",
            why="no error can be measured against them",
            fix="give data without NaN and infinities, as the model was made for",
        )
    lost = lost_samples(floats, data)
    # One NaN in a sum of squares makes every error one.
    if lost:
        data = {name: np.delete(array, lost, axis=0) for name, array in data.items()}
        floats = GraphRuns(found.reference, data)
    theirs = fed(quantized, found, data)
    share_ = None if engine is None else kernel_share(quantized, engine, theirs)
    everything = _changes(found)
    kernels = _kernels(share_, quantized, found, floats)
    together = floats.noise(floats.outputs(everything))
    rows: list[_Row] = [
        (noise_, row, None) for noise_, row in _kernel_rows(kernels, share_, floats)
    ]
    for number, rounded in enumerate(found.rounded, 1):
        alone = floats.noise(floats.outputs({rounded.value: _change(rounded)}))
        rows.append((alone, _suspect_by_cause(rounded, floats, alone), rounded))
        if progress is not None:
            progress(number, len(found.rounded))
    rows = [_as_correction(row, floats, everything, together) for row in rows]
    # What makes up for the errors of others has none of its own that a repair could take away.
    rows.sort(key=lambda row: (row[1].cause == CORRECTION, -row[0]))
    # Trying a repair runs the model again, so only what costs most is tried.
    worst = frozenset(each.value for _, _, each in rows[:repaired] if each is not None)
    attempts = _Attempts(floats, reference, everything, together, worst)
    tried = [
        (attempts.row(row, rounded), rounded)
        if index < repaired and rounded is not None and row.cause != CORRECTION
        else (row, None)
        for index, (_, row, rounded) in enumerate(rows)
    ]
    attempts.keep_what_helps()
    tensors = [row if rounded is None else attempts.kept(row, rounded) for row, rounded in tried]
    runs = GraphRuns(found.quantized, fed(found.quantized, found, data))
    paired = outputs_in_pairs(quantized, theirs, saturating) if share_ is None else {}
    off = {kernel.theirs: kernel.gap for kernel in kernels}
    return Attribution(
        tuple(tensors),
        decibels(_measured(floats, quantized, theirs, {} if share_ is None else share_.outputs)),
        decibels(together),
        decibels(attempts.noise),
        share(found),
        tuple(node.name for node in found.unknown),
        tuple(node_errors(found, floats, runs, off)) if nodes else (),
        "" if share_ is None else share_.engine,
        () if share_ is None else share_.unseen,
        lost,
        () if scaled is None else scaled[1],
        decibels(_measured(floats, quantized, theirs, paired)) if paired else None,
    )


def _check_model_pair(reference: Graph, quantized: Graph) -> None:
    stored = next((v for v in reference.values() if v.quant is not None), None)
    if stored is not None:
        raise UnsupportedModelError(
            "the first model is quantized itself",
            where=f"'{stored.name}' is {stored.type.dtype}",
            why="errors are measured against a float model",
            fix="give the float model first, then the quantized one; 'qdqbridge compare' and "
            "'qdqbridge view A B' put two quantized models beside each other",
        )
    pairs = ((reference.inputs, quantized.inputs), (reference.outputs, quantized.outputs))
    for what, (a, b) in zip(("inputs", "outputs"), pairs, strict=True):
        if len(a) != len(b):
            raise UnsupportedModelError(
                f"the models have {len(a)} and {len(b)} {what}",
                why="the quantized model has to be the float one in other numbers",
                fix="give the float model that was quantized",
            )


def _same_network(found: Correspondence) -> None:
    """Refuses a pair whose nodes, or whose weights, have nothing to do with one another."""
    nodes, part = len(found.quantized.nodes), share(found)
    if found.unknown and part < _RELATED:
        raise UnsupportedModelError(
            "the quantized model is another network than the float one",
            where=", ".join(f"{n.op.name} '{n.name}'" for n in found.unknown[:3]),
            why=f"only {part:.0%} of its {nodes} nodes compute what nodes of the float model do",
            fix="give the float model that was quantized",
        )
    alike = [
        (rounded.name, _cosine(rounded.value.constant.numpy(), rounded.replaced))
        for rounded in found.rounded
        if rounded.kind == "weight" and rounded.replaced is not None and rounded.value.constant
    ]
    others = [(name, cosine) for name, cosine in alike if cosine < _KIN]
    # One weight may have been trained anew, or be of a layer that was replaced; most of them are
    # not.
    if len(alike) > 1 and len(others) > len(alike) / 2:
        raise UnsupportedModelError(
            "the quantized model has other weights than the float one",
            where=", ".join(f"'{name}' (correlation {cosine:.2f})" for name, cosine in others[:3]),
            why=f"{len(others)} of its {len(alike)} weights are no rounding of the float model's",
            fix="give the float model that was quantized, as it was trained when it was",
        )
    if not found.rounded:
        raise UnsupportedModelError(
            "nothing of the second model is quantized, or nothing corresponds to the first",
            fix="give the float model first, then the quantized one",
        )


def _cosine(a: Array, b: Array) -> float:
    """Returns 1 for arrays that differ by a factor, about 0 for those of other models."""
    a, b = (each.astype(np.float64).reshape(-1) for each in (a, b))
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _KernelGap:
    """What an engine stores otherwise: a value of each graph, and what it is off by."""

    source: Value
    theirs: Value
    own: Value
    gap: Array
    moved: list[Array]


def _kernels(
    share_: KernelShare | None, quantized: Graph, found: Correspondence, floats: GraphRuns
) -> list[_KernelGap]:
    if share_ is None:
        return []
    named = {value.name: value for value in found.values if value.name}
    named.update(zip(found.quantized.output_names, found.quantized.outputs, strict=True))
    outputs = dict(zip(quantized.outputs, quantized.output_names, strict=True))
    made: list[_KernelGap] = []
    for value, gap in share_.gaps.items():
        theirs = named.get(outputs.get(value, value.name))
        own = None if theirs is None else found.values.get(theirs)
        parts = floats.parted(gap)
        if theirs is None or own is None or parts is None:
            continue
        clean = [values[own] for values in floats.clean]
        if all(part.size == each.size for part, each in zip(parts, clean, strict=True)):
            moved = [
                (each + part.reshape(each.shape)).astype(each.dtype)
                for each, part in zip(clean, parts, strict=True)
            ]
            made.append(_KernelGap(value, theirs, own, gap, moved))
    return made


def _kernel_rows(
    kernels: Sequence[_KernelGap], share_: KernelShare | None, floats: GraphRuns
) -> Iterator[tuple[float, SuspectTensor]]:
    for each in kernels:
        assert share_ is not None
        alone = floats.noise(floats.outputs({}, {each.own: each.moved}))
        difference, node = share_.differences[each.source], each.theirs.producer
        whole = sum(difference.causes.values())
        shares = {f"{KERNEL}: {name}": count / whole for name, count in difference.causes.items()}
        yield (
            alone,
            SuspectTensor(
                name=each.own.name or each.theirs.name,
                quantized_name=each.theirs.name,
                kind=KERNEL,
                node=difference.node,
                alone_db=decibels(alone),
                added_db=decibels(ratio(floats.stored(each.own).reshape(-1), each.gap.reshape(-1))),
                gain_db=0.0,
                cause=max(shares, key=shares.__getitem__, default=KERNEL),
                causes=shares,
                place=node,
            ),
        )


def _changes(found: Correspondence) -> dict[Value, Change]:
    """Returns what happens to every tensor; one that is rounded several times, all in turn."""
    changes: dict[Value, Change] = {}
    for rounded in found.rounded:
        before, own = changes.get(rounded.value), _change(rounded)
        changes[rounded.value] = own if before is None else _then(before, own)
    return changes


def _then(first: Change, second: Change) -> Change:
    if isinstance(first, Recomputed) or isinstance(second, Recomputed):
        return first  # what a body gives is rounded by a node of its own behind it
    return lambda real: second(first(real))


def _change(rounded: Rounded) -> Change:
    if rounded.kind == BODY and rounded.their_node is not None:
        index = rounded.their_node.outputs.index(rounded.theirs)
        return Recomputed(rounded.their_node, rounded.operands, index)
    return lambda real: changed(rounded, real)


def _suspect_by_cause(rounded: Rounded, simulation: GraphRuns, alone: float) -> SuspectTensor:
    original = simulation.stored(rounded.value)
    if rounded.kind == BODY:
        moved = simulation.changed(rounded.value, _change(rounded))
        power = np.square(moved - original, dtype=np.float64)
        split = {"rounding inside its body": float(power.sum())}
    elif rounded.running is not None:  # of each batch as it runs; nothing is clipped
        moved = simulation.changed(rounded.value, _change(rounded))
        power = np.square(moved - original, dtype=np.float64)
        split = {"activation rounding": float(np.nansum(power))}
    else:
        split = causes(rounded, original)
    whole = sum(split.values())
    wide = original.astype(np.float64)
    signal = float(np.square(wide[np.isfinite(wide)]).sum())
    node = rounded.their_node
    return SuspectTensor(
        name=rounded.name,
        quantized_name=rounded.theirs.name,
        kind=rounded.kind,
        node="" if node is None else f"{node.op.name} {node.name}".strip(),
        alone_db=decibels(alone),
        added_db=decibels(whole / signal if signal else 0.0),
        gain_db=0.0,
        cause=next(iter(split), ""),
        causes={key: power / whole for key, power in split.items() if power and whole},
        place=node,
    )


_Row: TypeAlias = "tuple[float, SuspectTensor, Rounded | None]"


def _as_correction(
    row: _Row, floats: GraphRuns, changes: Mapping[Value, Change], together: float
) -> _Row:
    """Returns a row that says so where a constant is another one to make up for other errors.

    That is known by rounding it as usual, all else being as it is: the outputs are worse then.
    """
    alone, suspect, rounded = row
    if rounded is None or suspect.cause not in _OF_OTHER_NUMBERS:
        return row
    anew = rounded_anew(rounded, floats.stored(rounded.value))
    if floats.noise(floats.outputs({**changes, rounded.value: anew})) < together:
        return row
    share = suspect.causes.get(suspect.cause, 1.0)
    causes = {CORRECTION: share} | {k: v for k, v in suspect.causes.items() if k != suspect.cause}
    return alone, replace(suspect, cause=CORRECTION, causes=causes), rounded


@dataclass(slots=True)
class _Attempts:
    """Repairs one tensor after the other, and keeps what helps.

    Attributes:
        simulation: The float model.
        reference: The same as it was given.
        changes: What happens to every tensor.
        noise: Noise over signal of the outputs then.
        suspects: The worst tensors, which may hide what the repair of one of them gains.
    """

    simulation: GraphRuns
    reference: Graph
    changes: dict[Value, Change]
    noise: float
    suspects: frozenset[Value]
    _before: dict[Value, Change] = field(default_factory=dict[Value, Change])
    _gains: dict[Value, float] = field(default_factory=dict[Value, float])

    def row(self, row: SuspectTensor, rounded: Rounded) -> SuspectTensor:
        """Returns a row with the repair that was tried and helps."""
        made = self._tried(row, rounded, self.changes, self.noise)
        if made.repair:
            return made
        # What one repair gains is lost in the noise of tensors that are worse: so it is tried once
        # more where none of the other suspects is rounded.
        alone = {v: c for v, c in self.changes.items() if v not in self.suspects - {rounded.value}}
        before = self.simulation.noise(self.simulation.outputs(alone))
        hidden = self._tried(row, rounded, alone, before)
        return replace(made, repair=hidden.repair, options=hidden.options)

    def keep_what_helps(self) -> None:
        """Takes back repairs without which the outputs are as good, the least useful first.

        Errors make up for one another: what helps while others are there may harm when they are
        gone, above all where roundings were learned together.
        """
        while self._before:
            left = {
                value: self._noise({**self.changes, value: change})
                for value, change in self._before.items()
            }
            self._gains = {value: _gain(noise_, self.noise) for value, noise_ in left.items()}
            least = min(left, key=self._gains.__getitem__)
            if self._gains[least] >= _WORTH:
                return
            self.changes = {**self.changes, least: self._before.pop(least)}
            self.noise = left[least]

    def kept(self, row: SuspectTensor, rounded: Rounded) -> SuspectTensor:
        """Returns a row with its repair only where that is kept, and what it gains."""
        if rounded.value not in self._before:
            return replace(row, repair="", repair_db=0.0, options=())
        return replace(row, repair_db=self._gains[rounded.value])

    def _tried(
        self, row: SuspectTensor, rounded: Rounded, changes: Mapping[Value, Change], before: float
    ) -> SuspectTensor:
        """Returns a row with the cheapest repair that gains what leaving it float gains."""
        original = self.simulation.stored(rounded.value)
        tried = [
            (each, self._noise({**changes, rounded.value: each.change}))
            for each in repairs(rounded, original)
        ]
        gains = [_gain(before, left) for _, left in tried]
        # The last of the repairs leaves the tensor float.
        whole = gains[-1]
        best: dict[int, int] = {}  # of what costs the same, what gains most
        for index, (each, _) in enumerate(tried):
            if each.cost not in best or gains[index] > gains[best[each.cost]]:
                best[each.cost] = index
        enough = max(_ENOUGH * whole, _WORTH)
        chosen = next((best[cost] for cost in sorted(best) if gains[best[cost]] >= enough), None)
        if chosen is None:
            return replace(row, gain_db=whole)
        repair, _ = tried[chosen]
        self._before[rounded.value] = self.changes[rounded.value]
        self.changes = {**self.changes, rounded.value: repair.change}
        self.noise = self._noise(self.changes)
        options = options_of(repair, rounded, self.reference)
        return replace(row, gain_db=whole, repair=repair.words, options=options)

    def _noise(self, changes: Mapping[Value, Change]) -> float:
        return self.simulation.noise(self.simulation.outputs(changes))


def _gain(before: float, after: float) -> float:
    if not math.isfinite(before):
        return 0.0 if not math.isfinite(after) else math.inf
    return decibels(after) - decibels(before) if before else 0.0


def _measured(
    floats: GraphRuns, quantized: Graph, data: Mapping[str, Array], ran: Mapping[str, Array]
) -> float:
    """Returns the noise of the quantized model's own outputs, as they were run where they were."""
    runs = GraphRuns(quantized, data)
    real = [runs.real(value) for value in quantized.outputs]
    given = zip(quantized.output_names, quantized.outputs, strict=True)
    held = [(ran.get(name), value) for name, value in given]
    real = [
        old if new is None else (new if v.quant is None else dequantize(new, v.quant.params))
        for (new, v), old in zip(held, real, strict=True)
    ]
    clean = [floats.stored(value) for value in floats.graph.outputs]
    for name, a, b in zip(quantized.output_names, clean, real, strict=True):
        if a.size != b.size:
            raise UnsupportedModelError(
                f"the output '{name}' has {b.size} elements, in the float model {a.size}",
                why="the quantized model has to be the float one in other numbers",
                fix="give the float model that was quantized, and as many examples as both take",
            )
    return noise(clean, [b.reshape(a.shape) for a, b in zip(clean, real, strict=True)])


# ---- runtimes ------------------------------------------------------------------------------------
# Two runtimes of one model: which node an engine computes otherwise than the contract, and why.


def attribute_to_kernels(graph: Graph, engine: Engine, data: Mapping[str, Array]) -> Attribution:
    """Returns which nodes of a model an engine computes otherwise than the interpreter.

    Every node is compared on the operands that the engine itself had; what it is off by there is
    put into a run of the interpreter alone, to see what it does to the outputs.

    Args:
        graph: The model.
        engine: What runs it.
        data: One array per input.

    Raises:
        InputDataError: The data does not fit.
        UnsupportedTargetError: The engine cannot run the model.
    """
    found = kernel_share(graph, engine, data)
    runs = GraphRuns(graph, data)
    moved = {value: _moved(runs, value, steps) for value, steps in found.steps.items()}
    rows = [
        (runs.noise(runs.outputs({}, {value: parts})), value)
        for value, parts in moved.items()
        if parts is not None
    ]
    rows.sort(key=lambda row: -row[0])
    together = runs.noise(runs.outputs({}, {v: p for v, p in moved.items() if p is not None}))
    theirs = [
        found.outputs.get(name, runs.stored(value)).reshape(runs.stored(value).shape)
        for name, value in zip(graph.output_names, graph.outputs, strict=True)
    ]
    results = [value for node in graph.nodes for value in node.outputs]
    hidden = set(found.unseen)
    shown = sum(value.name not in hidden for value in results)
    return Attribution(
        tensors=tuple(_suspect_kernel(found, runs, value, alone) for alone, value in rows),
        quantized_db=decibels(runs.noise(theirs)),
        simulated_db=decibels(together),
        repaired_db=decibels(0.0),
        aligned=shown / len(results) if results else 1.0,
        unknown=(),
        engine=found.engine,
        unseen=found.unseen,
    )


def _moved(runs: GraphRuns, value: Value, steps: Array) -> list[Array] | None:
    """Returns what a value holds where its kernel alone is the engine's, as it is stored."""
    parts = runs.parted(steps)
    clean = [values[value] for values in runs.clean]
    if parts is None or any(p.shape != c.shape for p, c in zip(parts, clean, strict=True)):
        return None
    # In a wider type: a code and what it is off by may leave that of codes.
    sums = [c.astype(np.result_type(c, p)) + p for c, p in zip(clean, parts, strict=True)]
    if value.quant is None:
        return [s.astype(c.dtype) for s, c in zip(sums, clean, strict=True)]
    low, high = value.quant.params.qmin, value.quant.params.qmax
    return [np.clip(s, low, high).astype(c.dtype) for s, c in zip(sums, clean, strict=True)]


def _suspect_kernel(
    found: KernelShare, runs: GraphRuns, value: Value, alone: float
) -> SuspectTensor:
    difference = found.differences[value]
    whole = sum(difference.causes.values())
    shares = {f"{KERNEL}: {name}": count / whole for name, count in difference.causes.items()}
    return SuspectTensor(
        name=difference.name,
        quantized_name=difference.name,
        kind=KERNEL,
        node=difference.node,
        alone_db=decibels(alone),
        added_db=decibels(ratio(runs.real(value).reshape(-1), found.gaps[value].reshape(-1))),
        gain_db=0.0,
        cause=max(shares, key=shares.__getitem__, default=KERNEL),
        causes=shares,
        place=value.producer,
    )
