"""AMD Quark's ExtendedQuantizeLinear and ExtendedDequantizeLinear (Vitis* before)."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from qdqbridge.onnx_io.lowering.context import MICROSOFT, LoweringContext

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def extended(op_type: str) -> Callable[[LoweringContext], None]:
    """Returns the lowering to QuantizeLinear or DequantizeLinear."""

    def lower(context: LoweringContext) -> None:
        """The same node under its usual name; storage types are checked where it is read.

        Source: AMD Quark, quark/onnx/operators/custom_ops.
        """
        axis = context.int_("axis", 1)
        kind = context.known.element_type(context.input(2)) if context.input(2) else 0
        if kind in _FLOATS:
            raise context.refusal(
                f"storage in {TensorProto.DataType.Name(kind).lower()}",
                f"its zero point '{context.input(2)}' is of that type",
                "export with integers, or with 8-bit floats",
            )
        inputs = list(context.proto.input)
        context.op(op_type, inputs, context.proto.output[0], domain=MICROSOFT, axis=axis)

    return lower
