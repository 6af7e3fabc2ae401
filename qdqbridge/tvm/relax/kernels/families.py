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
from qdqbridge.tvm.qnn.dialect.elementwise import computable
from qdqbridge.tvm.qnn.emit.nodes import computes_minifloats
from qdqbridge.tvm.relax.kernels.data_movement import nodes as data_movement
from qdqbridge.tvm.relax.kernels.elementwise import binary, conversions, lookup, selection
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelMatch, KernelPlace
from qdqbridge.tvm.relax.kernels.products import (
    convolution,
    dense,
    depthwise,
    dynamic,
    matmul,
    transposed,
    uint16_products,
)
from qdqbridge.tvm.relax.kernels.recurrent import nodes as recurrent
from qdqbridge.tvm.relax.kernels.rows import float_rows, normalization, softmax
from qdqbridge.tvm.relax.kernels.weight_only import codes as weight_codes
from qdqbridge.tvm.relax.kernels.weight_only import dequantized as weight_only
from qdqbridge.tvm.relax.kernels.windows import pooling, resampling

_BINARY = tuple(row.name for row in OPERATORS if computable(row))


def _with(record: type[Attributes], *matches: KernelMatch) -> dict[str, tuple[KernelMatch, ...]]:
    """Returns the same kernels for every operator with these attributes."""
    return {row.name: matches for row in OPERATORS if row.attributes is record}


FAMILIES: Mapping[str, tuple[KernelMatch, ...]] = {
    CONV.name: (
        depthwise.match_depthwise,
        convolution.match_resized_conv,
        convolution.match_conv,
        uint16_products.match_convolution,
    ),
    CONV_TRANSPOSE.name: (transposed.match_conv_transpose,),
    "Dense": (
        weight_codes.match_block_dense,
        weight_only.match_weight_only_dense,
        dense.match_constant_matmul,
        uint16_products.match_dense,
    ),
    DYNAMIC_BLOCK_DENSE.name: (weight_codes.match_block_dense,),
    dynamic.DYNAMIC_CODES.name: (dynamic.match_codes,),
    dynamic.DYNAMIC_PRODUCT.name: (dynamic.match_product,),
    "Gemm": (dense.match_constant_matmul, uint16_products.match_dense, matmul.match_matmul),
    "MatMul": (dense.match_constant_matmul, uint16_products.match_dense, matmul.match_matmul),
    **dict.fromkeys(_BINARY, (lookup.match_byte_lookup, binary.match_binary)),
    **{row.name: (pooling.match_axes,) for row in OPERATORS if reduces(row)},
    **_with(PoolAttrs, pooling.match_window),
    **dict.fromkeys(data_movement.OPERATORS, (data_movement.match_data_movement,)),
    recurrent.RECURRENT_STEPS.name: (recurrent.match_recurrent,),
    RESIZE.name: (resampling.match_resize,),
    "Where": (lookup.match_byte_lookup, selection.match_where),
    "quantize": (conversions.match_conversion,),
    "dequantize": (conversions.match_conversion,),
    "requantize": (lookup.match_byte_lookup, conversions.match_conversion),
    **_with(SoftmaxAttrs, softmax.match_quantized_softmax, float_rows.match_softmax),
    GELU.name: (lookup.match_wide, float_rows.match_gelu),
    **{
        row.name: (normalization.match_quantized_norm, float_rows.match_float_layer_norm)
        for row in NORMS
    },
    BATCH_NORMALIZATION.name: (lookup.match_batch_norm,),
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
