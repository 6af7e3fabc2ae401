"""Nodes without a row, one at a time, as functions of their own.

Whoever can say what a node computes is asked in turn: our compositions of Relax operators, TVM's
own ONNX importer where it is known to be right, ONNX's definition of the operator in simpler nodes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm.relax.frontend.onnx import from_onnx

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor, link, verify
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.types import TensorType, static_shape
from qdqbridge.core.ops.attributes import CastAttrs, LinearAttrs
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.errors import QdqBridgeError, UnsupportedTargetError
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.control_flow.conditional import is_conditional
from qdqbridge.onnx_io.control_flow.unrolling import UnknownSteps, is_repeated, unrolled
from qdqbridge.onnx_io.opaque.expansion import expanded
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.reading.constants import Folding
from qdqbridge.onnx_io.runtime.session import bound_indices
from qdqbridge.tvm.qnn.emit.emitter import Expr, tvm_dtype, unsupported
from qdqbridge.tvm.qnn.origin import is_written
from qdqbridge.tvm.relax.emit.compositions import composition_of
from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter, added
from qdqbridge.tvm.relax.emit.loops import EmitBody, EmitBranch, conditional_module, repeated_module
from qdqbridge.tvm.relax.emit.qdq import arguments, linear_module

# ---- importer gaps -------------------------------------------------------------------------------
# What TVM's ONNX importer takes and computes as something else: refused, or legalized for it.
#
# Found by running ONNX's backend node tests through TVM 0.27 and comparing with onnxruntime. What
# it refuses itself needs no row here.


_INDEXED = ("GatherElements", "GatherND", "ScatterElements", "ScatterND")
_DROPOUT_MASK = 12
"""The opset since which Dropout's mask is true where nothing is dropped."""


def gap(node: Node) -> str | None:
    """Returns why an opaque node must not go through TVM's importer; None where it may."""
    attributes = node.attributes
    if not isinstance(attributes, OpaqueAttrs) or attributes.domain:
        return None
    found = _GAPS.get(attributes.op_type)
    return None if found is None else found(node, attributes)


def adjusted(model: Any, node: Node) -> Any:
    """Changes a model of one node, which an importer is given, to what TVM takes for it."""
    (proto,) = model.graph.node
    _with_plain_extents(model.graph)
    if proto.domain:
        return model
    if proto.op_type == "BatchNormalization":
        _batch_normalization(proto)
    if proto.op_type == "TopK":
        _top_k(model)
    if proto.op_type in ("ScatterElements", "ScatterND"):
        _scatter(model)
    if proto.op_type in _INDEXED:
        _bound_indices(model, node)
    return model


def _with_plain_extents(graph: Any) -> None:
    """Gives open extents names of one word: TVM takes ``(a*b)`` for a product of others."""
    names: dict[str, str] = {}
    for value in (*graph.input, *graph.output):
        for extent in value.type.tensor_type.shape.dim:
            if extent.dim_param:
                extent.dim_param = names.setdefault(extent.dim_param, f"extent_{len(names)}")


def _scatter(model: Any) -> None:
    """Version 18 has more reductions and means the same else; TVM knows them there only."""
    for entry in model.opset_import:
        if not entry.domain and 16 <= entry.version < 18:
            entry.version = 18


def _bound_indices(model: Any, node: Node) -> None:
    """Takes indices modulo the extents that they go along: TVM reads and writes where they say."""
    extents = _indexed_extents(node)
    assert extents is not None
    several = node.record(OpaqueAttrs).op_type.endswith("ND")
    dtype = node.operand(1).type.dtype.numpy
    bound_indices(model, np.asarray(extents if several else extents[0], dtype))


def _indexed_extents(node: Node) -> tuple[int, ...] | None:
    """Returns the extents of the data that the indices of a node go along, where all are known."""
    shape, indices = node.operand(0).type.shape, node.operand(1).type.shape
    attributes = node.record(OpaqueAttrs)
    given = attributes.node.integers()
    if shape is None:
        return None
    if not attributes.op_type.endswith("ND"):
        axis = given.get("axis", 0)
        return static_shape(shape[axis : axis + 1 or None])
    if not indices or not isinstance(indices[-1], int):
        return None
    first = given.get("batch_dims", 0)
    return static_shape(shape[first : first + indices[-1]])


