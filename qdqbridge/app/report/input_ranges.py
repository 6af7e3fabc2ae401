"""Data that do not fit the quantization of a model's inputs: it was calibrated with others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.conversion import QUANTIZE

_OUTSIDE, _FILLED = 0.1, 0.1
"""Shares of numbers outside of a range, and of a range that numbers fill, from which on is told.
Choosers that clip leave out a hundredth; a few samples fill a third."""


def misfits(graph: Graph, data: Mapping[str, NDArray[Any]]) -> list[str]:
    """Returns what is to be told of data that an input's quantization does not fit.

    Args:
        graph: A graph; inputs of real numbers that are quantized at once are looked at.
        data: One array per input, by name.
    """
    found: list[str] = []
    for value in graph.inputs:
        params, array = _input_qparams(value), data.get(value.name)
        if params is None or array is None:
            continue
        real = array.astype(np.float64)
        finite = real[np.isfinite(real)]
        scale, zero = float(params.scale.reshape(-1)[0]), int(params.zero_point.reshape(-1)[0])
        low, high = ((end - zero) * scale for end in (params.qmin, params.qmax))
        if not finite.size or not high > low:
            continue
        outside = float(np.mean((finite < low - scale) | (finite > high + scale)))
        filled = float(max(finite.max(), 0) - min(finite.min(), 0)) / (high - low)
        stated = f"input '{value.name}' is quantized for {low:.4g} to {high:.4g}"
        advice = "the model seems to be calibrated with data of another scale"
        if outside > _OUTSIDE:
            found.append(
                f"{stated}, and {100 * outside:.0f} % of these numbers lie outside: {advice}"
            )
        elif filled < _FILLED:
            found.append(f"{stated}, of which these numbers fill {100 * filled:.2g} %: {advice}")
    return found


def _input_qparams(value: Value) -> QuantParams | None:
    """Returns the parameters of integers that all readers of an input make of it, if they do."""
    results = [node.output for node, _ in value.users if node.op is QUANTIZE]
    if value.quant is not None or len(results) != len(value.users) or not results:
        return None
    quant = results[0].quant
    if quant is None or not quant.params.per_tensor or not quant.params.storage_dtype.is_integer:
        return None
    return quant.params
