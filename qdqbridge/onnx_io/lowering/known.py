"""What is known of a model's tensors while its nodes are being lowered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from qdqbridge.core.graph.types import Shape
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.inference.growing import GrowingTypes
from qdqbridge.onnx_io.inference.shapes import TypeAndShape
from qdqbridge.onnx_io.reading.constants import constant_of_node
from qdqbridge.onnx_io.tensors import constant_from_proto

_CONE = 32
"""Nodes that the computation of a parameter may take."""
_NONE: TypeAndShape = (0, None)


class Known:
    """Constants, types and layouts of a model of which a first part is lowered.

    Args:
        model: The model; its nodes are in a topological order.
        folder: Where its external data lies.
        file: File name, for messages.

    Attributes:
        lowered: The nodes made so far.
        taken: Every tensor name in use.
        layouts: ``name -> (source, perm)`` for tensors that are ``Transpose(source, perm)``.
        variants: How the file writes what makes a tensor, by the tensor's name, for writers.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path, file: str) -> None:
        self.model, self.folder, self.file = model, folder, file
        graph = model.graph
        self.lowered: list[onnx.NodeProto] = []
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self.taken = {value.name for value in graph.input} | set(self.initializers)
        self.taken |= set(self.makers)
        self.layouts: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.variants: dict[str, str] = {}
        self._arrays: dict[str, NDArray[Any] | None] = {}
        self._types = GrowingTypes(model)
        self._places = {id(node): place for place, node in enumerate(graph.node)}

    def fresh(self, hint: str) -> str:
        """Returns a tensor name that nothing has."""
        name, number = hint, 1
        while name in self.taken:
            number += 1
            name = f"{hint}.{number}"
        self.taken.add(name)
        return name

    def add_initializer(self, tensor: onnx.TensorProto) -> None:
        """Enters a constant under its name."""
        self.model.graph.initializer.append(tensor)
        self.initializers[tensor.name] = tensor

    def mark(self) -> tuple[int, int]:
        """Returns how far the file has come, for :meth:`take_back`."""
        return len(self.lowered), len(self.model.graph.initializer)

    def take_back(self, mark: tuple[int, int]) -> None:
        """Forgets the nodes and constants that were made since; their names stay taken."""
        nodes, constants = mark
        self._types.forget(self.lowered, nodes)
        del self.lowered[nodes:]
        for tensor in self.model.graph.initializer[constants:]:
            del self.initializers[tensor.name]
        del self.model.graph.initializer[constants:]

    # ---- constants ----------------------------------------------------------------------------

    def array(self, name: str) -> NDArray[Any] | None:
        """Returns the data of a constant: an initializer, or what a few nodes make of some."""
        if name not in self._arrays:
            self._arrays[name] = self._array(name)
        return self._arrays[name]

    def _array(self, name: str) -> NDArray[Any] | None:
        where = f"{self.file}, initializer '{name}'"
        if name in self.initializers:
            return constant_from_proto(self.initializers[name], self.folder, where).numpy()
        node = self.makers.get(name)
        if node is not None and node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            return constant_of_node(node, self.folder, where).numpy()
        if node is not None and node.op_type == "Reshape" and node.domain in ONNX_DOMAINS:
            return self._reshaped(node)
        cone = self._cone(name)
        return None if cone is None else self._run(cone, name)

    def _reshaped(self, node: onnx.NodeProto) -> NDArray[Any] | None:
        """Returns a constant in another shape; a weight that two nodes share is not copied."""
        data, target = (self.array(name) for name in node.input[:2])
        if data is None or target is None or any(a.name == "allowzero" for a in node.attribute):
            return None
        shape = [data.shape[i] if n == 0 else int(n) for i, n in enumerate(target.reshape(-1))]
        try:
            return data.reshape(shape)
        except ValueError:  # whoever infers its shape says so
            return None

    def is_constant(self, name: str) -> bool:
        """True where only constants determine a tensor."""
        return name in self.initializers or self._cone(name) is not None

    def _cone(self, name: str) -> list[onnx.NodeProto] | None:
        """Returns the nodes behind ``name`` in order; None if an input is among them, or many."""
        cone: list[onnx.NodeProto] = []
        pending = [name]
        while pending:
            current = pending.pop()
            if not current or current in self.initializers:
                continue
            node = self.makers.get(current)
            if node is None or node.domain not in ONNX_DOMAINS or len(cone) == _CONE:
                return None
            cone.append(node)
            pending.extend(node.input)
        unique = {id(node): node for node in cone}
        return sorted(unique.values(), key=lambda node: self._places.get(id(node), 0))

    def _run(self, cone: list[onnx.NodeProto], name: str) -> NDArray[Any] | None:
        used = {operand for node in cone for operand in node.input}
        given = [self.initializers[n] for n in sorted(used) if n in self.initializers]
        tensors = [self._embedded(tensor) for tensor in given]
        graph = onnx.helper.make_graph(cone, "cone", [], [onnx.ValueInfoProto(name=name)], tensors)
        model = onnx.helper.make_model(graph, opset_imports=list(self.model.opset_import))
        try:
            results: Any = ReferenceEvaluator(model).run(None, {})
            return np.asarray(results[0])
        except Exception:  # the evaluator raises whatever its operators meet
            return None

    def _embedded(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return tensor
        array = self.array(tensor.name)
        return tensor if array is None else onnx.numpy_helper.from_array(array, tensor.name)

    # ---- types --------------------------------------------------------------------------------

    def element_type(self, name: str) -> int:
        """Returns ONNX's number of a tensor's element type, 0 where unknown."""
        return self._type(name)[0]

    def rank(self, name: str) -> int | None:
        """Returns a tensor's rank, None where unknown."""
        shape = self._type(name)[1]
        return None if shape is None else len(shape)

    def shape(self, name: str) -> Shape:
        """Returns a tensor's shape, None where unknown."""
        return self._type(name)[1]

    def _type(self, name: str) -> TypeAndShape:
        if name in self.initializers:
            tensor = self.initializers[name]
            return tensor.data_type, tuple(tensor.dims)
        if name not in self._types.found:
            self._types.take(self.lowered, self.initializers)
        return self._types.found.get(name, _NONE)
