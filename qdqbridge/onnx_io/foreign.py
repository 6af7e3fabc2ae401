"""Nodes without a row in the operator table, carried unharmed.

A foreign node keeps its ``NodeProto`` with every name replaced by a stable one, so that the text
form of a graph does not depend on the file's names. It computes in onnxruntime, as a model of one
node, and is written back as it was read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from qdqbridge.errors import UnsupportedModelError, UnsupportedTargetError
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.operator import (
    EVERY_OPERAND,
    Attributes,
    Flow,
    Nested,
    Operands,
    Operator,
    Serialized,
)
from qdqbridge.graph.types import NestedType, TensorType
from qdqbridge.onnx_io.codecs import BY_ROW
from qdqbridge.onnx_io.codecs.schema import oldest_alike, schema_of, schema_type
from qdqbridge.onnx_io.declared import check_operand_types
from qdqbridge.onnx_io.foreign_steps import foreign_steps
from qdqbridge.onnx_io.lowering.refusals import refusal
from qdqbridge.onnx_io.node_types import nested_proto
from qdqbridge.onnx_io.ort_values import run
from qdqbridge.onnx_io.structure import captured_names, describe
from qdqbridge.onnx_io.subgraph_names import (
    Counter,
    all_defined,
    bodies,
    rename_inside,
    renamed_attribute,
)
from qdqbridge.onnx_io.tensors import dtype_to_onnx, proto_from_constant

log = logging.getLogger(__name__)

_KNOWN = frozenset(dtype.numpy for dtype in DType)
_OPTIMIZATIONS_OFF = 0
_OLDEST = 7
"""The oldest opset that onnxruntime promises to run."""
_BODY_OPSET = 17
"""ONNX's opset inside the subgraphs of a node of another domain, which does not say its own."""
_IR_VERSION = 10
_FIXED = {
    "Resize": ("in_1", "in_2", "in_3"),
    "Upsample": ("in_1",),
    "DynamicQuantizeLSTM": ("in_1", "in_2"),
}
"""Operands that onnxruntime wants to be initializers: its shape inference, and kernels that pack
weights and add in another order where they cannot."""
_COMMUTING = {
    **dict.fromkeys(("And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"), 2),
    **dict.fromkeys(("Add", "Mul", "Sum", "Mean"), 2),  # of more, the first two are added first
    **dict.fromkeys(("Min", "Max"), EVERY_OPERAND),
}
"""How many of the first operands of ONNX's own operators may change places."""
_Signature: TypeAlias = "tuple[tuple[str, TensorType, int], ...]"
_Fixed: TypeAlias = "tuple[str, str, tuple[int, ...], bytes]"


@dataclass(frozen=True, slots=True, repr=False)
class StoredNode(Serialized):
    """A serialized ``NodeProto`` with normal names; its text is a short hash."""

    def proto(self) -> NodeProto:
        """Returns the node, free to be changed."""
        return NodeProto.FromString(self.data)

    def integers(self) -> dict[str, int]:
        """Returns the integer attributes."""
        return {a.name: a.i for a in self.proto().attribute if a.type == onnx.AttributeProto.INT}

    def listed(self, name: str) -> list[int] | None:
        """Returns an attribute that is a list of integers; None where it is not given."""
        found = (a for a in self.proto().attribute if a.name == name)
        return next((list(a.ints) for a in found), None)

    def number(self, name: str) -> float | int | None:
        """Returns the only element of a tensor that is an attribute; None where it is not given."""
        for attribute in self.proto().attribute:
            if attribute.name == name and attribute.HasField("t"):
                array = numpy_helper.to_array(attribute.t)
                return array.reshape(()).item() if array.size == 1 else None
        return None


