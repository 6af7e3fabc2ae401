"""What is going to be written, in plain records: decided before any ONNX library is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import NestedType, QuantParams, QuantType, TensorType
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.file_nodes import FileNodes
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.reading.structure import subgraphs
from qdqbridge.onnx_io.tensors import dtype_to_onnx


@dataclass(slots=True)
class NodeRow:
    """One node of the file.

    Attributes:
        op_type: ONNX's operator.
        inputs: Tensor names; empty where left out.
        outputs: Tensor names; empty where left out.
        attributes: As ``onnx.helper.make_attribute`` takes them.
        name: The node's name.
        metadata: Its ``metadata_props``.
        proto: The finished node, for what is written as it was read.
        domain: The operator's domain.
    """

    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    proto: NodeProto | None = None
    domain: str = ""


@dataclass(slots=True)
class GraphSpec:
    """A whole file: nodes in order, initializers, and the types of tensors by name.

    Attributes:
        inputs: Names of the graph inputs.
        outputs: Names of the graph outputs.
        nodes: In execution order.
        constants: Initializers by name.
        types: Element type and shape of inputs, outputs and intermediate tensors.
        imports: Opset versions by domain.
    """

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[NodeRow] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)


def plain_type(value: Value) -> TensorType:
    """Returns the type of what is stored of a value."""
    if isinstance(value.type, NestedType):
        return value.type
    return TensorType(value.type.dtype, value.type.shape)


def output_type(value: Value) -> TensorType:
    """Returns the type of a graph output: ONNX wants a rank, if only the one that was declared."""
    type_ = plain_type(value)
    if type_.shape is not None or value.declared is None:
        return type_
    return type_.with_shape(tuple(f"?{axis}" for axis in range(len(value.declared))))


# ---- The spec of a graph that is written with the nodes of its file


def form_as_read(graph: Graph) -> FileNodes | None:
    """Returns the file's nodes where they are kept and still mean what the graph says.

    None also where the graph stores quantized activations, or two nodes have one name, which
    onnxruntime refuses: these are written canonically.
    """
    kept = graph.as_read
    if kept is None or not isinstance(kept.form, FileNodes) or not kept.stands_for(graph):
        return None
    names = [node.name for node in kept.form.nodes if node.name]
    if len(set(names)) < len(names) or any(_is_runtime_codes(value) for value in graph.values()):
        return None
    return kept.form


def spec_as_read(graph: Graph, form: FileNodes) -> GraphSpec:
    """Returns the spec of a file's own nodes; the interface is the graph's.

    Args:
        graph: A graph that nobody has changed since it was read.
        form: The file that it was read from.
    """
    types = dict(form.types)
    types.update((value.name, plain_type(value)) for value in graph.inputs)
    named = zip(graph.output_names, graph.outputs, strict=True)
    types.update((name, output_type(value)) for name, value in named)
    return GraphSpec(
        inputs=[value.name for value in graph.inputs],
        outputs=list(graph.output_names),
        nodes=[_copied_node_row(node) for node in form.nodes],
        constants=dict(form.constants),
        types=types,
        imports=dict(form.imports),
    )


def _copied_node_row(node: NodeProto) -> NodeRow:
    proto = NodeProto()
    proto.CopyFrom(node)
    proto.ClearField("metadata_props")
    metadata = tuple((entry.key, entry.value) for entry in node.metadata_props)
    return NodeRow(
        node.op_type, list(node.input), list(node.output), {}, node.name, metadata, proto,
        node.domain,
    )  # fmt: skip


def _is_runtime_codes(value: Value) -> bool:
    """True where a tensor of codes is fed or computed, or something that is no tensor."""
    if isinstance(value.type, NestedType):
        return True
    return value.quant is not None and value.constant is None and not _looked_up(value)


def _looked_up(value: Value) -> bool:
    """True for rows of a constant, as an embedding's, wherever they have been moved since."""
    while value.producer is not None and value.producer.op.flow is Flow.MOVE:
        value = value.producer.operand(0)
    return value.constant is not None


# ---- How a graph is written where ONNX allows to write the same in several ways ------------------


