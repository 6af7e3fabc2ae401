"""The operators of nodes without a row: what onnxruntime computes, of a model of one node.

Where onnxruntime has no kernel ONNX's own reference computes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, TypeAlias, TypeGuard, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from qdqbridge.control_characters import visible
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import EVERY_OPERAND, Flow, Nested, Operands, Operator
from qdqbridge.core.graph.types import NestedType, QuantType, TensorType
from qdqbridge.core.text.parser import OpaqueNodes
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.onnx_io.codecs import BY_ROW
from qdqbridge.onnx_io.codecs.codec import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import (
    CONTROL,
    bodies,
    nodes_inside,
    rank_stacked,
)
from qdqbridge.onnx_io.inference.node_types import nested_proto
from qdqbridge.onnx_io.lowering.rules import refusal
from qdqbridge.onnx_io.opaque.nodes import (
    BODY_OPSET,
    IR_VERSION,
    OpaqueAttrs,
    StoredNode,
    interface_problem,
    opaque_attributes,
    opaque_node_proto,
    record_problem,
)
from qdqbridge.onnx_io.opaque.paired import computed_with_losses
from qdqbridge.onnx_io.reading.operators_known import carries_over
from qdqbridge.onnx_io.reading.results import check_operand_types
from qdqbridge.onnx_io.reading.structure import describe, plain_domain, whole_results
from qdqbridge.onnx_io.runtime.products import (
    keep_byte_products,
    keep_half_products,
    rounds_activations,
    saturates,
)
from qdqbridge.onnx_io.runtime.session import run
from qdqbridge.onnx_io.tensors import dtype_to_onnx, proto_from_constant

# ---- How much an opaque node takes to compute, told by ONNX's own inference from its operands ----


_SESSION = 1 << 11
"""What a session of onnxruntime takes, however small its node is."""
_SMALL = 256
"""Elements of an operand that may say how large a result is."""
_NODE = "node"
_LINEAR = frozenset(
    (
        "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
        "BitwiseXor", "CastLike", "ConstantOfShape", "CumSum", "Equal", "Expand", "EyeLike",
        "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less",
        "LessOrEqual", "Mean", "Mod", "Not", "OneHot", "Or", "Pad", "Range", "ReduceL1",
        "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare",
        "ReverseSequence", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "Sum", "Tile",
        "Trilu", "Upsample", "Xor",
    )
)  # fmt: skip
"""Operators that look at every element of operands and results a few times."""
_CHOOSING = frozenset(("Compress", "NonZero", "Unique"))
"""Operators that give some of what they read, or where it is: how much is seen only there."""


def opaque_steps(
    proto: NodeProto, domain: str, version: int, operands: Sequence[Constant | None]
) -> int | None:
    """Returns how many elements computing a node makes, reads and multiplies, at most.

    Args:
        proto: The node; its inputs are ``in_0`` …, its outputs are named.
        version: The opset of the domain.
        operands: The data of its inputs.

    Returns:
        None where it is not known; where two runs give two results; or where the node has a body,
        which may run for ever.
    """
    schema = schema_of(proto.op_type, domain, version)
    if schema is None or schema.node_determinism != schema.NodeDeterminism.Deterministic:
        return None
    # How long strings are, no number of elements says.
    if any(o is not None and o.dtype is DType.STRING for o in operands):
        return None
    read = sum(operand.size for operand in operands if operand is not None)
    if domain == "" and proto.op_type in _CHOOSING:
        # NonZero gives a number per axis for each element that it finds.
        ranks = sum(len(operand.shape) for operand in operands if operand is not None)
        return _SESSION + read * (4 + ranks)
    counted = _COUNTED.get(proto.op_type) if domain == "" else None
    made = None if counted is None else counted(operands)
    if made is None:
        made = _made(proto, domain, version, operands)
    if made is None:
        return None
    linear = domain == "" and proto.op_type in _LINEAR
    return _SESSION + (made + read if linear else (made + 1) * (read + 1))


def _made_one_hot(operands: Sequence[Constant | None]) -> int | None:
    indices, depth = (*operands, None, None)[:2]
    if indices is None or depth is None or depth.size != 1:
        return None
    return indices.size * max(int(depth.numpy().reshape(-1)[0]), 0)


def _made_range(operands: Sequence[Constant | None]) -> int | None:
    """Returns how many numbers a Range makes; of 16 bits inference does not tell."""
    if len(operands) != 3 or any(o is None or o.size != 1 for o in operands):
        return None
    start, limit, step = (float(o.numpy().reshape(-1)[0]) for o in operands if o is not None)
    if not (math.isfinite(start) and math.isfinite(limit) and math.isfinite(step)) or not step:
        return None
    return max(math.ceil((limit - start) / step), 0)


_COUNTED = {"OneHot": _made_one_hot, "Range": _made_range}
"""Operators of which constants say more than ONNX's inference reads."""


