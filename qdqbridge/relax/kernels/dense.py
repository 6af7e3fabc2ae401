"""Products with a constant matrix (Dense, Gemm, MatMul), as convolutions of one row of pixels."""

from __future__ import annotations

import math

import numpy as np

from qdqbridge.graph.graph import Node
from qdqbridge.ops.attributes import GemmAttrs
from qdqbridge.relax.kernels.epilogue import Requantize
from qdqbridge.relax.kernels.geometry import Direct
from qdqbridge.relax.kernels.kernel import Array, Kernel, KernelPlace
from qdqbridge.relax.kernels.operands import (
    ActivationCodes,
    by_channel,
    centred_weight,
    codes_of,
    extents,
)
from qdqbridge.relax.kernels.plain import Plain
from qdqbridge.relax.kernels.product import Operands, product
from qdqbridge.relax.kernels.reals import is_real, real_constant, real_product
from qdqbridge.relax.kernels.requantization import sum_scale
from qdqbridge.relax.kernels.scaled import Scaled


def match(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a product of rows of bytes, or of float32, with a constant matrix."""
    x = codes_of(node.operand(0))
    weight = _matrix(node, x)
    shape, result = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    if weight is None or shape is None or result is None:
        return None
    gemm = node.attributes if isinstance(node.attributes, GemmAttrs) else GemmAttrs()
    if gemm.trans_a or (x is not None and node.optional(2) is not None and gemm.beta != 1.0):
        return None
    units, inner = weight.shape
    batch = None if shape[0] is None and len(shape) > 1 else 1
    rows = math.prod(extent for extent in shape[:-1] if extent is not None)

    def describe(part: int, sums: int, form: Requantize | Plain | Scaled) -> Direct:
        del part
        return Direct(
            place.cpu, shape, result, batch, (1, rows), inner, x is not None and x.signed, (1, 1),
            (1, 1), (1, 1), (0, 0), (1, rows), 1, units, sums, form, place.threads,
        )  # fmt: skip

    if x is None:
        return real_product(node, [weight[None, :, None] * np.float32(gemm.alpha)], describe)
    scale = sum_scale(x, node.operand(1), gemm.alpha)
    return product(node, Operands(x, scale, [weight[None, :, None]]), describe)


def _matrix(node: Node, x: ActivationCodes | None) -> Array | None:
    """Returns the weight, centred where it is one of codes, as (units, inner)."""
    w = node.operand(1)
    if w.rank != 2:
        return None
    if x is not None:
        weight = centred_weight(node)
    elif is_real(node.operand(0)) and is_real(node.output):
        weight = real_constant(w)
    else:
        return None
    return None if weight is None else by_channel(weight, node)
