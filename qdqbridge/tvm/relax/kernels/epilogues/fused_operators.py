"""Operators that a product's kernel computes on the way out: an Add or Sub, and a lookup.

Both take the codes that the product would have stored. An Add is fused in its cheap form only
(:func:`~.fitting.linear`: two fused multiply-adds, tried on all 65,536 pairs of codes), and a
lookup only where the CPU finds bytes in registers; otherwise they stay kernels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.ops.elementwise import ADD, SUB
from qdqbridge.tvm.relax.kernels.codegen.codes import alike
from qdqbridge.tvm.relax.kernels.elementwise import fitting
from qdqbridge.tvm.relax.kernels.elementwise.lookup import table_of
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Linear, Requantize
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel
from qdqbridge.tvm.relax.kernels.operands import codes_of
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct
from qdqbridge.tvm.relax.kernels.tiles.packing import per_lane

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
    fit = fitting.linear(node.op, a.params, b.params, result.params)
    if fit is None:
        return None
    ends = result.zero_point, result.code(result.params.qmin), result.code(result.params.qmax)
    linear = Linear(kind, own == 0, ends[0] != 0, ends[1:] != (0, 255))
    changed = replace(form, linear=linear, signed=result.signed)
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
