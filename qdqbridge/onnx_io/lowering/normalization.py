"""Sums with a norm and Gelus that onnxruntime fuses, as the ONNX operators they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.ops.unary import HARD_SIGMOID, LEAKY_RELU
from qdqbridge.core.rewrite import Rule
from qdqbridge.onnx_io.lowering.context import MICROSOFT, LoweringContext, reading_rule

# ---- the activations that onnxruntime fuses into other operators ---------------------------------

_PLAIN = ("Relu", "Tanh", "Sigmoid")
_WITH_PARAMETERS = {row.name: row for row in (LEAKY_RELU, HARD_SIGMOID)}


def activated(
    context: LoweringContext, kind: str, params: Sequence[float], x: Value, result: str
) -> Value:
    """Returns an activation of ``x``.

    Args:
        context: The node.
        kind: ONNX's name of it.
        params: Its parameters, in the order of onnxruntime's ``activation_params``.
        x: The tensor.
        result: Name of the result.

    Raises:
        NoNewForm: onnxruntime has no such fused activation.
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
    x: Value,
    low: float,
    high: float,
    dtype: type[np.generic],
    result: str = "",
) -> Value:
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


def _skip_norm(*, centred: bool) -> Rule:
    """Returns the rule of SkipLayerNormalization, or of its form without a mean."""
    name = SKIP[centred]
    operands = ("x", "skip", "gamma", *(("beta?",) if centred else ()), "bias?")
    kebab = "skip-layer-normalization" if centred else "skip-simplified-layer-normalization"

    @reading_rule(kebab, (f"{MICROSOFT}::{name}", *operands))
    def lower(context: LoweringContext) -> Sequence[Value]:
        """``SkipLayerNormalization(x, skip, bias) -> LayerNormalization(x + skip + bias)``.

        Over the last axis; the sum is result 3.
        Source: onnxruntime docs/ContribOperators.md.
        """
        outputs = context.proto.output
        extra = [i for i in range(len(outputs)) if context.wants(i) and i not in (0, 3)]
        if extra:
            raise context.refusal(
                "its mean or deviation is a result",
                f"result {extra[0]} ('{outputs[extra[0]]}') is only of use in training",
                "export the model for inference",
            )
        x, skip, gamma, *more = context.inputs(len(operands))
        total, bias, beta = outputs[3] if context.wants(3) else "", more[-1], more[0]
        value = context.op("Add", [x, skip], "" if bias else total)
        if bias:
            value = context.op("Add", [value, bias], total)
        plain = "LayerNormalization" if centred else "SimplifiedLayerNormalization"
        variant = f"{name}{WITH_BIAS if bias else ''}{DATA}{context.proto.input[0]}"
        y = context.op(
            plain, [value, gamma, beta if centred else None], context.output,
            variant=variant, axis=-1, epsilon=context.float_("epsilon", 1e-12),
        )  # fmt: skip
        return [y, value] if total else [y]

    return lower


@reading_rule("bias-gelu", (f"{MICROSOFT}::BiasGelu", "a", "b"))
def bias_gelu(context: LoweringContext) -> Value:
    """``BiasGelu(a, b) -> Gelu(a + b)``.

    Source: onnxruntime docs/ContribOperators.md.
    """
    total = context.op("Add", context.inputs(2))
    variant = f"{BIAS_GELU}{DATA}{context.proto.input[1]}"
    return context.op("Gelu", [total], context.output, domain=MICROSOFT, variant=variant)


@reading_rule("fast-gelu", (f"{MICROSOFT}::FastGelu", "x", "bias?"))
def fast_gelu(context: LoweringContext) -> Value | None:
    """``FastGelu(x, bias) -> FastGelu(x + bias)``: the bits of ONNX's Gelu by tanh.

    So in onnxruntime 1.32, but of half floats. Source: onnxruntime docs/ContribOperators.md.
    """
    x, bias = context.inputs(2)
    variant = f"FastGelu{WITH_BIAS}{DATA}{context.proto.input[1]}" if bias else ""
    x = context.op("Add", [x, bias]) if bias else x
    return context.op("FastGelu", [x], context.output, domain=MICROSOFT, variant=variant)


RULES: tuple[Rule, ...] = (
    _skip_norm(centred=True),
    _skip_norm(centred=False),
    bias_gelu,
    fast_gelu,
)