def _indexing(node: Node, attributes: OpaqueAttrs) -> str | None:
    extents = _indexed_extents(node)
    if not extents or 0 in extents:
        return "it reads and writes wherever indices of an open or empty extent say"
    if not _scatter_shapes_fit(node, attributes):
        return (
            "it reads and writes behind the data, whose extents are not known to hold the indices"
        )
    return None


def _scatter_shapes_fit(node: Node, attributes: OpaqueAttrs) -> bool:
    """True where the shapes of indices and updates are known to fit the data's, as they must."""
    data, indices, *updates = (node.operand(i).type.shape for i in range(len(node.inputs)))
    given = attributes.node.integers()
    if data is None or indices is None or None in updates:
        return False
    if attributes.op_type.endswith("ND"):
        batch, deep = given.get("batch_dims", 0), indices[-1]
        if not isinstance(deep, int) or indices[:batch] != data[:batch]:
            return False
        return all(shape == indices[:-1] + data[deep:] for shape in updates)
    axis = given.get("axis", 0) % len(data)
    return (
        len(indices) == len(data)
        and all(shape == indices for shape in updates)
        and all(
            i == axis
            or mine == there
            or (isinstance(mine, int) and isinstance(there, int) and mine < there)
            for i, (mine, there) in enumerate(zip(indices, data, strict=True))
        )
    )


def _top_k(model: Any) -> None:
    """TopK of opset 10 means what it means in 11; TVM reads it as that of opset 1."""
    for entry in model.opset_import:
        if not entry.domain and entry.version == 10:
            entry.version = 11


def _batch_normalization(node: Any) -> None:
    """Momentum is the weight of the old statistics in ONNX, and of the new ones in TVM."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    training = attributes.get("training_mode")
    if training is None or not training.i:
        return
    momentum = attributes.get("momentum") or node.attribute.add(name="momentum", type=1, f=0.9)
    momentum.f = 1.0 - momentum.f


def _resize(node: Node, attributes: OpaqueAttrs) -> str | None:
    del node
    return "it leaves antialias out" if attributes.node.integers().get("antialias") else None


def _is_inf(node: Node, attributes: OpaqueAttrs) -> str | None:
    del node
    given = attributes.node.integers()
    both = given.get("detect_negative", 1) and given.get("detect_positive", 1)
    return None if both else "it finds infinities of both signs, whichever is asked for"


def _layer_normalization(node: Node, attributes: OpaqueAttrs) -> str | None:
    del attributes
    return "it makes up the mean and the deviation" if len(node.outputs) > 1 else None


def _dropout(node: Node, attributes: OpaqueAttrs) -> str | None:
    if attributes.version < _DROPOUT_MASK and len(node.outputs) > 1:
        return "the mask of an old Dropout is not what was kept"
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None or (training.constant is not None and not training.constant.numpy().any()):
        return None
    ratio = node.inputs[1]
    if ratio is not None and ratio.constant is not None and not ratio.constant.numpy().any():
        return None
    return "it never drops anything"


def _squeeze(node: Node, attributes: OpaqueAttrs) -> str | None:
    del attributes
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return None
    return "without axes the run tells which extents are 1, and how many are left"


def _conv_transpose(node: Node, attributes: OpaqueAttrs) -> str | None:
    del node
    if any(each.name == "output_shape" for each in attributes.node.proto().attribute):
        return "it leaves out the extents that the result shall have"
    return None


def _unique(node: Node, attributes: OpaqueAttrs) -> str | None:
    stored = attributes.node.proto()
    inverse = stored.output[2:3]
    if any(attribute.name == "axis" for attribute in stored.attribute) or not any(inverse):
        return None
    if node.operand(0).rank == 1:
        return None
    return "it gives the inverse indices the shape of the data"


def _element_reduction(node: Node, attributes: OpaqueAttrs) -> str | None:
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    empty = axes is None or (axes.constant is not None and not axes.constant.size)
    if not attributes.node.integers().get("noop_with_empty_axes") or not empty:
        return None
    return "without axes it leaves out what happens to each element"


def _suppression(node: Node, attributes: OpaqueAttrs) -> str | None:
    del node, attributes
    return "it takes limits that only the run knows for numbers of its own"


_GAPS: Mapping[str, Callable[[Node, OpaqueAttrs], str | None]] = {
    "ConvTranspose": _conv_transpose,
    "Dropout": _dropout,
    "IsInf": _is_inf,
    "LayerNormalization": _layer_normalization,
    "NonMaxSuppression": _suppression,
    "Resize": _resize,
    "Squeeze": _squeeze,
    "Unique": _unique,
    **dict.fromkeys(_INDEXED, _indexing),
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"), _element_reduction
    ),
}


# ---- Nodes without a row, one at a time, as functions of their own -------------------------------


_FEW, _MANY = 512, 1024
"""How many nodes steps may have together that are written out, and where nothing else goes."""
EmitNode = Callable[[RelaxEmitter, Node], Sequence[Expr]]
EmitGraph = Callable[[Graph, "EmitNode | None"], ir.IRModule]
"""Emits a graph as a module; its nodes without a row as the second argument says, if given."""
EmitTyped = Callable[[RelaxEmitter, Node, Expr, Value], Expr]
"""Gives a result of a function the type of the graph's value."""


