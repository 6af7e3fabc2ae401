"""Types and shapes of results of nodes that come one after the other, without beginning anew.

ONNX infers whole models. What is new becomes a model of its own, whose inputs are what it reads of
what came before, with the types that are known; nodes that compute shapes are taken along, for
their results are known as numbers only together with what reads them. A model with sequences or
optional values is inferred anew as a whole: what is found are types of tensors alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from qdqbridge.core.graph.symbols import dim_name, name_in_files
from qdqbridge.onnx_io.inference.shapes import TypeAndShape, infer, is_small
from qdqbridge.onnx_io.reading.structure import all_nodes, captured_names

_INTEGERS = (TensorProto.INT64, TensorProto.INT32)
_UNKNOWN: TypeAndShape = (0, None)
_ALONG, _FEW = 256, 256
"""Nodes that are taken along with a part at most, and elements of a constant among them."""
_OTHER_THAN_TENSORS = ("Sequence", "SplitToSequence", "Optional")
"""How operators begin that make other values than tensors."""


class GrowingTypes:
    """Types of the nodes that were taken so far.

    Args:
        model: Whose inputs, declared types and opsets hold.

    Attributes:
        found: ``name -> (ONNX element type, shape)`` for what inference can tell.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.found: dict[str, TypeAndShape] = {}
        self._makers: dict[str, int] = {}
        self._declared = {value.name: value for value in model.graph.value_info}
        self._taken, self._begun, self._whole = 0, False, False

    def take(
        self, nodes: Sequence[onnx.NodeProto], initializers: Mapping[str, TensorProto]
    ) -> None:
        """Infers the types of nodes behind those that were taken before.

        Args:
            nodes: All nodes, in a topological order.
            initializers: All constants by name.
        """
        new = range(self._taken, len(nodes))
        if self._begun and not new:
            return
        self._makers.update((name, index) for index in new for name in nodes[index].output if name)
        if not self._begun:
            self._whole = any(_is_other(value) for value in self.model.graph.input)
        self._whole |= any(
            node.op_type.startswith(_OTHER_THAN_TENSORS)
            for node in all_nodes(nodes[index] for index in new)
        )
        part = onnx.ModelProto(ir_version=self.model.ir_version)
        part.opset_import.extend(self.model.opset_import)
        part.graph.name = "part"
        if self._whole or not self._begun:
            part.graph.input.extend(self.model.graph.input)
            part.graph.value_info.extend(self.model.graph.value_info)
            part.graph.node.extend(nodes)
            self._declare(part.graph, initializers)
            self.found.update(infer(part))
        else:
            part.graph.node.extend(nodes[index] for index in self._shape_makers(nodes, new))
            part.graph.node.extend(nodes[index] for index in new)
            names = [name for index in new for name in nodes[index].output]
            part.graph.value_info.extend(
                self._declared[name] for name in names if name in self._declared
            )
            self._declare(part.graph, initializers)
            found, given = infer(part), _names(part.graph.input)
            for name in names:
                if found.get(name, _UNKNOWN) != _UNKNOWN:
                    self.found[name] = self._renamed(found[name], given)
        self._taken, self._begun = len(nodes), True

    def forget(self, nodes: Sequence[onnx.NodeProto], count: int) -> None:
        """Forgets what was found of the results of all nodes but the first ones.

        Args:
            nodes: All nodes.
            count: How many stay.
        """
        for node in nodes[count:]:
            for name in node.output:
                self.found.pop(name, None)
        self._taken = min(self._taken, count)

    def _shape_makers(self, nodes: Sequence[onnx.NodeProto], new: range) -> list[int]:
        """Returns the places of the nodes before the new ones that compute shapes for these."""
        found: set[int] = set()
        pending = [name for index in new for name in _operands(nodes[index])]
        while pending and len(found) < _ALONG:
            name = pending.pop()
            index = self._makers.get(name, new.start)
            if index >= new.start or index in found or name not in nodes[index].output:
                continue
            if self._tells_extents(name, nodes[index]):
                found.add(index)
                pending.extend(_operands(nodes[index]))
        return sorted(found)

    def _tells_extents(self, name: str, maker: onnx.NodeProto) -> bool:
        """Returns whether extents may be computed from a value: from few integers, or a constant.

        Resize and Range look at constants of floats, too.
        """
        element, shape = self.found.get(name, _UNKNOWN)
        if shape is None:
            return False
        if maker.op_type == "Constant":
            return math.prod(e if isinstance(e, int) else _FEW for e in shape) <= _FEW
        return element in _INTEGERS and len(shape) < 2

    def _declare(self, graph: onnx.GraphProto, initializers: Mapping[str, TensorProto]) -> None:
        """Declares what the nodes of a part read: constants, and results of nodes before."""
        listed = {value.name for value in graph.input}  # before IR 4, constants too
        made = {name for node in graph.node for name in node.output}
        for name in {name: None for node in graph.node for name in _operands(node)}:
            tensor = initializers.get(name)
            element, shape = self.found.get(name, _UNKNOWN)
            if name in made:
                continue
            if tensor is not None and is_small(tensor):
                graph.initializer.append(tensor)
            elif name in listed:
                continue
            elif tensor is not None:
                graph.input.append(
                    helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
                )
            elif element:
                dims = None if shape is None else [name_in_files(dim) for dim in shape]
                graph.input.append(helper.make_tensor_value_info(name, element, dims))

    def _renamed(self, found: TypeAndShape, given: set[str]) -> TypeAndShape:
        """Returns a type in which an extent that ONNX has named has a name of this part alone."""
        element, shape = found
        if shape is None:
            return found
        return element, tuple(
            dim if isinstance(dim, int) or dim in given or dim.startswith("?")
            else f"{dim}.{self._taken}"
            for dim in shape
        )  # fmt: skip


def _operands(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the names that a node reads, those that its bodies take from outside too."""
    yield from (name for name in node.input if name)
    yield from captured_names(node)


def _is_other(value: onnx.ValueInfoProto) -> bool:
    """True for a value that is no tensor; nothing of it is found, so that nobody can declare it."""
    return value.type.WhichOneof("value") not in (None, "tensor_type")


def _names(values: Sequence[onnx.ValueInfoProto]) -> set[str]:
    """Returns the names of declared extents."""
    return {
        dim_name(dim.dim_param)
        for value in values
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    }