@dataclass(frozen=True, slots=True)
class ForeignAttrs(Attributes):
    """A node as its file has it.

    Attributes:
        domain: Its domain, empty for ONNX itself.
        op_type: Its operator.
        version: The opset version of the domain.
        node: The node; its inputs are ``in_0`` …, its outputs ``out_0`` …, the names inside its
            subgraphs are numbered, and left-out inputs and outputs are empty.
        captures: The stable names, inside the subgraphs, of the outer-scope tensors that they
            read; these are operands after the node's own inputs.
    """

    domain: str
    op_type: str
    version: int
    node: StoredNode
    captures: tuple[str, ...] = ()

    def model(self, node: Node) -> onnx.ModelProto:
        """Returns a model that holds this node alone, for other importers of ONNX.

        Args:
            node: The graph node that has these attributes; its constants become initializers.

        Raises:
            UnsupportedTargetError: It takes or gives what is no tensor.
        """
        if not _tensors_only(self):
            raise UnsupportedTargetError(
                f"{node.op.name} cannot be handed on",
                where=f"node '{node.name}'",
                why="it takes or gives a sequence or an optional, only tensors are handed on",
                fix="run the model with onnxruntime, or replace the sequence by tensors",
            )
        names = [f"in_{i}" if v is not None else "" for i, v in enumerate(node.inputs)]
        outputs = [f"out_{i}" for i in range(len(node.outputs))]
        inputs: list[onnx.ValueInfoProto] = []
        initializers: list[onnx.TensorProto] = []
        extents: dict[str, str] = {}
        for name, value in zip(names, node.inputs, strict=True):
            if value is None:
                continue
            if value.constant is not None:
                initializers.append(proto_from_constant(name, value.constant))
            else:
                inputs.append(_info(name, value, extents))
        graph = helper.make_graph(
            [foreign_node_proto(self, names, outputs)],
            "one_node",
            inputs,
            [_info(*pair, extents) for pair in zip(outputs, node.outputs, strict=True)],
            initializers,
        )
        imports = [helper.make_opsetid(self.domain, self.version)]
        if self.domain:
            imports.append(helper.make_opsetid("", _BODY_OPSET))
        return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)


def _tensors_only(attributes: ForeignAttrs) -> bool:
    """Returns whether all operands and results of a node are tensors, its bodies' results too."""
    node = attributes.node.proto()
    results = [o for a in node.attribute for body in bodies(a) for o in body.output]
    if any(o.type.WhichOneof("value") not in (None, "tensor_type") for o in results):
        return False
    schema = schema_of(attributes.op_type, attributes.domain, attributes.version)
    formals = () if schema is None else (*schema.inputs, *schema.outputs)
    return all(any(kind.startswith("tensor(") for kind in formal.types) for formal in formals)


def _info(name: str, value: Value, extents: dict[str, str]) -> onnx.ValueInfoProto:
    """Returns the type of a tensor; open extents get plain names, for importers that read them."""
    shape = value.declared if value.type.shape is None else value.type.shape
    plain = None if shape is None else [
        extents.setdefault(dim, f"extent_{len(extents)}") if isinstance(dim, str) else dim
        for dim in shape
    ]  # fmt: skip
    return helper.make_tensor_value_info(name, dtype_to_onnx(value.type.dtype), plain)


def foreign_node(
    proto: NodeProto,
    opset: int,
    operands: Sequence[Value | None],
    captured: Sequence[Value],
    file: str = "",
) -> tuple[Operator, ForeignAttrs, list[Value | None]]:
    """Returns operator, attributes and operands of a node without a row.

    Args:
        proto: The node.
        opset: Version of its domain.
        operands: One value per input.
        captured: The values that its subgraphs read from outside, in the order of
            :func:`~qdqbridge.onnx_io.structure.captured_names`.
        file: The model file, whose declared types are checked.

    Raises:
        InvalidModelError: The operator does not take the types of its operands.
    """
    if file:
        check_operand_types(proto, opset, operands, f"{file}, {describe(proto)}")
    attributes = foreign_attributes(proto, opset, operands)
    op = foreign_operator(attributes.domain, attributes.op_type)
    return op, attributes, [*operands, *captured]