def _made(
    proto: NodeProto, domain: str, version: int, operands: Sequence[Constant | None]
) -> int | None:
    """Returns the elements of the results, None where inference does not tell."""
    graph = onnx.GraphProto(name=_NODE)
    for index, operand in enumerate(operands):
        name = f"in_{index}"
        if operand is None:
            continue
        # As initializers: inference reads shapes and counts out of those only.
        if operand.size <= _SMALL:
            graph.initializer.append(proto_from_constant(name, operand))
        else:
            info = helper.make_tensor_value_info(
                name, dtype_to_onnx(operand.dtype), list(operand.shape)
            )
            graph.input.append(info)
    graph.node.append(proto)
    names = [name for name in proto.output if name]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    imports = [helper.make_opsetid(domain, version)]
    model = helper.make_model(graph, opset_imports=imports)
    try:
        graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        # What onnx raises of a node that it cannot infer; then its steps stay unknown.
        return None
    made = 0
    for value in graph.output:
        tensor = value.type.tensor_type
        if not tensor.HasField("shape") or any(
            not extent.HasField("dim_value") for extent in tensor.shape.dim
        ):
            return None
        made += math.prod(extent.dim_value for extent in tensor.shape.dim)
    return made


# ---- The operators of nodes without a row: what onnxruntime computes, of a model of one node -----


log = logging.getLogger(__name__)

_KNOWN = frozenset(dtype.numpy for dtype in DType)
_RECURRENT = ("DynamicQuantizeLSTM", "LSTM", "GRU")
_FIXED = {
    "Resize": ("in_1", "in_2", "in_3"),
    "Upsample": ("in_1",),
    **dict.fromkeys(_RECURRENT, ("in_1", "in_2")),
    "QMoE": tuple(f"in_{i}" for i in (2, 3, 5, 6, 8, 9, 11, 12, 13)),
}
"""Operands that onnxruntime wants to be initializers: its shape inference, and kernels that pack
weights and add in another order where they cannot."""
_COMMUTING = {
    **dict.fromkeys(("And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"), 2),
    **dict.fromkeys(("Add", "Mul", "Sum", "Mean"), 2),  # of more, the first two are added first
    **dict.fromkeys(("Min", "Max"), EVERY_OPERAND),
}
"""How many of the first operands of ONNX's own operators may change places."""
_Extents: TypeAlias = "tuple[int | None, ...]"
_Signature: TypeAlias = "tuple[tuple[str, TensorType, _Extents], ...]"
_Fixed: TypeAlias = "tuple[str, str, tuple[int, ...], bytes]"


