"""ONNX's If, made of two graphs, and the two graphs of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, helper

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import Dim, TensorType, ValueType
from qdqbridge.onnx_io.control_flow.bodies import (
    OLDEST_SCAN,
    Body,
    bodies_of,
    quantizes_inside,
)
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, opaque_attributes
from qdqbridge.onnx_io.opaque.operators import imported, opaque_operator, scans_nothing
from qdqbridge.onnx_io.reading.reader import read_proto
from qdqbridge.onnx_io.reading.structure import captured_names
from qdqbridge.onnx_io.writer import to_proto

# ---- if, Loop and Scan whose bodies quantize, computed as the graphs that their bodies are -------
# onnxruntime computes such a body in floats where its optimizations are off, and by kernels of
# which some round otherwise where they are on. What a body means is what its canonical graph
# means.

_Operand: TypeAlias = "tuple[ValueType, str, Constant | None] | None"
_COUNTED = 2
"""A Loop's body is given the step and the condition first, as numbers or vectors of one."""


def computed_by_bodies(node: Node, operands: Sequence[Array | None]) -> list[Array] | None:
    """Returns the results of a node whose bodies quantize; None of others, and of no steps.

    Args:
        node: An opaque If, Loop or Scan.
        operands: What it is given.
    """
    record = node.record(OpaqueAttrs)
    known = tuple(None if v is None else (v.type, v.name, v.constant) for v in node.inputs)
    steps, bodies = _graphs(node.op, record, node.name, known)
    if not bodies:
        return None

    def call(attribute: str, own: Sequence[Array]) -> Sequence[Array]:
        body = bodies[attribute]
        inputs, given = body.graph.inputs, [*own, *(operands[index] for index in body.captured)]
        for index in range(_COUNTED if steps.op_type == "Loop" else 0):
            given[index] = np.reshape(own[index], (1,) * (inputs[index].rank or 0))
        feeds = {v.name: x for v, x in zip(inputs, given, strict=True) if x is not None}
        _, found = evaluate(body.graph, feeds, wanted=body.graph.outputs)
        return [found[value] for value in body.graph.outputs]

    results = steps.run(operands, call)
    if results is None:
        return None
    named = record.node.proto().output
    return [each for each, name in zip(results, named, strict=False) if name]


def scanned_nothing(node: Node, operands: Sequence[Array | None]) -> list[Array] | None:
    """Returns the results of a Scan of no steps, which onnxruntime refuses; None of others.

    Args:
        node: An opaque If, Loop or Scan.
        operands: What it is given.
    """
    record = node.record(OpaqueAttrs)
    scans = record.op_type == "Scan" and record.version >= OLDEST_SCAN
    if not scans or not scans_nothing(record, operands):
        return None
    steps, extents = ControlSteps.of(node), dict[Dim, int]()
    first = steps.own - len(steps.scanned)
    for value, array in zip(node.inputs, operands, strict=True):
        if value is not None and array is not None:
            extents |= zip(value.type.shape or (), array.shape, strict=False)
    results, present = list[Array](), iter(node.outputs)
    for index, name in enumerate(record.node.proto().output):
        if not name:
            continue
        type_, state = next(present).type, operands[index] if index < first else None
        if state is None and type_.shape is None:
            return None
        shape = [dim if isinstance(dim, int) else extents.get(dim, 0) for dim in type_.shape or ()]
        results.append(np.zeros(shape, type_.dtype.numpy) if state is None else state)
    return results


@lru_cache(maxsize=32)
def _graphs(
    op: Operator, record: OpaqueAttrs, name: str, known: tuple[_Operand, ...]
) -> tuple[ControlSteps, dict[str, Body]]:
    """Returns how a node goes through its bodies, and these where all of them are graphs."""
    operands = [None if x is None else Value(x[0], x[1], constant=x[2]) for x in known]
    node = Node(op, record, operands, [])
    proto, steps = record.node.proto(), ControlSteps.of(node)
    if not quantizes_inside(proto):
        return steps, {}
    bodies = {body.attribute: body for body in bodies_of(node, name, canonicalize)}
    whole = len(bodies) == (2 if steps.op_type == "If" else 1)
    return steps, bodies if whole else {}


