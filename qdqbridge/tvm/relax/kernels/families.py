"""Which families of kernels can have a node, the best one first."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.ops.attributes import PoolAttrs, SoftmaxAttrs
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.core.ops.normalization import BATCH_NORMALIZATION
from qdqbridge.core.ops.normalization import OPERATORS as NORMS
from qdqbridge.core.ops.reduction import reduces
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.core.ops.unary import GELU
from qdqbridge.tvm.qnn.dialect.formulas import computable
from qdqbridge.tvm.qnn.emit.nodes import computes_minifloats
from qdqbridge.tvm.relax.kernels.data_movement import nodes as data_movement
from qdqbridge.tvm.relax.kernels.elementwise import affine, binary, conversions, lookup, selection
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelMatch, KernelPlace
from qdqbridge.tvm.relax.kernels.products import (
    channelwise,
    convolution,
    dense,
    dynamic,
    matmul,
    repeated,
    transposed,
    uint16_products,
)
from qdqbridge.tvm.relax.kernels.recurrent import nodes as recurrent
from qdqbridge.tvm.relax.kernels.rows import float_norms, float_rows, normalization, softmax
from qdqbridge.tvm.relax.kernels.weight_only import codes as weight_codes
from qdqbridge.tvm.relax.kernels.weight_only import dequantized as weight_only
from qdqbridge.tvm.relax.kernels.windows import averages, resampling

_BINARY = tuple(row.name for row in OPERATORS if computable(row))


def _with(record: type[Attributes], *matches: KernelMatch) -> dict[str, tuple[KernelMatch, ...]]:
    """Returns the same kernels for every operator with these attributes."""
    return {row.name: matches for row in OPERATORS if row.attributes is record}


FAMILIES: Mapping[str, tuple[KernelMatch, ...]] = {
    CONV.name: (
        channelwise.match,
        repeated.match,
        convolution.match,
        uint16_products.match_convolution,
    ),
    CONV_TRANSPOSE.name: (transposed.match,),
    "Dense": (weight_codes.match, weight_only.match, dense.match, uint16_products.match_dense),
    DYNAMIC_BLOCK_DENSE.name: (weight_codes.match,),
    dynamic.DYNAMIC_CODES.name: (dynamic.match_codes,),
    dynamic.DYNAMIC_PRODUCT.name: (dynamic.match_product,),
    "Gemm": (dense.match, uint16_products.match_dense, matmul.match),
    "MatMul": (dense.match, uint16_products.match_dense, matmul.match),
    **dict.fromkeys(_BINARY, (lookup.match, binary.match)),
    **{row.name: (averages.match_axes,) for row in OPERATORS if reduces(row)},
    **_with(PoolAttrs, averages.match_window),
    **dict.fromkeys(data_movement.OPERATORS, (data_movement.match,)),
    recurrent.RECURRENT_STEPS.name: (recurrent.match,),
    RESIZE.name: (resampling.match,),
    "Where": (lookup.match, selection.match),
    "quantize": (conversions.match,),
    "dequantize": (conversions.match,),
    "requantize": (lookup.match, conversions.match),
    **_with(SoftmaxAttrs, softmax.match, float_rows.match_softmax),
    GELU.name: (lookup.match_wide, float_rows.match_gelu),
    **{row.name: (normalization.match, float_norms.match) for row in NORMS},
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
