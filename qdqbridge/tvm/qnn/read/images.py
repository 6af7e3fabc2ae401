"""Rows over images that hosts have beside what emission writes: global pools and blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.graph.types import TensorType, ValueType
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    DepthSpaceAttrs,
    ResizeAttrs,
)
from qdqbridge.core.ops.permutation import inverse, permuted_shape
from qdqbridge.tvm.qnn.read.layout import channels_first, laid_out
from qdqbridge.tvm.qnn.read.reader import CallReader, rows_of
from qdqbridge.tvm.qnn.read.reading import Row
from qdqbridge.tvm.qnn.signatures import data_letters


def in_layout(
    reader: CallReader, op: str, attributes_of: Callable[[Value, TensorType], Attributes]
) -> Value:
    """Returns ``op`` of operand 0 with channels first, brought back into the call's layout.

    Args:
        reader: The call.
        op: The row's name.
        attributes_of: Makes the attributes from the operand and the type of the result, both with
            channels first.
    """
    data, rank = reader.value(0), len(reader.result.shape or ())
    layout = reader.text("layout") or (data_letters(rank - 2) if 3 <= rank <= 5 else "")
    x, back = channels_first(reader.reading, data, layout, rank - 2)
    shape = (
        reader.result.shape if back is None else permuted_shape(reader.result.shape, inverse(back))
    )
    attributes = attributes_of(x, TensorType(reader.result.dtype, shape))
    provenance = reader.call.provenance
    if not _moves(op, attributes) or (provenance and not any(provenance.operands)):
        x = reader.plain(x)
    type_: ValueType = reader.result if x.quant is None else x.quant.with_shape(reader.result.shape)
    return laid_out(
        reader.reading, type_, back, lambda inner: reader.emit(op, [x], attributes, inner)
    )


def _moves(op: str, attributes: Attributes) -> bool:
    if isinstance(attributes, ResizeAttrs):
        return attributes.mode == "nearest"
    return op in ("GlobalMaxPool", "DepthToSpace", "SpaceToDepth")


def global_pool(op: str) -> Callable[[CallReader], Value]:
    """Returns the row of ``nn.global_{max,avg}_pool2d`` and of adaptive pools to 1x1."""

    def row(reader: CallReader) -> Value:
        def attributes(x: Value, y: TensorType) -> Attributes:
            del x
            if any(extent != 1 for extent in (y.shape or ())[2:]):
                raise reader.refusal("it pools to several elements, with windows of unequal size")
            return NO_ATTRIBUTES

        return in_layout(reader, op, attributes)

    return row


def blocks(op: str) -> Callable[[CallReader], Value]:
    """Returns the row of ``nn.depth_to_space(x; block_size, mode)`` and its inverse."""

    def row(reader: CallReader) -> Value:
        mode = reader.text("mode", "DCR") if op == "DepthToSpace" else "DCR"
        attributes = DepthSpaceAttrs(reader.integer("block_size"), mode)
        return in_layout(reader, op, lambda x, y: attributes)

    return row


def batch_flatten(reader: CallReader) -> Value:
    """``nn.batch_flatten(x)``."""
    return reader.emit("Flatten", [reader.value(0)], AxisAttrs(1))


ROWS: Mapping[str, Row] = rows_of({
    **{f"nn.global_avg_pool{n}d": global_pool("GlobalAveragePool") for n in (1, 2, 3)},
    **{f"nn.global_max_pool{n}d": global_pool("GlobalMaxPool") for n in (1, 2, 3)},
    **{f"nn.adaptive_avg_pool{n}d": global_pool("GlobalAveragePool") for n in (1, 2, 3)},
    **{f"nn.adaptive_max_pool{n}d": global_pool("GlobalMaxPool") for n in (1, 2, 3)},
    "nn.depth_to_space": blocks("DepthToSpace"),
    "nn.space_to_depth": blocks("SpaceToDepth"),
    "nn.batch_flatten": batch_flatten,
})  # fmt: skip
