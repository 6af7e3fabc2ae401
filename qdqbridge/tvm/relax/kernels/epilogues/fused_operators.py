"""Operators that a product's kernel computes on the way out: an Add or Sub, and a lookup.

Both take the codes that the product would have stored. An Add is fused in its cheap form only
(:func:`~.fitting.linear`: two fused multiply-adds, tried on all 65,536 pairs of codes), and a
lookup only where the CPU finds bytes in registers; otherwise they stay kernels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Operator
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.elementwise import ADD, SUB
from qdqbridge.tvm.relax.kernels.codegen.codes import alike
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Linear, Requantize
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel, codes_of
from qdqbridge.tvm.relax.kernels.lookup import table_of
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct
from qdqbridge.tvm.relax.kernels.tiles.packing import per_lane

# ---- fitting -------------------------------------------------------------------------------------
# Cheap formulas for two 8-bit operands, taken only where all 65,536 results are the contract's.
#
# The contract dequantizes both operands, computes in float32 and divides. Where the parameters are
# per tensor, a fused multiply-add or two give the same codes for nearly all scales; a formula is
# tried on every pair of codes before it is used, so that no result can differ.


Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The numbers of a formula.

    Attributes:
        factors: float32; ``linear``: those of a, of b, and what is added; ``product``: one factor.
        integers: int32; ``linear``: the zero point of the result; ``product``: those of a, b and
            the result.
    """

    factors: Floats
    integers: NDArray[np.int32]