def opaque_node(
    proto: NodeProto,
    opset: int,
    operands: Sequence[Value | None],
    captured: Sequence[Value],
    file: str = "",
) -> tuple[Operator, OpaqueAttrs, list[Value | None]]:
    """Returns operator, attributes and operands of a node without a row.

    Args:
        opset: Version of its domain.
        operands: One value per input.
        captured: The values that its subgraphs read from outside, in the order of
            :func:`~qdqbridge.onnx_io.reading.structure.captured_names`.
        file: The model file, whose declared types are checked.

    Raises:
        InvalidModelError: The operator does not take the types of its operands.
    """
    if file:
        check_operand_types(proto, opset, operands, f"{file}, {describe(proto)}")
    attributes = opaque_attributes(proto, opset, operands, captured)
    op = opaque_operator(attributes.domain, attributes.op_type)
    return op, attributes, [*operands, *captured]


@cache
def opaque_operator(domain: str, op_type: str) -> Operator:
    """Returns the one operator of all opaque nodes of a kind.

    Its name is ONNX's; a form of an operator that has a row gets the domain in front
    (``ai.onnx::Slice``), so that nobody takes it for the row.
    """
    plain = domain == "" and op_type not in BY_ROW
    return Operator(
        name=op_type if plain else f"{domain or 'ai.onnx'}::{op_type}",
        flow=Flow.FLOAT,
        attributes=OpaqueAttrs,
        compute=_compute,
        steps=_opaque_step_count,
        commuting=_COMMUTING.get(op_type, 0) if domain == "" else 0,
        inside=_inside if plain and op_type in CONTROL else _with_losses,
        numerics="What onnxruntime computes with optimizations disabled; of bodies that quantize, "
        "what their graphs mean; where it has no kernel, what ONNX's own reference computes.",
    )


OPAQUE_NODES = OpaqueNodes(
    OpaqueAttrs,
    lambda attributes: opaque_operator(attributes.domain, attributes.op_type),
    record_problem,
    interface_problem,
)
"""How the text form's nodes without a row are read: they carry a node of an ONNX file."""


def _inside(node: Node, operands: Operands) -> Sequence[NDArray[Any]] | None:
    """Computes bodies that quantize, and Loops and Scans, which may make no step."""
    # Reading bodies needs the operators that this module makes.
    from qdqbridge.onnx_io.control_flow.conditional import computed_by_bodies, scanned_nothing

    nothing = scanned_nothing(node, operands)
    found = computed_by_bodies(node, operands) if nothing is None else nothing
    met = (value for value in (*node.inputs, *node.outputs) if value is not None)
    plain = not any(isinstance(value.type, NestedType | QuantType) for value in met)
    if found is None and node.op.name == "Loop" and plain:
        ranks = tuple(value.rank for value in node.outputs)
        return _compute(_with_ranked_rows(node.record(OpaqueAttrs), ranks), operands)
    return found


@lru_cache(maxsize=64)
def _with_ranked_rows(attributes: OpaqueAttrs, ranks: tuple[int | None, ...]) -> OpaqueAttrs:
    stored = attributes.node.proto()
    rank_stacked(stored, ranks)
    data = stored.SerializeToString(deterministic=True)
    return replace(attributes, node=StoredNode(data, attributes.node.names))


def _with_losses(node: Node, operands: Operands) -> Sequence[NDArray[Any]] | None:
    """Computes products of bytes on simulated hardware."""

    def run(proto: NodeProto, version: int, given: Sequence[NDArray[Any] | None]) -> Sequence[Any]:
        proto.input.extend("" if each is None else f"in_{i}" for i, each in enumerate(given))
        return _run(opaque_attributes(proto, version), given)

    return computed_with_losses(node, operands, run)


