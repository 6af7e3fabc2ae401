"""AMD Quark's ExtendedQuantizeLinear and ExtendedDequantizeLinear (Vitis* before)."""

from __future__ import annotations

from collections.abc import Callable

from qdqbridge.onnx_io.lowering.site import MICROSOFT, LoweringSite


def extended(op_type: str) -> Callable[[LoweringSite], None]:
    """Returns the lowering to QuantizeLinear or DequantizeLinear."""

    def lower(site: LoweringSite) -> None:
        """The same node under its usual name; storage types are checked where it is read.

        Source: AMD Quark, quark/onnx/operators/custom_ops.
        """
        axis = site.int_("axis", 1)
        inputs = list(site.proto.input)
        site.op(op_type, inputs, site.proto.output[0], domain=MICROSOFT, axis=axis)

    return lower
