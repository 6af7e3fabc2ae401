"""What each node of a quantized graph adds to the error of its operands, and by what.

A node is run in floats on the operands that the quantized run has: what its result is off by then
is inherited. Then its own roundings are put in one after the other - the weight's clipping and
rounding, the bias, the result's clipping and rounding, at last what the kernel really stores - and
each is charged with what changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.attribution.causes import limits
from qdqbridge.autoquant.attribution.correspondence import BODY, Correspondence, Rounded
from qdqbridge.autoquant.attribution.simulation import GraphRuns, decibels, ratio, rounding
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.interpreter import computed
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs

Array = NDArray[Any]
KERNEL = "kernel"


@dataclass(frozen=True, slots=True, eq=False)
class NodeError:
    """One node of a quantized graph.

    Attributes:
        name: Its name.
        operator: Its operator.
        tensor: Its result.
        added_db: Signal to noise of the result where the operands have no error, in dB.
        inherited_db: That where the node itself adds none.
        outputs_added_db: The graph's outputs with nothing but what the node adds, in dB.
        outputs_inherited_db: The outputs with nothing but what the node's operands bring, in dB.
        parts: Signal to noise by what adds it, in dB, the worst first: ``weight rounding`` and
            ``clipping``, ``bias``, ``activation rounding`` and ``clipping``, ``kernel``, ``body``.
        place: The node.
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
