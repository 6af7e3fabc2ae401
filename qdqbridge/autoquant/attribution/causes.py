"""Errors by cause: of one tensor, of what each node adds to its operands', of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.attribution.correspondence import BODY, Correspondence, Rounded
from qdqbridge.autoquant.attribution.simulation import GraphRuns, decibels, ratio, rounding
from qdqbridge.core.graph.batches import Batch, concat_batch_results
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import computed
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.targets.comparison.compare import Engine
from qdqbridge.targets.comparison.difference import TensorDifference
from qdqbridge.targets.comparison.local import compare_locally

# ---- The error of one tensor, split by cause -----------------------------------------------------


Array = NDArray[Any]
_BEYOND = 0.55
"""Steps beyond which an error is no rounding: half of one, and what an earlier, finer one added."""


def changed(rounded: Rounded, original: Array) -> Array:
    """Returns what a tensor has become, as real numbers."""
    if rounded.replaced is not None:
        return rounded.replaced.astype(original.dtype)
    if rounded.running is not None:
        return rounded.running(original)
    assert rounded.params is not None
    return rounding(rounded.params)(original)


def causes(rounded: Rounded, original: Array) -> dict[str, float]:
    """Returns the power of a tensor's error by cause, the largest first.

    ``rounding`` is at most half a step, ``clipping`` is beyond what can be stored, and ``other
    numbers`` is neither: another scale, zero point or constant than the original's.

    Args:
        rounded: The tensor.
        original: What it holds in the float graph.
    """
    wide = original.astype(np.float64)
    error = np.square(changed(rounded, original).astype(np.float64) - wide)
    params = rounded.params
    if params is None and rounded.theirs.quant is not None:
        params = rounded.theirs.quant.params
    if params is None:
        return {f"{rounded.kind} of other numbers": float(error.sum())}
    step, low, high = _step_and_range(params, rounded, wide)
    clipped = (wide < low - step / 2) | (wide > high + step / 2)
    beyond = ~clipped & (error > np.square(_BEYOND * step))
    split = {
        f"{rounded.kind} clipping": float(error[clipped].sum()),
        f"{rounded.kind} of other numbers": float(error[beyond].sum()),
        f"{rounded.kind} rounding": float(error[~clipped & ~beyond].sum()),
    }
    return dict(sorted(split.items(), key=lambda item: -item[1]))


def limits(
    params: QuantParams, rounded: Rounded | None = None, wide: Array | None = None
) -> tuple[Array, Array]:
    """Returns the least and the largest real number that can be stored, at each element.

    Args:
        params: The parameters.
        rounded: The constant that has them, where they are not of a whole tensor.
        wide: What the constant holds in the float graph.
    """
    if params.per_tensor or rounded is None or wide is None:
        scale, zero = params.scale.astype(np.float64), params.zero_point.astype(np.float64)
        return (params.qmin - zero) * scale, (params.qmax - zero) * scale
    _, low, high = _step_and_range(params, rounded, wide)
    return low, high


def _step_and_range(
    params: QuantParams, rounded: Rounded, wide: Array
) -> tuple[Array, Array, Array]:
    """Returns the step and the range at each element."""
    stored = rounded.theirs.type.shape or wide.shape
    theirs = tuple(e if isinstance(e, int) else w for e, w in zip(stored, wide.shape, strict=False))
    if params.per_tensor:
        theirs = wide.shape
    scale = np.asarray(params.aligned(params.scale, theirs), np.float64)
    zero = np.asarray(params.aligned(params.zero_point, theirs), np.float64)
    turned = theirs != wide.shape and theirs[::-1] == wide.shape
    parts = (scale, (params.qmin - zero) * scale, (params.qmax - zero) * scale)
    spread = (np.broadcast_to(part, theirs) for part in parts)
    laid = tuple((part.T if turned else part).reshape(wide.shape) for part in spread)
    return laid  # type: ignore[return-value]


# ---- What each node of a quantized graph adds to the error of its operands, and by what ----------
# A node is run in floats on the operands that the quantized run has: what its result is off by then
# is inherited. Then its own roundings are put in one after the other - the weight's clipping and
# rounding, the bias, the result's clipping and rounding, at last what the kernel really stores -
# and each is charged with what changes.


KERNEL = "kernel"


@dataclass(frozen=True, slots=True, eq=False)
class NodeError:
    """One node of a quantized graph.

    Attributes:
        tensor: Its result.
        added_db: Signal to noise of the result where the operands have no error, in dB.
        inherited_db: That where the node itself adds none.
        outputs_added_db: The graph's outputs with nothing but what the node adds, in dB.
        outputs_inherited_db: The outputs with nothing but what the node's operands bring, in dB.
        parts: Signal to noise by what adds it, in dB, the worst first: ``weight rounding`` and
            ``clipping``, ``bias``, ``activation rounding`` and ``clipping``, ``kernel``, ``body``.
    """

    name: str
    operator: str
    tensor: str
    added_db: float
    inherited_db: float
    outputs_added_db: float
    outputs_inherited_db: float
    parts: Mapping[str, float]
    place: Node


def node_errors(
    found: Correspondence,
    floats: GraphRuns,
    quantized: GraphRuns,
    kernels: Mapping[Value, Array],
) -> Iterator[NodeError]:
    """Yields the error of every node whose result stands for one of the float graph.

    Args:
        found: What corresponds.
        floats: Runs of the float graph.
        quantized: Runs of the quantized one.
        kernels: What an engine's results are off by, of values of the quantized graph, where the
            interpreter has the same operands; real numbers of all batches.
    """
    constants: dict[Node, list[Rounded]] = {}
    for rounded in found.rounded:
        if rounded.replaced is not None and rounded.their_node is not None:
            constants.setdefault(rounded.their_node, []).append(rounded)
    for node in found.quantized.nodes:
        for theirs in node.outputs:
            own = found.values.get(theirs)
            if own is None or floats.stored(own).dtype.kind != "f":
                continue
            walk = _NodeWalk(found, floats, quantized, node, own)
            made = walk.error(theirs, constants.get(node, ()), kernels.get(theirs))
            if made is not None:
                yield made


class _NodeWalk:
    """One node, run in floats on what the quantized run has before it."""

    def __init__(
        self, found: Correspondence, floats: GraphRuns, quantized: GraphRuns, node: Node, own: Value
    ) -> None:
        self.floats, self.quantized, self.node, self.own = floats, quantized, node, own
        self.known: dict[Value, list[Array]] = {}
        for value in node.inputs:
            mine = None if value is None else found.values.get(value)
            if value is not None and value.constant is None and mine is not None:
                parts = self._as_own(value, mine)
                if parts is not None:
                    self.known[mine] = parts
        self.running = found.running.get(node)
        if self.running is not None:
            parts = self._as_own(node.operand(0), self.running.value)
            if parts is not None:
                self.known[self.running.value] = parts

    def _as_own(self, theirs: Value, mine: Value) -> list[Array] | None:
        """Returns what a value holds in the quantized run, in the shapes of the float run."""
        parts = self.floats.parted(self.quantized.real(theirs))
        if parts is None:
            return None
        shapes = [clean[mine].shape for clean in self.floats.clean]
        if any(part.size != np.prod(shape) for part, shape in zip(parts, shapes, strict=True)):
            return None
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def error(
        self, theirs: Value, constants: Sequence[Rounded], kernel: Array | None
    ) -> NodeError | None:
        """Returns what the node adds and inherits; None where it is not known."""
        clean = [values[self.own] for values in self.floats.clean]
        stored = self._as_own(theirs, self.own)
        reads = any(value is not None and value.constant is None for value in self.node.inputs)
        if stored is None or (reads and not self.known):
            return None
        inherited = self._run({})
        steps: list[tuple[str, list[Array]]] = []
        if self.running is not None and self.running.running is not None:
            # Parameters that are chosen while the model runs depend on the data: the operand is
            # rounded anew for each sample.
            read = self.running.value
            if read in self.known:
                self.known[read] = [self.running.running(part) for part in self.known[read]]
                steps.append(("activation rounding", self._run({})))
        replaced: dict[Value, Array] = {}
        for rounded in constants:
            for name, array in _constant_steps(rounded):
                replaced[rounded.value] = array
                steps.append((name, self._run(replaced)))
        last = steps[-1][1] if steps else inherited
        if theirs.quant is not None and theirs.quant.params.storage_dtype.is_integer:
            params = theirs.quant.params
            if params.per_tensor:
                low, high = limits(params)
                # Clipping before rounding: a range that is too small and steps that are too large
                # have other cures.
                last = [np.clip(part, low, high).astype(part.dtype) for part in last]
                steps.append(("activation clipping", last))
                last = [rounding(params)(part).astype(part.dtype) for part in last]
                steps.append(("activation rounding", last))
        if kernel is not None:
            stored = self._shifted(stored, kernel)
        steps.append((BODY if isinstance(self.node.attributes, OpaqueAttrs) else KERNEL, stored))
        parts: dict[str, float] = {}
        before = inherited
        for name, after in steps:
            gap = self._ratio(clean, [a - b for a, b in zip(after, before, strict=True)])
            if gap:
                parts[name] = parts.get(name, 0.0) + gap
            before = after
        added = [a - b for a, b in zip(stored, inherited, strict=True)]
        inherits = [a - b for a, b in zip(inherited, clean, strict=True)]
        return NodeError(
            self.node.name,
            self.node.op.name,
            theirs.name,
            decibels(self._ratio(clean, added)),
            decibels(self._ratio(clean, inherits)),
            decibels(self._at_outputs(clean, added)),
            decibels(self._at_outputs(clean, inherits)),
            {name: decibels(gap) for name, gap in sorted(parts.items(), key=lambda p: -p[1])},
            self.node,
        )

    def _run(self, constants: Mapping[Value, Array]) -> list[Array]:
        """Returns the float value that the node's result stands for, on the known operands."""
        region = self._region()
        results: list[Array] = []
        for index, clean in enumerate(self.floats.clean):
            values = {value: parts[index] for value, parts in self.known.items()}
            values.update(constants)
            for node in region:
                operands = [_held(v, values, clean) for v in node.inputs]
                values.update(zip(node.outputs, computed(node, operands), strict=False))
            results.append(values[self.own] if self.own in values else clean[self.own])
        return results

    def _region(self) -> list[Node]:
        """Returns the float nodes between the known operands and the result, in order."""
        if self.own in self.known:
            return []
        pending, seen = [self.own], dict[Node, bool]()
        while pending:
            node = pending.pop().producer
            if node is None or node in seen:
                continue
            seen[node] = True
            pending += [v for v in node.inputs if v is not None and v not in self.known]
            if len(seen) > _FAR:
                break
        return sorted(seen, key=self.floats.places.__getitem__)

    def _shifted(self, stored: list[Array], kernel: Array) -> list[Array]:
        parts = self.floats.parted(kernel)
        if parts is None or any(p.size != s.size for p, s in zip(parts, stored, strict=True)):
            return stored
        return [s + p.reshape(s.shape) for s, p in zip(stored, parts, strict=True)]

    def _ratio(self, clean: Sequence[Array], gap: Sequence[Array]) -> float:
        return ratio(self.floats.joined(list(clean)), self.floats.joined(list(gap)))

    def _at_outputs(self, clean: Sequence[Array], gap: Sequence[Array]) -> float:
        if not any(part.any() for part in gap):
            return 0.0
        moved = [(a + b).astype(a.dtype) for a, b in zip(clean, gap, strict=True)]
        return self.floats.noise(self.floats.outputs({}, {self.own: moved}))


