"""What the accumulating operators share: ranges, the accumulator's type, centred operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from qdqbridge.relax.dialect.arithmetic import Prim
from qdqbridge.relax.dialect.kernel import stage
from qdqbridge.relax.dialect.op import Attribute
from qdqbridge.relax.dialect.site import Site, is_code, limits

OUT_DTYPE = Attribute("out_dtype", "int32", "int32, or int64 where int32 could overflow")
SIX = (
    "data", "weight", "input_zero_point", "kernel_zero_point", "input_scale", "kernel_scale",
)


def magnitude(dtype: str, zero_point: Any) -> int:
    """Returns the largest ``|code - zero_point|`` of an integer type."""
    low, high = limits(dtype)
    zero_points = np.asarray(zero_point, np.int64)
    return max(abs(low - int(zero_points.max())), abs(high - int(zero_points.min())))


def accumulator_dtype(count: int, left: int, right: int, bias: int = 0) -> str:
    """Returns the type that holds every sum of ``count`` products exactly.

    Args:
        count: Number of products.
        left: Largest ``|x - zx|``; see :func:`magnitude`.
        right: Largest ``|w - zw|``.
        bias: Largest ``|bias|`` that is added later.

    Returns:
        ``int32`` or ``int64``.
    """
    return "int32" if count * left * right + bias < 1 << 31 else "int64"


def check_operands(site: Site) -> str:
    """Checks the types of both operands and ``out_dtype``, which is returned."""
    for index in (0, 1):
        if not is_code(site.dtype(index)):
            site.fail(
                f"{site.arguments[index]} has dtype {site.dtype(index)}",
                "give an 8- or 16-bit integer",
            )
    site.expect_params(4, 2)
    out = site.attr("out_dtype")
    if out not in ("int32", "int64"):
        site.fail(f"out_dtype is {out}", "use int32 or int64")
    return out


def narrow_dtype(dtype: str) -> str:
    """Returns the smallest type that holds every ``code - zero_point``."""
    return "int16" if dtype in ("int8", "uint8") else "int32"


def centred(code: Prim, zero_point: Prim, dtype: str) -> Prim:
    """Returns ``code - zero_point`` in :func:`narrow_dtype` of the codes' type."""
    return (code.astype("int32") - zero_point).astype(narrow_dtype(dtype))


def padded_codes(
    x: te.Tensor, zero_point: te.Tensor, pads: Sequence[tuple[int, int]]
) -> te.Tensor:
    """Returns ``x - zero_point`` with zeros around the last axes.

    Args:
        x: Codes.
        zero_point: One entry.
        pads: Elements before and after, for each of the last axes.
    """
    lead = len(x.shape) - len(pads)
    shape = [*x.shape[:lead], *(x.shape[lead + i] + sum(pair) for i, pair in enumerate(pads))]

    def element(*i: Prim) -> Prim:
        where = [v - pads[d - lead][0] if d >= lead else v for d, v in enumerate(i)]
        inside = [
            term
            for d, (begin, end) in enumerate(pads, start=lead)
            for term in (
                *([where[d] >= 0] if begin else []),
                *([where[d] < x.shape[d]] if end else []),
            )
        ]
        value = centred(x(*where), zero_point[0], str(x.dtype))
        if not inside:
            return value
        nothing = tirx.const(0, narrow_dtype(str(x.dtype)))
        return tirx.if_then_else(tirx.all(*inside), value, nothing)

    return stage(shape, element, name="centred_data")