# Which body of an If, Loop or Scan runs when, and on what (ONNX's If-11, Loop-11, Scan-9).

Array: TypeAlias = "NDArray[Any]"
Call: TypeAlias = "Callable[[str, Sequence[Array]], Sequence[Array]]"
"""Runs a body, by its attribute, on its own inputs; returns its results."""


@dataclass(frozen=True, slots=True)
class ControlSteps:
    """How a node goes through its bodies.

    Attributes:
        op_type: ``If``, ``Loop`` or ``Scan``.
        own: How many operands are its own; it captures the others.
        scanned: Of a Scan: along which axis it goes through each of its last own operands, and
            whether from the end.
        stacked: Of a Scan: the same of each result that it stacks.
    """

    op_type: str
    own: int
    scanned: tuple[tuple[int, bool], ...]
    stacked: tuple[tuple[int, bool], ...]

    @staticmethod
    def of(node: Node) -> ControlSteps:
        """Returns how an opaque If, Loop or Scan does it."""
        record = node.record(OpaqueAttrs)
        own = len(node.inputs) - len(record.captures)
        if record.op_type != "Scan":
            return ControlSteps(record.op_type, own, (), ())
        stored = record.node
        count = stored.integers()["num_scan_inputs"]
        results = next(len(a.g.output) for a in stored.proto().attribute if a.name == "body")

        def each(kind: str, count: int) -> tuple[tuple[int, bool], ...]:
            axes = stored.listed(f"scan_{kind}_axes") or [0] * count
            backwards = stored.listed(f"scan_{kind}_directions") or [0] * count
            return tuple(zip(axes, map(bool, backwards), strict=True))

        stacked = results - (own - count)
        return ControlSteps("Scan", own, each("input", count), each("output", stacked))

    def run(self, operands: Sequence[Array | None], call: Call) -> list[Array] | None:
        """Runs the bodies; returns all results, None of no steps, which stack nothing.

        Args:
            operands: Those of the node, or its own ones.
            call: Runs a body.
        """
        own = operands[: self.own]
        match self.op_type:
            case "If":
                taken = bool(np.asarray(own[0]).reshape(-1)[0])
                return list(call("then_branch" if taken else "else_branch", []))
            case "Loop":
                return _loop(own, call)
            case _:
                return self._scan([each for each in own if each is not None], call)

    def _scan(self, given: Sequence[Array], call: Call) -> list[Array] | None:
        first = len(given) - len(self.scanned)
        state = list(given[:first])
        rows = [
            np.moveaxis(array, axis, 0)[:: -1 if backwards else 1]
            for array, (axis, backwards) in zip(given[first:], self.scanned, strict=True)
        ]
        made: list[Sequence[Array]] = []
        for row in zip(*rows, strict=True):
            results = call("body", [*state, *(np.ascontiguousarray(each) for each in row)])
            state = list(results[:first])
            made.append(results[first:])
        return _stacked(state, made, self.stacked)


def _loop(operands: Sequence[Array | None], call: Call) -> list[Array] | None:
    count, condition = operands[0], operands[1] if len(operands) > 1 else None
    most = None if count is None else int(count.reshape(-1)[0])
    alive = np.array(True) if condition is None else condition.reshape(())
    state = [each for each in operands[2:] if each is not None]
    made: list[Sequence[Array]] = []
    while bool(alive) and (most is None or len(made) < most):
        results = call("body", [np.array(len(made), np.int64), alive, *state])
        alive, state = results[0].reshape(()), list(results[1 : 1 + len(state)])
        made.append(results[1 + len(state) :])
    return _stacked(state, made, [(0, False)] * (len(made[0]) if made else 0))