def _held(
    value: Value | None, values: Mapping[Value, Array], clean: Mapping[Value, Array]
) -> Array | None:
    if value is None or value in values:
        return None if value is None else values[value]
    return clean[value] if value.constant is None else value.constant.numpy()


_FAR = 64
"""Float nodes that one quantized node stands for, at most; beyond, something is not aligned."""


def _constant_steps(rounded: Rounded) -> Iterator[tuple[str, Array]]:
    """Yields a constant with its clipping alone, then as it is."""
    assert rounded.replaced is not None
    theirs, original = rounded.theirs, rounded.value.constant
    assert original is not None
    whole = rounded.replaced.astype(original.numpy().dtype)
    if rounded.kind == "bias":
        yield "bias", whole
        return
    kind = "weight" if rounded.kind == "weight" else "constant"
    if theirs.quant is not None and theirs.quant.params.storage_dtype.is_integer:
        wide = original.numpy()
        low, high = limits(theirs.quant.params, rounded, wide)
        yield f"{kind} clipping", np.clip(wide, low, high).astype(wide.dtype)
    yield f"{kind} rounding", whole


# ---- kernels -------------------------------------------------------------------------------------
# An engine's own share: what its results are off by where the contract has the same operands.


@dataclass(frozen=True, slots=True, eq=False)
class KernelShare:
    """What an engine does otherwise.

    Attributes:
        engine: The engine, as reports name it.
        gaps: What each value is off by, in real numbers of all batches.
        steps: The same as they are stored: in integers of quantized values.
        differences: The differences of each value, and their causes.
        unseen: Values that the engine does not show; what is off there is counted behind them.
        outputs: The graph's outputs as the engine stores them, by name.
    """

    engine: str
    gaps: Mapping[Value, Array]
    steps: Mapping[Value, Array]
    differences: Mapping[Value, TensorDifference]
    unseen: tuple[str, ...]
    outputs: Mapping[str, Array]