def _compute(attributes: OpaqueAttrs, operands: Operands) -> tuple[Any, ...]:
    """Runs the node in onnxruntime, and in ONNX's own reference where that has no kernel.

    onnxruntime may have one of a later version, which means the same and takes more types.
    What the reference does not have either runs in float32 where it is asked for float64 or
    float16, and is rounded once.
    """
    given = [_array_or_nested(operand) for operand in operands]
    first = given[0] if given else None
    if (attributes.domain, attributes.op_type) == ("", "NonZero") and _is_scalar(first):
        # onnxruntime gives the place of a scalar an axis, ONNX none
        return (np.zeros((0, np.count_nonzero(first)), np.int64),)
    own = attributes.op_type == "MeanVarianceNormalization" and attributes.version >= 9
    if own and isinstance(first, np.ndarray):
        return (_mean_variance_normalized(attributes, first),)
    nothing = _unique_of_nothing(attributes, first)
    if nothing is not None:
        return nothing
    try:
        return _run(attributes, given)
    except UnsupportedModelError as error:
        for later in _later_versions(attributes):
            with suppress(UnsupportedModelError):
                return _run(later, given)
        found = _referred(attributes, given)
        if found is not None:
            return found
        own = next((t for t in (np.float64, np.float16) if t in _types(given)), None)
        if own is None:
            raise error
    results = _run(attributes, [_as(own, np.float32, each) for each in given])
    return tuple(_as(np.float32, own, result) for result in results)


def _mean_variance_normalized(attributes: OpaqueAttrs, x: NDArray[Any]) -> NDArray[Any]:
    """Returns the data less their mean by their deviation plus ONNX's 1e-9; onnxruntime has 0."""
    axes = tuple(attributes.stated().get("axes", (0, 2, 3)))
    centred = x.astype(np.float64) - x.mean(axes, np.float64, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axes, keepdims=True))
    return (centred / (deviation + 1e-9)).astype(x.dtype)


def _later_versions(attributes: OpaqueAttrs) -> Iterator[OpaqueAttrs]:
    """Yields a node as later versions of its operator have it that mean the same."""
    own = attributes.version
    for version in (
        range(own + 1, onnx.defs.onnx_opset_version() + 1) if not attributes.domain else ()
    ):
        schema = schema_of(attributes.op_type, "", version)
        new = schema is not None and schema.since_version == version
        if new and carries_over(attributes.op_type, own, version):
            yield replace(attributes, version=version)


def _unique_of_nothing(
    attributes: OpaqueAttrs, x: NDArray[Any] | Nested | None
) -> tuple[NDArray[Any], ...] | None:
    """Returns a Unique's results along an axis of slices without elements, which are all equal.

    onnxruntime ends the process there, and ONNX's reference has no axis of what is not sorted. None
    for every other node.
    """
    unique = (attributes.domain, attributes.op_type) == ("", "Unique")
    if not unique or not isinstance(x, np.ndarray) or x.size:
        return None
    axis = attributes.node.integers().get("axis")
    if axis is None or not -x.ndim <= axis < x.ndim:
        return None
    count = x.shape[axis]
    firsts = np.zeros(min(count, 1), np.int64)
    places, numbers = np.zeros(count, np.int64), np.full(firsts.size, count)
    results = np.take(x, firsts, axis), firsts, places, numbers
    named = attributes.node.proto().output
    return tuple(each for each, name in zip(results, named, strict=False) if name)


def _is_scalar(operand: NDArray[Any] | Nested | None) -> TypeGuard[NDArray[Any]]:
    return isinstance(operand, np.ndarray) and operand.ndim == 0


def _types(given: Sequence[Any]) -> list[Any]:
    return [each.dtype for each in given if isinstance(each, np.ndarray)]


def _array_or_nested(operand: Any) -> NDArray[Any] | Nested | None:
    return operand if operand is None or isinstance(operand, Nested) else np.asarray(operand)


def _signature(given: Mapping[str, NDArray[Any] | Nested], *, exact: bool = False) -> _Signature:
    """Returns the types of operands, and how many extents they have or, if exact, which."""

    def each(name: str, value: NDArray[Any] | Nested) -> tuple[str, TensorType, _Extents]:
        if isinstance(value, Nested):
            return name, value.type, ()
        extents = value.shape if exact else (None,) * value.ndim
        return name, TensorType(DType.of(value.dtype), None), extents

    return tuple(each(name, value) for name, value in given.items())


def _fed(given: Mapping[str, NDArray[Any] | Nested]) -> dict[str, Any]:
    return {name: each.value if isinstance(each, Nested) else each for name, each in given.items()}


