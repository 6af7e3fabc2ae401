"""Products, norms and softmax that a host spells as several calls."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.operator import NO_ATTRIBUTES
from qdqbridge.graph.patterns import Pattern, PatternMatch, match, near, scalar
from qdqbridge.graph.types import TensorType
from qdqbridge.ops.attributes import (
    GemmAttrs,
    NormAttrs,
    ReshapeAttrs,
    SoftmaxAttrs,
    TransposeAttrs,
)
from qdqbridge.ops.convolution import OPERATORS as CONVOLUTIONS
from qdqbridge.ops.data_movement import RESHAPE
from qdqbridge.ops.elementwise import ADD, MUL
from qdqbridge.ops.matmul import GEMM, MATMUL
from qdqbridge.ops.softmax import OPERATORS as SOFTMAXES
from qdqbridge.qnn.read.call import Call
from qdqbridge.qnn.read.fused import Find, Fused, present, stated_attributes
from qdqbridge.qnn.read.products import scaled_bias


def _gemm(node: Node, call: Call) -> Fused | None:
    """``matmul(a, b)``, then ``* alpha``, then ``+ beta * c``, as the span's attributes say."""
    given = stated_attributes(call, GemmAttrs)
    if given is None:
        return None
    if node.op is MATMUL and given.alpha == 1.0:
        return _product(node, given)
    if node.op is MUL:
        inner, alpha = node.operand(0).producer, scalar(node.operand(1))
        if inner is None or inner.op is not MATMUL or alpha is None:
            return None
        return _product(inner, given) if near(alpha, given.alpha) else None
    if node.op is ADD:
        inner, bias = node.operand(0).producer, scaled_bias(node.operand(1), given)
        if inner is None or bias is None or inner.op is not GEMM or len(inner.inputs) != 2:
            return None
        return Fused("Gemm", given, [inner.operand(0), inner.operand(1), bias])
    return None


def _product(node: Node, given: GemmAttrs) -> Fused | None:
    a, b = node.operand(0), node.operand(1)
    a = _permuted(a) if given.trans_a else a
    b = _permuted(b) if given.trans_b else b
    return None if a is None or b is None else Fused("Gemm", given, [a, b])


def _permuted(value: Value) -> Value | None:
    node = value.producer
    if node is None or not isinstance(node.attributes, TransposeAttrs):
        return None
    return node.operand(0)


def linear(node: Node, call: Call) -> Fused | None:
    """``matmul(x, transpose(constant)) + vector``: what exporters write for a linear layer."""
    del call
    inner, bias = node.operand(0).producer, node.operand(1)
    if inner is None or inner.op is not MATMUL or inner.operand(0).rank != 2:
        return None
    w = _permuted(inner.operand(1))
    if w is None or w.constant is None or bias.constant is None or bias.rank != 1:
        return None
    return Fused("Gemm", GemmAttrs(trans_b=True), [inner.operand(0), w, bias])


def _dense(node: Node, call: Call) -> Fused | None:
    """``matmul(x, transpose(w)) [+ bias]``."""
    if node.op is MATMUL:
        w = _permuted(node.operand(1))
        return None if w is None else Fused("Dense", NO_ATTRIBUTES, [node.operand(0), w])
    return _biased(node, "Dense", call)


def _biased(node: Node, name: str, call: Call) -> Fused | None:
    """``op(x, w) + column(bias)``."""
    inner = node.operand(0).producer if node.op is ADD else None
    if inner is None or inner.op.name != name or len(inner.inputs) != 2:
        return None
    bias, rank = node.operand(1), len(call.result.shape or ())
    if name != "Dense":
        vector = _vector(bias, rank)
        if vector is None:
            return None
        bias = vector
    return Fused(name, inner.attributes, [inner.operand(0), inner.operand(1), bias])


def _vector(bias: Value, rank: int) -> Value | None:
    """Returns the vector behind a column (C, 1, …) of ``rank`` - 1 axes."""
    node = bias.producer
    if node is not None and isinstance(node.attributes, ReshapeAttrs):
        return node.operand(0) if node.operand(0).rank == 1 else None
    data = bias.constant
    if data is None or len(data.shape) != rank - 1 or data.size != data.shape[0]:
        return None
    flat = data.map(lambda array: array.reshape(-1), shape=(data.size,))
    return Value(TensorType(data.dtype, (data.size,)), bias.name, constant=flat)


def _conv(name: str) -> Find:
    return lambda node, call: _biased(node, name, call)


# ---- norms, softmax ----------------------------------------------------------------------------


def _normalized(node: Node, call: Call) -> Fused | None:
    """``x / sqrt(mean(x * x) + epsilon) * gamma [+ beta]``; for a layer norm x is centred."""
    given, provenance = stated_attributes(call, NormAttrs), call.provenance
    if given is None or provenance is None:
        return None
    if node.op is ADD:
        inner = node.operand(0).producer
        if inner is None or inner.op.name != provenance.op or len(inner.inputs) != 2:
            return None
        return Fused(provenance.op, given, [*present(inner), node.operand(1)])
    found = PatternMatch()
    square: Pattern = ("ReduceMean", ("Mul", "x", "x"))
    root: Pattern = ("Sqrt", ("Add", square, "#epsilon"))
    if not match(node.output, ("Mul", ("Div", "x", root), "gamma"), found):
        return None
    if not near(found.numbers["epsilon"], given.epsilon):
        return None
    x = found.values["x"]
    if provenance.op == "LayerNormalization":
        centred = PatternMatch()
        if not match(x, ("Sub", "y", ("ReduceMean", "y")), centred):
            return None
        x = centred.values["y"]
    return Fused(provenance.op, given, [x, found.values["gamma"]])


def flat_softmax(node: Node, call: Call) -> Fused | None:
    """``reshape(softmax(reshape(x)))``: a softmax over several axes."""
    given, provenance = stated_attributes(call, SoftmaxAttrs), call.provenance
    inner = node.operand(0).producer if node.op is RESHAPE else None
    if given is None or provenance is None or inner is None or inner.op.name != provenance.op:
        return None
    flat = inner.operand(0).producer
    if flat is None or flat.op is not RESHAPE:
        return None
    return Fused(provenance.op, given, [flat.operand(0)])


PRODUCTS: Mapping[str, Find] = {
    "Gemm": _gemm,
    "Dense": _dense,
    **{row.name: _conv(row.name) for row in CONVOLUTIONS},
    "LayerNormalization": _normalized,
    "RMSNormalization": _normalized,
    **{row.name: flat_softmax for row in SOFTMAXES},
}
"""What completes each product, norm and softmax, by the graph's name."""
