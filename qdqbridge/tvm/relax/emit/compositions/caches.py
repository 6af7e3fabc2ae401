"""TensorScatter: rows that are written into a cache, each sequence's at a place of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext, loops


def _tensor_scatter(context: CompositionContext) -> Sequence[Expr]:
    """``present[b, .., (w[b] + t) % n, ..] = update[b, .., t, ..]``, the rest as it was.

    Source: ONNX TensorScatter-24.
    """
    mode = context.onnx.string("mode", "linear")
    if mode not in ("linear", "circular"):
        raise NoRow(f"its mode is '{mode}'")
    past, update = context.arg(0), context.arg(1)
    rank = context.rank(past)
    axis = context.onnx.int_("axis", -2) % rank
    if axis == 0:
        raise NoRow("its axis is that of the batch")
    first = [context.cast(context.arg(2), "int64")] if context.has(2) else []

    def scattered(old: te.Tensor, new: te.Tensor, *starts: te.Tensor) -> te.Tensor:
        extent, length = old.shape[axis], new.shape[axis]

        def element(*i: Expr) -> Expr:
            place = i[axis].astype("int64")
            if starts:
                place = place - starts[0](i[0])
            if mode == "circular":
                place = tirx.floormod(place, extent.astype("int64"))
            inside = tirx.all(place >= 0, place < length.astype("int64"))
            most = length.astype("int64") - 1
            at = tirx.max(tirx.min(place, most), tirx.const(0, "int64"))
            return tirx.if_then_else(inside, new(*i[:axis], at, *i[axis + 1 :]), old(*i))

        return stage(old.shape, element, name="scattered")

    return [loops(context, "tensor_scatter", scattered, past, update, *first)]


CACHES: Mapping[str, Composition] = {"TensorScatter": _tensor_scatter}
"""By the operator's name in ONNX's own domain."""