def foreign_attributes(
    proto: NodeProto, opset: int, operands: Sequence[Value | None] = ()
) -> ForeignAttrs:
    """Returns a node's record: everything it says but its names and annotations.

    Args:
        proto: The node.
        opset: Version of its domain.
        operands: What it reads, where known: older versions may not take these element types.
    """
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    captured = captured_names(proto)
    names = {name: f"capture_{i}" for i, name in enumerate(captured)}
    node = NodeProto(op_type=proto.op_type, domain=domain, overload=proto.overload)
    node.input.extend(f"in_{i}" if name else "" for i, name in enumerate(proto.input))
    node.output.extend(f"out_{i}" if name else "" for i, name in enumerate(proto.output))
    counter = Counter()
    for attribute in sorted(proto.attribute, key=lambda a: a.name):
        node.attribute.append(renamed_attribute(attribute, names, counter))
    stored = StoredNode(node.SerializeToString(deterministic=True))
    captures = tuple(names.values())
    version = _version(node, opset, operands)
    return ForeignAttrs(domain, proto.op_type, version, stored, captures)


def _version(node: NodeProto, opset: int, operands: Sequence[Value | None]) -> int:
    """Returns the oldest version that means the same, so that the file's opset leaves no trace.

    The version of the file where the node has subgraphs, whose nodes have versions of their own.
    """
    versions = oldest_alike(node.op_type, node.domain, opset)
    if not versions or any(bodies(attribute) for attribute in node.attribute):
        return opset
    chosen = next((s for s in versions if _takes(s, operands)), versions[-1])
    return min(opset, max(int(chosen.since_version), 1 if node.domain else _OLDEST))


def _takes(schema: Any, operands: Sequence[Value | None]) -> bool:
    """True where an operator takes the element types of these operands."""
    formals = list(schema.inputs)
    for index, value in enumerate(operands):
        if value is None or not formals:
            continue
        types = formals[min(index, len(formals) - 1)].types
        if schema_type(value.type) not in types:
            return False
    return True


def foreign_node_proto(
    attributes: ForeignAttrs, input_names: Sequence[str], output_names: Sequence[str]
) -> NodeProto:
    """Returns the node to write.

    Args:
        attributes: Its record.
        input_names: One name per operand, those for the captured tensors at the end; empty for
            an operand that is left out.
        output_names: One name per result; the first one is the prefix of the names inside
            subgraphs, so that these are unique.
    """
    node = attributes.node.proto()
    own = len(node.input)
    names = dict(zip(attributes.captures, input_names[own:], strict=True))
    prefix = next(iter(output_names), "")
    for attribute in node.attribute:
        for body in bodies(attribute):
            names |= {name: f"{prefix}.{name}" for name in all_defined(body)}
            rename_inside(body, names)
    results = iter(output_names)
    outputs = [next(results) if name else "" for name in node.output]
    del node.input[:], node.output[:]
    node.input.extend(input_names[:own])
    node.output.extend(outputs)
    return node


@cache
def foreign_operator(domain: str, op_type: str) -> Operator:
    """Returns the one operator of all foreign nodes of a kind.

    Its name is ONNX's; a spelling of an operator that has a row gets the domain in front
    (``ai.onnx::Slice``), so that nobody takes it for the row.
    """
    plain = domain == "" and op_type not in BY_ROW
    return Operator(
        name=op_type if plain else f"{domain or 'ai.onnx'}::{op_type}",
        flow=Flow.FLOAT,
        attributes=ForeignAttrs,
        compute=_compute,
        steps=_steps,
        commuting=_COMMUTING.get(op_type, 0) if domain == "" else 0,
        numerics="What onnxruntime computes with optimizations disabled; where it has no kernel, "
        "what ONNX's own reference computes.",
    )


