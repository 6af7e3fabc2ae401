"""One form of what the body of an If, Loop or Scan says in several.

Constants are initializers, nothing is copied or computed that nobody reads, and nodes stand in the
order in which the results ask for them: what optimizers of other projects change in passing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnx import GraphProto, NodeProto

from qdqbridge.onnx_io.control_flow.subgraph_names import bodies, rename_inside
from qdqbridge.onnx_io.reading.constants import constant_of_node, is_constant
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, captured_names
from qdqbridge.onnx_io.tensors import constant_from_proto, proto_from_constant


def with_plain_bodies(node: NodeProto, where: str) -> NodeProto:
    """Returns a node whose bodies have their one form; the node itself if it has none.

    Args:
        node: A node that holds all its data.
        where: What it is, for messages.
    """
    if not any(bodies(attribute) for attribute in node.attribute):
        return node
    plain = NodeProto()
    plain.CopyFrom(node)
    for attribute in plain.attribute:
        for body in bodies(attribute):
            _make_plain(body, where)
    return plain


def _make_plain(body: GraphProto, where: str) -> None:
    for node in body.node:
        for attribute in node.attribute:
            for inner in bodies(attribute):
                _make_plain(inner, where)
    _gather_constants(body, where)
    _leave_out_copies(body)
    nodes, read = _needed(body)
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del body.node[:]
    body.node.extend(nodes)
    tensors = {tensor.name: tensor for tensor in body.initializer}
    used = [
        proto_from_constant(name, constant_from_proto(tensors[name], Path(), where))
        for name in read
        if name in tensors
    ]
    del body.initializer[:]
    body.initializer.extend(used)


def _gather_constants(body: GraphProto, where: str) -> None:
    kept: list[NodeProto] = []
    for node in body.node:
        sparse = any(attribute.name == "sparse_value" for attribute in node.attribute)
        if is_constant(node) and not sparse:
            constant = constant_of_node(node, Path(), where)
            body.initializer.append(proto_from_constant(node.output[0], constant))
        else:
            kept.append(node)
    if len(kept) < len(body.node):
        kept = [NodeProto.FromString(node.SerializeToString()) for node in kept]
        del body.node[:]
        body.node.extend(kept)


def _leave_out_copies(body: GraphProto) -> None:
    """Gives the operand of an Identity the name of its result, or its readers the operand's."""
    for index in reversed(range(len(body.node))):
        node = body.node[index]
        if node.op_type != "Identity" or node.domain not in ONNX_DOMAINS:
            continue
        source, copy = node.input[0], node.output[0]
        results = {value.name for value in body.output}
        made = {name for each in body.node for name in each.output}
        if copy in results and (source in results or source not in made):
            continue
        del body.node[index]
        rename_inside(body, {source: copy} if copy in results else {copy: source})


def _needed(body: GraphProto) -> tuple[list[NodeProto], Mapping[str, None]]:
    """Returns the nodes that a body's results need, operands first, and all that is read."""
    makers = {name: i for i, node in enumerate(body.node) for name in node.output if name}
    order: list[NodeProto] = []
    read: dict[str, None] = {}
    opened, done = set[int](), set[int]()
    stack = [(value.name, False) for value in reversed(body.output)]
    while stack:
        name, ready = stack.pop()
        read.setdefault(name)
        index = makers.get(name)
        if index is None or index in done:
            continue
        node = body.node[index]
        if ready:
            done.add(index)
            order.append(node)
            continue
        if index in opened:
            continue  # a circle, which somebody else refuses
        opened.add(index)
        stack.append((name, True))
        operands = [*(each for each in node.input if each), *captured_names(node)]
        stack += [(each, False) for each in reversed(operands)]
    return order, read
