"""Which products of two activations have a kernel, and what its operands are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import Dim
from qdqbridge.core.ops.attributes import GemmAttrs, TransposeAttrs
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain, Scaled
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.epilogues.requantization import requantization, scaled, sum_scale
from qdqbridge.tvm.relax.kernels.kernel import (
    Array,
    Kernel,
    KernelPlace,
    Stride,
    View,
    codes_of,
    full_view,
    view_of,
)
from qdqbridge.tvm.relax.kernels.products.float_products import is_real
from qdqbridge.tvm.relax.kernels.tiles.batched import Batched, Matrices, build_batched_matmul

_INNER = 1 << 13
"""Sums of as many products, corrections included, stay within int32."""
_ANY = 1 << 31
"""Sums of an open number of products are those of the plain loops, int32."""


def match_matmul(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a MatMul or Gemm (without a bias) of two activations, bytes or floats.

    Floats with an alpha other than 1 have none.
    """
    if node.optional(2) is not None or any(node.operand(i).is_constant for i in (0, 1)):
        return None
    product = _match_matmul(node)
    if product is None:
        return None
    alpha = node.attributes.alpha if isinstance(node.attributes, GemmAttrs) else 1.0
    if all(is_real(value) for value in (node.operand(0), node.operand(1), node.output)):
        return (
            None
            if alpha != 1.0
            else _matmul_kernel(node, place, product, (False, False), Plain(), ())
        )
    x, w = (codes_of(node.operand(i)) for i in (0, 1))
    if x is None or w is None:
        return None
    scale = sum_scale(x, node.operand(1), alpha)
    found = scaled(node, scale, 0) or requantization(node.output, scale)
    inner = product.sizes[1]
    if found is None or found.multiplier.size != 1:
        return None
    opened = isinstance(inner, str)
    # The epilogue rounds to int32, so the largest sum times the multiplier has to fit; of an open
    # extent nobody knows the largest sum.
    if not found.holds(_ANY if opened else inner * 255 * 255) or (not opened and inner > _INNER):
        return None
    centre = w.zero_point - 128
    numbers = (*found.ends, x.zero_point, centre, x.zero_point * centre)
    constants = (found.multiplier, np.asarray(numbers, np.int32))
    lacking = place.cpu.dot.centre
    shifted = x.zero_point != lacking or (lacking != 0 and centre != 0), centre != 0
    return _matmul_kernel(node, place, product, shifted, found.form, constants)


@dataclass(frozen=True, slots=True)
class _Product:
    """Both operands and the result as matrices.

    Attributes:
        a: The first operand.
        b: The second operand.
        batches: Extents of the batch axes.
        strides: Strides of both operands along them.
        sizes: Rows, products of a sum, columns.
    """

    a: View
    b: View
    result: View
    batches: tuple[Dim, ...]
    strides: list[tuple[Stride, ...]]
    sizes: tuple[Dim, Dim, Dim]


def _match_matmul(node: Node) -> _Product | None:
    a, b, result = _matrices(node, 0), _matrices(node, 1), full_view(node.output)
    if a is None or b is None or result is None:
        return None
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    if b.shape[-2] != inner or result.shape[-2:] != (rows, columns):
        return None
    known = _names(a.value, b.value)
    if not all(_names(view.shape, *view.strides) <= known for view in (a, b, result)):
        return None
    batches = _batches(result, (a, b))
    return None if batches is None else _Product(a, b, result, *batches, (rows, inner, columns))


def _names(*products: Value | Stride) -> set[Dim]:
    """Returns the names of the open extents that are factors of products."""
    parts = (p.type.shape if isinstance(p, Value) else p for p in products)
    return {e for part in parts if isinstance(part, tuple) for e in part if isinstance(e, str)}


def _matmul_kernel(
    node: Node,
    place: KernelPlace,
    product: _Product,
    shifted: tuple[bool, bool],
    form: Requantize | Plain | Scaled,
    constants: tuple[Array, ...],
) -> Kernel:
    rows, inner, columns = product.sizes
    a, b = (
        _operand(view, steps) for view, steps in zip((product.a, product.b), product.strides,
                                                     strict=True)
    )  # fmt: skip
    result = product.result
    signed = isinstance(form, Requantize) and form.signed
    y = Matrices(result.shape, result.strides[:-2], result.strides[-2], 1, signed)
    description = Batched(
        place.cpu, a, b, y, product.batches, rows, inner, columns, shifted, form,
        place.threads > 1,
    )  # fmt: skip
    extents = (*product.sizes, *product.batches)
    work = 2 * math.prod(extent for extent in extents if isinstance(extent, int))
    kind = "float_matmul" if isinstance(form, Plain) else "matmul"
    sizes = "x".join("n" if isinstance(size, str) else str(size) for size in product.sizes)
    return Kernel(
        f"{kind}_{sizes}", description, build_batched_matmul, (product.a.value, product.b.value),
        constants,
        (node.output,), work, transposed,
    )  # fmt: skip


def transposed(kernel: Kernel, node: Node) -> Kernel | None:
    """Returns a product that writes its result as the Transpose that alone reads it would.

    Args:
        kernel: The kernel of a product.
        node: The Transpose.
    """
    attributes, d, result = node.attributes, kernel.description, full_view(node.output)
    if not isinstance(attributes, TransposeAttrs) or not isinstance(d, Batched) or result is None:
        return None
    strides: list[Stride] = [0] * len(attributes.perm)
    for axis, source in enumerate(attributes.perm):
        strides[source] = result.strides[axis]
    if strides[-1] != 1:
        return None
    y = replace(d.y, shape=result.shape, batches=tuple(strides[:-2]), row=strides[-2])
    return replace(kernel, description=replace(d, y=y), outputs=(node.output,))


def _matrices(node: Node, index: int) -> View | None:
    """Returns an operand as matrices as they are multiplied; vectors are none."""
    view = view_of(node.operand(index))
    if view is None or len(view.shape) < 2:
        return None
    gemm = node.attributes
    if isinstance(gemm, GemmAttrs) and (gemm.trans_b if index else gemm.trans_a):
        return View(view.value, view.shape[::-1], view.strides[::-1])
    return view


def _batches(
    result: View, operands: Sequence[View]
) -> tuple[tuple[Dim, ...], list[tuple[Stride, ...]]] | None:
    """Returns the batch axes of the result, and every operand's strides along them."""
    axes = result.shape[:-2]
    strides: list[tuple[Stride, ...]] = []
    for view in operands:
        missing = len(axes) - (len(view.shape) - 2)
        own = (1,) * missing + view.shape[:-2]
        if any(have not in (1, want) for have, want in zip(own, axes, strict=True)):
            return None
        steps = (0,) * missing + view.strides[:-2]
        strides.append(tuple(0 if n == 1 else s for n, s in zip(own, steps, strict=True)))
    return axes, strides


def _operand(view: View, batches: tuple[Stride, ...]) -> Matrices:
    tensor, codes = full_view(view.value), codes_of(view.value)
    assert tensor is not None
    signed = codes is not None and codes.signed
    return Matrices(tensor.shape, batches, view.strides[-2], view.strides[-1], signed)