def _opaque_step_count(attributes: OpaqueAttrs, operands: Sequence[Constant | None]) -> int | None:
    return opaque_steps(attributes.node.proto(), attributes.domain, attributes.version, operands)


def _referred(
    attributes: OpaqueAttrs, operands: Sequence[NDArray[Any] | Nested | None]
) -> tuple[Any, ...] | None:
    """Returns what ONNX's reference implementation computes; None where it cannot."""
    given = {f"in_{i}": operand for i, operand in enumerate(operands) if operand is not None}
    try:
        session = _evaluator(attributes, _signature(given), len(operands))
        results = tuple(_to_numpy_result(each) for each in session.run(None, _fed(given)))
    except Exception as error:  # whatever a Python implementation of an operator raises
        log.debug(
            "ONNX's reference cannot run %s: %s", *map(visible, (attributes.op_type, str(error)))
        )
        return None
    arrays = [each for each in results if isinstance(each, np.ndarray)]
    return results if all(array.dtype in _KNOWN for array in arrays) else None


def _to_numpy_result(found: Any) -> Any:
    if isinstance(found, list | tuple):
        return [_to_numpy_result(each) for each in cast("Sequence[Any]", found)]
    return None if found is None else np.asarray(found)


@lru_cache(maxsize=256)
def _evaluator(attributes: OpaqueAttrs, signature: _Signature, count: int) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(_model(attributes, signature, count, ()))


def _as(old: type, new: type, array: Any) -> Any:
    return array.astype(new) if isinstance(array, np.ndarray) and array.dtype == old else array


def _check_runnable(
    attributes: OpaqueAttrs, operands: Sequence[NDArray[Any] | Nested | None]
) -> None:
    """Keeps from onnxruntime 1.32 what ends the process there, or is not computed.

    That is a normal distribution of no width, an LSTM of no examples, a GRU also of no steps, an
    Einsum of nothing, a ConvTranspose or InstanceNormalization of an image without elements; and an
    integer product of no terms, whose sums are whatever the memory held; a Scan of no steps.

    Raises:
        UnsupportedModelError: The node is one of these.
    """
    first = operands[0] if operands else None
    shape = first.shape if isinstance(first, np.ndarray) else ()
    counted = shape[0 if attributes.op_type == "GRU" else 1 : 2]
    if attributes.op_type in _RECURRENT and 0 in counted:
        raise _cannot_run(attributes, ValueError(f"it is given shape {shape}"))
    if attributes.op_type == "MatMulInteger" and shape[-1:] == (0,):
        raise _cannot_run(attributes, ValueError(f"it is given shape {shape}"))
    arrays = [each for each in operands if isinstance(each, np.ndarray)]
    if attributes.op_type == "Einsum" and any(0 in array.shape for array in arrays):
        raise _cannot_run(attributes, ValueError("an operand has no elements"))
    if attributes.op_type in ("ConvTranspose", "InstanceNormalization") and 0 in shape[2:]:
        raise _cannot_run(attributes, ValueError(f"it is given shape {shape}"))
    if attributes.op_type == "Scan" and scans_nothing(attributes, operands):
        raise _cannot_run(attributes, ValueError("it makes no step"))
    if attributes.op_type in ("RandomNormal", "RandomNormalLike"):
        scales = [a.f for a in attributes.node.proto().attribute if a.name == "scale"]
        if any(not scale > 0 for scale in scales):
            raise _cannot_run(attributes, ValueError(f"its scale is {scales[0]}"))


def scans_nothing(
    attributes: OpaqueAttrs, operands: Sequence[NDArray[Any] | Nested | None]
) -> bool:
    """Returns whether a Scan makes no step: an axis that it goes along has no element."""
    own = operands[: len(operands) - attributes.captured()]
    scanned = own[len(own) - attributes.node.integers()["num_scan_inputs"] :]
    axes = attributes.node.listed("scan_input_axes") or [0] * len(scanned)
    pairs = zip(scanned, axes, strict=False)
    return any(isinstance(x, np.ndarray) and 0 in x.shape[axis:][:1] for x, axis in pairs)


