"""The element types of the tensors in a node's bodies, as far as they follow from its operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto
from onnx.defs import OpSchema

from qdqbridge.onnx_io.codecs.schema import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies

NAMING = ("to", "dtype", "output_dtype", "stash_type")
"""Attributes that are an element type."""
_VARIADIC = OpSchema.FormalParameterOption.Variadic


class ElementTypes:
    """Types as ONNX's schemas write them: ``tensor(float)``.

    Args:
        node: A node whose bodies give every tensor a name of its own.
        opset: ONNX's, which it is written in.
        outer: The types of what it and its bodies read from outside, by name.
    """

    def __init__(self, node: NodeProto, opset: int, outer: Mapping[str, str]) -> None:
        self._opset = opset
        self._known = dict(outer)
        self._enter(node)

    def of(self, name: str) -> tuple[str, ...]:
        """Returns the type of a tensor, nothing where it is not known."""
        return (self._known[name],) if name in self._known else ()

    def _enter(self, node: NodeProto) -> None:
        for attribute in node.attribute:
            for body in bodies(attribute):
                self._known |= {name: _tensor(code) for name, code in _declared(body) if code}
                for inner in body.node:
                    self._enter(inner)
                    self._known |= self._results(inner)

    def _results(self, node: NodeProto) -> dict[str, str]:
        schema = schema_of(node.op_type, "", self._opset)
        if schema is None:
            return {}
        bound: dict[str, str] = {}
        for name, formal in zip(node.input, along(schema.inputs, len(node.input)), strict=False):
            if name in self._known and formal.is_homogeneous:
                bound[formal.type_str] = self._known[name]
        named = [_tensor(code) for code in named_types(node)]
        found: dict[str, str] = {}
        for name, formal in zip(node.output, along(schema.outputs, len(node.output)), strict=False):
            types = sorted(formal.types)
            if not formal.is_homogeneous:
                continue
            if formal.type_str in bound:
                found[name] = bound[formal.type_str]
            elif len(types) == 1:
                found[name] = types[0]
            elif len(named) == 1 and named[0] in types:
                found[name] = named[0]
        return found


def along(formals: Sequence[Any], count: int) -> list[Any]:
    """Returns the formal parameter of each of so many operands or results."""
    last = [formals[-1]] if formals and formals[-1].option == _VARIADIC else []
    return [*formals, *last * max(count - len(formals), 0)][:count]


def named_types(node: NodeProto) -> Iterator[int]:
    """Yields the element types that a node's own attributes name, as ONNX's numbers."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.INT and attribute.name in NAMING:
            yield attribute.i
        elif attribute.type == AttributeProto.TENSOR:
            yield attribute.t.data_type
        elif attribute.type in (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS):
            yield attribute.sparse_tensor.values.data_type


def _declared(body: GraphProto) -> Iterator[tuple[str, int]]:
    for value in (*body.input, *body.value_info):
        yield value.name, value.type.tensor_type.elem_type
    for tensor in body.initializer:
        yield tensor.name, tensor.data_type
    for sparse in body.sparse_initializer:
        yield sparse.values.name, sparse.values.data_type


def _tensor(code: int) -> str:
    return f"tensor({TensorProto.DataType.Name(code).lower()})"
