"""Sums of two products in 16 bits: where ``vpmaddubsw`` saturates, and how little prevents it.

The instruction multiplies unsigned bytes by signed ones and adds neighbours with saturation to
int16. Kernels for CPUs without VNNI are built on it (onnxruntime's MLAS on AVX2, TVM's x86
schedules). What they do, of onnxruntime 1.32 read in its source and proved value by value
(``scripts/engines/engine_models.py onnxruntime-avx2 FOLDER --predicted``):

* Activations go in as stored codes, 0 to 255; signed ones of a QDQ file are shifted by 128. Weights
  go in as stored, signed. Products of unsigned weights are exact, and those of signed activations
  that a file has as an operator (QLinearConv, MatMulInteger). ConvInteger multiplies weights by
  windows of its data, taps before channels: only uint8 weights by int8 data saturate there.
* MatMulNBits with ``accuracy_level`` 4 is exact: codes of 2, 4 and 8 bits at their ends give the
  sums of a processor with VNNI, but for the order in which blocks are added.
* Zero points are corrected outside, so that no code is centred before it is multiplied.
* A convolution is a product of matrices whose inner axis runs over channels of a group first and
  over taps last (``channels-last``), in one flat row; blocks of four channels of its own kernel for
  symmetric weights (``NCHW4c``), strides of 128 and 384 terms and the kernel for one row of
  activations form the same pairs. ``channels-first`` is the other order.
* A term that is left over is paired with zero, and cannot saturate: ``255 * 128 <= 32767``.
* A pair alone saturates: its sums are added in 32 bits.
* Convolutions of one channel to one do not run on such products, 16-bit operands do not either.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Order: TypeAlias = "Literal['channels-last', 'channels-first']"
"""In which order the inner axis of a convolution runs over channels and taps."""

FULL = (0, 255)
"""All codes of an unsigned byte."""
_STEPS = 23
MARGIN = 1 + 2.0**-20
"""Room for three float32 roundings: of the scale, of the real weight, of their quotient."""


def paired(rows: NDArray[Any]) -> NDArray[np.int64]:
    """Returns ``rows`` of weights, shape (channels, terms), as (channels, pairs, 2)."""
    even = rows[:, : rows.shape[1] // 2 * 2].astype(np.int64)
    return even.reshape(len(rows), -1, 2)


def can_saturate(pairs: NDArray[np.int64], codes: tuple[int, int] = FULL) -> NDArray[np.bool_]:
    """Returns for each pair whether some input makes its sum leave int16.

    Args:
        pairs: Stored signed weights, shape (..., 2).
        codes: Smallest and largest unsigned input code.
    """
    low, high = codes
    ends = np.stack([pairs * low, pairs * high])
    largest, smallest = ends.max(axis=0).sum(axis=-1), ends.min(axis=0).sum(axis=-1)
    return (largest > np.iinfo(np.int16).max) | (smallest < np.iinfo(np.int16).min)


def saturating(rows: NDArray[Any], codes: tuple[int, int] = FULL) -> NDArray[np.int64]:
    """Returns how many pairs of neighbouring weights can saturate, per channel.

    Args:
        rows: Stored signed weights in the kernel's order, shape (channels, terms).
        codes: Smallest and largest unsigned input code.
    """
    return can_saturate(paired(rows), codes).sum(axis=1).astype(np.int64)


def remedy(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Returns by which factor the scale of each channel has to grow so that no pair saturates.

    1 where none does; never more than 2, which is what seven bits for all weights cost. The real
    weights are taken to be what the stored ones stand for.

    Args:
        rows: Stored signed weights in the kernel's order, shape (channels, terms).
    """
    pairs = paired(rows)
    # Magnitudes of rounded weights do not grow with the factor: no other pair ever saturates.
    channels, places = np.nonzero(can_saturate(pairs))
    suspects = pairs[channels, places]
    low, high = np.ones(len(suspects)), np.full(len(suspects), 2.0)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        still = can_saturate(np.rint(suspects / middle[:, None]).astype(np.int64))
        low, high = np.where(still, middle, low), np.where(still, high, middle)
    factors = np.ones(len(rows))
    np.maximum.at(factors, channels, np.minimum(high * MARGIN, 2.0))
    return factors


def lost(codes: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.int64]:
    """Returns what saturation adds to the exact sums of a product of matrices.

    Args:
        codes: Unsigned codes, shape (..., M, K).
        weights: Stored signed weights, shape (..., K, N).
    """
    if weights.ndim == 2:
        flat = codes.reshape(-1, codes.shape[-1])
        return _lost(flat, weights).reshape(*codes.shape[:-1], weights.shape[-1])
    stacked = np.broadcast_shapes(codes.shape[:-2], weights.shape[:-2])
    codes = np.broadcast_to(codes, (*stacked, *codes.shape[-2:]))
    weights = np.broadcast_to(weights, (*stacked, *weights.shape[-2:]))
    found = np.zeros((*stacked, codes.shape[-2], weights.shape[-1]), np.int64)
    for index in np.ndindex(*stacked):
        found[index] = _lost(codes[index], weights[index])
    return found


def _lost(codes: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.int64]:
    found = np.zeros((len(codes), weights.shape[1]), np.int64)
    if not len(codes):
        return found
    a, pairs = codes.astype(np.int32), paired(weights.T)
    low, high = a.min(axis=0), a.max(axis=0)
    ends = [pairs * end[: pairs.shape[1] * 2].reshape(-1, 2) for end in (low, high)]
    info = np.iinfo(np.int16)
    suspects = np.maximum(*ends).sum(axis=-1) > info.max
    suspects |= np.minimum(*ends).sum(axis=-1) < info.min
    pairs = pairs.astype(np.int32)
    for place in np.flatnonzero(suspects.any(axis=0)):
        channels = np.flatnonzero(suspects[:, place])
        first, second = pairs[channels, place].T
        raw = a[:, 2 * place, None] * first + a[:, 2 * place + 1, None] * second
        found[:, channels] += np.clip(raw, info.min, info.max) - raw
    return found