def contract(op: Operator, a: QuantParams, b: QuantParams, y: QuantParams) -> NDArray[Any]:
    """Returns the result of every pair of codes, an array (256, 256), in int32."""
    left = dequantize(codes(a), a)[:, None]
    right = dequantize(codes(b), b)[None, :]
    with np.errstate(all="ignore"):
        (value,) = op.compute(NO_ATTRIBUTES, (left, right))
    return quantize(value, y).astype(np.int32)


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """Returns ``a * b + c`` rounded once, for operands whose product and sum float64 holds."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def linear(op: Operator, a: QuantParams, b: QuantParams, y: QuantParams) -> Fit | None:
    """Returns ``rint(fma(a, factor, fma(b, factor, shift))) + zero point`` for Add or Sub."""
    wanted = contract(op, a, b, y)
    sign = -1.0 if op is SUB else 1.0
    scale = float(y.scale)
    first, second = float(a.scale) / scale, sign * float(b.scale) / scale
    shift = -(int(a.zero_point) * first + int(b.zero_point) * second)
    left, right = (codes(p).astype(np.float32) for p in (a, b))
    zero_point = np.asarray([y.zero_point], np.int32)
    for factors in _neighbours(first, second, shift):
        inner = fused(right, factors[1], factors[2])
        value = fused(left[:, None], factors[0], inner[None, :])
        if _equal(np.rint(value), zero_point[0], y, wanted):
            return Fit(factors, zero_point)
    return None


def product(op: Operator, a: QuantParams, b: QuantParams, y: QuantParams) -> Fit | None:
    """Returns ``rint((a - za) * (b - zb) * factor) + zero point`` for Mul."""
    wanted = contract(op, a, b, y)
    left, right = (codes(p).astype(np.int32) - int(p.zero_point) for p in (a, b))
    exact = (left[:, None] * right[None, :]).astype(np.float32)
    factor = float(a.scale) * float(b.scale) / float(y.scale)
    integers = np.asarray([a.zero_point, b.zero_point, y.zero_point], np.int32)
    for (one,) in _neighbours(factor):
        if _equal(np.rint(exact * one), integers[2], y, wanted):
            return Fit(np.asarray([one]), integers)
    return None


def _neighbours(*numbers: float) -> Iterator[Floats]:
    """Yields the numbers in float32, then with one of them moved by a unit in the last place."""
    base = np.asarray(numbers, np.float32)
    if not np.isfinite(base).all() or np.abs(base).max() > 2.0**20:
        return  # a rounded result must lie within int32
    yield base
    for i in range(base.size):
        for side in (np.inf, -np.inf):
            moved = base.copy()
            moved[i] = np.nextafter(base[i], np.float32(side))
            yield moved


def _equal(
    rounded: Floats, zero_point: np.int32, params: QuantParams, wanted: NDArray[np.int32]
) -> bool:
    shifted = rounded.astype(np.int64) + zero_point
    return np.array_equal(np.clip(shifted, params.qmin, params.qmax), wanted)


# ---- Operators that a product's kernel computes on the way out: an Add or Sub, and a lookup ------


Parts = tuple[Direct, ...]
LARGE = 1 << 17
"""Bytes of a result from which a pass over it takes longer than lookups on the tile, for which the
table has to be loaded again and again (measured: 2 % of a network of small results)."""

_ROWS = 128
"""Rows that an open number of them is taken to be."""


def extend(kernel: Kernel, node: Node) -> Kernel | None:
    """Returns the kernel of a convolution or dense product that computes ``node`` as well.

    Args:
        kernel: The kernel, with or without stages.
        node: The node that alone reads its result.
    """
    return _with_table(kernel, node) or _with_sum(kernel, node)


def _form(kernel: Kernel) -> tuple[Parts, Requantize]:
    parts: Any = kernel.description
    return parts, parts[0].form


def _with_table(kernel: Kernel, node: Node) -> Kernel | None:
    parts, form = _form(kernel)
    found = table_of(node)
    size = math.prod(extent or 1 for extent in parts[0].outcome)
    size *= _ROWS if parts[0].open_rows else 1
    if found is None or size < LARGE or not parts[0].cpu.permutes:
        return None
    if form.table or form.signed:
        return None
    source, entries = found
    if source is not kernel.outputs[0]:
        return None
    changed = replace(form, table=str(entries.dtype))
    return _changed(kernel, node, changed, (), (entries,))


def _with_sum(kernel: Kernel, node: Node) -> Kernel | None:
    parts, form = _form(kernel)
    if node.op not in (ADD, SUB) or form.table or form.linear or form.signed:
        return None
    if not parts[0].cpu.fuses or node.operand(0) is node.operand(1):
        return None
    own = int(node.operand(1) is kernel.outputs[0])
    other = node.operand(1 - own)
    kind, result = _kind(parts[0], other, node.output), codes_of(node.output)
    a, b = (codes_of(node.operand(i)) for i in (0, 1))
    if kind is None or result is None or a is None or b is None:
        return None
    if DType.UINT8 is not other.type.dtype or not alike(kernel.outputs[0], node.output):
        return None
    fit = linear(node.op, a.params, b.params, result.params)
    if fit is None:
        return None
    ends = result.zero_point, result.code(result.params.qmin), result.code(result.params.qmax)
    epilogue = Linear(kind, own == 0, ends[0] != 0, ends[1:] != (0, 255))
    changed = replace(form, linear=epilogue, signed=result.signed)
    numbers = (fit.factors, np.asarray(ends, np.int32))
    if kind == "tensor":
        return _changed(kernel, node, changed, (other,), numbers)
    assert other.constant is not None
    stored = other.constant.numpy().reshape(-1)
    spread = np.broadcast_to(stored, (parts[0].out_channels,))
    along = per_lane(parts[0].cpu, spread, parts[0].groups)
    return _changed(kernel, node, changed, (), (*numbers, along))


def _kind(d: Direct, other: Value, result: Value) -> str | None:
    """Returns how an operand lies beside a result: like it, or as constants along its channels."""
    if other.constant is None:
        return "tensor" if alike(other, result) else None
    size, last = other.constant.size, other.constant.shape[-1:]
    along = size == 1 or (size == d.out_channels and last == (size,))
    return "channel" if along else None


def _changed(
    kernel: Kernel,
    node: Node,
    form: Requantize,
    inputs: Sequence[Value],
    constants: Sequence[Array],
) -> Kernel:
    parts, _ = _form(kernel)
    return replace(
        kernel, name=f"{kernel.name}_{node.op.name.lower()}",
        description=tuple(replace(part, form=form) for part in parts),
        inputs=(*kernel.inputs, *inputs), constants=(*kernel.constants, *constants),
        outputs=(node.output,),
    )  # fmt: skip
