"""An If whose condition is a constant is its branch (done on the file, before shapes are known)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from qdqbridge.onnx_io.structure import describe, subgraphs
from qdqbridge.onnx_io.tensors import constant_from_proto


def take_constant_branches(model: onnx.ModelProto) -> onnx.ModelProto:
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


def _note_constant(node: onnx.NodeProto, conditions: dict[str, onnx.TensorProto]) -> None:
    for attribute in node.attribute:
        if attribute.name == "value":
            conditions[node.output[0]] = attribute.t


def _expand(
    nodes: Sequence[onnx.NodeProto],
    graph: onnx.GraphProto,
    conditions: dict[str, onnx.TensorProto],
    taken: set[str],
) -> list[onnx.NodeProto]:
    result: list[onnx.NodeProto] = []
    pending = list(reversed(nodes))
    while pending:
        node = pending.pop()
        condition = conditions.get(node.input[0]) if node.op_type == "If" and node.input else None
        if condition is None or condition.data_location == onnx.TensorProto.EXTERNAL:
            result.append(node)
            continue
        data = constant_from_proto(condition, None, f"the condition of {describe(node)}")
        value = bool(data.numpy().all())
        name = "then_branch" if value else "else_branch"
        body = next(a.g for a in node.attribute if a.name == name)
        pending.extend(reversed(inlined(node, body, graph, conditions, taken)))
    return result


def inlined(
    node: onnx.NodeProto,
    body: onnx.GraphProto,
    graph: onnx.GraphProto,
    conditions: dict[str, onnx.TensorProto],
    taken: set[str],
) -> list[onnx.NodeProto]:
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
    nodes: list[onnx.NodeProto] = []
    for child in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(child)
        _rename(copy, names)
        nodes.append(copy)
        if copy.op_type == "Constant":
            _note_constant(copy, conditions)
    for inner, outer in zip(body.output, node.output, strict=False):
        source = names.get(inner.name, inner.name)
        nodes.append(onnx.helper.make_node("Identity", [source], [outer], node.name))
    return nodes


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    for field in (node.input, node.output):
        for index, name in enumerate(field):
            field[index] = names.get(name, name)
    for body in subgraphs(node):
        inner = {v.name for v in body.input} | {t.name for t in body.initializer}
        inner |= {o for child in body.node for o in child.output}
        outer = {old: new for old, new in names.items() if old not in inner}
        for child in body.node:
            _rename(child, outer)
        for output in body.output:
            output.name = outer.get(output.name, output.name)