def emit_opaque(
    emitter: RelaxEmitter, node: Node, emit_graph: EmitGraph, *, shown: bool = True
) -> Sequence[Expr]:
    """Emits an opaque node as a call of a function that computes it.

    Args:
        emitter: Where to.
        emit_graph: Emits what the node stands for.
        shown: Its large constants are operands, which the call shows to readers; else they stand
            in the function, where what is computed of them alone is computed once.

    Raises:
        UnsupportedTargetError: Nobody knows how to compute it with TVM.
    """
    node = _handed_over(emitter, node, shown=shown)
    if isinstance(node.attributes, LinearAttrs):
        callee = added(emitter.builder, linear_module(node, node.attributes), node.op.name.lower())
        return [emitter.emit(relax.Call(callee, list(arguments(emitter, node))))]
    if node.op.apart:
        module = _composed(emitter, node, emit_graph)
        if module is None:
            raise unsupported(node, "TVM has no counterpart of it")
        return _call_opaque_function(emitter, node, module)
    if is_conditional(node):
        return emit_conditional(emitter, node, lambda branch: emit_graph(branch, None))
    if is_repeated(node):
        return emit_repeated(emitter, node, lambda body: emit_graph(body, None))
    if not isinstance(node.attributes, OpaqueAttrs):
        raise unsupported(node, "it carries no ONNX node")
    reasons: list[str] = []
    cause: Exception | None = None
    # Our own compositions come first, as they are exact. ONNX's definitions come last: every one of
    # their steps is rounded.
    for way in (_composed, _imported, _defined):
        try:
            module = way(emitter, node, emit_graph)
            if module is not None:
                return _call_opaque_function(emitter, node, module)
        # The next way may have it. Only if none has, the reasons of all are said.
        except UnsupportedTargetError as error:
            reasons.append(error.why)
            cause = error
        except QdqBridgeError as error:
            reasons.append(f"{error.what}: {error.why}")
            cause = error
    raise unsupported(node, "; ".join(reasons)) from cause


def emit_conditional(emitter: RelaxEmitter, node: Node, emit_branch: EmitBranch) -> Sequence[Expr]:
    """Emits an opaque If as a call of a function that chooses between two.

    Args:
        emitter: Where to.
        node: The If.
        emit_branch: Emits a branch.

    Raises:
        UnsupportedTargetError: TVM cannot run a branch.
    """
    whole, node = node, _decided(emitter, node)
    (alone,) = _alone(emitter, node).nodes
    try:
        module = conditional_module(alone, emit_branch)
    except QdqBridgeError as error:
        raise unsupported(node, f"{error.what}: {error.why}") from error
    results = _call_opaque_function(emitter, node, module, _with_extents_of_the_run)
    for value, result in zip(whole.outputs, results, strict=True):
        if value.users and result.ty.ndim < 0:
            raise unsupported(node, f"its branches give '{value.name}' in different ranks")
    return results


def _decided(emitter: RelaxEmitter, node: Node) -> Node:
    """Returns an If with a constant for a condition that extents decide, in what is run."""
    known = emitter.arithmetic.truth(node.operand(0)) if emitter.checked else None
    if known is None:
        return node
    condition = Value(TensorType(DType.BOOL, ()), constant=Constant.of(np.asarray(known)))
    outputs = [Value(value.type, value.name) for value in node.outputs]
    return Node(node.op, node.attributes, [condition, *node.inputs[1:]], outputs, node.origin)


def emit_repeated(emitter: RelaxEmitter, node: Node, emit_body: EmitBody) -> Sequence[Expr]:
    """Emits an opaque Loop or Scan as a call of a function that makes its steps.

    A few steps whose number is known stand one behind the other, others are counted as they run:
    compiling takes time by the square of what stands in one function.

    Args:
        emitter: Where to.
        node: The Loop or Scan.
        emit_body: Emits a body, or several steps of it.

    Raises:
        UnsupportedTargetError: TVM cannot run the body.
    """

    def counted() -> ir.IRModule:
        (alone,) = _alone(emitter, node).nodes
        return repeated_module(alone, emit_body)

    def written_out(most: int) -> ir.IRModule:
        return emit_body(canonicalize(unrolled(node, most)))

    reasons: dict[str, QdqBridgeError] = {}
    for way in (partial(written_out, _FEW), counted, partial(written_out, _MANY)):
        try:
            return _call_opaque_function(emitter, node, way())
        except UnknownSteps:
            continue
        except QdqBridgeError as error:
            reasons[f"{error.what}: {error.why}"] = error
    raise unsupported(node, "; ".join(reasons)) from next(iter(reasons.values()))


def _with_extents_of_the_run(emitter: RelaxEmitter, node: Node, result: Expr, value: Value) -> Expr:
    """Returns a result of an If with open extents of its own.

    Files declare those of one branch, merged decoders of optimum for example.
    """
    type_: Any = emitter.builder.normalize(result).ty
    shape = value.type.shape or (None,) * max(type_.ndim, 0)
    if type_.shape is None and type_.ndim == len(shape):
        count = len(emitter.symbols)
        extents: Any = [
            extent if isinstance(extent, int) else emitter.extent(f"{value.name}_{count}_{axis}")
            for axis, extent in enumerate(shape)
        ]
        known = relax.TensorType(extents, str(type_.dtype))
        result = emitter.builder.match_cast(emitter.emit(result), known)
    return _typed(emitter, node, result, value)


def _handed_over(emitter: RelaxEmitter, node: Node, *, shown: bool) -> Node:
    """Returns the node with other operands where the call shall show or say more than the graph.

    Large constants are operands, for readers; what has a rank that only TVM knows has it.
    """
    stands: dict[Value, Value] = {}
    for value in node.inputs:
        if value is None or value in stands:
            continue
        if value.constant is not None:
            if shown and not is_written(value):
                stands[value] = Value(value.type, value.name)
        elif value.type.shape is None and emitter.value(value).ty.shape is not None:
            shape = tuple(
                each if isinstance(each, int) else str(each)
                for each in emitter.extents(emitter.value(value))
            )
            stands[value] = Value(TensorType(value.type.dtype, shape), value.name)
    if not stands:
        return node
    emitter.exprs.update((stand, emitter.value(value)) for value, stand in stands.items())
    inputs = [None if value is None else stands.get(value, value) for value in node.inputs]
    outputs = [Value(value.type, value.name) for value in node.outputs]
    return Node(node.op, node.attributes, inputs, outputs, node.origin)


def _call_opaque_function(
    emitter: RelaxEmitter, node: Node, module: ir.IRModule, typed: EmitTyped | None = None
) -> Sequence[Expr]:
    name = f"onnx_{node.op.name.rpartition('::')[2].lower()}"
    callee = added(emitter.builder, module, name)
    args = [emitter.value(v) for v in node.inputs if v is not None and v.constant is None]
    called = emitter.emit(relax.Call(callee, args))
    results = _unpack_call_results(node, called)[: len(node.outputs)]
    typed = typed or _typed
    return [typed(emitter, node, r, v) for r, v in zip(results, node.outputs, strict=True)]