@lru_cache(maxsize=256)
def _packed(attributes: OpaqueAttrs) -> tuple[str, ...]:
    """Returns the captured operands that packed products inside of bodies multiply.

    With ``accuracy_level`` 4 onnxruntime's kernel rounds activations for initializers only.
    """
    node = attributes.node.named()
    inside = [each for each in nodes_inside(node) if rounds_activations(each)]
    read = {name for each in inside for name in each.input[1:]}
    captured = enumerate(attributes.captures, len(node.input))
    return tuple(f"in_{i}" for i, name in captured if name in read)


def _run(
    attributes: OpaqueAttrs, operands: Sequence[NDArray[Any] | Nested | None]
) -> tuple[Any, ...]:
    _check_runnable(attributes, operands)
    given = {f"in_{i}": operand for i, operand in enumerate(operands) if operand is not None}
    fixed = tuple(
        (name, array.dtype.str, array.shape, array.tobytes())
        for name in (*_FIXED.get(attributes.op_type, ()), *_packed(attributes))
        if isinstance(array := given.pop(name, None), np.ndarray)
    )
    try:
        session = _session(attributes, _signature(given), len(operands), fixed)
    except UnsupportedModelError:  # some operators' shape inference refuses open extents
        session = _session(attributes, _signature(given, exact=True), len(operands), fixed)
    try:
        return tuple(run(session, _fed(given)))
    except Exception as error:  # as in _session
        raise _cannot_run(attributes, error) from error


@lru_cache(maxsize=256)
def _session(
    attributes: OpaqueAttrs,
    signature: _Signature,
    count: int,
    fixed: tuple[_Fixed, ...],
) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = _model(attributes, signature, count, fixed).SerializeToString()
    try:
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen classes, none documented
        raise _cannot_run(attributes, error) from error


def _cannot_run(attributes: OpaqueAttrs, error: Exception) -> UnsupportedModelError:
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
    attributes: OpaqueAttrs,
    signature: _Signature,
    count: int,
    fixed: tuple[_Fixed, ...],
) -> onnx.ModelProto:
    present = {name for name, *_ in (*signature, *fixed)}
    names = [f"in_{i}" if f"in_{i}" in present else "" for i in range(count)]
    stored = attributes.node.proto()
    node = opaque_node_proto(attributes, names, [name for name in stored.output if name])
    results = [name for name in node.output if name]
    node.output[:] = whole_results(node)
    inputs = [
        helper.make_value_info(name, nested_proto(type_))
        if isinstance(type_, NestedType)
        else helper.make_tensor_value_info(name, dtype_to_onnx(type_.dtype), extents)
        for name, type_, extents in signature
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in results]
    initializers = [
        numpy_helper.from_array(np.frombuffer(data, np.dtype(dtype)).reshape(shape), name)
        for name, dtype, shape, data in fixed
    ]
    graph = helper.make_graph([node], "opaque", inputs, outputs, initializers)
    keep_half_products(graph)
    if saturates():
        keep_byte_products(graph)
    return helper.make_model(graph, opset_imports=imported(attributes, node), ir_version=IR_VERSION)


def imported(attributes: OpaqueAttrs, node: NodeProto) -> list[onnx.OperatorSetIdProto]:
    """Returns the opset of every domain that an opaque node and its subgraphs need."""
    versions = {domain: 1 for domain in _domains(node)}
    versions[""] = BODY_OPSET
    versions[attributes.domain] = attributes.version
    return [helper.make_opsetid(domain, version) for domain, version in versions.items()]


def _domains(node: NodeProto) -> set[str]:
    found = {plain_domain(node.domain)}
    for attribute in node.attribute:
        for body in bodies(attribute):
            for inner in body.node:
                found |= _domains(inner)
    return found
