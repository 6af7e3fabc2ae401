"""A float32 exponential made of single IEEE operations, so that every backend repeats its bits.

Cody-Waite range reduction with a two-part ln 2 and a degree-6 polynomial (the classic minimax
coefficients of Cephes ``expf``); about 1 ulp. The result is 0 below ``LOWEST``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LOG2E = np.float32(1.44269504088896341)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
POLYNOMIAL = tuple(
    np.float32(c)
    for c in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)
LOWEST = np.float32(-87.0)
HIGHEST = np.float32(88.0)


def exp32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns ``exp(x)`` for float32 ``x``; the order of operations is the specification.

    n = rint(x * LOG2E); r = (x - n * LN2_HIGH) - n * LN2_LOW; p = Horner(POLYNOMIAL, r);
    y = ((p * r) * r + r) + 1; result = y * 2**n, where 2**n is built from its bits.
    """
    clamped = np.minimum(np.maximum(x, LOWEST), HIGHEST)
    n = np.rint(clamped * LOG2E)
    r = (clamped - n * LN2_HIGH) - n * LN2_LOW
    p = np.full_like(r, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        p = p * r + coefficient
    y = ((p * r) * r + r) + np.float32(1)  # NaN of NaN, whatever 2**n is
    power = ((n.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.where(x < LOWEST, np.float32(0), y * power)