def record_problem(attributes: ForeignAttrs) -> str:
    """Returns in words how a record contradicts its own node; empty where it does not."""
    try:
        node = attributes.node.proto()
    except DecodeError as error:
        return f"its bytes are no node: {error}"
    if (node.domain, node.op_type) != (attributes.domain, attributes.op_type):
        return f"its bytes are a node of '{node.domain}' {node.op_type}"
    if set(captured_names(node)) != set(attributes.captures):
        return f"its bodies read {list(captured_names(node))} from outside"
    return "" if 0 < attributes.version < 1 << 31 else f"its version is {attributes.version}"


def interface_problem(node: Node) -> str:
    """Returns in words how a node has other operands or results than what it carries."""
    attributes = node.record(ForeignAttrs)
    proto = attributes.node.proto()
    own = len(proto.input)
    if own + len(attributes.captures) != len(node.inputs):
        return f"it has {len(node.inputs)} operands, and carries a node of {own}"
    given = [value is not None for value in node.inputs[:own]]
    if given != [bool(name) for name in proto.input] or None in node.inputs[own:]:
        return "it leaves out other operands than the node that it carries"
    results = sum(bool(name) for name in proto.output)
    return "" if results == len(node.outputs) else f"the node that it carries gives {results}"


# ---- running ----------------------------------------------------------------------------------


def _compute(attributes: ForeignAttrs, operands: Operands) -> tuple[Any, ...]:
    """Runs the node in onnxruntime, and in ONNX's own reference where that has no kernel.

    What the reference does not have either runs in float32 where it is asked for float64.
    """
    given = [_plain(operand) for operand in operands]
    try:
        return _run(attributes, given)
    except UnsupportedModelError as error:
        found = _referred(attributes, given)
        if found is not None:
            return found
        if not any(isinstance(each, np.ndarray) and each.dtype == np.float64 for each in given):
            raise error
    results = _run(attributes, [_as(np.float64, np.float32, each) for each in given])
    return tuple(_as(np.float32, np.float64, result) for result in results)


def _plain(operand: Any) -> NDArray[Any] | Nested | None:
    return operand if operand is None or isinstance(operand, Nested) else np.asarray(operand)


def _signature(given: Mapping[str, NDArray[Any] | Nested]) -> _Signature:
    return tuple(
        (name, each.type if isinstance(each, Nested) else TensorType(DType.of(each.dtype), None),
         0 if isinstance(each, Nested) else each.ndim)
        for name, each in given.items()
    )  # fmt: skip


def _fed(given: Mapping[str, NDArray[Any] | Nested]) -> dict[str, Any]:
    return {name: each.value if isinstance(each, Nested) else each for name, each in given.items()}


def _steps(attributes: ForeignAttrs, operands: Sequence[Constant | None]) -> int | None:
    return foreign_steps(attributes.node.proto(), attributes.domain, attributes.version, operands)


def _referred(
    attributes: ForeignAttrs, operands: Sequence[NDArray[Any] | Nested | None]
) -> tuple[Any, ...] | None:
    """Returns what ONNX's reference implementation computes; None where it cannot."""
    given = {f"in_{i}": operand for i, operand in enumerate(operands) if operand is not None}
    try:
        session = _evaluator(attributes, _signature(given), len(operands))
        results = tuple(_result(each) for each in session.run(None, _fed(given)))
    except Exception as error:  # whatever a Python implementation of an operator raises
        log.debug("ONNX's reference cannot run %s: %s", attributes.op_type, error)
        return None
    arrays = [each for each in results if isinstance(each, np.ndarray)]
    return results if all(array.dtype in _KNOWN for array in arrays) else None


def _result(found: Any) -> Any:
    if isinstance(found, list | tuple):
        return [_result(each) for each in cast("Sequence[Any]", found)]
    return None if found is None else np.asarray(found)


@lru_cache(maxsize=256)
def _evaluator(attributes: ForeignAttrs, signature: _Signature, count: int) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(_model(attributes, signature, count, ()))


def _as(old: type, new: type, array: Any) -> Any:
    return array.astype(new) if isinstance(array, np.ndarray) and array.dtype == old else array