class Clamp(Enum):
    """Where a range narrower than the storage type is written; all give the same integers."""

    BEFORE = "Relu or Clip on the operator's float result, before its QuantizeLinear"
    BEHIND = "between a Q/DQ pair and a second Q: Relu, or Max and Min with stored numbers"
    STORED = "on stored uint8; for other types, on floats between a Q/DQ pair and a second Q"


class Bias(Enum):
    """How a bias is written that has an integer form."""

    AS_READ = "as the file it was read from"
    FLOAT = "as float constant"
    INT32 = "as int32 constant behind a DequantizeLinear"


@dataclass(frozen=True, slots=True)
class Versions:
    """The newest versions that a runtime reads.

    Attributes:
        runtime: The runtime and its version.
        opset: Of ONNX's operators.
        ir: Of the file format.
    """

    runtime: str
    opset: int
    ir: int


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The choices of a writer.

    Attributes:
        clamp: Where narrower ranges are written.
        bias: How biases are written.
        convolvable: Write into floats weights of convolutions that do not fit into int8, and those
            with scales along the terms of a sum.
        apart: Give each tensor a scale and a zero point of its own, also where others have equal
            ones.
        guarded: Put a Max that changes nothing between a Concat and its second rounding.
        clipped: Put a Clip to what the type holds in front of a QuantizeLinear of 16 bits.
        contrib: Write Q and DQ of 16 and 4 bits in ``com.microsoft`` below opset 21.
        packed: Keep the MatMulNBits of a file, and hide from the runtime what it would make one of.
        operators: Use QLinear operators where there is one.
        newest: What the reader knows; newer files are written down to it, or refused.
    """

    clamp: Clamp
    bias: Bias = Bias.AS_READ
    convolvable: bool = False
    apart: bool = False
    guarded: bool = False
    clipped: bool = False
    contrib: bool = False
    packed: bool = False
    operators: bool = False
    newest: Versions | None = None


ONNXRUNTIME_1_31 = Versions("onnxruntime 1.31", opset=26, ir=13)
"""1.32 reads opset 28 and IR 14, and has kernels of opset 27; every older file is read by both."""
ONNXRUNTIME = WriterOptions(Clamp.STORED, packed=True, newest=ONNXRUNTIME_1_31)
"""What onnxruntime's CPU computes fast. 1.31 makes a float FusedConv of a Conv with a clamp right
behind it; with the clamp on integers the Conv is a QLinearConv, and the clamp is integer as well.
On x86 that holds for uint8 only: int8 becomes uint8 where a DQ follows its Q at once."""


# ---- Names for the tensors and nodes of a written file: the old ones where they are free ---------


_QUANTIZED = "_QuantizeLinear_Output"


class Names:
    """Hands out names, each only once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {""} | set(taken)
        self._next: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        """Returns ``wanted`` where it is free, else a numbered one."""
        wanted = wanted.encode("utf-8", "replace").decode()  # protobuf refuses lone surrogates
        name = wanted
        while name in self._taken:
            self._next[wanted] = self._next.get(wanted, 0) + 1
            name = f"{wanted or 'tensor'}_{self._next[wanted]}"
        self._taken.add(name)
        return name


class TensorNames:
    """The name of every value of a graph, and free ones for what stands between them.

    Inputs and outputs keep their interface names. A value whose bits are those of another one
    (``reinterpret``) shares its tensor.

    Attributes:
        free: Hands out further names.
    """

    def __init__(self, graph: Graph) -> None:
        outputs = list(zip(graph.output_names, graph.outputs, strict=True))
        _check_interface(graph.inputs, outputs)
        self._names: dict[Value, str] = {value: value.name for value in graph.inputs}
        self.free = Names([*self._names.values(), *graph.output_names, *_names_inside(graph.nodes)])
        # Before all others: of a tensor with two names it is the interface's that has to stay.
        for name, value in outputs:
            root = tensor_of(value)
            if root.producer is not None and root not in self._names:
                self._names[root] = name
        for value in graph.values():
            root = tensor_of(value)
            if root not in self._names:
                self._names[root] = self.free.take(root.name or _invented(root))

    def adopt(self, value: Value, name: str) -> None:
        """Gives a value that stands between the graph's own a name."""
        self._names[value] = name

    def of(self, value: Value) -> str:
        """Returns the name of the tensor that holds a value's stored elements."""
        return self._names[tensor_of(value)]


