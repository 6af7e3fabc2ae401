"""Nodes that average, add, or pick the largest or smallest code of windows or whole axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import PoolAttrs
from qdqbridge.core.ops.pooling import MAX_POOL, window_counts
from qdqbridge.core.ops.reduction import reduction_of
from qdqbridge.tvm.relax.kernels.codegen.broadcasting import Open
from qdqbridge.tvm.relax.kernels.codegen.codes import (
    BYTES,
    CodesForm,
    bytes_of,
    extents,
    form_of,
    numbers,
)
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.operands import along, image_of
from qdqbridge.tvm.relax.kernels.rows import reduction
from qdqbridge.tvm.relax.kernels.rows.reduction import LARGEST, SMALLEST, SUM, Reduce
from qdqbridge.tvm.relax.kernels.windows import pooling
from qdqbridge.tvm.relax.kernels.windows.pooling import PoolKernel

_REACH = 1 << 30
"""Rounded averages below it fit int32 with a zero point added."""
_RANKS = (3, 4)


def match_window(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of MaxPool and AveragePool over one or two spatial axes."""
    attributes, largest = node.attributes, node.op is MAX_POOL
    shape, outcome = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    form = _form(node, place, moved=largest)
    if not isinstance(attributes, PoolAttrs) or not place.channels_last or form is None:
        return None
    if shape is None or outcome is None or len(shape) not in _RANKS:
        return None
    averaged = () if largest else _averaged(node, _populations(attributes, shape))
    if averaged is None:
        return None
    pool = PoolKernel(
        largest, shape, outcome, _dtype(node), form, image_of(shape), shape[-1] or 0,
        along(attributes.kernel_shape, 1), along(attributes.strides, 1),
        along(attributes.dilations, 1), along(attributes.pads[: len(attributes.pads) // 2], 0),
        image_of(outcome), bool(averaged) and averaged[0].size == 1, place.threads,
    )  # fmt: skip
    name = f"{'max' if largest else 'average'}_pool_{pool.kernel[0]}x{pool.kernel[1]}"
    return Kernel(name, pool, pooling.build_pooling, (node.operand(0),), averaged, (node.output,))


_KINDS = {"mean": SUM, "sum": SUM, "max": LARGEST, "min": SMALLEST}
"""Of a reduction, by TVM's name."""


def match_axes(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a reduction over neighbouring axes."""
    kind = _KINDS.get(node.op.tvm)
    shape, outcome = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    form = _form(node, place, moved=kind != SUM)
    if kind is None or shape is None or outcome is None or form is None:
        return None
    first = 1 if place.channels_last else 2
    axes = tuple(sorted(reduction_of(node, range(first, first + len(shape) - 2)).axes))
    if not axes or axes != tuple(range(axes[0], axes[-1] + 1)) or None in (shape[i] for i in axes):
        return None
    rows, count, inner = (
        math.prod(extent or 1 for extent in part)
        for part in (shape[: axes[0]], shape[axes[0] : axes[-1] + 1], shape[axes[-1] + 1 :])
    )
    number = np.asarray([1 if node.op.tvm == "sum" else count])
    averaged = _averaged(node, number, terms=count) if kind == SUM else ()
    if averaged is None:
        return None
    reduce = Reduce(kind, shape, outcome, _dtype(node), form, rows, count, inner, place.threads)
    name = node.op.name.lower()
    return Kernel(
        name, reduce, reduction.build_reduction, (node.operand(0),), averaged, (node.output,)
    )


def _form(node: Node, place: KernelPlace, *, moved: bool) -> CodesForm | None:
    """Returns the form of the result where it and the operand are 8-bit codes."""
    source, result = node.operand(0).quant, node.output.quant
    if source is None or result is None or source.params.storage_dtype not in BYTES:
        return None
    if moved:
        dtype = BYTES[source.params.storage_dtype]
        same = source.params.same_mapping(result.params)
        plain = CodesForm(place.cpu, dtype, multiplies=False, shifted=False, clamped=False)
        return plain if same else None
    params = bytes_of(node.output)
    return (
        None if params is None or bytes_of(node.operand(0)) is None else form_of(params, place.cpu)
    )


def _dtype(node: Node) -> str:
    return BYTES[node.operand(0).type.dtype]


def _averaged(
    node: Node, counts: NDArray[Any], *, terms: int = 1
) -> tuple[NDArray[Any], ...] | None:
    """Returns the multipliers of sums, and zero points; None where int32 could be too small."""
    source, result = bytes_of(node.operand(0)), bytes_of(node.output)
    assert source is not None and result is not None
    scale = np.float64(source.scale)
    exact = scale / (np.float64(result.scale) * counts.astype(np.float64))
    multipliers = exact.astype(np.float32)
    largest = 255 * max(int(counts.max()), terms)
    if largest >= 1 << 31 or largest * float(multipliers.max()) >= _REACH:
        return None
    return np.ascontiguousarray(multipliers), numbers(result, source)[1]


def _populations(attributes: PoolAttrs, shape: Open) -> NDArray[np.int64]:
    """Returns how many elements every window averages over; one number where all agree."""
    image = np.zeros((1, 1, *(extent or 1 for extent in shape[1:-1])), np.uint8)
    counts = window_counts(attributes, image).reshape(-1)
    return counts[:1] if (counts == counts[0]).all() else counts
