"""AMD Quark's ExtendedQuantizeLinear and ExtendedDequantizeLinear (Vitis* before)."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from qdqbridge.onnx_io.lowering.site import MICROSOFT, LoweringSite

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def extended(op_type: str) -> Callable[[LoweringSite], None]:
    """Returns the lowering to QuantizeLinear or DequantizeLinear."""

    def lower(site: LoweringSite) -> None:
        """The same node under its usual name; storage types are checked where it is read.

        Source: AMD Quark, quark/onnx/operators/custom_ops.
        """
        axis = site.int_("axis", 1)
        kind = site.known.element_type(site.input(2)) if site.input(2) else 0
        if kind in _FLOATS:
            raise site.refusal(
                f"storage in {TensorProto.DataType.Name(kind).lower()}",
                f"its zero point '{site.input(2)}' is of that type",
                "export with integers, or with 8-bit floats",
            )
        inputs = list(site.proto.input)
        site.op(op_type, inputs, site.proto.output[0], domain=MICROSOFT, axis=axis)

    return lower
