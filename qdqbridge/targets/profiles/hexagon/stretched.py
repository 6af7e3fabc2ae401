"""Weights that fill their 8 bits, beside activations of 16.

From v73 on such a product is off by some 256 steps of scale x * scale w, whatever it sums. A weight
of 4 bits, and one of 8 whose numbers are small, has the same real numbers in a finer scale.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.build import constant
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

Array = NDArray[Any]
_WIDE = (DType.UINT16, DType.INT16)
_NARROW = (DType.INT4, DType.UINT4, DType.INT8, DType.UINT8)
_TOP, _TOP_OF_BIAS = 127, (1 << 31) - 1


@rule("weights-that-fill-8-bits", CONV, CONV_TRANSPOSE, DENSE, GEMM, MATMUL)
def stretched_weights(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w in int4) -> Conv(x, 16 * w in int8, scale / 16)``: the same real numbers."""
    del context
    weight, bias = node.operand(1), node.optional(2)
    if weight.constant is None or weight.quant is None or not _of_16_bits(node):
        return None
    params = weight.quant.params
    if params.storage_dtype not in _NARROW or params.blocked or not _around_zero(params):
        return None
    middle = int(params.zero_point.reshape(-1)[0]) if params.zero_point.size else 0
    codes = weight.constant.numpy().astype(np.int32) - middle
    powers = _powers(codes, params)
    if not powers.any():
        return None
    own = _finer(params, powers, DType.INT8)
    finer = _finer_bias(bias, powers)
    if own is None or (bias is not None and finer is None):
        return None
    data = (codes << _along(powers, params.axis, codes.ndim)).astype(np.int8)
    operands = {(node, 1): constant(data, own, weight.name)}
    return Replace(operands=operands if finer is None else operands | {(node, 2): finer})


def _of_16_bits(node: Node) -> bool:
    sides = (node.operand(0).quant, node.output.quant)
    return all(quant is not None and quant.params.storage_dtype in _WIDE for quant in sides)


def _around_zero(params: QuantParams) -> bool:
    middle = (int(params.storage_dtype.qmin) + int(params.storage_dtype.qmax) + 1) // 2
    return not (params.zero_point != middle).any()


def _powers(codes: Array, params: QuantParams) -> Array:
    """Returns by which powers of two the numbers still fit into int8, for each scale."""
    others = (
        None if params.axis is None else tuple(a for a in range(codes.ndim) if a != params.axis)
    )
    above, below = codes.max(axis=others, initial=0), -codes.min(axis=others, initial=0)
    fit = np.minimum(_TOP / np.maximum(above, 1), (_TOP + 1) / np.maximum(below, 1))
    return np.floor(np.log2(fit)).clip(0).astype(np.int32)


def _finer(params: QuantParams, powers: Array, dtype: DType) -> QuantParams | None:
    """Returns the same mapping in finer steps, None where its scale has no such bits."""
    scale = np.ldexp(params.scale, -powers).astype(params.scale.dtype)
    if (np.ldexp(scale, powers) != params.scale).any():
        return None
    zeros = np.zeros(scale.shape, np.int32)
    return replace(
        params, storage_dtype=dtype, scale=scale, zero_point=zeros,
        qmin=int(dtype.qmin), qmax=int(dtype.qmax),
    )  # fmt: skip


def _along(powers: Array, axis: int | None, rank: int) -> Array:
    return powers if axis is None else powers.reshape([-1 if a == axis else 1 for a in range(rank)])


def _finer_bias(bias: Value | None, powers: Array) -> Value | None:
    """Returns a stored bias in the new steps, None where there is none or it does not fit."""
    if bias is None or bias.constant is None or bias.quant is None:
        return bias
    params = bias.quant.params
    if params.scale.size != powers.size:
        return None
    own = _finer(params, powers.reshape(params.scale.shape), DType.INT32)
    stored = bias.constant.numpy().astype(np.int64) << powers.reshape(-1)
    if own is None or np.abs(stored).max(initial=0) > _TOP_OF_BIAS or params.zero_point.any():
        return None
    return constant(stored.astype(np.int32), own, bias.name)
