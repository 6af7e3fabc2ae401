"""A Loop or a Scan whose number of steps the file says: its body, once for every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.onnx_io.control_flow.subgraph_names import all_defined, rename_inside
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.opaque.operators import imported
from qdqbridge.onnx_io.reading.reader import read_proto

_AXES_AS_OPERAND = 13
"""The opset since which Unsqueeze reads its axes."""


class UnknownSteps(Exception):
    """How often a body runs is not known, or too often."""


def is_repeated(node: Node) -> bool:
    """True for an opaque Loop or Scan."""
    attributes = node.attributes
    return isinstance(attributes, OpaqueAttrs) and (
        not attributes.domain and attributes.op_type in _FORMS
    )


def unrolled(node: Node, most: int) -> Graph:
    """Returns an opaque Loop or Scan as a raw graph of all of its steps.

    Args:
        node: The opaque node.
        most: How many nodes they may have together.

    Returns:
        A graph whose inputs are the node's operands that are not constant, as ``in_0`` …, in their
        order, and whose outputs are its results.

    Raises:
        UnknownSteps: The file does not say how many steps there are, or there are none or many.
        QdqBridgeError: The body cannot be read, or the node takes or gives what is not a tensor.
    """
    attributes = node.record(OpaqueAttrs)
    model = attributes.model(node)
    (call,) = model.graph.node
    made = _StepNodes(attributes.version)
    given = {a.name: helper.get_attribute_value(a) for a in call.attribute}
    steps = _FORMS[attributes.op_type](node, model, given, made)
    # Of no steps the results have no shape that a Concat could make.
    if not 0 < steps.count <= most // max(len(steps.body.node), 1):
        raise UnknownSteps
    _unroll(steps, call, made)
    graph = model.graph
    del graph.node[:], model.opset_import[:]
    graph.node.extend(made.nodes)
    graph.initializer.extend((*steps.body.initializer, *made.constants))
    model.opset_import.extend(imported(attributes, call))
    return read_proto(model, Path(f"the steps of a {attributes.op_type}"), lambda graph: graph)


@dataclass
class _StepNodes:
    """Nodes that stand for a body's steps, and the constants that they read."""

    opset: int
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    constants: list[TensorProto] = field(default_factory=list[TensorProto])

    def constant(self, array: Any) -> str:
        """Returns the name of a new initializer."""
        name = f"constant.{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        """Adds a node of one result; returns its name."""
        result = result or f"result.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [result], **attributes))
        return result

    def standing(self, part: str, axis: int) -> str:
        """Returns a tensor with one more axis, of one element."""
        if self.opset < _AXES_AS_OPERAND:
            return self.add("Unsqueeze", part, axes=[axis])
        return self.add("Unsqueeze", part, self.constant(np.array([axis])))


@dataclass(frozen=True, slots=True)
class _BodySteps:
    """What the steps of a node are.

    Attributes:
        body: What each of them does.
        count: How many there are.
        states: What the first one is given of what they hand on.
        inputs: The body's inputs in a step, from its number and states.
        conditions: How many of its results stand before the states.
        stacks: Along which axis what each step gives is joined, and whether the last comes first.
    """

    body: GraphProto
    count: int
    states: list[str]
    inputs: Callable[[int, list[str]], list[str]]
    conditions: int
    stacks: list[tuple[int, bool]]


def _unroll(steps: _BodySteps, call: NodeProto, made: _StepNodes) -> None:
    states, columns = steps.states, list[list[str]]()
    for step in range(steps.count):
        results = _inlined(steps.body, step, steps.inputs(step, states), made)[steps.conditions :]
        states, last = results[: len(states)], results[len(states) :]
        columns.append(last)
    for state, output in zip(states, call.output, strict=False):
        if output:
            made.add("Identity", state, result=output)
    for index, output in enumerate(call.output[len(states) :]):
        if output:
            axis, reverse = steps.stacks[index]
            parts = [made.standing(column[index], axis) for column in columns]
            made.add("Concat", *(parts[::-1] if reverse else parts), result=output, axis=axis)


def _inlined(body: GraphProto, step: int, inputs: list[str], made: _StepNodes) -> list[str]:
    """Adds the nodes of one step; returns its results. All share the body's initializers."""
    copy = GraphProto()
    copy.CopyFrom(body)
    # Weights stand there once for all steps.
    shared = {tensor.name for tensor in body.initializer}
    names = {name: f"{name}.{step}" for name in all_defined(copy) if name not in shared}
    names |= {value.name: name for value, name in zip(body.input, inputs, strict=True)}
    rename_inside(copy, names)
    made.nodes.extend(copy.node)
    return [value.name for value in copy.output]


# ---- the two operators --------------------------------------------------------------------------


def _loop(node: Node, model: ModelProto, given: Mapping[str, Any], made: _StepNodes) -> _BodySteps:
    """Loop: the number of its steps is a constant, and its condition stays true."""
    (call,) = model.graph.node
    body: GraphProto = given["body"]
    count, condition, *_ = node.inputs
    # A condition that a step computes says only when it runs how many there are.
    if count is None or count.constant is None or not stays_true(body):
        raise UnknownSteps
    if condition is not None and (
        condition.constant is None or not condition.constant.numpy().all()
    ):
        raise UnknownSteps
    always = made.constant(np.array(True))

    def inputs(step: int, states: list[str]) -> list[str]:
        return [made.constant(np.int64(step)), always, *states]

    states = list(call.input[2:])
    stacks = [(0, False)] * (len(body.output) - 1 - len(states))
    return _BodySteps(body, int(count.constant.numpy().reshape(())), states, inputs, 1, stacks)


def stays_true(body: GraphProto) -> bool:
    """True where the condition that a step gives is the one that it got, or a true constant."""
    made = {name: inner for inner in body.node for name in inner.output}
    name = body.output[0].name
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
    if name == body.input[1].name:
        return True
    known = {tensor.name: tensor for tensor in body.initializer}
    if name in made and made[name].op_type == "Constant":
        known[name] = next((a.t for a in made[name].attribute if a.name == "value"), TensorProto())
    return (
        name in known
        and bool(known[name].data_type)
        and bool(numpy_helper.to_array(known[name]).all())
    )


def _scan(node: Node, model: ModelProto, given: Mapping[str, Any], made: _StepNodes) -> _BodySteps:
    """Scan: as many steps as its scanned operands are long."""
    (call,) = model.graph.node
    body: GraphProto = given["body"]
    scanned = given["num_scan_inputs"]
    first = len(call.input) - scanned
    outputs = len(body.output) - first
    axes = given.get("scan_input_axes") or [0] * scanned
    backwards = given.get("scan_input_directions") or [0] * scanned
    shapes = [value.type.shape if value else None for value in node.inputs[first:][:scanned]]
    known = [shape[axis] if shape else None for shape, axis in zip(shapes, axes, strict=True)]
    count = next((extent for extent in known if isinstance(extent, int)), None)
    if count is None:
        raise UnknownSteps

    def inputs(step: int, states: list[str]) -> list[str]:
        slices: list[str] = []
        for name, axis, back in zip(call.input[first:], axes, backwards, strict=True):
            place = made.constant(np.int64(count - 1 - step if back else step))
            slices.append(made.add("Gather", name, place, axis=axis))
        return [*states, *slices]

    stacks = zip(
        given.get("scan_output_axes") or [0] * outputs,
        map(bool, given.get("scan_output_directions") or [0] * outputs),
        strict=True,
    )
    return _BodySteps(body, count, list(call.input[:first]), inputs, 0, list(stacks))


_FORMS = {"Loop": _loop, "Scan": _scan}