def tensor_of(value: Value) -> Value:
    """Returns the value whose tensor also holds ``value``: reinterpreting moves no bits."""
    while value.producer is not None and value.producer.op.flow is Flow.REINTERPRET:
        source = value.producer.operand(0)
        if source.type.dtype is not value.type.dtype:
            raise UnsupportedTargetError(
                f"ONNX cannot reinterpret {source.type.dtype} as {value.type.dtype}",
                where=f"tensor '{value.name}'",
                fix="requantize the tensor instead",
            )
        value = source
    return value


def _invented(value: Value) -> str:
    """Returns a name for a value that a rule made."""
    maker = value.producer
    return "constant" if maker is None else f"{maker.name or maker.op.name}_output"


def real_name(quantized: str) -> str:
    """Returns the name of the float tensor that ``quantized`` is made of (onnxruntime's habit)."""
    stem = quantized.removesuffix(_QUANTIZED)
    return stem if stem and stem != quantized else f"{quantized}_float"


def stem(quantized: str) -> str:
    """Returns what the names of a quantized tensor's neighbours begin with."""
    return quantized.removesuffix(_QUANTIZED) or quantized


def _check_interface(values: Sequence[Value], outputs: Sequence[tuple[str, Value]]) -> None:
    inputs = [value.name for value in values]
    own = {value.name: value for value in values}
    twice = [name for name in inputs if inputs.count(name) > 1] if len(own) < len(inputs) else []
    clash = False  # a name may be that of an input, or stand there twice, for one tensor
    for name, value in outputs:
        clash |= own.setdefault(name, tensor_of(value)) is not tensor_of(value)
    if twice or clash or "" in (*inputs, *(name for name, _ in outputs)):
        raise UnsupportedTargetError(
            "the names of the graph's inputs and outputs are not unique",
            why=f"inputs {inputs}, outputs {[name for name, _ in outputs]}",
            fix="give every input and output a name of its own",
        )


def _names_inside(nodes: Iterable[Node]) -> Iterable[str]:
    """Yields the names inside subgraphs: outer tensors may not have them (ONNX, SSA)."""
    for node in nodes:
        if isinstance(node.attributes, OpaqueAttrs):
            # Names are unique at every depth: a body inside a body sees the outermost tensors too.
            pending = list(subgraphs(node.attributes.node.proto()))
            while pending:
                body = pending.pop()
                yield from (t.name for t in (*body.input, *body.initializer))
                for inner in body.node:
                    yield from inner.output
                    pending.extend(subgraphs(inner))


# ---- Rows of a spec, and what all of them need: names, initializers, operands as real numbers ----


_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
_Key = tuple[DType, DType, tuple[int, ...], bytes, bytes, str]


