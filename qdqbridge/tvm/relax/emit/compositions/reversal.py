"""ReverseSequence: the first elements of every row, as many as it says, the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext, loops


def _reverse_sequence(context: CompositionContext) -> Sequence[Expr]:
    """``y[t, b] = x[length[b] - 1 - t, b]`` below a row's length, else x; any extents may be open.

    A length beyond the extent of time, which onnxruntime refuses, counts as that extent.
    Source: ONNX ReverseSequence-10.
    """
    time, batch = context.onnx.int_("time_axis", 0), context.onnx.int_("batch_axis", 1)
    if sorted((time, batch)) != [0, 1]:
        raise NoRow(f"its axes are {time} and {batch}")

    def reversed_rows(data: te.Tensor, lengths: te.Tensor) -> Any:
        last = tirx.Cast("int64", data.shape[time])

        def element(*at: Any) -> Any:
            step, length = tirx.Cast("int64", at[time]), tirx.min(lengths(at[batch]), last)
            place = tirx.if_then_else(step < length, length - 1 - step, step)
            return data(*(place if axis == time else index for axis, index in enumerate(at)))

        return te.compute(data.shape, element, name="reversed_rows")

    lengths = context.cast(context.arg(1), "int64")
    return [loops(context, "reverse_sequence", reversed_rows, context.arg(0), lengths)]


REVERSAL: Mapping[str, Composition] = {"ReverseSequence": _reverse_sequence}
