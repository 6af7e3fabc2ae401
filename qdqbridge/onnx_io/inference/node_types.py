"""Element types and shapes of one node's results, by ONNX's own inference for its operator.

Nothing that a file declares about results is looked at: a node is typed by what it reads. Nodes
without bodies are inferred alone, from types whose extents are never negative, so that nothing in
a file can make ONNX's inference abort, nor take memory (see
:mod:`~qdqbridge.onnx_io.inference.guarded`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper

from qdqbridge.core.graph.symbols import dim_name, name_in_files
from qdqbridge.core.graph.types import Dim, NestedType
from qdqbridge.onnx_io.codecs.schema import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import forget_shape
from qdqbridge.onnx_io.domains import ONNX_DOMAINS, plain_domain
from qdqbridge.onnx_io.inference.dropped_windows import without_dropped_windows
from qdqbridge.onnx_io.inference.guarded import guarded_inference, with_known_bodies
from qdqbridge.onnx_io.inference.runtime_types import attention_extents, kept_extents, runtime_types
from qdqbridge.onnx_io.inference.shapes import TypeAndShape, infer, is_small, loop_results
from qdqbridge.onnx_io.reading.structure import all_nodes, captured_names, subgraphs, whole_results
from qdqbridge.onnx_io.tensors import dtype_of, dtype_to_onnx

log = logging.getLogger(__name__)

Extents: TypeAlias = "tuple[Dim | None, ...]"
"""The shape of a result, None for each extent that does not follow."""

_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
_SHAPED_AS_INPUT = ("Gelu", "QuickGelu", "RotaryEmbedding", "MoE", "QMoE")
_NORMS = ("LayerNormalization", "SimplifiedLayerNormalization")
_NO_EXTENT = 1 << 63
"""The first number that no file can say of a shape."""
"""Those of onnxruntime, which it has at every opset."""
_FAILURES = (onnx.shape_inference.InferenceError, RuntimeError, ValueError, MemoryError)
"""What onnx raises of a node whose results it cannot tell; they stay unknown."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """What is known about a result.

    Attributes:
        proto: ONNX's type, empty where nothing is known.
        shape: Its extents; None where even the rank is unknown, or the result is not a tensor.
    """

    proto: TypeProto
    shape: Extents | None

    @property
    def element(self) -> int:
        """ONNX's number of the element type, 0 where that is unknown or there is no tensor."""
        return self.proto.tensor_type.elem_type


UNKNOWN = Inferred(TypeProto(), None)
_Key: TypeAlias = "tuple[Any, ...]"


class NodeTypes:
    """Infers the types of results, node by node.

    Args:
        opsets: The versions of the model's domains.
        opset: That of ONNX's own domain.
        ir_version: The model's.
    """

    def __init__(self, opsets: Mapping[str, int], opset: int, ir_version: int) -> None:
        self.opset, self.ir_version = opset, ir_version
        self.imports = [helper.make_opsetid(domain, opsets[domain]) for domain in opsets]
        self.imports = [
            e for e in self.imports if e.domain not in ONNX_DOMAINS and abs(e.version) < 1 << 31
        ]  # the inference of a node takes no larger ones
        self.imports.append(helper.make_opsetid("", opset))
        self._known: dict[_Key, list[Inferred]] = {}

    def results(
        self,
        proto: NodeProto,
        operands: Sequence[TypeProto | None],
        data: Mapping[int, NDArray[Any]],
        captured: Mapping[str, TypeProto],
    ) -> list[Inferred]:
        """Returns what is known about the results of a node, one entry per output.

        Args:
            proto: The node.
            operands: The types of its operands, None where one is left out.
            data: Operands that are known to be small constants, by index.
            captured: The types of what its bodies read from outside.
        """
        contrib = proto.domain not in ONNX_DOMAINS
        if proto.op_type in _CONVERSIONS or (contrib and proto.op_type in _SHAPED_AS_INPUT):
            return [_shaped_as_input(proto, operands)]
        if any(True for _ in subgraphs(proto)):
            whole = _without_declared(proto)
            found = self._alone(whole, operands, data, captured)
            if proto.op_type == "Loop" and not contrib:
                known = [*map(_inferred_of, self._looped(whole, operands, data, captured))]
                known += found[len(known) :]
                found = [b if b.shape else a for a, b in zip(found, known, strict=False)]
            return found[: len(proto.output)]
        key = _key(proto, operands, data)
        if key not in self._known:
            self._known[key] = self._inferred(proto, operands, data)
        return self._known[key]

    def _inferred(
        self,
        proto: NodeProto,
        operands: Sequence[TypeProto | None],
        data: Mapping[int, NDArray[Any]],
    ) -> list[Inferred]:
        domain = plain_domain(proto.domain)
        versions = {entry.domain: entry.version for entry in self.imports}
        schema = schema_of(proto.op_type, domain, versions.get(domain, 1))
        if schema is None and not domain and proto.op_type in _NORMS and len(proto.output) == 1:
            return [_shaped_as_input(proto, operands)]
        if schema is None:
            version = versions.get(domain, 1)
            found = map(_inferred_of, runtime_types(_renamed(proto), version, operands, data))
            known = kept_extents(proto, operands)
            return [replace(r, shape=r.shape or e) for r, e in zip(found, known, strict=True)]
        if not schema.has_type_and_shape_inference_function:  # then its body is looked at
            return self._alone(proto, operands, data, {})
        node = without_dropped_windows(_renamed(proto), _sizes(operands))
        types = {f"in_{i}": type_ for i, type_ in enumerate(operands) if type_ is not None}
        tensors = {f"in_{i}": numpy_helper.from_array(array) for i, array in data.items()}
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, types, tensors, opset_imports=self.imports
            )
        except onnx.checker.ValidationError:  # element types that this version does not take yet
            return self._alone(proto, operands, data, {})
        except _FAILURES as error:
            log.debug("%s: inference stopped: %s", proto.op_type, error)
            return _only_types(schema, len(proto.output))
        results = [_inferred_of(found.get(f"out_{i}")) for i in range(len(proto.output))]
        if proto.op_type == "Attention" and not domain:
            known = attention_extents(proto, operands)
            results = [replace(r, shape=e or r.shape) for r, e in zip(results, known, strict=False)]
        return results

    def _alone(
        self,
        proto: NodeProto,
        operands: Sequence[TypeProto | None],
        data: Mapping[int, NDArray[Any]],
        captured: Mapping[str, TypeProto],
    ) -> list[Inferred]:
        """Infers a node as a model of its own, under the guards for whole models."""
        known_to_onnx, more = with_known_bodies(proto)
        graph = onnx.GraphProto(name="node", node=[known_to_onnx], input=more)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in proto.output if name)
        types = dict(zip(proto.input, operands, strict=True)) | dict(captured)
        constants = {proto.input[index]: array for index, array in data.items()}
        for name, type_ in types.items():
            if name in constants:
                graph.initializer.append(numpy_helper.from_array(constants[name], name))
            elif name:
                graph.input.append(onnx.ValueInfoProto(name=name, type=type_))
        model = onnx.ModelProto(ir_version=self.ir_version, graph=graph, opset_import=self.imports)
        try:
            known = {value.name: value.type for value in guarded_inference(model).graph.output}
        except _FAILURES as error:
            log.debug("%s: inference stopped: %s", proto.op_type, error)
            known = {}
        return [_inferred_of(known.get(name)) for name in proto.output]

    def _looped(
        self,
        proto: NodeProto,
        operands: Sequence[TypeProto | None],
        data: Mapping[int, NDArray[Any]],
        captured: Mapping[str, TypeProto],
    ) -> list[TypeProto]:
        """Infers what a Loop's body makes, as a model of its own."""
        known_to_onnx, more = with_known_bodies(proto)
        body = next(subgraphs(known_to_onnx))
        given, made = len(body.input), len(body.output)
        if not 2 <= given == len(operands) <= made + 1:
            return []  # a damaged file; whoever needs the body says so
        outside = [onnx.ValueInfoProto(name=name, type=type_) for name, type_ in captured.items()]

        def infer(inputs: Sequence[TypeProto]) -> Sequence[TypeProto]:
            graph = onnx.GraphProto()
            graph.CopyFrom(body)
            for value, type_ in zip(graph.input, inputs, strict=True):
                value.type.CopyFrom(type_)
            graph.input.extend([*more, *outside])
            model = onnx.ModelProto(
                ir_version=self.ir_version, graph=graph, opset_import=self.imports
            )
            try:
                return [value.type for value in guarded_inference(model).graph.output]
            except _FAILURES as error:
                log.debug("body of a Loop: inference stopped: %s", error)
                return [TypeProto() for _ in body.output]

        return loop_results(body, operands, data, infer)


def tensor_type(element: int, shape: Sequence[Dim | None] | None) -> TypeProto:
    """Returns the type of a tensor; what is no extent (below 0, beyond int64) is left open."""
    proto = TypeProto()
    proto.tensor_type.elem_type = element
    if shape is not None:
        proto.tensor_type.shape.SetInParent()
        for dim in shape:
            extent = proto.tensor_type.shape.dim.add()
            if isinstance(dim, int) and 0 <= dim < _NO_EXTENT:
                extent.dim_value = dim
            elif isinstance(dim, str):
                extent.dim_param = dim
    return proto


def nested_type(proto: TypeProto, where: str) -> NestedType | None:
    """Returns the type of a sequence or an optional of tensors; None for any other."""
    layers: list[str] = []
    while (kind := proto.WhichOneof("value")) in ("sequence_type", "optional_type"):
        layers.append(kind.removesuffix("_type"))
        proto = getattr(proto, kind).elem_type
    if not layers or kind != "tensor_type" or not proto.tensor_type.elem_type:
        return None
    return NestedType(dtype_of(proto.tensor_type.elem_type, where), None, tuple(layers))


def nested_proto(type_: NestedType) -> TypeProto:
    """Returns ONNX's type of a sequence or an optional."""
    proto = tensor_type(dtype_to_onnx(type_.dtype), None)
    for layer in reversed(type_.layers):
        outer = TypeProto()
        getattr(outer, f"{layer}_type").elem_type.CopyFrom(proto)
        proto = outer
    return proto


def _inferred_of(proto: TypeProto | None) -> Inferred:
    if proto is None:
        return UNKNOWN
    tensor = proto.tensor_type
    if proto.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return Inferred(proto, None)
    extents = tuple(
        int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0
        else dim.dim_param or None
        for dim in tensor.shape.dim
    )  # fmt: skip
    return Inferred(proto, extents)


def _shaped_as_input(proto: NodeProto, operands: Sequence[TypeProto | None]) -> Inferred:
    """Returns the type of what never changes a shape, in any domain and opset."""
    first = operands[0]
    if first is None:
        return UNKNOWN
    given = {a.name: a.i for a in proto.attribute}
    element = first.tensor_type.elem_type
    if proto.op_type == "QuantizeLinear":
        zero_point = operands[2] if len(operands) > 2 else None
        element = TensorProto.UINT8 if zero_point is None else zero_point.tensor_type.elem_type
    elif proto.op_type == "DequantizeLinear" and operands[1] is not None:
        element = operands[1].tensor_type.elem_type
    element = given.get("output_dtype", 0) or element
    known = TypeProto()
    known.CopyFrom(first)
    known.tensor_type.elem_type = element
    return _inferred_of(known)


def _only_types(schema: Any, count: int) -> list[Inferred]:
    """Returns what an operator says of its results whatever it reads: one element type, or none."""
    found = [UNKNOWN] * count
    for index, formal in enumerate(schema.outputs[:count]):
        if len(formal.types) == 1:
            (text,) = formal.types
            found[index] = Inferred(_type_of(text), None)
    return found


def _type_of(text: str) -> TypeProto:
    """Returns a type of tensors that a schema names (``tensor(int64)``), empty for others."""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    known = name in TensorProto.DataType.keys()  # noqa: SIM118
    return tensor_type(TensorProto.DataType.Value(name), None) if known else TypeProto()


def _renamed(proto: NodeProto) -> NodeProto:
    node = NodeProto(op_type=proto.op_type, domain=proto.domain, attribute=proto.attribute)
    for attribute in node.attribute:
        if (node.op_type, attribute.name) == ("Squeeze", "axes"):
            attribute.ints.sort()  # the inference of opset 1 takes them to be in order
    node.input.extend(f"in_{i}" if name else "" for i, name in enumerate(proto.input))
    node.output.extend(f"out_{i}" if name else "" for i, name in enumerate(proto.output))
    return node


def _sizes(operands: Sequence[TypeProto | None]) -> list[int]:
    first = operands[0] if operands else None
    return [] if first is None else [dim.dim_value for dim in first.tensor_type.shape.dim[2:]]


def _key(
    proto: NodeProto, operands: Sequence[TypeProto | None], data: Mapping[int, NDArray[Any]]
) -> _Key:
    return (
        proto.op_type,
        proto.domain,
        tuple(bool(name) for name in proto.output),
        tuple(attribute.SerializeToString() for attribute in proto.attribute),
        tuple(None if type_ is None else type_.SerializeToString() for type_ in operands),
        tuple((i, a.dtype.str, a.shape, a.tobytes()) for i, a in data.items()),
    )


def _without_declared(proto: NodeProto) -> NodeProto:
    """Returns a copy of a node that leaves out no result, and whose bodies declare no shapes."""
    copy = NodeProto()
    copy.CopyFrom(proto)
    copy.output[:] = whole_results(proto)
    for graph in _bodies(copy):
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            forget_shape(value)
    return copy


def _bodies(proto: NodeProto) -> Iterator[onnx.GraphProto]:
    for graph in subgraphs(proto):
        yield graph
        for node in graph.node:
            yield from _bodies(node)


__all__ = [
    "UNKNOWN",
    "Extents",
    "Inferred",
    "NodeTypes",
    "nested_proto",
    "nested_type",
    "tensor_type",
]


# ---- Types and shapes of results of nodes that come one after the other, without beginning anew
#
# ONNX infers whole models. What is new becomes a model of its own, whose inputs are what it reads
# of what came before, with the types that are known; nodes that compute shapes are taken along,
# for their results are known as numbers only together with what reads them. A model with
# sequences or optional values is inferred anew as a whole: what is found are types of tensors
# alone.

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
