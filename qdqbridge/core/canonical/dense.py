"""Rules that give every product with a constant matrix one form: ``Dense(x, w[N, K], bias)``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.linear import of_one_row
from qdqbridge.core.canonical.weights import mirror
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.ops.attributes import GemmAttrs, TransposeAttrs
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.data_movement import TRANSPOSE
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.rewrite.rule import (
    Proposal,
    Reject,
    Replace,
    RuleContext,
    rule,
    stored_behind,
)


@rule("matmul-is-dense", MATMUL)
def matmul_is_dense(node: Node, context: RuleContext) -> Proposal:
    """``MatMul(x, w) -> Dense(x, transpose(w))`` for a quantized constant matrix w.

    A vector becomes a matrix of one row: ``Reshape(Dense(Reshape(x), transpose(w)))``.
    """
    del context
    x, w = node.operand(0), node.operand(1)
    if w.constant is None or w.quant is None or w.rank != 2 or not x.rank:
        return None
    if x.rank > 1:
        return _replace_by_dense(node, transposed(w), None)
    return of_one_row(node, x, DENSE, NO_ATTRIBUTES, transposed(w))


@rule("gemm-is-dense", GEMM)
def gemm_is_dense(node: Node, context: RuleContext) -> Proposal:
    """``Gemm(x, w, c) -> Dense(x, w, c)`` for a quantized constant w and a bias per column.

    A transposed x becomes a Transpose, an alpha that is a power of two part of w's scales: both
    change no bit of the product.
    """
    del context
    attributes, w, bias = node.attributes, node.operand(1), node.optional(2)
    if not isinstance(attributes, GemmAttrs) or w.constant is None or w.quant is None:
        return None
    weight = _times(w, attributes.alpha)
    if weight is None:
        return Reject(
            f"Gemm with alpha {attributes.alpha:.6g} keeps its form: no exact part of the scales"
        )
    weight = weight if attributes.trans_b else transposed(weight)
    if bias is not None:
        bias = _dense_bias(bias, attributes.beta, weight)
        if isinstance(bias, Reject):
            return bias
    return _replace_by_dense(
        node, weight, bias, _transpose_gemm_a(node) if attributes.trans_a else None
    )


def _times(w: Value, alpha: float) -> Value | None:
    """Returns a weight with its scales multiplied by a power of two, None for any other factor."""
    assert w.constant is not None and w.quant is not None
    params = w.quant.params
    if alpha == 1.0:
        return w
    if math.frexp(abs(alpha))[0] != 0.5 or params.scale_dtype is not params.expressed_dtype:
        return None
    with np.errstate(over="ignore", under="ignore"):
        wide = params.scale.astype(np.float64) * alpha
        scale = wide.astype(params.scale.dtype)
    tiny = float(np.finfo(np.float32).tiny)
    if (scale.astype(np.float64) != wide).any() or (np.abs(wide) < tiny).any():
        return None
    found = mirror(w.constant, replace(params, scale=scale))
    return None if found is None else constant(*found, w.name)


def _transpose_gemm_a(node: Node) -> Value:
    """Returns the transposed first operand."""
    x = node.operand(0)
    shape = None if x.type.shape is None else x.type.shape[::-1]
    type_ = x.type.with_shape(shape)
    return result(TRANSPOSE, TransposeAttrs((1, 0)), [x], type_, node.origin)


def _replace_by_dense(
    node: Node, weight: Value, bias: Value | None, x: Value | None = None
) -> Proposal:
    operands = [x or node.operand(0), weight] + ([bias] if bias is not None else [])
    value = result(DENSE, NO_ATTRIBUTES, operands, node.output.type, node.origin, node.output.name)
    return Replace({node.output: value})


def transposed(w: Value) -> Value:
    """Returns a constant matrix with its axes swapped: a view, and its parameters moved along."""
    assert w.constant is not None and w.quant is not None
    params = w.quant.params
    if params.blocked:
        params = replace(
            params,
            scale=params.scale.T,
            zero_point=params.zero_point.T,
            axis=None if params.axis is None else 1 - params.axis,
        )
    elif params.axis is not None:
        params = params.with_axis(1 - params.axis)
    return constant(w.constant.transposed(), params, w.name)


def _dense_bias(bias: Value, beta: float, weight: Value) -> Value | Reject:
    stored = stored_behind(bias) or bias
    units = weight.constant.shape[0] if weight.constant is not None else 0
    if stored.constant is None:
        return Reject("its bias is not constant", (bias.name,))
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
