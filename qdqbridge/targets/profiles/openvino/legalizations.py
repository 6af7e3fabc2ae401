"""How graphs are put for OpenVINO: the same numbers in forms that it reads.

Measured on OpenVINO 2026.4.1; each legalization keeps a rule of :mod:`.openvino`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.build import constant
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.core.ops.elementwise import ADD, SUB
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule
from qdqbridge.targets.profiles.openvino.reductions import guarded_reductions


@rule("blocks-that-divide")
def whole_blocks(node: Node, context: RuleContext) -> Proposal:
    """Cuts blocks of weights whose last one is shorter into smaller ones of the same scales."""
    del context
    cut: dict[Value, Value] = {}
    for value in node.inputs:
        if value is None or value.constant is None or value.quant is None:
            continue
        params = _divided(value.quant.params, value.constant.shape)
        if params is not None:
            cut[value] = constant(value.constant, params, value.name)
    return Replace(cut) if cut else None


def _divided(params: QuantParams, shape: tuple[int, ...]) -> QuantParams | None:
    """Returns parameters in blocks that divide the extent; None where they do already."""
    size, axis = params.block_size, params.axis
    if size is None or axis is None or shape[axis] % size == 0:
        return None
    smaller = math.gcd(shape[axis], size)
    kept = [slice(None)] * len(shape)
    kept[axis] = slice(shape[axis] // smaller)
    scale, zero_point = (
        np.repeat(each, size // smaller, axis)[tuple(kept)]
        for each in (params.scale, params.zero_point)
    )
    return replace(params, scale=scale, zero_point=zero_point, block_size=smaller)


@rule("terms-in-floats", DEQUANTIZE)
def float_terms(node: Node, context: RuleContext) -> Proposal:
    """Makes vectors that are added to floats floats: stored, they end the process."""
    del context
    stored = node.operand(0)
    if node.output.type.dtype is not DType.FLOAT32 or stored.quant is None:
        return None
    if stored.constant is None or len(stored.constant.shape) != 1:
        return None
    users = [(user, index) for user, index in node.output.users if user.op in (ADD, SUB)]
    if not users:
        return None
    real = constant(dequantize(stored.constant.numpy(), stored.quant.params), None, stored.name)
    return Replace(operands=dict.fromkeys(users, real))


LEGALIZATIONS = (whole_blocks, float_terms, guarded_reductions)
"""For the rules whole-blocks, stored-terms and rounded-extremes, in that order."""