def _stacked(
    state: list[Array], made: Sequence[Sequence[Array]], how: Sequence[tuple[int, bool]]
) -> list[Array] | None:
    if not made:
        return None
    rows = zip(*made, strict=True)
    return [
        *state,
        *(
            np.stack(row[::-1] if backwards else row, axis)
            for row, (axis, backwards) in zip(rows, how, strict=True)
        ),
    ]


_CAPTURE = "captured_{}"
_CONDITION = "in_0"


def conditional(then: Graph, other: Graph) -> tuple[Operator, OpaqueAttrs, list[int]]:
    """Returns the operator If, its attributes, and which inputs it captures in which order.

    The operands of its node are the condition and then those inputs.

    Args:
        then: The branch for true. Both branches have the same inputs, which the If captures, and
            as many results.
        other: The branch for false.
    """
    opset, bodies = 0, list[GraphProto]()
    for number, branch in enumerate((then, other)):
        model = to_proto(_name_captured_inputs(branch))
        opset = max(opset, *(e.version for e in model.opset_import if not e.domain))
        body = model.graph
        body.name = ("then", "else")[number]
        del body.input[:]
        bodies.append(body)
    outputs = [f"out_{i}" for i in range(len(then.outputs))]
    node = helper.make_node("If", ["in_0"], outputs, then_branch=bodies[0], else_branch=bodies[1])
    captures = [int(name.removeprefix(_CAPTURE.format(""))) for name in captured_names(node)]
    operands = [Value(TensorType(DType.BOOL, ()))]
    attributes = opaque_attributes(node, opset, operands, [then.inputs[i] for i in captures])
    return opaque_operator("", "If"), attributes, captures


def is_conditional(node: Node) -> bool:
    """Returns whether a node is an opaque If."""
    attributes = node.attributes
    return isinstance(attributes, OpaqueAttrs) and (
        (attributes.domain, attributes.op_type) == ("", "If")
    )


def branches_of(node: Node) -> tuple[Graph, Graph]:
    """Returns the branches of an opaque If, for true and for false: see :func:`branch_of`."""
    return branch_of(node, True), branch_of(node, False)


def branch_of(node: Node, condition: bool) -> Graph:
    """Returns a branch of an opaque If as a raw graph.

    Args:
        node: The If; its operands are the condition and what the branches capture.
        condition: Which one.

    Returns:
        A graph whose inputs are the captured operands that are not constant, as ``in_1`` …, in
        their order, and whose outputs are the results of the If.

    Raises:
        QdqBridgeError: The branch cannot be read, or the If gives what is not a tensor.
    """
    attributes = node.record(OpaqueAttrs)
    model = attributes.model(node)
    (call,) = model.graph.node
    bodies = {attribute.name: attribute.g for attribute in call.attribute}
    name = "then_branch" if condition else "else_branch"
    return read_proto(
        _alone(bodies[name], model, attributes), Path(f"the {name} of an If"), _as_it_is
    )


def _alone(body: GraphProto, model: ModelProto, attributes: OpaqueAttrs) -> ModelProto:
    """Returns a branch as a model; what it captures are inputs and initializers."""
    graph = GraphProto(name=body.name, node=body.node, output=body.output)
    graph.input.extend(value for value in model.graph.input if value.name != _CONDITION)
    graph.initializer.extend((*body.initializer, *model.graph.initializer))
    imports = imported(attributes, model.graph.node[0])
    return ModelProto(ir_version=model.ir_version, graph=graph, opset_import=imports)


def _as_it_is(graph: Graph) -> Graph:
    return graph


def _name_captured_inputs(graph: Graph) -> Graph:
    """Returns a graph whose inputs have the names by which an If captures them."""
    for index, value in enumerate(graph.inputs):
        value.name = _CAPTURE.format(index)
    return graph
