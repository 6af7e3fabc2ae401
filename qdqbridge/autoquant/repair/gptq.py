"""Rounding of weights that makes up for its own errors (GPTQ).

The error of a product with rounded weights is ``(w - q) H (w - q)^T`` with ``H = 2 X X^T``. Columns
are rounded one after the other; what rounding one of them costs, the columns still open make up for
(Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022). A row that this does not improve is rounded to the nearest integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.planning.decide import Decision
from qdqbridge.autoquant.planning.plan import Weight
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.layers import ProductLayer, layer_of
from qdqbridge.autoquant.repair.sweep import SAMPLES, Batches, sweep
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.ops.attributes import ConvAttrs, ConvTransposeAttrs
from qdqbridge.ops.windows import extents, padded, taps

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
    low: int,
    high: int,
    hold: float = 1.0,
) -> Matrix:
    """Returns stored integers for the rows of a matrix.

    Args:
        weight: ``[rows, columns]``.
        scale: Of each element.
        zero_point: Of each element.
        hessian: ``X X^T``, ``[columns, columns]``, up to a factor.
        low: The smallest stored integer.
        high: The largest one.
        hold: How many times as hard weights are held where they are.

    Returns:
        Integers as float64; no row has a larger error than the nearest integers have.
    """
    nearest = _nearest(weight, scale, zero_point, low, high)
    open_ = np.flatnonzero(np.diag(hessian) > 0)
    order = open_[np.argsort(-np.diag(hessian)[open_], kind="stable")]
    if len(order) < 2:
        return nearest
    upper = _inverse_root(hessian[np.ix_(order, order)], hold)
    rest, found = weight[:, order].copy(), nearest.copy()
    for start in range(0, len(order), _BLOCK):
        end = min(start + _BLOCK, len(order))
        errors = np.zeros((len(weight), end - start))
        for j in range(start, end):
            column = order[j]
            s, z = scale[:, column], zero_point[:, column]
            q = _nearest(rest[:, j], s, z, low, high)
            found[:, column] = q
            errors[:, j - start] = (rest[:, j] - (q - z) * s) / upper[j, j]
            rest[:, j + 1 : end] -= np.outer(errors[:, j - start], upper[j, j + 1 : end])
        rest[:, end:] -= errors @ upper[start:end, end:]
    better = loss(weight, found, scale, zero_point, hessian) < loss(
        weight, nearest, scale, zero_point, hessian
    )
    return np.where(better[:, None], found, nearest)


def _nearest(weight: Matrix, scale: Matrix, zero_point: Matrix, low: int, high: int) -> Matrix:
    return np.clip(np.rint(weight / scale) + zero_point, low, high)


def _inverse_root(hessian: Matrix, hold: float) -> Matrix:
    """Returns upper triangular ``U`` with ``U^T U = H^-1``, H damped as much as it needs."""
    mean = float(np.diag(hessian).mean())
    for damping in (DAMPING, 10 * DAMPING, 1.0):
        damped = hessian + hold * damping * mean * np.eye(len(hessian))
        try:
            return np.asarray(np.linalg.cholesky(np.linalg.inv(damped)).T, np.float64)
        except np.linalg.LinAlgError:
            continue
    return np.eye(len(hessian))


def loss(
    weight: Matrix, stored: Matrix, scale: Matrix, zero_point: Matrix, hessian: Matrix
) -> Matrix:
    """Returns the error of every row, ``(w - q) H (w - q)^T``."""
    error = weight - (stored - zero_point) * scale
    return np.einsum("rj,jk,rk->r", error, hessian, error, optimize=True)


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


def columns(layer: ProductLayer, x: Matrix) -> Matrix:
    """Returns what each weight of a group is multiplied with: ``[groups, n, positions]``."""
    attributes = layer.node.attributes
    kernel = layer.weight.shape[2:]
    if isinstance(attributes, ConvTransposeAttrs):
        return _transposed_columns(layer, attributes, x)
    if not isinstance(attributes, ConvAttrs):
        return np.moveaxis(x, layer.operand_axis, 0).reshape(1, layer.inputs, -1)
    strides, dilations, pads = attributes.strides, attributes.dilations, attributes.pads
    out = extents(x.shape[2:], kernel, strides, dilations, pads)
    wide = padded(x, kernel, strides, dilations, pads, out, 0)
    return _gathered(layer, [view for _, view in taps(wide, kernel, strides, dilations, out)])


def _transposed_columns(layer: ProductLayer, attributes: ConvTransposeAttrs, x: Matrix) -> Matrix:
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


def _gathered(layer: ProductLayer, views: list[Matrix]) -> Matrix:
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
    flat = [np.ascontiguousarray(a).reshape(groups, rows, columns * count) for a in wide]
    grams = hessians(layer, operands)
    found = np.stack(
        [
            rounded_rows(w, s, z, gram, params.qmin, params.qmax, hold)
            for w, s, z, gram in zip(*flat, grams, strict=True)
        ]
    )
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
) -> tuple[Decision, str]:
    """Returns a decision with integers for weights, and what was done.

    Args:
        decision: Not changed.
        samples: Calibration data.
        bits: Weights of more bits are left as they are.
        limit: How many samples to use.
        hold: How many times as hard weights are held where they are.
    """
    found = Rounding(decision, bits, hold)
    if not any(p.storage_dtype.bits <= bits for p in decision.weights.values()):
        return decision, f"no weight has {bits} bits or fewer"
    sweep(decision, samples, found, limit=limit)
    result = replace(decision, integers={**decision.integers, **found.integers})
    return result, f"weights of {len(found.integers)} products rounded together"
