"""A model file as a runtime sees it: nodes, edges, constants and Q/DQ parameters, by tensor name.

Unlike a :class:`Graph` it keeps how the file writes things, because that decides what a runtime
fuses: whether a zero point is written, the rank of a scale, the domain of an operator.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import Shape
from qdqbridge.onnx_io.inference.shapes import TypeAndShape
from qdqbridge.onnx_io.reading.constants import constant_of_node
from qdqbridge.onnx_io.reading.model_file import default_opset
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, subgraphs
from qdqbridge.onnx_io.tensors import constant_from_proto, dtype_of

if TYPE_CHECKING:
    from qdqbridge.targets.profiles.ort.fusion import DequantizeFeed, QuantizeTarget

Array = NDArray[Any]
_MICROSOFT = "com.microsoft"
_MOST = 1 << 16
"""Elements of a tensor that is computed here; parameters are far smaller."""
_CHEAP = frozenset(
    {
        "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape",
        "DequantizeLinear", "Div", "Equal", "Exp", "Expand", "Flatten", "Floor", "Gather",
        "Greater", "Identity", "Less", "Log", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow",
        "QuantizeLinear", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum",
        "Relu", "Reshape", "Round", "Shape", "Sigmoid", "Sign", "Size", "Slice", "Split", "Sqrt",
        "Squeeze", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip
"""Operators that take a few steps for each element that they read or make, and no more."""


@dataclass(slots=True, eq=False)
class FileNode:
    """One node of the file.

    Attributes:
        op: The operator, with its domain in front where that is not ONNX's own.
        name: The node's name, or its first result where it has none.
        inputs: Tensor names; empty where left out, no trailing empty ones.
        outputs: Tensor names.
        attributes: By name, as Python values.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: onnx.NodeProto

    @property
    def domain(self) -> str:
        """The operator's domain, empty for ONNX's own."""
        return self.op.rpartition("::")[0]

    @property
    def bare(self) -> str:
        """The operator's name without its domain."""
        return self.op.rpartition("::")[2]

    @property
    def output(self) -> str:
        """The first result."""
        return self.outputs[0]

    def input(self, index: int) -> str:
        """Returns the name of an operand, empty where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""


@dataclass(frozen=True, slots=True, eq=False)
class FileEncoding:
    """The parameters of one Q or DQ node as the file has them.

    Attributes:
        dtype: Element type of the stored side; None where it is not known.
        scale: None where it is not constant.
        zero_point: None where it is left out or not constant.
        explicit: True where the node names a zero point.
        axis: The attribute; 1 where it is left out.
        block_size: The attribute; 0 where it is left out.
    """

    node: FileNode
    dtype: DType | None
    scale: Array | None
    zero_point: Array | None
    explicit: bool
    axis: int
    block_size: int

    @property
    def per_tensor(self) -> bool:
        """True where one scale holds for the whole tensor."""
        return self.scale is not None and self.scale.size == 1

    @property
    def symmetric(self) -> bool:
        """True where every zero point is known to be 0."""
        if self.explicit:
            return self.zero_point is not None and not self.zero_point.astype(np.float32).any()
        return True

    def same_mapping(self, other: FileEncoding) -> bool:
        """True where both are per tensor and stand for the same real numbers, bit for bit."""
        if self.scale is None or other.scale is None or not (self.per_tensor and other.per_tensor):
            return False
        if self.dtype is not other.dtype or self.scale.tobytes() != other.scale.tobytes():
            return False
        return self.zero() == other.zero()

    def zero(self) -> int:
        """Returns the zero point of per-tensor parameters."""
        known = self.zero_point is not None and self.zero_point.size == 1
        return int(self.zero_point.reshape(())) if known and self.zero_point is not None else 0


@dataclass(frozen=True, slots=True)
class FloatRegions:
    """Tensors by the products that stand before or behind them.

    Attributes:
        before_integers: Floats that are quantized for a product, no product of floats in between.
        before_mul: Floats that a product of floats reads, nothing quantized in between.
        behind_mul: Whatever depends on a product of floats, no integers cast to floats in between.
    """

    before_integers: frozenset[str]
    before_mul: frozenset[str]
    behind_mul: frozenset[str]


@dataclass(slots=True, eq=False)
class FileView:
    """A whole file, subgraphs included; ``Identity`` nodes are looked through.

    Attributes:
        model: The model, local functions inlined.
        folder: Where its external data lies.
        inferred: Element type and shape by tensor, as far as ONNX's inference knows them.
        nodes: Every node but ``Identity`` and ``Constant``, in the file's order.
        outputs: Names of tensors that leave the graph or a subgraph.
    """

    model: onnx.ModelProto
    folder: Path
    inferred: Mapping[str, TypeAndShape] = field(default_factory=dict[str, "TypeAndShape"])
    nodes: list[FileNode] = field(default_factory=list["FileNode"])
    outputs: set[str] = field(default_factory=set[str])
    _alias: dict[str, str] = field(default_factory=dict[str, str])
    _producers: dict[str, FileNode] = field(default_factory=dict[str, FileNode])
    _consumers: dict[str, list[tuple[FileNode, int]]] = field(
        default_factory=dict[str, "list[tuple[FileNode, int]]"]
    )
    _initializers: dict[str, onnx.TensorProto] = field(default_factory=dict[str, onnx.TensorProto])
    _computed: dict[str, Array | None] = field(default_factory=dict[str, "Array | None"])
    _fixed: dict[str, bool] = field(default_factory=dict[str, bool])
    _folded: dict[str, bool] = field(default_factory=dict[str, bool])
    _types: dict[str, DType] = field(default_factory=dict[str, DType])
    _ranks: dict[str, int] = field(default_factory=dict[str, int])
    _encodings: dict[FileNode, FileEncoding] = field(default_factory=dict[FileNode, FileEncoding])
    known_regions: frozenset[FileNode] | None = None
    known_products: bool | None = None
    known_float_regions: FloatRegions | None = None
    known_targets: dict[str, QuantizeTarget] = field(default_factory=dict[str, "QuantizeTarget"])
    known_feeds: tuple[dict[str, DequantizeFeed | None], dict[str, DequantizeFeed | None]] = field(
        default_factory=lambda: ({}, {})
    )
    known_readers: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        for name, (_, shape) in self.inferred.items():
            if shape is not None:
                self._ranks[name] = len(shape)
        graphs = list(_graphs(self.model.graph))
        for graph in graphs:
            # Before IR 4 every initializer had to be an input as well, and nobody could mean to
            # override it.
            overridable = {i.name for i in graph.input} if self.model.ir_version >= 4 else set()
            for tensor in graph.initializer:
                if tensor.name not in overridable:
                    self._initializers[tensor.name] = tensor
                self._types[tensor.name] = dtype_of(tensor.data_type, tensor.name)
                self._ranks[tensor.name] = len(tensor.dims)
            for value in (*graph.input, *graph.output, *graph.value_info):
                code = value.type.tensor_type.elem_type
                if code:
                    self._types[value.name] = dtype_of(code, value.name)
                if value.type.tensor_type.HasField("shape"):
                    self._ranks[value.name] = len(value.type.tensor_type.shape.dim)
        leaving = {o.name for graph in graphs for o in graph.output}
        for graph in graphs:
            for proto in graph.node:
                self._enter(proto, leaving)
        self.outputs = {self._alias.get(name, name) for name in leaving}

    def _enter(self, proto: onnx.NodeProto, leaving: set[str]) -> None:
        domain = "" if proto.domain in ONNX_DOMAINS else f"{proto.domain}::"
        inputs = [self._alias.get(name, name) for name in proto.input]
        # An empty name at the end says what a shorter list says.
        while inputs and not inputs[-1]:
            inputs.pop()
        if proto.op_type == "Identity" and not domain and proto.output[0] not in leaving:
            self._alias[proto.output[0]] = inputs[0]
            return
        attributes = {
            a.name: onnx.helper.get_attribute_value(a)
            for a in proto.attribute
            if a.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
        }
        name = proto.name or next((o for o in proto.output if o), proto.op_type)
        node = FileNode(
            domain + proto.op_type, name, tuple(inputs), tuple(proto.output), attributes, proto
        )
        for output in filter(None, node.outputs):
            self._producers[output] = node
        if node.op == "Constant":
            return
        self.nodes.append(node)
        # A body that reads a tensor is a reader of it as much as an operand is.
        captured = [name for body in subgraphs(proto) for name in _outer_names(body)]
        for index, operand in enumerate((*node.inputs, *captured)):
            name = self._alias.get(operand, operand)
            self._consumers.setdefault(name, []).append((node, index))

    # ---- edges --------------------------------------------------------------------------------

    @property
    def opset(self) -> int:
        """The opset of ONNX's own domain."""
        return default_opset(self.model)

    def producer(self, tensor: str) -> FileNode | None:
        """Returns the node that computes a tensor."""
        return self._producers.get(tensor)

    def consumers(self, tensor: str) -> list[tuple[FileNode, int]]:
        """Returns the nodes that read a tensor, with the operand's index."""
        return self._consumers.get(tensor, [])

    # ---- constants ----------------------------------------------------------------------------

    def is_constant(self, tensor: str) -> bool:
        """True where only initializers that nobody can override determine a tensor."""
        for node in self._behind(tensor, self._fixed):
            fixed = node.op == "Constant" or bool(node.inputs)
            fixed = fixed and self._all_of(node.inputs, self._fixed)
            self._fixed.update(dict.fromkeys(node.outputs, fixed))
        return self._all_of([tensor], self._fixed)

    def is_folded(self, tensor: str) -> bool:
        """True where a tensor is an initializer once constants are folded, DQ never is."""
        if not self.is_constant(tensor):
            return False
        for node in self._behind(tensor, self._folded):
            folded = not is_dequantize(node) and self._all_of(node.inputs, self._folded)
            self._folded.update(dict.fromkeys(node.outputs, folded))
        return self._all_of([tensor], self._folded)

    def _all_of(self, tensors: Iterable[str], known: Mapping[str, bool]) -> bool:
        """True where each tensor is an initializer or known to be; a cycle never is."""
        return all(t in self._initializers or known.get(t, False) for t in tensors if t)

    def _behind(self, tensor: str, known: Container[str]) -> Iterator[FileNode]:
        """Yields the nodes that make a tensor, each after those it reads; without what is known."""
        seen: set[FileNode] = set()
        stack = [(tensor, False)]
        while stack:
            current, ready = stack.pop()
            node = self.producer(current)
            if node is None or current in self._initializers or current in known:
                continue
            if ready:
                yield node
            elif node not in seen:
                seen.add(node)
                stack.append((current, True))
                stack += [(name, False) for name in node.inputs if name]

    def constant(self, tensor: str) -> Array | None:
        """Returns a small constant, computed where the file writes it as nodes; else None."""
        if not self.is_constant(tensor):
            return None
        for node in self._behind(tensor, self._computed):
            results = self._evaluated(node)
            self._computed.update({name: results.get(name) for name in node.outputs})
        return self._held(tensor)

    def _held(self, tensor: str) -> Array | None:
        """Returns a small initializer, or what was computed before."""
        if tensor in self._initializers and tensor not in self._computed:
            proto = self._initializers[tensor]
            small = np.prod(proto.dims, dtype=np.float64) <= _MOST
            self._computed[tensor] = (
                constant_from_proto(proto, self.folder, tensor).numpy() if small else None
            )
        return self._computed.get(tensor)

    def _evaluated(self, node: FileNode) -> dict[str, Array]:
        """Returns the results of a node whose operands are known, where they are small."""
        if node.op == "Constant":
            return {node.output: constant_of_node(node.proto, self.folder, node.output).numpy()}
        operands = {name: self._held(name) for name in node.inputs if name}
        if node.op not in _CHEAP or any(array is None for array in operands.values()):
            return {}
        for name in filter(None, node.outputs):
            shape = self.inferred.get(name, (0, None))[1]
            extents = [dim if isinstance(dim, int) else np.inf for dim in shape or ()]
            if shape is None or np.prod(extents, dtype=np.float64) > _MOST:
                return {}
        return _by_reference(node, operands, self.opset)

    # ---- types and parameters -----------------------------------------------------------------

    def dtype(self, tensor: str) -> DType | None:
        """Returns the element type of a tensor as far as the file says it."""
        passed: set[str] = set()
        found = None
        while tensor not in passed:  # a cycle has no type
            passed.add(tensor)
            node = self.producer(tensor)
            if tensor in self._types or node is None:
                found = self._types.get(tensor)
            elif is_quantize(node):
                found = self._stored(node)
            elif node.op == "Constant":
                array = self.constant(tensor)
                found = None if array is None else DType.of(array.dtype)
            elif node.op == "Cast":
                found = dtype_of(node.attributes["to"], tensor)
            elif is_dequantize(node):
                tensor = node.input(1)
            elif node.op in SAME_TYPE and node.inputs:
                tensor = node.inputs[0]
            elif node.op == "Where":
                tensor = node.input(1)
        if found is not None:
            self._types.update(dict.fromkeys(passed, found))
        return found

    def rank(self, tensor: str) -> int | None:
        """Returns the number of axes of a tensor as far as the file says it."""
        array = self.constant(tensor)
        return self._ranks.get(tensor) if array is None else array.ndim

    def shape(self, tensor: str) -> Shape:
        """Returns a tensor's shape, as far as it is known."""
        if tensor in self._initializers:
            return tuple(self._initializers[tensor].dims)
        return self.inferred.get(tensor, (None, None))[1]

    def _stored(self, node: FileNode) -> DType:
        if node.input(2):
            return self.dtype(node.input(2)) or DType.UINT8
        code = node.attributes.get("output_dtype", 0)
        return dtype_of(code, node.name) if code else DType.UINT8

    def encoding(self, node: FileNode) -> FileEncoding:
        """Returns the parameters of a Q or DQ node."""
        if node not in self._encodings:
            quantizes = is_quantize(node)
            stored = self._stored(node) if quantizes else self.dtype(node.input(0))
            if stored is None and node.input(2):
                stored = self.dtype(node.input(2))
            self._encodings[node] = FileEncoding(
                node,
                stored,
                self.constant(node.input(1)),
                self.constant(node.input(2)) if node.input(2) else None,
                bool(node.input(2)),
                int(node.attributes.get("axis", 1)),
                int(node.attributes.get("block_size", 0)),
            )
        return self._encodings[node]

    def encodings(self) -> Iterator[FileEncoding]:
        """Yields the parameters of every Q and DQ node that is not folded away as a constant."""
        for node in self.nodes:
            if is_dequantize(node) or (is_quantize(node) and not self.is_constant(node.input(0))):
                yield self.encoding(node)

    def dequantized(self, tensor: str) -> FileEncoding | None:
        """Returns the parameters of the DQ that directly makes a tensor."""
        node = self.producer(tensor)
        return self.encoding(node) if node is not None and is_dequantize(node) else None

    def quantized(self, tensor: str) -> list[FileEncoding]:
        """Returns the parameters of every Q that directly reads a tensor."""
        readers = (node for node, index in self.consumers(tensor) if index == 0)
        return [self.encoding(node) for node in readers if is_quantize(node)]


SAME_TYPE = frozenset(
    {
        "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Split",
        "Expand", "Tile", "Identity", "MaxPool", "Pad", "Clip", "Relu", "Concat", "DepthToSpace",
        "SpaceToDepth", "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Neg", "Abs", "Exp", "Log",
        "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Erf", "Softmax", "ReduceMean", "ReduceSum",
        "ReduceMax", "ReduceMin", "MatMul", "Gemm", "Conv", "ConvTranspose",
    }
)  # fmt: skip
"""Operators whose result has the element type of their first operand."""


def is_quantize(node: FileNode) -> bool:
    """True for QuantizeLinear of either domain."""
    return node.op in ("QuantizeLinear", f"{_MICROSOFT}::QuantizeLinear")


def is_dequantize(node: FileNode) -> bool:
    """True for DequantizeLinear of either domain."""
    return node.op in ("DequantizeLinear", f"{_MICROSOFT}::DequantizeLinear")


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from _graphs(body)


def _outer_names(graph: onnx.GraphProto) -> Iterable[str]:
    own = {t.name for t in (*graph.input, *graph.initializer)}
    own |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in node.input if name}
    read |= {value.name for value in graph.output}
    return sorted(read - own)


def _by_reference(
    node: FileNode, operands: Mapping[str, Array | None], opset: int
) -> dict[str, Array]:
    """Computes one node over small constants; nothing where ONNX's reference cannot."""
    from onnx.reference import ReferenceEvaluator

    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.input[:] = node.inputs
    graph = onnx.helper.make_graph(
        [proto], "cone", [], [onnx.helper.make_empty_tensor_value_info(o) for o in node.outputs]
    )
    graph.input.extend(onnx.helper.make_empty_tensor_value_info(name) for name in operands)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        results = ReferenceEvaluator(model).run(None, dict(operands))
    except Exception:  # the evaluator raises whatever its kernels raise; then nothing is known
        return {}
    return {name: np.asarray(array) for name, array in zip(node.outputs, results, strict=False)}
