"""Integers on a grid that are close to what rows of a matrix shall compute.

The squared error of a row is a quadratic in it. Its least point on the grid is approached by
rounding columns one after the other (:mod:`qdqbridge.autoquant.repair.gptq`) and then changing one
integer at a time while that helps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.repair.gptq import loss, rounded_rows

Matrix = NDArray[np.float64]
DAMPING = 0.01
"""How strongly weights are held where they are, as a share of the mean square of an operand."""
_SWEEPS, _BLOCK = 4, 64


def targets(
    weight: Matrix, square: Matrix, cross: Matrix, hold: Matrix | float
) -> tuple[Matrix, Matrix]:
    """Returns real numbers that rows shall come close to, and what errors cost, ``e H e^T``.

    Args:
        weight: ``[…, rows, columns]``.
        square: ``X' X'^T``, ``[…, columns, columns]``.
        cross: ``X X'^T``.
        hold: How many times as hard weights are held where they are.
    """
    mean = np.diagonal(square, axis1=-2, axis2=-1).mean(axis=-1)[..., None, None]
    damping = np.where(mean > 0, hold * DAMPING * mean, 1.0)
    hessian = square + damping * np.eye(square.shape[-1])
    wanted = np.swapaxes(weight @ cross + damping * weight, -1, -2)
    return np.asarray(np.swapaxes(np.linalg.solve(hessian, wanted), -1, -2), np.float64), hessian


def learned_rows(
    target: Matrix,
    scale: Matrix,
    zero_point: Matrix,
    hessian: Matrix,
    low: Matrix | int,
    high: Matrix | int,
    ratios: Sequence[float] = (1.0,),
) -> tuple[Matrix, Matrix]:
    """Returns stored integers for the rows of a matrix, and a factor of each row's scales.

    There may be one matrix for each of several groups.

    Args:
        target: ``[…, rows, columns]``, what is approached.
        scale: Of each element.
        zero_point: Of each element.
        hessian: What errors cost, ``[…, columns, columns]``.
        low: The smallest stored integer, of all or of each element.
        high: The largest one.
        ratios: Factors to try.
    """
    best = np.full(target.shape[:-1], np.inf)
    stored, factor = np.zeros_like(target), np.ones(target.shape[:-1])
    for ratio in ratios:
        own = scale * ratio
        q = rounded_rows(target, own, zero_point, hessian, low, high)
        q = descended(target, q, own, zero_point, hessian, low, high)
        lost = loss(target, q, own, zero_point, hessian)
        better = lost < best
        best = np.where(better, lost, best)
        stored[better], factor[better] = q[better], ratio
    return stored, factor


def descended(
    target: Matrix,
    stored: Matrix,
    scale: Matrix,
    zero_point: Matrix,
    hessian: Matrix,
    low: Matrix | int,
    high: Matrix | int,
) -> Matrix:
    """Returns integers from which changing a single one in a row no longer helps, or nearly.

    Args:
        target: ``[…, rows, columns]``, what is approached.
        stored: Integers to begin with.
        scale: Of each element.
        zero_point: Of each element.
        hessian: What errors cost, ``e H e^T``.
        low: The smallest stored integer, of all or of each element.
        high: The largest one.
    """
    q, count = stored.copy(), stored.shape[-1]
    least, most = (np.broadcast_to(end, q.shape) for end in (low, high))
    curvature = scale * np.diagonal(hessian, axis1=-2, axis2=-1)[..., None, :]
    gradient = ((q - zero_point) * scale - target) @ hessian
    for _ in range(_SWEEPS):
        moved = False
        for start in range(0, count, _BLOCK):
            part = slice(start, min(start + _BLOCK, count))
            inner, rest = hessian[..., part, part], gradient[..., part].copy()
            change = np.zeros_like(rest)
            for j in range(rest.shape[-1]):
                column = start + j
                best = q[..., column] - rest[..., j] / curvature[..., column]
                # np.clip takes longer
                best = np.minimum(np.maximum(np.rint(best), least[..., column]), most[..., column])
                step = (best - q[..., column]) * scale[..., column]
                q[..., column], change[..., j] = best, step
                rows = step.nonzero()  # few, from the second sweep on
                rest[rows] += step[rows][:, None] * inner[..., j, :][rows[:-1]]
            if change.any():
                moved = True
                gradient += change @ hessian[..., part, :]
        if not moved:
            break
    return q
