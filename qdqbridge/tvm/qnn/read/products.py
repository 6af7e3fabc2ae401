"""Products that a host computes on stacks of matrices, or on images of height 1.

Where an operator takes matrices only, or images only, emission shapes the operands before it and
the result after it. The last of these calls completes the product as the graph has it.
"""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.patterns import PatternMatch
from qdqbridge.core.graph.types import QuantType, Shape, TensorType
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs, GemmAttrs, TransposeAttrs
from qdqbridge.core.ops.conversion import QUANTIZE, REINTERPRET, REQUANTIZE
from qdqbridge.core.ops.convolution import CONVOLUTIONS
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.matmul import DENSE, GEMM
from qdqbridge.core.ops.matmul import OPERATORS as MATRIX_PRODUCTS
from qdqbridge.core.ops.shapes import broadcast_extents
from qdqbridge.tvm.qnn.origin import Provenance
from qdqbridge.tvm.qnn.read.call import Call, product_behind
from qdqbridge.tvm.qnn.read.parameters import transposed
from qdqbridge.tvm.qnn.read.reading import Reading, call_rule
from qdqbridge.tvm.qnn.read.rules.products import bias_from_column, scaled_bias
from qdqbridge.tvm.qnn.read.rules.recorded import provenance_of_node

_STACKED = tuple(row.name for row in MATRIX_PRODUCTS)
_IMAGES = tuple(row.name for row in CONVOLUTIONS)
_UNBIASED = 2


def fused_product(reading: Reading, call: Call, value: Value) -> Value | None:
    """Returns the product that a call of its own provenance completes, None for others.

    Args:
        reading: The graph so far.
        call: A reshape or squeeze of ``value``, or the rounding that made it.
        value: What stands for the product so far.
    """
    provenance, last = call.provenance, value.producer
    if provenance is None or last is None or provenance_of_node(last) != provenance:
        return None
    node, bias = _behind(reading, provenance, last)
    if node is None or node.op.flow is not Flow.ACCUMULATE:
        return None
    if provenance.op in _IMAGES and node.op.name == provenance.op:
        operands = _sequences(reading, provenance, node)
    elif _later(provenance, node):
        return value if value.type.shape == call.result.shape else None
    elif provenance.op in _STACKED and node.op in MATRIX_PRODUCTS:
        operands = _matrices(reading, provenance, node, call.result.shape)
    else:
        return None
    if operands is None or provenance.attributes is None:
        return None
    shape = call.result.shape
    plain = TensorType(value.type.dtype, shape)
    type_ = plain if value.quant is None else value.quant.with_shape(shape)
    operands += [] if bias is None else [bias]
    return reading.node(provenance.op, provenance.attributes, operands, type_, call)


def _behind(
    reading: Reading, provenance: Provenance, node: Node | None
) -> tuple[Node | None, Value | None]:
    """Returns the product behind what it moves and rounds, and a real bias that is added."""
    while node is not None and node.op.flow is not Flow.ACCUMULATE:
        own = provenance_of_node(node) == provenance
        if node.op is ADD and own:
            bias, inner = _own_bias(node, provenance), node.operand(0).producer
            complete = inner is None or bias is None or len(inner.inputs) != _UNBIASED
            return (None, None) if complete else (inner, bias)
        movement = own and node.op.flow is Flow.MOVE
        if node.op is not REQUANTIZE and not movement and not (own and node.op is QUANTIZE):
            return None, None
        node = node.operand(0).producer
    return node, None


def _own_bias(node: Node, provenance: Provenance) -> Value | None:
    """Returns the bias that a product's own call adds, as the product takes it."""
    if isinstance(provenance.attributes, GemmAttrs):
        return scaled_bias(node.operand(1), provenance.attributes)
    if provenance.op in _IMAGES:
        return bias_from_column(node.operand(1), node.output.rank or 0)
    return node.operand(1) if provenance.op == DENSE.name else None


def _later(provenance: Provenance, node: Node) -> bool:
    """True for a product of floats that a later call multiplies by a Gemm's alpha."""
    given = provenance.attributes
    scaled = isinstance(given, GemmAttrs) and given.alpha != 1.0
    return scaled and node.op is not GEMM and node.operand(0).quant is None


def _matrices(
    reading: Reading, provenance: Provenance, node: Node, shape: Shape
) -> list[Value | None] | None:
    """Returns the operands before they were stacked, if their product has the result's shape."""
    gemm = provenance.attributes if isinstance(provenance.attributes, GemmAttrs) else GemmAttrs()
    weight = node.operand(1) if node.op is GEMM else _without(reading, node, gemm.alpha)
    if weight is None:
        return None
    x, w = _unshaped(reading, node.operand(0), provenance), _unshaped(reading, weight, provenance)
    dense, stated = provenance.op == "Dense", node.op is DENSE
    (left, turned_left), (right, turned_right) = x, w
    if stated and provenance.op == "MatMul" and right.rank == 2:  # of a vector by a constant
        right = transposed(reading, right, (1, 0))
    if turned_left != gemm.trans_a:
        return None
    if turned_right != ((dense or gemm.trans_b) and not stated):
        return None
    pairs = ((left, right), (left, vector(right)), (vector(left), right))
    for a, b in (*pairs, (vector(left), vector(right))):
        if a is None or b is None:
            continue
        if _product_shape(a.type.shape, b.type.shape, gemm, dense=dense) == shape:
            return [a, b, *node.inputs[2:]]
    return None


@call_rule("product-of-stacks", (("reshape", "squeeze"), "y"))
def product_of_stacks(reading: Reading, call: Call, match: PatternMatch) -> Value | None:
    """``reshape(MatMul(reshape(x), reshape(w))) -> MatMul(x, w)``, and so convolutions."""
    return None if product_behind(match["y"]) else fused_product(reading, call, match["y"])


def vector(value: Value) -> Value | None:
    """Returns the vector in a constant matrix of one row or column, one scale for all of it."""
    data, quant = value.constant, value.quant
    if data is None or len(data.shape) != 2 or 1 not in data.shape:
        return None
    if quant is not None and not quant.params.per_tensor:
        return None
    flat = data.map(lambda array: array.reshape(-1), shape=(data.size,))
    return Value(value.type.with_shape(flat.shape), value.name, constant=flat)


def _without(reading: Reading, node: Node, alpha: float) -> Value | None:
    """Returns the second operand as it was before its scale took a Gemm's alpha in."""
    value = node.operand(1)
    if alpha == 1.0:
        return value
    before = reading.memory.get(("rescaled", value))
    if not isinstance(before, Value) or before.quant is None or value.quant is None:
        return None
    own, taken = (v.quant.params.scale.astype(np.float64) for v in (before, value) if v.quant)
    near = own.shape == taken.shape and np.allclose(own * alpha, taken, 1e-6, 0)
    return before if near else None


def _product_shape(a: Shape, b: Shape, gemm: GemmAttrs, *, dense: bool) -> Shape:
    if a is None or b is None:
        return None
    rows = a[-1:] if gemm.trans_a else a[-2:-1]
    if dense:
        return (*a[:-1], b[0])
    columns = b[-2:-1] if gemm.trans_b else b[-1:]
    if len(b) == 1:
        return a[:-1]
    if len(a) == 1:
        return (*b[:-2], *columns)
    return (*broadcast_extents(a[:-2], b[:-2]), *rows, *columns)


def _unshaped(reading: Reading, value: Value, provenance: Provenance) -> tuple[Value, bool]:
    """Returns what a product's own data movement takes, and whether it swaps the last two axes."""
    current, permuted, quant = value, False, value.quant
    best = current, permuted
    while current.producer is not None:
        node = current.producer
        if node.op is REINTERPRET:
            current = node.operand(0)
            continue
        own = provenance_of_node(node)
        if node.op.flow is not Flow.MOVE or (own is not None and own != provenance):
            break
        if isinstance(node.attributes, TransposeAttrs):
            permuted = not permuted
        elif own is None:
            break
        current = node.operand(0)
        if own is not None:
            best = current, permuted
    source, permuted = best
    if quant is None:
        return source, permuted
    params = quant.params
    if params.axis is not None:  # it counts from the end: a stack has other axes in front
        from_end = params.axis - (value.rank or 0)
        axis = -3 - from_end if permuted and from_end >= -2 else from_end
        params = params.with_axis(axis + (source.rank or 0))
    return reading.stored(source, params), permuted


def _sequences(reading: Reading, provenance: Provenance, node: Node) -> list[Value | None] | None:
    """Returns the operands of a convolution of sequences from those of one of images."""
    attributes, given = node.attributes, provenance.attributes
    if not isinstance(attributes, ConvAttrs | ConvTransposeAttrs):
        return None
    if not isinstance(given, ConvAttrs | ConvTransposeAttrs):
        return None
    half = len(given.pads) // 2
    lifted = (0, *given.pads[:half], 0, *given.pads[half:])
    if attributes.pads != lifted or attributes.strides != (1, *given.strides):
        return None
    if attributes.dilations != (1, *given.dilations) or attributes.group != given.group:
        return None
    x, w = _unshaped(reading, node.operand(0), provenance)[0], node.operand(1)
    if w.constant is None or w.quant is None or len(w.constant.shape) != 4:
        return None
    shape = (*w.constant.shape[:2], w.constant.shape[3])
    data = w.constant.map(lambda array: array.reshape(shape), shape=shape)
    weight = Value(QuantType(w.quant.params, shape), w.name, constant=data)
    return [x, weight, *node.inputs[2:]]
