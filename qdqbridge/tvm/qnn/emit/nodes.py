"""One node of a graph as a host computes it: a call of the QNN dialect, or float operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.composition import COMPOSITION
from qdqbridge.core.ops.data_movement import OPERATORS as MOVES
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.selection import GATHER, SLICE, SPLIT
from qdqbridge.tvm.qnn.emit.accumulate import quantized_accumulation
from qdqbridge.tvm.qnn.emit.conversions import CONVERSIONS
from qdqbridge.tvm.qnn.emit.data_movement import DATA_MOVEMENT
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, unsupported
from qdqbridge.tvm.qnn.emit.floating import FLOATING
from qdqbridge.tvm.qnn.emit.resize import emit_resize
from qdqbridge.tvm.qnn.emit.rounded import quantized_result

KNOWN = DATA_MOVEMENT.keys() | FLOATING.keys() | CONVERSIONS.keys() | {RESIZE, COMPOSITION}
"""Operators that have an emission function."""
EmitOpaque = Callable[[Node], Sequence[Expr]]
Form = Callable[[FunctionEmitter, Node, EmitOpaque], Sequence[Expr]]
"""Emits one node: an expression for each of its results."""


_BYTE_MOVERS = frozenset((*MOVES, SLICE, GATHER, SPLIT))
"""Operators that neither compare nor make up the elements that they move."""


def computes_minifloats(node: Node) -> bool:
    """True where an operator works on 8- or 4-bit floats, whose bytes say nothing to it."""
    if node.op.flow in (Flow.CONVERT, Flow.REINTERPRET) or node.op in _BYTE_MOVERS:
        return False
    values = [*(v for v in node.inputs if v is not None), *node.outputs]
    return any(v.quant is not None and v.type.dtype.is_small_float for v in values)


def in_integers(emitter: FunctionEmitter, node: Node, emit_opaque: EmitOpaque) -> Sequence[Expr]:
    """Emits a node in the QNN dialect, or as a float operator where that has no call for it."""
    if node.op.flow is Flow.FLOAT and node.op not in FLOATING:
        return emit_opaque(node)
    own = emitter.variant.rows.get(node.op) if node.output.quant is not None else None
    written = None if own is None else own(emitter, node)
    if written is not None:
        return [written]
    if node.op in CONVERSIONS:
        return [CONVERSIONS[node.op](emitter, node)]
    if node.op is RESIZE:
        return [emit_resize(emitter, node)]
    if node.op in DATA_MOVEMENT:
        moved = DATA_MOVEMENT[node.op](emitter, node, emitter.value(node.operand(0)))
        return moved if isinstance(moved, list) else [moved]
    quantized = None
    if node.op.flow is Flow.ACCUMULATE:
        quantized = quantized_accumulation(emitter, node)
    elif node.output.quant is not None:
        quantized = quantized_result(emitter, node)
    return [float_form(emitter, node) if quantized is None else quantized]


def float_form(emitter: FunctionEmitter, node: Node) -> Expr:
    """Emits the float operator on dequantized operands, and the rounding of its result."""
    if node.op not in FLOATING:
        raise unsupported(node, "it has no counterpart of floats")
    args = [
        emitter.real(value) if node.op.is_data(index) else emitter.value(value)
        for index, value in enumerate(node.inputs)
        if value is not None
    ]
    result = FLOATING[node.op](emitter, node, args)
    if node.output.quant is None:
        return result
    return emitter.quantize(emitter.emit(result), node.output.quant.params)
