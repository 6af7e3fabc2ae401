"""qnn.unpack: codes of less than a byte, as files pack them, one to a byte."""

from __future__ import annotations

from typing import Any

from tvm import te

from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.dialect.context import CallContext, ResultType
from qdqbridge.tvm.qnn.dialect.op import REQUIRED, Attribute, QnnOp

_WIDTHS = (2, 4)


def _infer_unpack(context: CallContext) -> ResultType:
    context.expect_dtype(0, "uint8")
    shape, bits = context.shape(0), context.attr("bits")
    if not shape:
        context.fail("data has no axes", "give bytes along an axis")
    if bits not in _WIDTHS:
        context.fail(f"bits is {bits}", "give 2 or 4")
    dtype = "int8" if context.attr("signed") else "uint8"
    return ResultType.of([*shape[:-1], shape[-1] * (8 // bits)], dtype)


def _lower_unpack_bits(context: CallContext) -> Any:
    bits, signed = context.attr("bits"), bool(context.attr("signed"))
    each = 8 // bits

    def unpack(x: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            byte: Any = x(*at[:-1], tirx.floordiv(at[-1], each))
            place = tirx.floormod(at[-1], each) * bits
            shifted = tirx.shift_right(byte.astype("int32"), place.astype("int32"))
            code = tirx.bitwise_and(shifted, tirx.const((1 << bits) - 1, "int32"))
            if not signed:
                return code.astype("uint8")
            half = tirx.const(1 << (bits - 1), "int32")
            return (tirx.bitwise_xor(code, half) - half).astype("int8")

        return stage([*x.shape[:-1], x.shape[-1] * each], element, name="unpack")

    return context.call_te("qnn_unpack", unpack, context.args)


OPS = (
    QnnOp(
        "qnn.unpack",
        ("data",),
        (
            Attribute("bits", REQUIRED, "bits of a code, 2 or 4"),
            Attribute("signed", REQUIRED, "codes are two's complement, and the result is int8"),
        ),
        _infer_unpack,
        _lower_unpack_bits,
        "the codes in every byte of the last axis, the lowest bits first",
    ),
)
