"""The local comparison: each node on the operands that the reference recorded.

A difference is counted at the node that makes it and does not spread. Where the reference did not
record an operand (the canonical form has values that the file does not), the interpreter computes
it from those that were recorded, and a difference behind data movement is explained by the node
before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.batches import Batch, batches
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import check_inputs, evaluate_node
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import NestedType, TensorType
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.ops.dynamic import rounded_blocks
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.matmul import DENSE, packed_product
from qdqbridge.errors import QdqBridgeError
from qdqbridge.targets.comparison.bounds import HALVES, Exact, exact, with_halves
from qdqbridge.targets.comparison.causes import (
    MISREAD,
    REWRITTEN,
    UNEXPLAINED,
    Blame,
    blame,
    two_steps,
)
from qdqbridge.targets.comparison.compare import (
    Comparison,
    Engine,
    OwnArithmetic,
    Progress,
    ordered,
    producers,
    same_meaning,
    visible_values,
)
from qdqbridge.targets.comparison.difference import Tally, differing

# ---- Exact results behind nodes that pass values on: they are those of the nodes before, moved ---
# Where the reference did not record what is moved or joined, the result differs because of the
# node before; that node's exact values and bounds explain it.


Array: TypeAlias = NDArray[Any]


def moved(node: Node, behind: Exact, operands: Sequence[Array | None]) -> Exact:
    """Returns exact results after a data-movement operator: the values and their bounds move alike.

    Args:
        node: A node that only moves values.
        behind: The exact values of its first operand.
        operands: Its operands; the first one gives the shape.
    """
    first = operands[0]
    shape = behind.real.shape if first is None else first.shape

    def move(array: Array) -> Array:
        whole = np.broadcast_to(np.asarray(array, np.float64), shape)
        return node.op.compute(node.attributes, [whole, *operands[1:]])[0]

    written = None if behind.as_written is None else move(behind.as_written)
    halves = tuple((move(low), move(high)) for low, high in behind.halves)
    moved_bounds = move(behind.elementwise), move(behind.accumulated)
    return Exact(move(behind.real), *moved_bounds, written, halves)


def concat_exact(
    node: Node, behind: Sequence[Exact | None], operands: Sequence[Array | None]
) -> Exact:
    """Returns exact results of a Concat: those of its operands, where they are known, side by side.

    Args:
        behind: For each operand the exact values that it was rounded from, None where it is given.
        operands: The stored values of its operands.
    """
    parts = [
        _given(value, stored) if known is None else known
        for value, known, stored in zip(node.inputs, behind, operands, strict=True)
    ]

    def join(arrays: Sequence[Array]) -> Array:
        wide = [np.broadcast_to(a, p.real.shape) for a, p in zip(arrays, parts, strict=True)]
        return node.op.compute(node.attributes, wide)[0]

    written = [p.real if p.as_written is None else p.as_written for p in parts]
    return Exact(
        join([p.real for p in parts]),
        join([p.elementwise for p in parts]),
        join([p.accumulated for p in parts]),
        join(written) if any(p.as_written is not None for p in parts) else None,
        tuple(
            (join([_half(p, i)[0] for p in parts]), join([_half(p, i)[1] for p in parts]))
            for i in range(max(len(p.halves) for p in parts))
        ),
    )


def _given(value: Value | None, stored: Array | None) -> Exact:
    assert value is not None and stored is not None
    real = stored if value.quant is None else dequantize(stored, value.quant.params)
    wide, halves = real.astype(np.float64), ()
    expressed = value.quant.params.expressed_dtype if value.quant else DType.FLOAT32
    if expressed in HALVES:
        short = real.astype(expressed.numpy).astype(np.float64)
        halves = ((wide, wide), (short, short))
    return Exact(wide, np.zeros(()), np.zeros(()), halves=halves)


def _half(part: Exact, index: int) -> tuple[Array, Array]:
    """Returns one of the intervals of a part; every element belongs to one part only."""
    if not part.halves:
        return part.real, part.real
    return part.halves[min(index, len(part.halves) - 1)]


# ---- The local comparison: each node on the operands that the reference recorded -----------------


def compare_locally(
    graph: Graph,
    reference: Engine,
    data: Mapping[str, Array],
    *,
    size: int | None = None,
    progress: Progress | None = None,
    witness: Witness | None = None,
) -> Comparison:
    """Runs every node of ``graph`` by the interpreter on what ``reference`` recorded.

    Args:
        graph: The graph whose nodes are to be proved.
        reference: The engine that records.
        data: One array per graph input.
        size: Examples per batch.
        progress: Called with the batches done and their number.
        witness: Called with each batch, value, what the interpreter stores, and what the engine.

    Raises:
        InputDataError: The data does not fit.
    """
    seen = visible_values(graph)
    known = set(reference.names)
    names = [
        name
        for name, value in seen.items()
        if name in known and same_meaning(value.type, reference.types.get(name))
    ]
    given = [n for n in getattr(reference, "operands", ()) if n in seen and n not in names]
    made_by = producers(graph)
    explain: Explain = getattr(reference, "explained", _nothing)
    own: OwnArithmetic | None = getattr(reference, "own", None)
    rewritten: Callable[[], Graph | None] | None = getattr(reference, "rewritten", None)
    outputs = set(graph.output_names) & set(reference.outputs)
    tallies = {
        seen[name]: Tally(name, made_by.get(name, ""), seen[name].type, name in outputs)
        for name in names
    }
    mismatched: dict[Value, None] = {}
    for number, batch in enumerate(batches(graph.inputs, data, size), 1):
        inputs = dict(zip(graph.inputs, check_inputs(graph.inputs, batch.inputs), strict=True))
        found = reference.run(batch.inputs, [*names, *given])
        recorded = {seen[name]: array for name, array in found.items()}
        observe = None if witness is None else partial(witness, batch)
        walk = _BatchWalk(tallies, recorded, mismatched, explain, own, observe)
        walk.run(graph.nodes, inputs)
        made = rewritten() if walk.left and rewritten is not None else None
        there = _left_of_rewritten(made, batch.inputs, found, explain, own) if made else {}
        for value, (mask, ours) in walk.left.items():
            kept = mask & there.get(tallies[value].name, mask)
            theirs = recorded[value]
            apart = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
            near = apart <= two_steps(theirs, value.type)
            cause = REWRITTEN if near[mask & ~kept].all() else MISREAD
            counts = {UNEXPLAINED: int(kept.sum()), cause: int((mask & ~kept).sum())}
            tallies[value].blame({cause: n for cause, n in counts.items() if n}, 0.0, 0.0)
        if progress is not None:
            progress(number, batch.count)
    unmatched = [n for n, v in seen.items() if v not in tallies or v in mismatched]
    used = [tally for value, tally in tallies.items() if value not in mismatched and tally.count]
    return Comparison("interpreter", reference.label, True, ordered(used), tuple(unmatched))


def _left_of_rewritten(
    graph: Graph,
    inputs: Mapping[str, Array],
    recorded: Mapping[str, Array],
    explain: Explain,
    own: OwnArithmetic | None,
) -> dict[str, NDArray[np.bool_]]:
    """Returns, by name, which elements the model does not explain either that an engine has made.

    Args:
        graph: That model.
        inputs: What both are fed.
        recorded: What the engine gave.
        explain: Of the engine.
        own: Of the engine.
    """
    seen = {name: value for name, value in visible_values(graph).items() if name in recorded}
    tallies = {v: Tally(name, "", v.type, is_output=False) for name, v in seen.items()}
    there, mismatched = {value: recorded[name] for name, value in seen.items()}, dict[Value, None]()
    walk = _BatchWalk(tallies, there, mismatched, explain, own, read=_rounding_activations)
    try:
        fed = dict(zip(graph.inputs, check_inputs(graph.inputs, inputs), strict=True))
        walk.run(graph.nodes, fed)
    except QdqBridgeError:  # what an engine makes need not be what this one computes
        return {}
    return {
        name: walk.left[value][0]
        if value in walk.left
        else np.zeros(recorded[name].shape, np.bool_)
        for name, value in seen.items()
        if value not in mismatched and tallies[value].count
    }


Read: TypeAlias = "Callable[[Node, Sequence[Array | None]], tuple[Node, Sequence[Array | None]]]"
"""What an engine computes in place of a node and its stored operands."""


def _as_it_is(node: Node, operands: Sequence[Array | None]) -> tuple[Node, Sequence[Array | None]]:
    return node, operands


def _rounding_activations(
    node: Node, operands: Sequence[Array | None]
) -> tuple[Node, Sequence[Array | None]]:
    """A MatMulNBits that rounds activations does it also behind a DequantizeLinear.

    There the canonical form has the product of what is stored.
    """
    said, x = packed_product(node.origin.variant), node.inputs[0] if node.inputs else None
    weight = node.inputs[1].quant if len(node.inputs) > 1 and node.inputs[1] is not None else None
    stored = operands[0] if operands else None
    if node.op is not DENSE or said is None or x is None or x.quant is None or weight is None:
        return node, operands
    if stored is None or not said.rounds(weight.params.storage_dtype.bits):
        return node, operands
    real = rounded_blocks(said.block_size, dequantize(stored, x.quant.params))
    fresh = [None if v is None else Value(v.type, v.name, constant=v.constant) for v in node.inputs]
    fresh[0] = Value(TensorType(DType.FLOAT32, x.type.shape))
    result = Value(node.output.type, node.output.name)
    return Node(DENSE, node.attributes, fresh, [result], node.origin), [real, *operands[1:]]


def _of_real_result(node: Node) -> Node:
    """Returns a node as it is before its result is rounded."""
    result = Value(TensorType(DType.FLOAT32, node.output.type.shape), node.output.name)
    return Node(node.op, node.attributes, node.inputs, [result], node.origin)


Source = Callable[[], Exact | None]
Witness: TypeAlias = "Callable[[Batch, Value, Array, Array], None]"
"""What looks at a batch, a value, and its elements as both store them."""
Explain: TypeAlias = (
    "Callable[[Node, Sequence[Array | None], Array], tuple[str, NDArray[np.bool_]] | None]"
)
"""What an engine's own arithmetic gives, bit for bit: its cause, and which results are that."""