def _check_runnable(attributes: ForeignAttrs) -> None:
    """Keeps from onnxruntime 1.32 what ends the process there: a normal distribution of no width.

    Raises:
        UnsupportedModelError: The node is one of these.
    """
    if attributes.op_type in ("RandomNormal", "RandomNormalLike"):
        scales = [a.f for a in attributes.node.proto().attribute if a.name == "scale"]
        if any(not scale > 0 for scale in scales):
            raise _cannot_run(attributes, ValueError(f"its scale is {scales[0]}"))


def _run(
    attributes: ForeignAttrs, operands: Sequence[NDArray[Any] | Nested | None]
) -> tuple[Any, ...]:
    _check_runnable(attributes)
    given = {f"in_{i}": operand for i, operand in enumerate(operands) if operand is not None}
    fixed = tuple(
        (name, array.dtype.str, array.shape, array.tobytes())
        for name in _FIXED.get(attributes.op_type, ())
        if isinstance(array := given.pop(name, None), np.ndarray)
    )
    session = _session(attributes, _signature(given), len(operands), fixed)
    try:
        return tuple(run(session, _fed(given)))
    except Exception as error:  # as in _session
        raise _cannot_run(attributes, error) from error


@lru_cache(maxsize=256)
def _session(
    attributes: ForeignAttrs,
    signature: _Signature,
    count: int,
    fixed: tuple[_Fixed, ...],
) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel(_OPTIMIZATIONS_OFF)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = _model(attributes, signature, count, fixed).SerializeToString()
    try:
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen classes, none documented
        raise _cannot_run(attributes, error) from error


def _cannot_run(attributes: ForeignAttrs, error: Exception) -> UnsupportedModelError:
    known = refusal(attributes.domain or "ai.onnx", attributes.op_type)
    why = (str(error).splitlines() or [""])[0][:300]
    return UnsupportedModelError(
        f"onnxruntime cannot run {attributes.domain or 'ai.onnx'}::{attributes.op_type}",
        where=f"a node of opset version {attributes.version}",
        why=why if known is None else f"it is {known.what}; {why}",
        fix="replace the operator, or install the runtime that has it"
        if known is None
        else known.fix,
    )


def _model(
    attributes: ForeignAttrs,
    signature: _Signature,
    count: int,
    fixed: tuple[_Fixed, ...],
) -> onnx.ModelProto:
    present = {name for name, *_ in (*signature, *fixed)}
    names = [f"in_{i}" if f"in_{i}" in present else "" for i in range(count)]
    stored = attributes.node.proto()
    node = foreign_node_proto(attributes, names, [name for name in stored.output if name])
    inputs = [
        helper.make_value_info(name, nested_proto(type_))
        if isinstance(type_, NestedType)
        else helper.make_tensor_value_info(name, dtype_to_onnx(type_.dtype), [None] * rank)
        for name, type_, rank in signature
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    initializers = [
        numpy_helper.from_array(np.frombuffer(data, np.dtype(dtype)).reshape(shape), name)
        for name, dtype, shape, data in fixed
    ]
    graph = helper.make_graph([node], "foreign", inputs, outputs, initializers)
    return helper.make_model(
        graph, opset_imports=_imports(attributes, node), ir_version=_IR_VERSION
    )


def _imports(attributes: ForeignAttrs, node: NodeProto) -> list[onnx.OperatorSetIdProto]:
    versions = {domain: 1 for domain in _domains(node)}
    versions[""] = _BODY_OPSET
    versions[attributes.domain] = attributes.version
    return [helper.make_opsetid(domain, version) for domain, version in versions.items()]


def _domains(node: NodeProto) -> set[str]:
    found = {"" if node.domain == "ai.onnx" else node.domain}
    for attribute in node.attribute:
        for body in bodies(attribute):
            for inner in body.node:
                found |= _domains(inner)
    return found


__all__ = [
    "ForeignAttrs",
    "StoredNode",
    "foreign_attributes",
    "foreign_node",
    "foreign_node_proto",
    "foreign_operator",
]
