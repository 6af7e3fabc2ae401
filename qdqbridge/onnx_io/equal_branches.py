"""An If whose two branches have one text form is its branch, whatever its condition.

Each body is read as a graph of its own: what it captures from outside is a constant or an input of
that graph. So two branches are equal where they mean the same, however each of them is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from qdqbridge.errors import QdqBridgeError
from qdqbridge.graph.constant import Constant
from qdqbridge.onnx_io.branches import inlined, take_constant_branches
from qdqbridge.onnx_io.shapes import TypeAndShape, infer, is_small
from qdqbridge.onnx_io.structure import captured_names
from qdqbridge.onnx_io.tensors import constant_from_proto

TextOf: TypeAlias = "Callable[[ModelProto, Mapping[str, Constant]], str]"
"""Returns the text form of a model, given the data of those of its inputs that are constants.

What it replaces in the model, an If whose branches are equal say, stays replaced.
"""
_PASSES = 8
"""An If can be looked at where the shapes that it captures are known, from another If perhaps."""


def take_equal_branches(model: ModelProto, folder: Path, text_of: TextOf) -> ModelProto:
    """Replaces every If of the main graph whose branches are equal by the nodes of one of them.

    Args:
        model: The model, changed in place.
        folder: Where external data lies.
        text_of: Reads a branch.
    """
    graph = model.graph
    compared: set[str] = set()  # first results; each If is read once, and those inside it with it
    for _ in range(_PASSES):
        if all(node.op_type != "If" or node.output[0] in compared for node in graph.node):
            break
        scope = _Scope(model, folder, compared)
        nodes: list[NodeProto] = []
        changed = False
        for node in graph.node:
            body = scope.common_body(node, text_of) if node.op_type == "If" else None
            if body is None:
                nodes.append(node)
                continue
            taken = inlined(node, body, graph, {}, scope.taken)
            compared.update(inner.output[0] for inner in taken if inner.op_type == "If")
            nodes += taken
            changed = True
        if not changed:
            break
        del graph.node[:]
        graph.node.extend(nodes)
        take_constant_branches(model)  # of an If inside the branch that was taken
    return model


class _Scope:
    """What the bodies inside a main graph can see of it."""

    def __init__(self, model: ModelProto, folder: Path, compared: set[str]) -> None:
        self.model, self.folder, self.compared = model, folder, compared
        self.types: Mapping[str, TypeAndShape] = infer(model)
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            value = [a.t for a in node.attribute if a.name == "value"]
            if node.op_type == "Constant" and value:
                self.tensors[node.output[0]] = value[0]
        self.taken = {value.name for value in model.graph.input} | set(self.tensors)
        self.taken |= {name for node in model.graph.node for name in node.output}

    def common_body(self, node: NodeProto, text_of: TextOf) -> GraphProto | None:
        """Returns a branch of ``node``, as it was read, where both mean the same, else None."""
        if node.output[0] in self.compared:
            return None
        branches = [a.g for a in node.attribute if a.name in ("then_branch", "else_branch")]
        if len(branches) != 2:
            return None
        captured = sorted(captured_names(node))
        data = {n: self.tensors[n] for n in captured if n in self.tensors}
        large = {
            name: constant_from_proto(tensor, self.folder, f"tensor '{name}'")
            for name, tensor in data.items()
            if not is_small(tensor)
        }
        small = [_named(tensor, name) for name, tensor in data.items() if name not in large]
        running = [name for name in captured if name not in self.tensors]
        if any(name not in self.types or self.types[name][1] is None for name in running):
            return None
        inputs = [helper.make_tensor_value_info(name, *self.types[name]) for name in running]
        inputs += [
            helper.make_tensor_value_info(name, data[name].data_type, list(data[name].dims))
            for name in large
        ]
        self.compared.add(node.output[0])
        models = [self._model(body, inputs, small) for body in branches]
        try:
            texts = {text_of(model, large) for model in models}
        except QdqBridgeError:  # a body that cannot be read by itself is carried as it is
            return None
        return _own(models[0].graph, data) if len(texts) == 1 else None

    def _model(
        self,
        body: GraphProto,
        inputs: Sequence[onnx.ValueInfoProto],
        constants: Sequence[TensorProto],
    ) -> ModelProto:
        graph = GraphProto(name=body.name or "branch", node=body.node, output=body.output)
        graph.input.extend(inputs)
        graph.initializer.extend((*body.initializer, *constants))
        graph.value_info.extend(body.value_info)
        imports = self.model.opset_import
        return ModelProto(ir_version=self.model.ir_version, graph=graph, opset_import=imports)


def _own(graph: GraphProto, captured: Collection[str]) -> GraphProto:
    """Returns a body without the constants that it captures."""
    kept = [tensor for tensor in graph.initializer if tensor.name not in captured]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return graph


def _named(tensor: TensorProto, name: str) -> TensorProto:
    if tensor.name == name:
        return tensor
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy
