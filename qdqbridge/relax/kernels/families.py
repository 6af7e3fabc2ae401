"""Which families of kernels can have a node, the best one first."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbridge.graph.graph import Node
from qdqbridge.ops.table import OPERATORS
from qdqbridge.qnn.dialect.formulas import computable
from qdqbridge.qnn.emit.nodes import computes_minifloats
from qdqbridge.relax.kernels import (
    affine,
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
    selection,
    softmax,
    transposed,
    weight_only,
    wide_product,
)
from qdqbridge.relax.kernels.kernel import Claim, Kernel, Place

_BINARY = tuple(row.name for row in OPERATORS if computable(row))
_OVER_AXES = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "GlobalAveragePool", "GlobalMaxPool",
)  # fmt: skip
_ROWS = (
    "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization",
)  # fmt: skip
FAMILIES: Mapping[str, tuple[Claim, ...]] = {
    "Conv": (channelwise.claim, convolution.claim, wide_product.claim_convolution),
    "ConvTranspose": (transposed.claim,),
    "Dense": (weight_only.claim, dense.claim, wide_product.claim_dense),
    "Gemm": (dense.claim, wide_product.claim_dense, matmul.claim),
    "MatMul": (dense.claim, wide_product.claim_dense, matmul.claim),
    **dict.fromkeys(_BINARY, (lookup.claim, elementwise.claim)),
    **dict.fromkeys(_OVER_AXES, (averages.claim_axes,)),
    **dict.fromkeys(("MaxPool", "AveragePool"), (averages.claim_window,)),
    **dict.fromkeys(movers.OPERATORS, (movers.claim,)),
    "Resize": (resampling.claim,),
    "Where": (lookup.claim, selection.claim),
    "quantize": (boundary.claim,),
    "dequantize": (boundary.claim,),
    "requantize": (lookup.claim, boundary.claim),
    **dict.fromkeys(("Softmax", "LogSoftmax"), (softmax.claim,)),
    **dict.fromkeys(_ROWS, (normalization.claim,)),
    "BatchNormalization": (affine.claim,),
}
"""Who makes the kernel of a node, by operator; other operators may be functions of one operand."""


def claimed(node: Node, place: Place) -> Kernel | None:
    """Returns the kernel of a node, or None where the plain legalization computes it."""
    if computes_minifloats(node):
        return None
    for claim in FAMILIES.get(node.op.name, (lookup.claim_wide,)):
        kernel = claim(node, place)
        if kernel is not None:
            return kernel
    return None
