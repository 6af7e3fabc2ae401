"""Integers on a grid that are close to what rows of a matrix shall compute.

The squared error of a row is a quadratic in it. Its least point on the grid is approached by
rounding columns one after the other (:mod:`qdqbridge.autoquant.repair.gptq`) and then changing one
integer at a time while that helps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.repair.gptq import rounded_rows

Matrix = NDArray[np.float64]
DAMPING = 0.01
"""How strongly weights are held where they are, as a share of the mean square of an operand."""
_SWEEPS, _BLOCK = 4, 64


def learned_rows(
    weight: Matrix,
    scale: Matrix,
    zero_point: Matrix,
    square: Matrix,
    cross: Matrix,
    low: int,
    high: int,
    ratios: Sequence[float] = (1.0,),
    hold: float = 1.0,
) -> tuple[Matrix, Matrix]:
    """Returns stored integers for the rows of a matrix, and a factor of each row's scales.

    Args:
        weight: ``[rows, columns]``.
        scale: Of each element.
        zero_point: Of each element.
        square: ``X' X'^T``, ``[columns, columns]``.
        cross: ``X X'^T``.
        low: The smallest stored integer.
        high: The largest one.
        ratios: Factors to try.
        hold: How many times as hard weights are held where they are.
    """
    damping = hold * DAMPING * float(np.diag(square).mean()) or 1.0
    hessian = square + damping * np.eye(len(square))
    wanted = (weight @ cross + damping * weight).T
    target = np.asarray(np.linalg.solve(hessian, wanted).T, np.float64)
    best = np.full(len(weight), np.inf)
    stored, factor = np.zeros_like(weight), np.ones(len(weight))
    for ratio in ratios:
        own = scale * ratio
        q = rounded_rows(target, own, zero_point, hessian, low, high)
        q = descended(target, q, own, zero_point, hessian, low, high)
        error = (q - zero_point) * own - target
        lost = np.einsum("rj,rj->r", error @ hessian, error)
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
    low: int,
    high: int,
) -> Matrix:
    """Returns integers from which changing a single one in a row no longer helps, or nearly.

    Args:
        target: ``[rows, columns]``, what is approached.
        stored: Integers to begin with.
        scale: Of each element.
        zero_point: Of each element.
        hessian: What errors cost, ``e H e^T``.
        low: The smallest stored integer.
        high: The largest one.
    """
    q, diagonal = stored.copy(), np.diag(hessian)
    gradient = ((q - zero_point) * scale - target) @ hessian
    for _ in range(_SWEEPS):
        moved = False
        for start in range(0, len(hessian), _BLOCK):
            part = slice(start, min(start + _BLOCK, len(hessian)))
            inner, rest = hessian[part, part], gradient[:, part].copy()
            change = np.zeros_like(rest)
            for j in range(rest.shape[1]):
                column = start + j
                s = scale[:, column]
                best = q[:, column] - rest[:, j] / (diagonal[column] * s)
                best = np.clip(np.rint(best), low, high)
                change[:, j] = (best - q[:, column]) * s
                q[:, column] = best
                rest += change[:, j, None] * inner[j]
            if change.any():
                moved = True
                gradient += change @ hessian[part]
        if not moved:
            break
    return q