def _unpack_call_results(node: Node, called: Expr) -> list[Expr]:
    """Returns one expression per result.

    Raises:
        UnsupportedTargetError: TVM returns fewer.
    """
    several = isinstance(called.ty, relax.TupleType)
    given = len(called.ty.fields) if several else 1
    if given < len(node.outputs):
        raise unsupported(
            node, f"what computes it gives {given} of its {len(node.outputs)} results"
        )
    return [relax.TupleGetItem(called, i) for i in range(given)] if several else [called]


def _typed(emitter: RelaxEmitter, node: Node, result: Expr, value: Value) -> Expr:
    """Returns a result in the graph's element type.

    Raises:
        UnsupportedTargetError: It has another shape than the graph's: TVM makes some results up.
    """
    type_: Any = emitter.builder.normalize(result).ty
    meant, shape = tvm_dtype(value.type.dtype), value.type.shape
    extents = [] if type_.shape is None else list(type_.shape.values)
    fixed = [
        (int(have), extent)
        for have, extent in zip(extents, shape or (), strict=False)
        if isinstance(have, tirx.IntImm) and isinstance(extent, int)
    ]
    other_rank = shape is not None and type_.ndim not in (-1, len(shape))
    if other_rank or any(have != extent for have, extent in fixed):
        made = f"rank {type_.ndim}" if other_rank else f"{[have for have, _ in fixed]}"
        raise unsupported(
            node, f"what computes it gives {made} for the result '{value.name}' of {shape}"
        )
    if type_.shape is None and emitter.knows(shape):
        known = relax.TensorType(emitter.shape(shape), str(type_.dtype))
        result = emitter.builder.match_cast(emitter.emit(result), known)
    return result if str(type_.dtype) == meant else emitter.op.astype(emitter.emit(result), meant)


# ---- who says what it computes ------------------------------------------------------------------


def _composed(emitter: RelaxEmitter, node: Node, emit_graph: EmitGraph) -> ir.IRModule | None:
    """Returns our composition of Relax operators, where there is one for this variant."""
    composition = composition_of(node)
    if composition is None:
        return None

    def emit(inner: RelaxEmitter, alone: Node) -> Sequence[Expr]:
        try:
            return composition(inner, alone)
        except NoRow as why:
            raise unsupported(node, str(why)) from why

    return emit_graph(_alone(emitter, node), emit)


def _imported(emitter: RelaxEmitter, node: Node, emit_graph: EmitGraph) -> ir.IRModule | None:
    """Returns what TVM's own ONNX importer makes of it."""
    del emitter, emit_graph
    wrong = gap(node)
    if wrong is not None:
        raise unsupported(node, f"TVM's ONNX importer would compute it wrongly: {wrong}")
    for value in (*node.inputs, *node.outputs):
        if value is not None and tvm_dtype(value.type.dtype) != str(value.type.dtype):
            raise unsupported(node, f"TVM's ONNX importer has no tensors of {value.type.dtype}")
    alone = adjusted(node.record(OpaqueAttrs).model(node), node)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # TVM prints before it raises
            return from_onnx(alone, _shapes(alone.graph), keep_params_in_input=False)
    except Exception as error:  # TVM's converters raise whatever they meet
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise unsupported(node, f"TVM's ONNX importer refuses it: {reason[0]}") from error


def _shapes(graph: Any) -> dict[str, list[Any]]:
    """Returns the shapes of a graph's inputs: TVM's importer itself takes 0 for an open extent."""
    symbols: dict[str, Any] = {}

    def extent(dim: Any) -> Any:
        name = str(dim.dim_param)
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        return symbols.setdefault(name, tirx.Var(name, "int64")) if name else tirx.Var("n", "int64")

    types = {value.name: value.type.tensor_type for value in graph.input}
    return {
        name: [extent(dim) for dim in type_.shape.dim]
        for name, type_ in types.items()
        if type_.HasField("shape")
    }


def _defined(emitter: RelaxEmitter, node: Node, emit_graph: EmitGraph) -> ir.IRModule | None:
    """Returns ONNX's own definition of it in simpler nodes, where there is one.

    Those compute half floats in float32: rounding each step would lose what the one operator keeps.
    """
    del emitter
    graph = expanded(_widened(node))
    if graph is None:
        return None
    verify(graph)  # of operands that the node should not have ONNX makes nodes that nobody takes
    _narrow(graph, node)
    canonicalize(graph)
    while _fold(graph):  # extents that are known make others known
        canonicalize(graph)
    return emit_graph(graph, None)


def _fold(graph: Graph) -> bool:
    """Makes constants of what only constants determine; returns whether there was any."""
    editor, folding, found = Editor(graph), Folding(), False
    for node in list(graph.nodes):
        for value in node.outputs:
            constant = folding.constant(value) if value.users or value in graph.outputs else None
            if constant is not None:
                type_ = TensorType(constant.dtype, constant.shape)
                editor.replace_value(value, Value(type_, value.name, constant=constant))
                found = True
    editor.finish()
    return found


def _widened(node: Node) -> Node:
    """Returns a node with float32 in the place of half floats."""
    values = {value: _wide(value) for value in (*node.inputs, *node.outputs) if value is not None}
    inputs = [None if value is None else values[value] for value in node.inputs]
    outputs = [Value(values[value].type, value.name) for value in node.outputs]
    return Node(node.op, node.attributes, inputs, outputs, node.origin)


def _narrow(graph: Graph, node: Node) -> None:
    """Gives a graph of :func:`_widened` the element types of the node's operands and results."""
    fed = [value for value in node.inputs if value is not None and value.constant is None]
    for index, (own, inner) in enumerate(zip(fed, list(graph.inputs), strict=True)):
        if own.type.dtype is not inner.type.dtype:
            graph.inputs[index] = Value(TensorType(own.type.dtype, inner.type.shape), inner.name)
            cast = Node(CAST, CastAttrs(inner.type.dtype), [graph.inputs[index]], [inner])
            graph.nodes.insert(0, cast)
            link(cast)
    for index, (own, inner) in enumerate(zip(node.outputs, list(graph.outputs), strict=True)):
        if own.type.dtype is not inner.type.dtype:
            graph.outputs[index] = Value(TensorType(own.type.dtype, inner.type.shape), inner.name)
            cast = Node(CAST, CastAttrs(own.type.dtype), [inner], [graph.outputs[index]])
            graph.nodes.append(cast)
            link(cast)


def _wide(value: Value) -> Value:
    if value.type.dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return value
    constant = value.constant
    if constant is not None:
        constant = Constant.of(constant.numpy().astype(np.float32))
    return Value(TensorType(DType.FLOAT32, value.type.shape), value.name, constant=constant)


def _alone(emitter: RelaxEmitter, node: Node) -> Graph:
    """Returns a graph of the node alone; its inputs have the types of their expressions."""
    inputs: list[Value | None] = []
    names: dict[str, str] = {}
    for index, value in enumerate(node.inputs):
        if value is None or value.constant is not None:
            inputs.append(value)
            continue
        shape = tuple(_named_extents(emitter, node, emitter.value(value), names))
        inputs.append(Value(TensorType(value.type.dtype, shape), f"in_{index}"))
    outputs = [Value(value.type, f"out_{index}") for index, value in enumerate(node.outputs)]
    alone = Node(node.op, node.attributes, inputs, outputs, node.origin)
    fed = [value for value in inputs if value is not None and value.constant is None]
    return Graph(fed, outputs, [value.name for value in outputs], [alone])


def _named_extents(
    emitter: RelaxEmitter, node: Node, expr: Expr, names: dict[str, str]
) -> Iterator[int | str]:
    """Yields extents; each expression has one name of its own in the whole node."""
    if expr.ty.shape is None:
        raise unsupported(node, "the shape of an operand is known at run time only")
    for extent in emitter.extents(expr):
        if isinstance(extent, int):
            yield extent
        else:
            yield names.setdefault(str(extent), f"extent_{len(names)}")
