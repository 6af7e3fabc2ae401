"""Products with a constant matrix (Dense, Gemm, MatMul), as convolutions of one row of pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import GemmAttrs
from qdqbridge.tvm.relax.kernels.epilogues.dequantized_sums import Scaled
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.epilogues.requantization import sum_scale
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.operands import (
    ActivationCodes,
    Open,
    by_channel,
    centred_weight,
    codes_of,
    known_extent,
    leading,
)
from qdqbridge.tvm.relax.kernels.products.float_products import is_real, real_constant, real_product
from qdqbridge.tvm.relax.kernels.products.product import Operands, product
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct

AT_ONCE = 112
"""Rows of an open number that are worked on at a time: eight of the highest tiles of vectors."""
_AT_ONCE_AMX = 128
"""The same of tiles of AMX, which are 32 rows high."""


def match_constant_matmul(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a product of rows of bytes, or of float32, with a constant matrix."""
    x = codes_of(node.operand(0))
    weight = _matrix(node, x)
    rows = rows_of(node)
    if weight is None or rows is None:
        return None
    gemm = node.attributes if isinstance(node.attributes, GemmAttrs) else GemmAttrs()
    if gemm.trans_a or (x is not None and node.optional(2) is not None and gemm.beta != 1.0):
        return None
    units = len(weight)

    def describe(part: int, sums: int, form: Requantize | Plain | Scaled) -> Direct:
        del part
        return rows.direct(place, units, sums, form, signed=x is not None and x.signed)

    if x is None:
        return real_product(node, [weight[None, :, None] * np.float32(gemm.alpha)], describe)
    scale = sum_scale(x, node.operand(1), gemm.alpha)
    return product(node, Operands(x, scale, [weight[None, :, None]]), describe)


@dataclass(frozen=True, slots=True)
class Rows:
    """The operand and the result of a product of rows with a matrix.

    Attributes:
        operand: Shape of the rows; None for open extents, which are leading ones.
        outcome: Shape of the result.
        batch: None where ``count`` rows come as often as only the run knows.
        count: Rows of known number, or what open extents multiply.
        open: True where the number of rows is not known otherwise.
    """

    operand: Open
    outcome: Open
    batch: int | None
    count: int
    open: bool

    def direct(
        self, place: KernelPlace, units: int, sums: int, form: Requantize | Plain | Scaled, *,
        signed: bool,
    ) -> Direct:  # fmt: skip
        """Returns the description of a kernel: rows are pixels, one row of them or one column."""
        inner = known_extent(self.operand[-1])

        def of_grid(grid: tuple[int, int]) -> Direct:
            return Direct(
                place.cpu, self.operand, self.outcome, self.batch, grid, inner, signed, (1, 1),
                (1, 1), (1, 1), (0, 0), grid, 1, units, sums, form, place.threads,
                open_rows=self.open,
            )  # fmt: skip

        if not self.open:
            return of_grid((1, self.count))
        high = of_grid((_AT_ONCE_AMX, 1))
        return of_grid((AT_ONCE, 1)) if high.amx is None else high


def rows_of(node: Node) -> Rows | None:
    """Returns the rows that a product takes and gives; None where their extents are not leading."""
    shape, result = (leading(value.type.shape) for value in (node.operand(0), node.output))
    if shape is None or result is None or shape[:-1] != result[:-1]:
        return None
    count = math.prod(extent for extent in shape[:-1] if extent is not None)
    opened = shape.count(None)
    if opened and (opened > 1 or shape[0] is not None or count == 1):
        return Rows(shape, result, None, count, True)
    return Rows(shape, result, None if opened else 1, count, False)


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
