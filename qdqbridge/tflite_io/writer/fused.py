"""Activations that TFLite fuses into an operator, and what they are of stored integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdqbridge.core.graph.quantization import QuantParams


class Activation:
    """TFLite's numbers of fused activations."""

    NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)


CLAMPS: Mapping[int, tuple[str, int]] = {
    Activation.RELU: ("RELU", 2),
    Activation.RELU6: ("RELU6", 2),
    Activation.RELU_N1_TO_1: ("RELU_N1_TO_1", 1),
}
"""The operators that do what a fused activation does, and their versions on integers."""
_INTERVALS = (
    (Activation.RELU, 0.0, np.inf),
    (Activation.RELU6, 0.0, 6.0),
    (Activation.RELU_N1_TO_1, -1.0, 1.0),
)


_FAR = 1 << 40
"""Beyond every stored number."""


def fused_range(params: QuantParams, low: float, high: float) -> tuple[int, int]:
    """Returns the stored bounds of a fused activation, as TFLite computes them."""
    kind = params.storage_dtype
    scale, zero = np.float32(params.scale), int(params.zero_point)

    def stored(bound: float) -> int:
        with np.errstate(over="ignore", divide="ignore"):
            real = float(np.clip(np.float32(bound) / scale, -_FAR, _FAR))
        return zero + int(np.trunc(real + np.copysign(0.5, real)))

    qmin = max(kind.qmin, stored(low)) if np.isfinite(low) else kind.qmin
    qmax = min(kind.qmax, stored(high)) if np.isfinite(high) else kind.qmax
    return qmin, qmax


def fusable(params: QuantParams) -> int | None:
    """Returns the fused activation that clamps to a type's range; None where none does."""
    for kind, low, high in _INTERVALS:
        if fused_range(params, low, high) == (params.qmin, params.qmax):
            return kind
    return None
