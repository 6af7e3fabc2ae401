"""Sums with a norm and Gelus that onnxruntime fuses, as the ONNX operators they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qdqbridge.core.ops.unary import HARD_SIGMOID, LEAKY_RELU
from qdqbridge.onnx_io.lowering.context import MICROSOFT, LoweringContext

# ---- the activations that onnxruntime fuses into other operators ---------------------------------

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


# --------------------------------------------------------------------------------------------------

SKIP = {True: "SkipLayerNormalization", False: "SkipSimplifiedLayerNormalization"}
"""The variant of a norm whose operand was added in the same node, by whether it takes the mean."""

WITH_BIAS = "+bias"
"""Behind the variant: a constant bias was added there, too."""

DATA = "@"
"""Behind that: the tensor that has the shape of the sum; the other one may be repeated. Behind the
variant of a Gelu, the tensor of the bias."""

BIAS_GELU = "com.microsoft::BiasGelu"
"""The variant of a Gelu to whose operand the same node adds a bias."""


def skip_norm(*, centred: bool) -> Callable[[LoweringContext], None]:
    """Returns the lowering of SkipLayerNormalization, or of its form without a mean."""

    def lower(context: LoweringContext) -> None:
        """``LayerNormalization(x + skip + bias)`` over the last axis; the sum is result 3.

        Source: onnxruntime docs/ContribOperators.md.
        """
        extra = [
            i for i in range(len(context.proto.output)) if context.wants(i) and i not in (0, 3)
        ]
        if extra:
            raise context.refusal(
                "its mean or deviation is a result",
                f"result {extra[0]} ('{context.proto.output[extra[0]]}') "
                "is only of use in training",
                "export the model for inference",
            )
        place = 4 if centred else 3
        total, bias = context.proto.output[3] if context.wants(3) else "", context.input(place)
        inputs = [context.input(0), context.input(1)]
        value = context.op("Add", inputs, "" if bias else total)
        if bias:
            value = context.op("Add", [value, bias], total)
        operands = [value, context.input(2), context.input(3) if centred else ""]
        name = "LayerNormalization" if centred else "SimplifiedLayerNormalization"
        epsilon, output = context.float_("epsilon", 1e-12), context.proto.output[0]
        context.op(name, operands, output, axis=-1, epsilon=epsilon)
        variant = SKIP[centred] + (WITH_BIAS if bias else "")
        context.known.variants[output] = f"{variant}{DATA}{context.input(0)}"

    return lower


def bias_gelu(context: LoweringContext) -> None:
    """``Gelu(a + b)``.

    Source: onnxruntime docs/ContribOperators.md.
    """
    output = context.proto.output[0]
    total = context.op("Add", [context.input(0), context.input(1)])
    context.op("Gelu", [total], output, domain=MICROSOFT)
    context.known.variants[output] = f"{BIAS_GELU}{DATA}{context.input(1)}"


def fast_gelu(context: LoweringContext) -> None:
    """``Gelu(x + bias)`` by tanh: the bits of ONNX's in onnxruntime 1.32, but of half floats.

    Source: onnxruntime docs/ContribOperators.md.
    """
    x, output = context.input(0), context.proto.output[0]
    if context.input(1):
        x = context.op("Add", [x, context.input(1)])
        context.known.variants[output] = f"FastGelu{WITH_BIAS}{DATA}{context.input(1)}"
    context.op("FastGelu", [x], output, domain=MICROSOFT)
