"""LSTM, GRU and RNN of float32: one product for the inputs of all steps, and what steps carry.

Weights are constants, so each node becomes two before kernels are chosen: a product of rows whose
columns lie as the steps read them, and the steps (:mod:`.steps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Array, Flow, Operands, Row
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.core.rewrite import stored_behind
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace, any_open
from qdqbridge.tvm.relax.kernels.products.float_products import is_real, real_constant
from qdqbridge.tvm.relax.kernels.recurrent.layers import (
    DIRECTIONS,
    KINDS,
    CellFunction,
    RecurrentAttrs,
    RecurrentKind,
    Stage,
    functions_of,
)
from qdqbridge.tvm.relax.kernels.recurrent.steps import (
    FUNCTIONS,
    RecurrentLoops,
    build_recurrent_steps,
)

_FIRST_STATES = (5, 6)
_LENGTHS, _PEEPHOLES = 4, 7


def _compute_recurrent_steps(attributes: RecurrentAttrs, operands: Operands) -> tuple[Array, ...]:
    raise AssertionError("it is made where it has a kernel")


RECURRENT_STEPS = Row(
    name="RecurrentSteps", flow=Flow.FLOAT, attributes=RecurrentAttrs,
    compute=_compute_recurrent_steps, data=(),
)  # fmt: skip
"""``sums[steps, batch, columns], weights, inner bias, peepholes, lengths, states... -> results``;
peepholes, lengths and states where the layer has them."""


def in_steps(node: Node, place: KernelPlace) -> list[Value] | None:
    """Returns the results of a recurrent layer as a product and its steps; None of other nodes.

    None too where weights are not constant, or directions have other functions, or some that only
    TVM's loops compute.

    Args:
        place: Where it is computed.
    """
    attributes = _recurrent_attrs(node)
    x = node.operand(0) if attributes else None
    if attributes is None or x is None or x.rank != 3 or any_open(x.type.shape) is None:
        return None
    weights, recurrent = (_float32_rnn_constant(node.operand(index)) for index in (1, 2))
    if weights is None or recurrent is None or x.type.shape is None:
        return None
    count = attributes.gates * attributes.size
    bias = np.zeros((len(attributes.turns), 2 * count), np.float32)
    if (given := node.optional(3)) is not None:
        held = _float32_rnn_constant(given)
        if held is None:
            return None
        bias = held
    own, inner = bias[:, :count], bias[:, count:]
    stages, lanes = attributes.stages, place.cpu.lanes
    if attributes.kind == "GRU" and not attributes.reset_first:
        inside = inner.copy()
        inside[:, : 2 * attributes.size] = 0  # only the last gate's is added in brackets
        inner, own = inside, own + (inner - inside)
    else:
        own, inner = own + inner, np.zeros_like(inner)
    columns = _columns(weights, stages, attributes.size, lanes)
    sums = TensorType(DType.FLOAT32, (*x.type.shape[:2], len(columns)))
    added = _columns(own[..., None], stages, attributes.size, lanes).reshape(-1)
    label = node.output.name
    operands = [x, constant(columns, None, f"{label}_w"), constant(added, None, f"{label}_b")]
    product = result(DENSE, NO_ATTRIBUTES, operands, sums, node.origin, f"{label}_sums")
    packed = _packed(recurrent, stages, attributes.size, lanes)
    last = _columns(inner[..., None], stages, attributes.size, lanes)
    steps: list[Value | None] = [product, constant(packed, None, f"{label}_r")]
    steps.append(constant(last.reshape(len(attributes.turns), -1), None, f"{label}_inner"))
    if attributes.peepholes:
        peepholes = _float32_rnn_constant(node.operand(_PEEPHOLES))
        if peepholes is None:
            return None
        wide = _in_blocks(peepholes[..., None], attributes.size, lanes)
        steps.append(constant(wide.reshape(len(wide), -1), None, f"{label}_peepholes"))
    states = (_LENGTHS, *_FIRST_STATES)
    steps += [node.optional(index) for index in states if node.optional(index)]
    found = [Value(value.type, value.name) for value in node.outputs]
    Node(RECURRENT_STEPS, attributes, steps, found, node.origin)
    return found


def _recurrent_attrs(node: Node) -> RecurrentAttrs | None:
    """Returns what a layer's steps do, where they do the usual."""
    opaque = node.attributes
    if node.op.name not in KINDS or not isinstance(opaque, OpaqueAttrs):
        return None
    view = NodeView(opaque.node.proto(), opaque.version, node.inputs)
    turns = DIRECTIONS.get(view.string("direction", "forward"))
    kind = KINDS[node.op.name]
    if view.domain or turns is None or not is_real(node.operand(0)):
        return None
    functions = _functions(view, kind, len(turns))
    if functions is None or view.int_("layout", 0):
        return None
    lengths = node.optional(_LENGTHS)
    if lengths is not None and (lengths.type.dtype is not DType.INT32 or lengths.rank != 1):
        return None
    given = tuple(node.optional(index) is not None for index in _FIRST_STATES[: kind.states])
    states = [node.operand(i) for i, has in zip(_FIRST_STATES, given, strict=False) if has]
    size = (node.operand(2).type.shape or (0,))[-1]
    if not all(map(is_real, states)) or not isinstance(size, int) or not size:
        return None
    names = view.proto.output
    wanted = tuple(i for i in range(len(names)) if names[i])
    if len(wanted) != len(node.outputs) or not all(map(is_real, node.outputs)):
        return None
    reset_first = node.op.name == "GRU" and not view.int_("linear_before_reset", 0)
    coupled, peepholes = bool(view.int_("input_forget", 0)), node.optional(_PEEPHOLES) is not None
    return RecurrentAttrs(
        node.op.name, turns, size, reset_first, given, lengths is not None, functions, peepholes,
        coupled, wanted,
    )  # fmt: skip


def _functions(
    view: NodeView, kind: RecurrentKind, directions: int
) -> tuple[CellFunction, ...] | None:
    """Returns the functions of every direction; None where these differ, or have no kernel."""
    try:
        first, *others = functions_of(view, kind.functions, directions)
    except NoRow:
        return None
    alike = all(each == first for each in others)
    return first if alike and all(function.name in FUNCTIONS for function in first) else None


def _float32_rnn_constant(value: Value) -> Array | None:
    """Returns a constant of float32, also one that is dequantized in the graph."""
    found = real_constant(value)
    return real_constant(stored_behind(value)) if found is None else found


def _columns(weights: Array, stages: Sequence[Stage], size: int, lanes: int) -> Array:
    """Returns rows ``(directions, gates · size, n)`` as steps read them, ``(columns, n)``.

    Of every stage its blocks of ``lanes`` elements of the state, and of these its gates.
    """
    split = _in_blocks(weights, size, lanes)
    parts = [
        split[:, list(stage.gates)].swapaxes(1, 2).reshape(len(split), -1, weights.shape[2])
        for stage in stages
    ]
    columns: Array = np.concatenate(parts, axis=1)
    return columns.reshape(-1, weights.shape[2])


def _packed(weights: Array, stages: Sequence[Stage], size: int, lanes: int) -> Array:
    """Returns recurrent weights, ``(directions, all panels of all stages)``.

    A panel has for every element of the state the gates of some blocks, side by side.
    """
    split, parts = _in_blocks(weights, size, lanes), list[Array]()
    blocks = split.shape[2]
    for stage in stages:
        own = split[:, list(stage.gates)].transpose(0, 4, 2, 1, 3)  # (d, k, block, gate, lane)
        for start in range(0, blocks, stage.blocks):
            parts.append(own[:, :, start : start + stage.blocks].reshape(len(own), -1))
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def _in_blocks(weights: Array, size: int, lanes: int) -> Array:
    """Returns ``(directions, gates · size, n)`` as ``(directions, gates, blocks, lanes, n)``."""
    turns, rows, width = weights.shape
    blocks = -(-size // lanes)
    wide = np.zeros((turns, rows // size, blocks * lanes, width), np.float32)
    wide[:, :, :size] = weights.reshape(turns, -1, size, width)
    return wide.reshape(turns, -1, blocks, lanes, width)


def match_recurrent(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of the steps of a layer."""
    attributes = node.attributes
    if not isinstance(attributes, RecurrentAttrs):
        return None
    sums, weights, inner = (node.operand(index) for index in range(3))
    shape = any_open(sums.type.shape)
    if shape is None or weights.constant is None or inner.constant is None:
        return None
    description = RecurrentLoops(place.cpu, attributes, shape[:2], place.threads)
    first = 4 if attributes.peepholes else 3
    held = [value.constant for value in node.inputs[1:first] if value is not None]
    constants: Any = tuple(each.numpy() for each in held if each is not None)
    states = tuple(value for value in node.inputs[first:] if value is not None)
    name = f"{attributes.kind.lower()}_steps_{attributes.size}"
    return Kernel(
        name, description, build_recurrent_steps, (sums, *states), constants, tuple(node.outputs)
    )
