"""Which families of kernels can have a node, the best one first."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbridge.graph.graph import Node
from qdqbridge.relax.kernels import (
    averages,
    boundary,
    channelwise,
    convolution,
    dense,
    elementwise,
    lookup,
    matmul,
    movers,
    normalization,
    resampling,
    softmax,
    transposed,
    weight_only,
)
from qdqbridge.relax.kernels.kernel import Claim, Kernel, Place

_BINARY = ("Add", "Sub", "Mul", "Div", "Min", "Max", "PRelu")
_OVER_AXES = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "GlobalAveragePool", "GlobalMaxPool",
)  # fmt: skip
FAMILIES: Mapping[str, tuple[Claim, ...]] = {
    "Conv": (channelwise.claim, convolution.claim),
    "ConvTranspose": (transposed.claim,),
    "Dense": (weight_only.claim, dense.claim),
    "Gemm": (dense.claim, matmul.claim),
    "MatMul": (dense.claim, matmul.claim),
    **dict.fromkeys(_BINARY, (lookup.claim, elementwise.claim)),
    **dict.fromkeys(_OVER_AXES, (averages.claim_axes,)),
    **dict.fromkeys(("MaxPool", "AveragePool"), (averages.claim_window,)),
    **dict.fromkeys(movers.OPERATORS, (movers.claim,)),
    "Resize": (resampling.claim,),
    "quantize": (boundary.claim_quantize,),
    "dequantize": (boundary.claim_dequantize,),
    **dict.fromkeys(("Softmax", "LogSoftmax"), (softmax.claim,)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), (normalization.claim,)),
}
"""Who makes the kernel of a node, by operator; other operators may be functions of one operand."""


def claimed(node: Node, place: Place) -> Kernel | None:
    """Returns the kernel of a node, or None where the plain legalization computes it."""
    for claim in FAMILIES.get(node.op.name, (lookup.claim,)):
        kernel = claim(node, place)
        if kernel is not None:
            return kernel
    return None