@dataclass(slots=True)
class _Recorder:
    """Keeps what is compared."""

    batches: list[Batch] = field(default_factory=list[Batch])
    steps: dict[Value, list[Array]] = field(default_factory=dict[Value, list[Array]])
    gaps: dict[Value, list[Array]] = field(default_factory=dict[Value, list[Array]])

    def __call__(self, batch: Batch, value: Value, ours: Array, theirs: Array) -> None:
        if not self.batches or self.batches[-1] is not batch:
            self.batches.append(batch)
        pair = (theirs, ours)
        with np.errstate(invalid="ignore"):
            if ours.dtype.kind == "f":
                step = np.nan_to_num(theirs.astype(np.float64) - ours)
            else:
                step = theirs.astype(np.int64) - ours.astype(np.int64)
            quant = value.quant
            real = pair if quant is None else [dequantize(a, quant.params) for a in pair]
            gap = np.nan_to_num(real[0].astype(np.float64) - real[1].astype(np.float64))
        self.steps.setdefault(value, []).append(step)
        self.gaps.setdefault(value, []).append(gap)


def kernel_share(graph: Graph, engine: Engine, data: Mapping[str, Array]) -> KernelShare:
    """Returns what an engine's kernels do otherwise than the contract, each on the same operands.

    Args:
        graph: The graph that the engine runs.
        data: One array per graph input.

    Raises:
        InputDataError: The data does not fit.
        UnsupportedTargetError: The engine cannot run the graph.
    """
    recorder = _Recorder()
    found = compare_locally(graph, engine, data, witness=recorder)
    off = [value for value, parts in recorder.steps.items() if any(part.any() for part in parts)]
    named = {each.name: each for each in found.values}
    names = {v: v.name for node in graph.nodes for v in node.outputs}
    names.update(zip(graph.outputs, graph.output_names, strict=True))
    count = len(recorder.batches)
    names_of = list(engine.outputs)
    ran = [engine.run(batch.inputs, names_of) for batch in recorder.batches]
    outputs = {
        name: concat_batch_results([each[name] for each in ran], recorder.batches, name)
        for name in (names_of if ran else ())
        if name in graph.output_names
    }
    whole = [v for v in off if len(recorder.steps[v]) == count and names[v] in named]
    return KernelShare(
        found.b,
        {v: concat_batch_results(recorder.gaps[v], recorder.batches, names[v]) for v in whole},
        {v: concat_batch_results(recorder.steps[v], recorder.batches, names[v]) for v in whole},
        {v: named[names[v]] for v in whole},
        found.unmatched,
        outputs,
    )
