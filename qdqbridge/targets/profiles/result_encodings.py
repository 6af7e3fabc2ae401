"""Results in the encoding that a backend gives them in any case, and a conversion behind them."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note
from qdqbridge.core.graph.quantization import QuantParams, per_tensor
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.build import requantized, retyped
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

_HALF = 128
_NEAR = 2 / (1 << 16)
"""How near a scale is to the backend's own: two steps of the largest number."""
_STEPS = {"Sigmoid": 1 << 16, "HardSigmoid": 1 << 16, "Tanh": 1 << 15}
"""Steps in 1.0 of results of 16 bits."""
_OPERATORS = ("Softmax", *_STEPS)


@rule("own-encoding", *_OPERATORS)
def result_encodings(node: Node, context: RuleContext) -> Proposal:
    """``Softmax(x) -> requantize(Softmax(x) in 1/256)``, and the same for Sigmoids and Tanh.

    The backend computes Softmax of 8 bits as if the smallest number were 0.0, and Sigmoid (the hard
    one too) and Tanh of 16 bits, where they leave the graph, in steps of 1/65536 and 1/32768.
    """
    output, quant = node.output, node.output.quant
    own = None if quant is None else _own(node, quant.params, context)
    if own is None or quant is None:
        return None
    inside = retyped(node, node.inputs, QuantType(own, output.type.shape), f"{output.name}_own")
    value = requantized(inside, quant.params, node.origin, output.name)
    text = f"it is rounded to steps of {float(own.scale.reshape(-1)[0]):.6g} first"
    return Replace({output: value}, (Note("fixed-encodings", node.name, text),))


def _own(node: Node, params: QuantParams, context: RuleContext) -> QuantParams | None:
    """Returns the encoding that the backend wants, None where it is that."""
    dtype, operand = params.storage_dtype, node.inputs[0]
    if not params.per_tensor or operand is None or operand.quant is None:
        return None
    zero = int(params.zero_point.reshape(-1)[0])
    if node.op.name == "Softmax" and dtype in (DType.UINT8, DType.INT8):
        low = int(dtype.qmin)
        right = zero == low or (dtype is DType.UINT8 and zero == _HALF)
        # unsigned, as all becomes then: int8 is not clipped behind it, in front of an Add
        return None if right else per_tensor(DType.UINT8, np.float32(1 / 256))
    steps = _STEPS.get(node.op.name)
    if steps is None or dtype not in (DType.UINT16, DType.INT16):
        return None
    own = (1 << 16) - steps + int(dtype.qmin)
    near = abs(float(params.scale.reshape(-1)[0]) * steps - 1) <= _NEAR
    leaves = dtype is DType.UINT16 and context.is_output(node.output)  # int16 is converted there
    if near and (zero == own or not leaves):
        return None
    return per_tensor(dtype, np.float32(1 / steps), own)
