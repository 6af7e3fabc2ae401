"""The activations that onnxruntime fuses into other operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qdqbridge.core.ops.unary import HARD_SIGMOID, LEAKY_RELU
from qdqbridge.onnx_io.lowering.context import LoweringContext

_PLAIN = ("Relu", "Tanh", "Sigmoid")
_WITH_PARAMETERS = {row.name: row for row in (LEAKY_RELU, HARD_SIGMOID)}


def activated(
    context: LoweringContext, kind: str, params: Sequence[float], x: str, result: str
) -> str:
    """Returns an activation of ``x``.

    Args:
        context: The node.
        kind: ONNX's name of it.
        params: Its parameters, in the order of onnxruntime's ``activation_params``.
        x: The tensor.
        result: Name of the result.

    Raises:
        UnsupportedQuantization: onnxruntime has no such fused activation.
    """
    if kind in _PLAIN:
        return context.op(kind, [x], result)
    if kind in _WITH_PARAMETERS:
        row = _WITH_PARAMETERS[kind]
        attributes: dict[str, Any] = dict(row.onnx[0].defaults)
        attributes.update(zip(row.fields, params, strict=False))
        return context.op(kind, [x], result, **attributes)
    if kind == "Clip" and len(params) == 2:
        return clipped(context, x, params[0], params[1], np.float32, result)
    raise context.refusal(
        f"the fused activation '{kind}' is unknown",
        f"known: {', '.join((*_PLAIN, *_WITH_PARAMETERS))}, Clip",
        "save the model without extended optimizations",
    )


def clipped(
    context: LoweringContext,
    x: str,
    low: float,
    high: float,
    dtype: type[np.generic],
    result: str = "",
) -> str:
    """Returns ``Clip(x, low, high)`` in the form of the model's opset."""
    if context.main_opset < 11:
        return context.op("Clip", [x], result, min=float(low), max=float(high))
    bounds = [context.enter(np.array(bound, dtype), "bound") for bound in (low, high)]
    return context.op("Clip", [x, *bounds], result)
