"""An If that is one of its branches: its condition is a constant, or both have one text form.

The first is done on the file, before shapes are known. For the second each body is read as a graph
of its own: what it captures from outside is a constant or an input of that graph. So two branches
are equal where they mean the same, however each of them is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.errors import QdqBridgeError
from qdqbridge.onnx_io.inference.shapes import TypeAndShape, infer, is_small
from qdqbridge.onnx_io.reading.structure import captured_names, describe, subgraphs
from qdqbridge.onnx_io.tensors import constant_from_proto

TextOf: TypeAlias = "Callable[[ModelProto, Mapping[str, Constant]], str]"
"""Returns the text form of a model, given the data of those of its inputs that are constants.

What it replaces in the model, an If whose branches are equal say, stays replaced.
"""
_PASSES = 8
"""An If can be looked at where the shapes that it captures are known, from another If perhaps."""


def take_branches(model: ModelProto, folder: Path, text_of: TextOf) -> ModelProto:
    """Replaces every If of the main graph of which one branch is known to run, or either would do.

    Args:
        model: The model, changed in place.
        folder: Where external data lies.
        text_of: Reads a branch.
    """
    if any(node.op_type == "If" for node in model.graph.node):
        take_constant_branches(model)
        _take_equal_branches(model, folder, text_of)
    return model


def take_constant_branches(model: ModelProto) -> ModelProto:
    """Replaces every If with a constant condition by the nodes of the branch it takes.

    Names inside a branch are unique by ONNX's rules except between the two branches, of which
    only one stays; should one clash all the same, it is made unique.
    """
    graph = model.graph
    if not any(node.op_type == "If" for node in graph.node):
        return model
    conditions = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            _note_constant(node, conditions)
    taken = set(v.name for v in graph.input) | set(conditions)
    taken |= {o for node in graph.node for o in node.output}
    nodes = _expand(graph.node, graph, conditions, taken)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _note_constant(node: NodeProto, conditions: dict[str, TensorProto]) -> None:
    for attribute in node.attribute:
        if attribute.name == "value":
            conditions[node.output[0]] = attribute.t


def _expand(
    nodes: Sequence[NodeProto],
    graph: GraphProto,
    conditions: dict[str, TensorProto],
    taken: set[str],
) -> list[NodeProto]:
    result: list[NodeProto] = []
    pending = list(reversed(nodes))
    while pending:
        node = pending.pop()
        condition = conditions.get(node.input[0]) if node.op_type == "If" and node.input else None
        if condition is None or condition.data_location == TensorProto.EXTERNAL:
            result.append(node)
            continue
        data = constant_from_proto(condition, None, f"the condition of {describe(node)}")
        value = bool(data.numpy().all())
        name = "then_branch" if value else "else_branch"
        body = next(a.g for a in node.attribute if a.name == name)
        pending.extend(reversed(_inlined(node, body, graph, conditions, taken)))
    return result


def taken_branch(node: NodeProto, value: bool, taken: set[str]) -> list[NodeProto]:
    """Returns the nodes of the branch that an If takes, in its place; constants are nodes too.

    Args:
        node: The If.
        value: Its condition.
        taken: Names in use; those of the branch are entered.
    """
    name, held = "then_branch" if value else "else_branch", GraphProto()
    body = next(a.g for a in node.attribute if a.name == name)
    nodes = _inlined(node, body, held, {}, taken)
    return [helper.make_node("Constant", [], [t.name], value=t) for t in held.initializer] + nodes


def _inlined(
    node: NodeProto,
    body: GraphProto,
    graph: GraphProto,
    conditions: dict[str, TensorProto],
    taken: set[str],
) -> list[NodeProto]:
    """Returns the nodes of a branch in the place of its If, and adds its initializers to ``graph``.

    Args:
        node: The If.
        body: The branch.
        graph: The graph that has the If.
        conditions: Known constants; those of the branch are entered.
        taken: Names in use; those of the branch are entered.
    """
    local = [t.name for t in body.initializer] + [o for n in body.node for o in n.output if o]
    names: dict[str, str] = {}
    for name in local:
        fresh = name
        while fresh in taken:
            fresh += "_"
        names[name] = fresh
        taken.add(fresh)
    for tensor in body.initializer:
        copy = graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = names[tensor.name]
        conditions[copy.name] = copy
    nodes: list[NodeProto] = []
    for child in body.node:
        copy = NodeProto()
        copy.CopyFrom(child)
        _rename(copy, names)
        nodes.append(copy)
        if copy.op_type == "Constant":
            _note_constant(copy, conditions)
    for inner, outer in zip(body.output, node.output, strict=False):
        source = names.get(inner.name, inner.name)
        # A branch may give an outer value, or one value twice, so its results cannot just be
        # renamed.
        nodes.append(helper.make_node("Identity", [source], [outer], node.name))
    return nodes


def _rename(node: NodeProto, names: dict[str, str]) -> None:
    for field in (node.input, node.output):
        for index, name in enumerate(field):
            field[index] = names.get(name, name)
    for body in subgraphs(node):
        inner = {v.name for v in body.input} | {t.name for t in body.initializer}
        inner |= {o for child in body.node for o in child.output}
        # What a body defines itself hides the outer name.
        outer = {old: new for old, new in names.items() if old not in inner}
        for child in body.node:
            _rename(child, outer)
        for output in body.output:
            output.name = outer.get(output.name, output.name)


def _take_equal_branches(model: ModelProto, folder: Path, text_of: TextOf) -> None:
    """Replaces every If of the main graph whose branches are equal by the nodes of one of them."""
    graph = model.graph
    compared: set[str] = set()  # first results; each If is read once, and those inside it with it
    for _ in range(_PASSES):
        if all(node.op_type != "If" or node.output[0] in compared for node in graph.node):
            break
        outer = _OuterNames(model, folder, compared)
        nodes: list[NodeProto] = []
        changed = False
        for node in graph.node:
            body = outer.common_body(node, text_of) if node.op_type == "If" else None
            if body is None:
                nodes.append(node)
                continue
            taken = _inlined(node, body, graph, {}, outer.taken)
            compared.update(inner.output[0] for inner in taken if inner.op_type == "If")
            nodes += taken
            changed = True
        if not changed:
            break
        del graph.node[:]
        graph.node.extend(nodes)
        take_constant_branches(model)  # of an If inside the branch that was taken


class _OuterNames:
    """What the bodies inside a main graph can see of it."""

    def __init__(self, model: ModelProto, folder: Path, compared: set[str]) -> None:
        self.model, self.folder, self.compared = model, folder, compared
        self.types: Mapping[str, TypeAndShape] = infer(model)
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            value = [a.t for a in node.attribute if a.name == "value"]
            if node.op_type == "Constant" and value:
                self.tensors[node.output[0]] = value[0]
        self.computed = _computed(model.graph, self.tensors)
        self.taken = {value.name for value in model.graph.input} | set(self.tensors)
        self.taken |= {name for node in model.graph.node for name in node.output}

    def common_body(self, node: NodeProto, text_of: TextOf) -> GraphProto | None:
        """Returns a branch of ``node``, as it was read, where both mean the same, else None."""
        if node.output[0] in self.compared:
            return None
        branches = [a.g for a in node.attribute if a.name in ("then_branch", "else_branch")]
        if len(branches) != 2:
            return None
        read = sorted(captured_names(node))
        computing = self._computing(read)
        needed = {name for each in computing for name in each.input if name}
        made = {name for each in computing for name in each.output}
        captured = sorted({*read, *needed} - made)
        data = {n: self.tensors[n] for n in captured if n in self.tensors}
        large = {
            name: constant_from_proto(tensor, self.folder, f"tensor '{name}'")
            for name, tensor in data.items()
            if not is_small(tensor)
        }
        small = [
            _rename_tensor_proto(tensor, name) for name, tensor in data.items() if name not in large
        ]
        running = [name for name in captured if name not in self.tensors]
        # Nobody knows what they are: without a type a branch is no graph.
        if any(name not in self.types for name in running):
            return None
        inputs = [helper.make_tensor_value_info(name, *self.types[name]) for name in running]
        inputs += [
            helper.make_tensor_value_info(name, data[name].data_type, list(data[name].dims))
            for name in large
        ]
        if all(self.types[name][1] is not None for name in running):
            self.compared.add(node.output[0])  # another If may say a rank later
        models = [self._model(body, inputs, small, computing) for body in branches]
        try:
            texts = {text_of(model, large) for model in models}
        except QdqBridgeError:  # a body that cannot be read by itself is kept as it is
            return None
        return _own(models[0].graph, data, made) if len(texts) == 1 else None

    def _computing(self, names: Collection[str]) -> list[NodeProto]:
        """Returns the nodes, in order, that compute some of these tensors from constants alone."""
        wanted = {name for name in names if name in self.computed}
        found: list[NodeProto] = []
        for node in reversed([*{id(n): n for n in self.computed.values()}.values()]):
            if wanted & set(node.output):
                found.append(node)
                wanted |= {name for name in node.input if name in self.computed}
        return found[::-1]

    def _model(
        self,
        body: GraphProto,
        inputs: Sequence[onnx.ValueInfoProto],
        constants: Sequence[TensorProto],
        computing: Sequence[NodeProto],
    ) -> ModelProto:
        graph = GraphProto(name=body.name or "branch", output=body.output)
        graph.node.extend((*computing, *body.node))
        graph.input.extend(inputs)
        graph.initializer.extend((*body.initializer, *constants))
        graph.value_info.extend(body.value_info)
        imports = self.model.opset_import
        return ModelProto(ir_version=self.model.ir_version, graph=graph, opset_import=imports)


def _computed(graph: GraphProto, tensors: Collection[str]) -> dict[str, NodeProto]:
    """Returns the nodes that read constants alone, of one or more, by their results."""
    found: dict[str, NodeProto] = {}
    for node in graph.node:
        read = [name for name in node.input if name]
        known = all(name in tensors or name in found for name in read)
        if read and known and not any(True for _ in subgraphs(node)):
            found |= {name: node for name in node.output if name}
    return found


def _own(graph: GraphProto, captured: Collection[str], made: set[str]) -> GraphProto:
    """Returns a body without the constants that it captures, and what computes some."""
    nodes = [node for node in graph.node if not made & set(node.output)]
    del graph.node[:]
    graph.node.extend(nodes)
    kept = [tensor for tensor in graph.initializer if tensor.name not in captured]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return graph


def _rename_tensor_proto(tensor: TensorProto, name: str) -> TensorProto:
    if tensor.name == name:
        return tensor
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy
