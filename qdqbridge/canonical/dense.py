"""Rules that give every product with a constant matrix one form: ``Dense(x, w[N, K], bias)``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.canonical.build import constant, result
from qdqbridge.canonical.rule import Proposal, Reject, Replace, Scope, rule, stored_behind
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.numerics import dequantize
from qdqbridge.graph.operator import NO_ATTRIBUTES
from qdqbridge.ops.attributes import GemmAttrs
from qdqbridge.ops.matmul import DENSE


@rule("matmul-is-dense", "MatMul")
def matmul_is_dense(node: Node, scope: Scope) -> Proposal:
    """``MatMul(x, w) -> Dense(x, transpose(w))`` for a quantized constant matrix w."""
    del scope
    x, w = node.operand(0), node.operand(1)
    if w.constant is None or w.quant is None or w.rank != 2 or x.rank is None or x.rank < 2:
        return None
    return _dense(node, transposed(w), None)


@rule("gemm-is-dense", "Gemm")
def gemm_is_dense(node: Node, scope: Scope) -> Proposal:
    """``Gemm(x, w, c) -> Dense(x, w, c)`` for a quantized constant w and a bias per column."""
    del scope
    attributes, w, bias = node.attributes, node.operand(1), node.optional(2)
    if not isinstance(attributes, GemmAttrs) or w.constant is None or w.quant is None:
        return None
    if attributes.trans_a or attributes.alpha != 1.0:
        return Reject("Gemm with transA or alpha keeps its own form")
    weight = w if attributes.trans_b else transposed(w)
    if bias is not None:
        bias = _bias(bias, attributes.beta, weight)
        if isinstance(bias, Reject):
            return bias
    return _dense(node, weight, bias)


def _dense(node: Node, weight: Value, bias: Value | None) -> Proposal:
    operands = [node.operand(0), weight] + ([bias] if bias is not None else [])
    value = result(DENSE, NO_ATTRIBUTES, operands, node.output.type, node.origin, node.output.name)
    return Replace({node.output: value})


def transposed(w: Value) -> Value:
    """Returns a constant matrix with its axes swapped: a view, and its parameters moved along."""
    assert w.constant is not None and w.quant is not None
    params = w.quant.params
    if params.blocked:
        from dataclasses import replace

        params = replace(
            params,
            scale=params.scale.T,
            zero_point=params.zero_point.T,
            axis=None if params.axis is None else 1 - params.axis,
        )
    elif params.axis is not None:
        params = params.with_axis(1 - params.axis)
    rows, columns = w.constant.shape
    data = w.constant.map(np.transpose, shape=(columns, rows))
    return constant(data, params, w.name)


def _bias(bias: Value, beta: float, weight: Value) -> Value | Reject:
    stored = stored_behind(bias) or bias
    units = weight.constant.shape[0] if weight.constant is not None else 0
    if stored.constant is None:
        return Reject("its bias is no constant", (bias.name,))
    if stored.constant.size != units:
        if stored.constant.size != 1:
            return Reject(f"its bias has shape {stored.constant.shape}", (bias.name,))
        return _real_bias(stored, beta, units)
    if stored.constant.shape not in ((units,), (1, units)):
        return Reject(f"its bias has shape {stored.constant.shape}", (bias.name,))
    if beta != 1.0:
        return _real_bias(stored, beta, units)
    params = None if stored.quant is None else stored.quant.params
    if params is not None and params.axis is not None:
        params = params.with_axis(0)
    data = stored.constant.map(lambda a: a.reshape(units), shape=(units,))
    return constant(data, params, stored.name)


def _real_bias(stored: Value, beta: float, units: int) -> Value:
    assert stored.constant is not None
    data: NDArray[Any] = stored.constant.numpy()
    real = data if stored.quant is None else dequantize(data, stored.quant.params)
    scaled = (real.astype(np.float32) * np.float32(beta)).reshape(-1)
    vector = np.ascontiguousarray(np.broadcast_to(scaled, (units,)))
    return constant(Constant.of(vector), None, stored.name)