class RowWriter:
    """Adds rows to a spec, and initializers and types as rows need them.

    Args:
        nodes: The nodes that are written.
        tensors: The names of their tensors.
        opset: The default-domain opset.
        options: How to write what can be written in several ways.
        spec: Where rows, initializers and types go.
        domain: The domain of Q and DQ.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        tensors: TensorNames,
        opset: int,
        options: WriterOptions,
        spec: GraphSpec,
        domain: str = "",
    ) -> None:
        self.opset, self.options, self.spec, self.domain = opset, options, spec, domain
        self.tensors, self.free = tensors, tensors.free
        self.node_names = Names()
        self.here = frozenset(nodes)
        """What is written: a part of a graph has producers that are not."""
        self.own_names = {n: self.node_names.take(n.name) for n in nodes if n.origin.nodes}
        self.parameters = Parameters(self.free, spec.constants, shared=not options.apart)
        self.kept_real: set[Value] = set()
        """Values of types that QuantizeLinear cannot make: their tensors hold real numbers."""
        self.dynamic: dict[Value, tuple[str, str, str]] = {}
        self.dynamic_rows: dict[Value, tuple[str, str, str]] = {}
        """Codes, scale and zero point of values that are quantized while the model runs."""
        self._constants: dict[tuple[object, ...], str] = {}
        self._small: dict[tuple[Any, ...], str] = {}

    def row(
        self,
        op_type: str,
        inputs: Sequence[str],
        output: str,
        type_: TensorType,
        attributes: dict[str, Any] | None = None,
        node: Node | None = None,
        domain: str = "",
    ) -> str:
        """Adds a node with one result; ``node`` is the graph's where this row is its heart."""
        wanted = output.replace(f"_{op_type}_Output", f"_{op_type}")
        wanted = wanted if wanted != output else f"{output}_{op_type}"
        name, metadata = self.identity(node, wanted)
        domain = domain or (self.domain if op_type in _CONVERSIONS else "")
        row = NodeRow(op_type, inputs, [output], attributes or {}, name, metadata, domain=domain)
        self.spec.nodes.append(row)
        self.spec.types[output] = type_
        return output

    def identity(self, node: Node | None, wanted: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Returns the name and the metadata of a row: the graph node's own, where it has some."""
        if node is None:
            return self.node_names.take(wanted), ()
        return self.own_names.pop(node, "") or self.node_names.take(wanted), node.origin.metadata

    def bias(self, value: Value, dtype: DType) -> str:
        """Returns the tensor of a bias: the file's own float numbers where it had some."""
        variant = self.options.bias
        if variant is Bias.FLOAT and value.constant is not None and value.quant is not None:
            return self.folded(value, dtype)
        if value.written is not None and variant is not Bias.INT32:
            return self._cast(value.written, value, dtype)
        return self.converted(value, dtype)

    def folded(self, value: Value, dtype: DType) -> str:
        """Returns a quantized constant as real numbers: the file's own where it had some."""
        assert value.constant is not None and value.quant is not None
        params = value.quant.params
        real = value.constant.map(lambda a: dequantize(a, params), dtype=DType.FLOAT32)
        return self._cast(value.written or real, value, dtype)

    def converted(self, value: Value, dtype: DType) -> str:
        """Returns a value in real numbers; a constant of another float type is converted."""
        constant, quant = value.constant, value.quant
        own = value.type.dtype if quant is None else quant.params.expressed_dtype
        if constant is None or own is dtype or not own.is_float:
            return self.real(value, dtype)
        if quant is not None:
            constant = constant.map(
                lambda array: dequantize(array, quant.params), dtype=DType.FLOAT32
            )
        return self._cast(constant, value, dtype)

    def _cast(self, constant: Constant, value: Value, dtype: DType) -> str:
        if constant.dtype is not dtype:
            source = constant
            constant = source.map(lambda array: array.astype(dtype.numpy), dtype=dtype)
        return self.constant(constant, self.tensors.of(value))

    def real(self, value: Value, dtype: DType) -> str:
        """Returns a tensor with the real numbers of a value: a DQ of its own for this reader."""
        if value.quant is None or value in self.kept_real:
            return self.stored(value)
        source = self.stored(value)
        target = self.free.take(f"{stem(source)}_DequantizeLinear_Output")
        return self.dequantize(source, value.quant, target, dtype)

    def stored(self, value: Value) -> str:
        """Returns the tensor with the stored elements of a value."""
        name = self.tensors.of(value)
        return name if value.constant is None else self.constant(value.constant, name)

    def constant(self, constant: Constant, name: str) -> str:
        """Returns the initializer of a constant; one for all that look at the same memory.

        Args:
            constant: The data.
            name: A name that was handed out for it.
        """
        array = constant.numpy()
        start = array.__array_interface__["data"][0]
        key = (start, array.strides, constant.shape, constant.dtype)
        if key not in self._constants:
            name = self.free.take(name) if name in self.spec.constants else name
            self._constants[key] = name
            self.spec.constants[name] = constant
        return self._constants[key]

    def array(self, array: NDArray[Any], name: str) -> str:
        """Returns the initializer of a small array that an operator takes as an operand."""
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._small:
            self._small[key] = self.constant(Constant.of(array), self.free.take(name))
        return self._small[key]

    def dequantize(
        self,
        tensor: str,
        type_: QuantType,
        target: str,
        dtype: DType,
        node: Node | None = None,
    ) -> str:
        """Adds a DequantizeLinear, and a Cast where ``dtype`` is not that of the real values.

        A conversion ``node`` to a type that is not narrower rounds to that type alone, as
        ``output_dtype`` says: a Cast behind would take what is rounded already.
        """
        own = type_.params.expressed_dtype
        if dtype is not own and (node is None or own.bits > dtype.bits):
            real = self.free.take(f"{stem(tensor)}_DequantizeLinear_{own}")
            self.dequantize(tensor, type_, real, own)
            return self.cast(real, target, TensorType(dtype, type_.shape), node)
        attributes = granularity(type_.params)
        if dtype is not type_.params.scale_dtype:
            attributes["output_dtype"] = dtype_to_onnx(dtype)
        inputs = [tensor, *self.parameters.of(type_.params, stem(tensor))]
        result = TensorType(dtype, type_.shape)
        return self.row("DequantizeLinear", inputs, target, result, attributes, node)

    def cast(self, tensor: str, target: str, type_: TensorType, node: Node | None = None) -> str:
        """Adds a Cast to another float type."""
        return self.row("Cast", [tensor], target, type_, {"to": dtype_to_onnx(type_.dtype)}, node)


class Parameters:
    """The initializers of scales and zero points.

    Args:
        names: Hands out tensor names.
        constants: Where initializers go.
        shared: Tensors with equal parameters share their initializers.
    """

    def __init__(
        self, names: Names, constants: dict[str, Constant], *, shared: bool = True
    ) -> None:
        self._names, self._constants, self._shared = names, constants, shared
        self._known: dict[_Key, tuple[str, str]] = {}

    def of(self, params: QuantParams, stem: str) -> tuple[str, str]:
        """Returns the names of scale and zero point; new ones begin with ``stem``."""
        scale, zero_point = params.scale, params.zero_point
        key = (
            params.storage_dtype, params.scale_dtype, scale.shape,
            scale.tobytes(), zero_point.tobytes(), "" if self._shared else stem,
        )  # fmt: skip
        if key not in self._known:
            pair = (self._names.take(f"{stem}_scale"), self._names.take(f"{stem}_zero_point"))
            self._constants[pair[0]] = Constant.of(scale)
            self._constants[pair[1]] = Constant.of(
                zero_point.astype(params.storage_dtype.numpy).reshape(scale.shape)
            )
            self._known[key] = pair
        return self._known[key]


def granularity(params: QuantParams) -> dict[str, int]:
    """Returns the attributes ``axis`` and ``block_size``, empty for per-tensor parameters."""
    given = {"axis": params.axis, "block_size": params.block_size}
    return {name: number for name, number in given.items() if number is not None}


def quantizing(params: QuantParams) -> dict[str, int]:
    """Returns the attributes of a QuantizeLinear into ``params``."""
    return granularity(params) | ({} if params.saturate else {"saturate": 0})


def real_bounds(params: QuantParams) -> tuple[float | None, float | None]:
    """Returns the real interval of a per-tensor range, None on the sides where it is full."""
    ends = np.array([params.qmin, params.qmax], params.storage_dtype.numpy)
    low, high = (float(x) for x in dequantize(ends, params.widened()).astype(np.float32))
    full = params.storage_dtype
    return (low if params.qmin > full.qmin else None, high if params.qmax < full.qmax else None)


def starts_at_zero(params: QuantParams) -> bool:
    """True where the range is what a Relu leaves: nothing below the zero point."""
    above: NDArray[Any] = params.zero_point == params.qmin
    return bool(above.all()) and params.qmax == params.storage_dtype.qmax


def quantizable(params: QuantParams) -> bool:
    """True where ONNX's QuantizeLinear can make values of this type (it cannot make int32)."""
    return params.storage_dtype.bits <= 16


def real_dtype(node: Node) -> DType:
    """Returns the type that a node's operands are dequantized to.

    It is that in which the file computes, where Casts said so, else that of the operands known
    only at run time: constants can be given any type.
    """
    if node.origin.computed is not None:
        return node.origin.computed
    operands = [value for _, value in node.data_operands()]
    running = [value for value in operands if value.constant is None]
    found = {_expressed(value) for value in running or operands}
    floats = {dtype for dtype in found if dtype.is_float}
    return next(iter(floats)) if len(floats) == 1 else DType.FLOAT32


def is_quantized(node: Node) -> bool:
    """True where any operand or result is quantized."""
    return any(v is not None and v.quant is not None for v in (*node.inputs, *node.outputs))


def _expressed(value: Value) -> DType:
    type_ = value.type
    return type_.params.expressed_dtype if isinstance(type_, QuantType) else type_.dtype
