"""Rounding of weights that makes up for its own errors (GPTQ).

The error of a product with rounded weights is ``(w - q) H (w - q)^T`` with ``H = 2 X X^T``. Columns
are rounded one after the other; what rounding one of them costs, the columns still open make up for
(Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022). A row that this does not improve is rounded to the nearest integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.planning.decide import Decision
from qdqbridge.autoquant.planning.plan import Weight
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.layers import ProductLayer, layer_of
from qdqbridge.autoquant.repair.sweep import SAMPLES, Batches, sweep
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs
from qdqbridge.core.ops.shapes import extents, padded, taps

Array = NDArray[Any]
Matrix = NDArray[np.float64]
DAMPING = 0.01
"""Added to the diagonal of H, as a share of its mean."""
_BLOCK = 64
"""Columns that are rounded before the others hear of it, all at once."""
BITS = 4
"""Weights of more bits are left as they are unless somebody asks."""


def rounded_rows(
    weight: Matrix,
    scale: Matrix,
    zero_point: Matrix,
    hessian: Matrix,
    low: Matrix | int,
    high: Matrix | int,
    hold: float = 1.0,
) -> Matrix:
    """Returns stored integers for the rows of a matrix, or of one for each group.

    Args:
        weight: ``[…, rows, columns]``.
        scale: Of each element.
        zero_point: Of each element.
        hessian: ``X X^T``, ``[…, columns, columns]``, up to a factor.
        low: The smallest stored integer, of all or of each element.
        high: The largest one.
        hold: How many times as hard weights are held where they are.

    Returns:
        Integers as float64; no row has a larger error than the nearest integers have.
    """
    nearest = _nearest(weight, scale, zero_point, low, high)
    # the loudest columns first; what no operand reads comes last, and moves nothing
    order = np.argsort(-_diagonal(hessian), axis=-1, kind="stable")[..., None, :]
    rows = np.take_along_axis(hessian, np.swapaxes(order, -1, -2), -2)
    upper = _inverse_root(np.take_along_axis(rows, order, -1), hold)
    bounds = (np.broadcast_to(end, weight.shape) for end in (low, high))
    rest, s, z, least, most = (
        np.take_along_axis(a, order, -1) for a in (weight, scale, zero_point, *bounds)
    )
    placed, count = np.empty_like(rest), rest.shape[-1]
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        errors = np.zeros((*rest.shape[:-1], end - start))
        for j in range(start, end):
            q = _nearest(rest[..., j], s[..., j], z[..., j], least[..., j], most[..., j])
            placed[..., j] = q
            error = (rest[..., j] - (q - z[..., j]) * s[..., j]) / upper[..., j, j, None]
            errors[..., j - start] = error
            rest[..., j + 1 : end] -= error[..., None] * upper[..., j, None, j + 1 : end]
        rest[..., end:] -= errors @ upper[..., start:end, end:]
    found = np.empty_like(placed)
    np.put_along_axis(found, order, placed, -1)
    better = loss(weight, found, scale, zero_point, hessian) < loss(
        weight, nearest, scale, zero_point, hessian
    )
    return np.where(better[..., None], found, nearest)


def _nearest(
    weight: Matrix, scale: Matrix, zero_point: Matrix, low: Matrix | int, high: Matrix | int
) -> Matrix:
    # of a column at a time: np.clip takes twice as long
    return np.minimum(np.maximum(np.rint(weight / scale) + zero_point, low), high)


def _diagonal(hessian: Matrix) -> Matrix:
    return np.diagonal(hessian, axis1=-2, axis2=-1)


def _inverse_root(hessian: Matrix, hold: float) -> Matrix:
    """Returns upper triangular ``U`` with ``U^T U = H^-1``, H damped as much as it needs."""
    diagonal = _diagonal(hessian)
    mean = diagonal.sum(axis=-1) / np.maximum(np.count_nonzero(diagonal, axis=-1), 1)
    unit = np.where(mean > 0, mean, 1.0)[..., None, None] * np.eye(hessian.shape[-1])
    for damping in (DAMPING, 10 * DAMPING, 1.0):
        try:
            inverse = np.linalg.inv(hessian + hold * damping * unit)
            return np.asarray(np.swapaxes(np.linalg.cholesky(inverse), -1, -2), np.float64)
        except np.linalg.LinAlgError:
            if hessian.ndim > 2:  # of one group, or of several
                return np.stack([_inverse_root(each, hold) for each in hessian])
    return np.eye(len(hessian))


def loss(
    weight: Matrix, stored: Matrix, scale: Matrix, zero_point: Matrix, hessian: Matrix
) -> Matrix:
    """Returns the error of every row, ``(w - q) H (w - q)^T``."""
    error = weight - (stored - zero_point) * scale
    return np.einsum("...rj,...rj->...r", error @ hessian, error)


def hessians(layer: ProductLayer, operands: Batches) -> Matrix:
    """Returns ``X X^T`` of every group, ``[groups, n, n]`` with n weights for each result.

    Args:
        layer: A product.
        operands: Its first operand, batch by batch.
    """
    total: Matrix | None = None
    for batch in operands:
        for sample in np.array_split(batch, max(1, min(len(batch), 8))) if batch.ndim else [batch]:
            x = columns(layer, np.asarray(sample, np.float64))
            product = x @ x.transpose(0, 2, 1)
            total = product if total is None else total + product
    assert total is not None
    return total


def columns(layer: ProductLayer, x: Array, most: int | None = None) -> Array:
    """Returns what each weight of a group is multiplied with: ``[groups, n, positions]``.

    Args:
        layer: A product.
        x: Its first operand.
        most: Of images with more positions, some rows are left out, evenly.
    """
    attributes = layer.node.attributes
    kernel = layer.weight.shape[2:]
    if isinstance(attributes, ConvTransposeAttrs):
        return _transposed_columns(layer, attributes, x)
    if not isinstance(attributes, ConvAttrs):
        return np.moveaxis(x, layer.operand_axis, 0).reshape(1, layer.inputs, -1)
    strides, dilations, pads = attributes.strides, attributes.dilations, attributes.pads
    out = extents(x.shape[2:], kernel, strides, dilations, pads)
    wide = padded(x, kernel, strides, dilations, pads, out, 0)
    positions = x.shape[0] * math.prod(out)
    step = 1 if most is None else max(1, min(out[0], positions // most))
    views = [view[:, :, ::step] for _, view in taps(wide, kernel, strides, dilations, out)]
    return _gathered(layer, views)


def _transposed_columns(layer: ProductLayer, attributes: ConvTransposeAttrs, x: Array) -> Array:
    """A ConvTranspose is a Conv over its operand with zeros in between, the kernel turned round."""
    kernel, sizes = layer.weight.shape[2:], x.shape[2:]
    count = len(kernel)
    spread = np.zeros(
        (*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(sizes, attributes.strides, strict=True)))
    )
    spread[(slice(None), slice(None), *(slice(None, None, s) for s in attributes.strides))] = x
    reach = [(k - 1) * d for k, d in zip(kernel, attributes.dilations, strict=True)]
    pads = [reach[i % count] - p for i, p in enumerate(attributes.pads)]
    extra = [*[0] * count, *attributes.output_padding]
    pads = [p + e for p, e in zip(pads, extra, strict=True)]
    widths = [(0, 0), (0, 0), *((max(pads[i], 0), max(pads[i + count], 0)) for i in range(count))]
    wide = np.pad(spread, widths)
    cut = [
        slice(max(-pads[i], 0), wide.shape[2 + i] - max(-pads[i + count], 0)) for i in range(count)
    ]
    wide = wide[(slice(None), slice(None), *cut)]
    ones = (1,) * count
    out = extents(wide.shape[2:], kernel, ones, attributes.dilations, (0,) * (2 * count))
    views = [view for _, view in taps(wide, kernel, ones, attributes.dilations, out)]
    return _gathered(layer, views[::-1])


def _gathered(layer: ProductLayer, views: list[Array]) -> Array:
    """Returns the operands of every tap as ``[groups, in / groups * taps, positions]``."""
    stacked = np.stack(views)  # taps, N, C, positions…
    count, samples, channels = stacked.shape[:3]
    stacked = stacked.reshape(count, samples, layer.groups, channels // layer.groups, -1)
    ordered = stacked.transpose(2, 3, 0, 1, 4)
    return ordered.reshape(layer.groups, channels // layer.groups * count, -1)


def rounded(
    layer: ProductLayer, params: QuantParams, operands: Batches, hold: float = 1.0
) -> Array:
    """Returns stored integers of a weight, in its shape and storage type."""
    weight = layer.weight
    wide = [
        layer.grid(np.broadcast_to(a, weight.shape).astype(np.float64))
        for a in (
            weight,
            params.aligned(params.scale, weight.shape),
            params.aligned(params.zero_point, weight.shape),
        )
    ]
    groups, rows, columns, count = wide[0].shape
    real, scale, zero = (
        np.ascontiguousarray(a).reshape(groups, rows, columns * count) for a in wide
    )
    gram = hessians(layer, operands)
    found = rounded_rows(real, scale, zero, gram, params.qmin, params.qmax, hold)
    stored = layer.ungrid(found.reshape(groups, rows, columns, count))
    return np.ascontiguousarray(stored.astype(np.int64).astype(params.storage_dtype.numpy))


@dataclass(slots=True, eq=False)
class Rounding:
    """Finds stored integers on the way through the graph.

    Attributes:
        decision: Says which weights are stored, and how.
        bits: Weights of more bits are left as they are.
        hold: How many times as hard weights are held where they are.
        integers: What was found.
    """

    decision: Decision
    bits: int
    hold: float = 1.0
    integers: dict[Weight, Array] = field(default_factory=dict["Weight", "Array"])

    def weight(
        self, weight: Weight, real: Batches, operands: Batches
    ) -> tuple[Array, QuantParams] | None:
        """Returns the integers of a weight of few bits."""
        params, layer = self.decision.weights[weight], layer_of(weight.node)
        usable = params.storage_dtype.is_integer and params.storage_dtype.bits <= self.bits
        if layer is None or not usable or any(not np.isfinite(a).all() for a in operands):
            return None
        self.integers[weight] = rounded(layer, params, operands, self.hold)
        return self.integers[weight], params

    def result(self, node: object, real: Batches, quantized: Batches) -> None:
        """Leaves results as they are."""


def with_rounding(
    decision: Decision,
    samples: Samples,
    *,
    bits: int = BITS,
    limit: int = SAMPLES,
    hold: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Decision, str]:
    """Returns a decision with integers for weights, and what was done.

    Args:
        decision: Not changed.
        samples: Calibration data.
        bits: Weights of more bits are left as they are.
        limit: How many samples to use.
        hold: How many times as hard weights are held where they are.
        progress: Called with the number of nodes done, and of all.
    """
    found = Rounding(decision, bits, hold)
    if not any(p.storage_dtype.bits <= bits for p in decision.weights.values()):
        return decision, f"no weight has {bits} bits or fewer"
    sweep(decision, samples, found, limit=limit, progress=progress)
    result = replace(decision, integers={**decision.integers, **found.integers})
    return result, f"weights of {len(found.integers)} products rounded together"