def _nothing(node: Node, operands: Sequence[Array | None], theirs: Array) -> None:
    """An engine that says nothing about its arithmetic."""
    del node, operands, theirs


def _exact(
    node: Node, operands: Sequence[Array | None], sources: Sequence[Source | None]
) -> Exact | None:
    """Returns the exact results of a node; those behind it, moved, where it only moves."""
    if node.op.flow is Flow.MOVE and sources and sources[0] is not None:
        behind = sources[0]()
        return None if behind is None else moved(node, behind, operands)
    if node.op is QUANTIZE and sources[0] is not None:
        return sources[0]()  # real numbers that nobody recorded are rounded here for the first time
    if node.op is CONCAT and any(sources):
        behind = [None if source is None else source() for source in sources]
        return concat_exact(node, behind, operands)
    return with_halves(node, operands, exact(node, operands))


class _BatchWalk:
    """One pass over the nodes with one batch."""

    def __init__(
        self,
        tallies: Mapping[Value, Tally],
        recorded: Mapping[Value, Array],
        mismatched: dict[Value, None],
        explain: Explain,
        own: OwnArithmetic | None,
        observe: Callable[[Value, Array, Array], None] | None = None,
        read: Read = _as_it_is,
    ) -> None:
        self.observe = observe
        self.tallies, self.recorded, self.mismatched = tallies, recorded, mismatched
        self.explain, self.own = explain, own
        self.values: dict[Value, Array] = {}
        self.unrecorded: dict[Value, Source] = {}
        self.carried: dict[Value, tuple[str, Array]] = {}
        self.left: dict[Value, tuple[NDArray[np.bool_], Array]] = {}
        self.read = read

    def run(self, nodes: Sequence[Node], inputs: Mapping[Value, Array]) -> None:
        self.values.update(inputs)
        self._passed_on()
        left = {v: len(v.users) for node in nodes for v in (*node.inputs, *node.outputs) if v}
        for node in nodes:
            self._node(node)
            for value in node.inputs:
                if value is not None:
                    left[value] -= 1
                    if left[value] == 0:
                        self.values.pop(value, None)
                        self.unrecorded.pop(value, None)
                        self.carried.pop(value, None)

    def _passed_on(self) -> None:
        """Compares outputs that no node makes: inputs and constants that are handed on."""
        for value, tally in self.tallies.items():
            if value.producer is None:
                ours, theirs = self._stored(value), self.recorded[value]
                if theirs.dtype != ours.dtype or theirs.shape != ours.shape:
                    self.mismatched[value] = None
                elif ours.dtype != object:
                    tally.add(ours, theirs)
                    differs = differing(ours, theirs)
                    self._blame(value, blame(ours, theirs, differs, None, value.type), ours)

    def _node(self, read: Node) -> None:
        stored = [None if value is None else self._stored(value) for value in read.inputs]
        node, operands = self.read(read, stored)
        results = evaluate_node(node, operands)
        predicted = None if self.own is None else self.own(node, operands)
        cause, expected = ("", ()) if predicted is None else predicted
        carried = next((self.carried[v][0] for v in read.inputs if v in self.carried), "")
        if carried:  # what was predicted of operands that nobody recorded is told of this result
            cause, expected = cause or carried, expected or results
            results = evaluate_node(*self.read(read, self._by_contract(read, stored)))
        for place, (value, ours) in enumerate(zip(read.outputs, results, strict=False)):
            nested = isinstance(value.type, NestedType)
            theirs = None if nested else self.recorded.get(value)
            if theirs is not None and (theirs.dtype != ours.dtype or theirs.shape != ours.shape):
                # Another type or shape cannot be compared: what follows is judged from our result.
                self.mismatched[value] = None
                theirs = None
            meant = expected[place] if place < len(expected) else None
            self.values[value] = theirs if theirs is not None else ours if meant is None else meant
            if theirs is None:
                # What an engine did not record is judged only if somebody looks behind it, so its
                # bound is not computed yet.
                behind = self._behind(read)
                self.unrecorded[value] = partial(
                    self._exact_as_predicted, node, operands, behind, meant
                )
                if meant is not None and not np.array_equal(meant, ours):
                    self.carried[value] = cause, ours
            if theirs is not None and ours.dtype != object and value in self.tallies:
                if self.observe is not None:
                    self.observe(value, ours, theirs)
                self._tally(node, value, operands, ours, theirs, (cause, meant, bool(carried)))

    def _by_contract(self, node: Node, stored: Sequence[Array | None]) -> list[Array | None]:
        """Returns operands without what an engine's arithmetic did to those nobody recorded."""
        pairs = zip(node.inputs, stored, strict=True)
        return [self.carried[v][1] if v in self.carried else array for v, array in pairs]

    def _behind(self, node: Node) -> list[Source | None]:
        """Returns, for each operand that was not recorded, what gives its exact values."""
        return [self._source(node, value) for value in node.inputs]

    def _source(self, node: Node, value: Value | None) -> Source | None:
        if value is None or node.op.flow is Flow.MOVE or node.op is QUANTIZE:
            return None if value is None else self.unrecorded.get(value)
        own, result = value.quant, node.output.quant
        passed = own is not None and result is not None and own.params == result.params
        return self.unrecorded.get(value) if passed else None

    def _exact_as_predicted(
        self,
        node: Node,
        operands: Sequence[Array | None],
        sources: Sequence[Source | None],
        meant: Array | None,
    ) -> Exact | None:
        """Returns the exact results of a node, with what the engine's arithmetic adds to sums."""
        known = _exact(node, operands, sources)
        if known is None or meant is None or self.own is None:
            return known
        real = _of_real_result(node)
        told = self.own(real, operands)
        if told is None:
            return known
        off = told[1][0].astype(np.float64) - evaluate_node(real, operands)[0]
        return replace(known, real=known.real + off, as_written=None, halves=(), predicted=True)

    def _stored(self, value: Value) -> Array:
        return self.values[value] if value.constant is None else value.constant.numpy()

    def _tally(
        self,
        node: Node,
        value: Value,
        operands: Sequence[Array | None],
        ours: Array,
        theirs: Array,
        meant: tuple[str, Array | None, bool],
    ) -> None:
        tally = self.tallies[value]
        tally.add(ours, theirs)
        differs = differing(ours, theirs)
        if differs.any():
            known = None
            first = value.producer is not None and value is value.producer.output
            own = self.explain(node, operands, theirs) if first else None
            if meant[1] is not None:
                own = meant[0], ~differing(meant[1], theirs)
            if own is not None:
                cause, fits = own[0], own[1] & differs
                tally.blame({cause: int(fits.sum())} if fits.any() else {}, 0.0, 0.0)
                differs = differs & ~fits
                if not differs.any():
                    return
            if first:
                known = self._exact_as_predicted(node, operands, self._behind(node), meant[1])
                if meant[1] is not None and (meant[2] or (known is not None and known.predicted)):
                    ours = meant[1]
            self._blame(value, blame(ours, theirs, differs, known, value.type), ours)

    def _blame(self, value: Value, found: Blame, ours: Array) -> None:
        """Adds what was found of a value, but for the elements that have no cause yet."""
        causes = {cause: n for cause, n in found.causes.items() if cause != UNEXPLAINED}
        self.tallies[value].blame(causes, found.bound, found.moved)
        if found.left.any():
            self.left[value] = found.left, ours
