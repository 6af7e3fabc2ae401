"""What the accumulating operators share: ranges, the accumulator's type, centred operands."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te

from qdqbridge.tvm.qnn.dialect.arithmetic import Prim
from qdqbridge.tvm.qnn.dialect.context import CallContext
from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.qnn.dialect.op import Attribute
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.ranges import is_code

OUT_DTYPE = Attribute("out_dtype", "int32", "int32, or int64 where int32 could overflow")
SIX = (
    "data",
    "weight",
    "input_zero_point",
    "kernel_zero_point",
    "input_scale",
    "kernel_scale",
)


def check_operands(context: CallContext) -> str:
    """Checks the types of both operands and ``out_dtype``, which is returned."""
    for index in (0, 1):
        if not is_code(context.dtype(index)):
            context.fail(
                f"{context.arguments[index]} has dtype {context.dtype(index)}",
                "give an 8- or 16-bit integer",
            )
    context.expect_params(4, 2)
    out = context.attr("out_dtype")
    if out not in ("int32", "int64"):
        context.fail(f"out_dtype is {out}", "use int32 or int64")
    return out


def narrow_dtype(dtype: str) -> str:
    """Returns the smallest type that holds every ``code - zero_point``."""
    return "int16" if dtype in ("int8", "uint8") else "int32"


def centred(code: Prim, zero_point: Prim, dtype: str) -> Prim:
    """Returns ``code - zero_point`` in :func:`narrow_dtype` of the codes' type."""
    return (code.astype("int32") - zero_point).astype(narrow_dtype(dtype))


def padded_codes(
    x: te.Tensor, zero_point: te.Tensor, pads: Sequence[tuple[int, int]], dtype: str | None = None
) -> te.Tensor:
    """Returns ``x - zero_point`` with zeros around it.

    Args:
        x: Codes.
        zero_point: One entry.
        pads: Elements before and after, for each axis.
        dtype: Of the result; None for :func:`narrow_dtype` of the codes'.
    """
    narrow = dtype or narrow_dtype(str(x.dtype))
    shape = [extent + sum(pair) for extent, pair in zip(x.shape, pads, strict=True)]

    def element(*i: Prim) -> Prim:
        where = [v - begin if begin else v for v, (begin, _) in zip(i, pads, strict=True)]
        inside = [
            term
            for d, (begin, end) in enumerate(pads)
            for term in (
                *([where[d] >= 0] if begin else []),
                *([where[d] < x.shape[d]] if end else []),
            )
        ]
        value = (x(*where).astype("int32") - zero_point[0]).astype(narrow)
        if not inside:
            return value
        nothing = tirx.const(0, narrow)
        return tirx.if_then_else(tirx.all(*inside), value, nothing)

    return stage(shape, element, name="centred_data")
