"""The variants of Relay modules, and how exact each one is.

Distances are from the interpreter, of builds with half-even rounding
(``qdqbridge.tvm.relay.build``), in LSB of the result, over random 8-bit codes and parameters:

* ``canonical``: none. Relay's names where Relay has the operator, the dialect's elsewhere.
* ``dnnl``: none. ``requantize(int32) -> clip -> cast``, biases by ``add``. The table of TVM that
  starts from it writes ``clip(0, 255)`` whatever the range is, so it is right for uint8 results of
  the full range only, and multiplies scales per channel along the last axis: hence NHWC.
* ``tflite``: what the tables of CMSIS-NN, Ethos-U, Ethos-N, Arm Compute Library and VSI match.
  Their forms of averages divide integers and drop the rest, and no legal arrangement of
  ``cast -> mean -> requantize`` rounds it:

  * AveragePool: 38 % of results by 1; by up to 2 where operand and result have different
    parameters, whose requantize comes after the division (one step of the operand, in the units of
    the result: 4 from a 16-bit operand to a result 3.7 times as fine);
  * GlobalAveragePool and ReduceMean: 46 to 58 %, by up to 2 for the same reason;
  * linear Resize: 0 to 2 %, by 1: Relay's ``image.resize2d`` adds in another order;
  * Sigmoid, Tanh, LeakyRelu, Abs, HardSwish, Softmax: none found over all codes of 20 pairs of
    parameters (10 rows of Softmax), but ``dequantize -> float operator -> quantize`` is Relay's
    float operator, which promises no bits.

  Everything else, ReduceSum and nearest Resize among them, is exact.
* ``fq2i``: what ``FakeQuantizationToInteger`` writes, without its errors. GlobalAveragePool rounds
  before it divides: 52 % by 1. Everything else is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.pooling import GLOBAL_AVERAGE_POOL
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.norms import OVER_CHANNELS
from qdqbridge.tvm.qnn.emit.variant import Variant
from qdqbridge.tvm.relay.emit import forms, tflite
from qdqbridge.tvm.relay.emit.forms import bias_add


@dataclass(frozen=True, slots=True)
class RelayVariant:
    """A variant with its layout.

    Attributes:
        variant: The choices.
        layout: ``NCHW`` or ``NHWC`` where the caller asks for neither.
        fixed: Operators that it can write channels-first only.
    """

    variant: Variant
    layout: str
    fixed: frozenset[Operator]


FORMS: Mapping[str, RelayVariant] = MappingProxyType(
    {
        "canonical": RelayVariant(
            Variant(bias=bias_add, scalar_zero_point=True), "NCHW", OVER_CHANNELS
        ),
        "tflite": RelayVariant(
            Variant(
                name="tflite", bias=bias_add, zero_bias=True, scalar_zero_point=True,
                kernel_layout=tflite.kernel_layout, rows=tflite.ROWS,
            ),
            "NHWC", OVER_CHANNELS,
        ),
        "dnnl": RelayVariant(
            Variant(
                name="dnnl", scalar_zero_point=True, requantize=forms.requantize,
                rows={ADD: forms.add},
            ),
            "NHWC", OVER_CHANNELS,
        ),
        "fq2i": RelayVariant(
            Variant(
                name="fq2i", bias=forms.bias, scalar_zero_point=True, clamp=forms.clamp,
                kernel_layout=forms.kernel_layout,
                rows={GLOBAL_AVERAGE_POOL: forms.global_average_pool},
            ),
            "NHWC", OVER_CHANNELS,
        ),
    }
)  # fmt: skip
"""By name."""


def variant_of(name: str) -> RelayVariant:
    """Returns a form by name.

    Raises:
        UnsupportedTargetError: There is none.
    """
    if name not in FORMS:
        raise UnsupportedTargetError(
            f"Relay modules have no variant {name!r}", fix=f"use one of {', '.join(FORMS)}"
        )
    return FORMS[name]
