"""Which families of kernels can have a node, the best one first."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbridge.graph.graph import Node
from qdqbridge.graph.operator import Attributes
from qdqbridge.ops.attributes import PoolAttrs, SoftmaxAttrs
from qdqbridge.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.ops.normalization import BATCH_NORMALIZATION
from qdqbridge.ops.normalization import OPERATORS as NORMS
from qdqbridge.ops.reduction import reduces
from qdqbridge.ops.resize import RESIZE
from qdqbridge.ops.table import OPERATORS
from qdqbridge.ops.unary import GELU
from qdqbridge.qnn.dialect.formulas import computable
from qdqbridge.qnn.emit.nodes import computes_minifloats
from qdqbridge.relax.kernels import (
    affine,
    averages,
    boundary,
    channelwise,
    convolution,
    data_movement,
    dense,
    dynamic,
    elementwise,
    lookup,
    matmul,
    normalization,
    real_norms,
    real_rows,
    recurrent,
    resampling,
    selection,
    softmax,
    transposed,
    weight_codes,
    weight_only,
    wide_product,
)
from qdqbridge.relax.kernels.kernel import Kernel, KernelMatch, KernelPlace

_BINARY = tuple(row.name for row in OPERATORS if computable(row))


def _with(record: type[Attributes], *matches: KernelMatch) -> dict[str, tuple[KernelMatch, ...]]:
    """Returns the same kernels for every operator with these attributes."""
    return {row.name: matches for row in OPERATORS if row.attributes is record}


FAMILIES: Mapping[str, tuple[KernelMatch, ...]] = {
    CONV.name: (channelwise.match, convolution.match, wide_product.match_convolution),
    CONV_TRANSPOSE.name: (transposed.match,),
    "Dense": (weight_codes.match, weight_only.match, dense.match, wide_product.match_dense),
    DYNAMIC_BLOCK_DENSE.name: (weight_codes.match,),
    dynamic.DYNAMIC_CODES.name: (dynamic.match_codes,),
    dynamic.DYNAMIC_PRODUCT.name: (dynamic.match_product,),
    "Gemm": (dense.match, wide_product.match_dense, matmul.match),
    "MatMul": (dense.match, wide_product.match_dense, matmul.match),
    **dict.fromkeys(_BINARY, (lookup.match, elementwise.match)),
    **{row.name: (averages.match_axes,) for row in OPERATORS if reduces(row)},
    **_with(PoolAttrs, averages.match_window),
    **dict.fromkeys(data_movement.OPERATORS, (data_movement.match,)),
    recurrent.RECURRENT_STEPS.name: (recurrent.match,),
    RESIZE.name: (resampling.match,),
    "Where": (lookup.match, selection.match),
    "quantize": (boundary.match,),
    "dequantize": (boundary.match,),
    "requantize": (lookup.match, boundary.match),
    **_with(SoftmaxAttrs, softmax.match, real_rows.match_softmax),
    GELU.name: (lookup.match_wide, real_rows.match_gelu),
    **{row.name: (normalization.match, real_norms.match) for row in NORMS},
    BATCH_NORMALIZATION.name: (affine.match,),
}
"""Who makes the kernel of a node, by operator; other operators may be functions of one operand."""


def kernel_of(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a node, or None where the plain legalization computes it."""
    if computes_minifloats(node):
        return None
    for match in FAMILIES.get(node.op.name, (lookup.match_wide,)):
        kernel = match(node, place)
        if kernel is not None:
            return kernel
    return None
