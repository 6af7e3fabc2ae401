"""Sums with a norm and Gelus that onnxruntime fuses, as the ONNX operators they are."""

from __future__ import annotations

from collections.abc import Callable

from qdqbridge.onnx_io.lowering.site import MICROSOFT, LoweringSite

SKIP = {True: "SkipLayerNormalization", False: "SkipSimplifiedLayerNormalization"}
"""The variant of a norm whose operand was added in the same node, by whether it takes the mean."""
WITH_BIAS = "+bias"
"""Behind the variant: a constant bias was added there, too."""
DATA = "@"
"""Behind that: the tensor that has the shape of the sum; the other one may be repeated. Behind the
variant of a Gelu, the tensor of the bias."""
BIAS_GELU = "com.microsoft::BiasGelu"
"""The variant of a Gelu to whose operand the same node adds a bias."""


def skip_norm(*, centred: bool) -> Callable[[LoweringSite], None]:
    """Returns the lowering of SkipLayerNormalization, or of its form without a mean."""

    def lower(site: LoweringSite) -> None:
        """``LayerNormalization(x + skip + bias)`` over the last axis; the sum is result 3.

        Source: onnxruntime docs/ContribOperators.md.
        """
        extra = [i for i in range(len(site.proto.output)) if site.wants(i) and i not in (0, 3)]
        if extra:
            raise site.refusal(
                "its mean or deviation is a result",
                f"result {extra[0]} ('{site.proto.output[extra[0]]}') is only of use in training",
                "export the model for inference",
            )
        place = 4 if centred else 3
        total, bias = site.proto.output[3] if site.wants(3) else "", site.input(place)
        inputs = [site.input(0), site.input(1)]
        value = site.op("Add", inputs, "" if bias else total)
        if bias:
            value = site.op("Add", [value, bias], total)
        operands = [value, site.input(2), site.input(3) if centred else ""]
        name = "LayerNormalization" if centred else "SimplifiedLayerNormalization"
        epsilon, output = site.float_("epsilon", 1e-12), site.proto.output[0]
        site.op(name, operands, output, axis=-1, epsilon=epsilon)
        variant = SKIP[centred] + (WITH_BIAS if bias else "")
        site.known.variants[output] = f"{variant}{DATA}{site.input(0)}"

    return lower


def bias_gelu(site: LoweringSite) -> None:
    """``Gelu(a + b)``.

    Source: onnxruntime docs/ContribOperators.md.
    """
    output = site.proto.output[0]
    total = site.op("Add", [site.input(0), site.input(1)])
    site.op("Gelu", [total], output, domain=MICROSOFT)
    site.known.variants[output] = f"{BIAS_GELU}{DATA}{site.input(1)}"


def fast_gelu(site: LoweringSite) -> None:
    """``Gelu(x + bias)`` by tanh: the bits of ONNX's in onnxruntime 1.32, but of half floats.

    Source: onnxruntime docs/ContribOperators.md.
    """
    x, output = site.input(0), site.proto.output[0]
    if site.input(1):
        x = site.op("Add", [x, site.input(1)])
        site.known.variants[output] = f"FastGelu{WITH_BIAS}{DATA}{site.input(1)}"
    site.op("FastGelu", [x], output, domain=MICROSOFT)
