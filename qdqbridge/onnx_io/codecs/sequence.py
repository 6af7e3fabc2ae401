"""SequenceAt of SplitToSequence is a slice (PyTorch's exporter writes ``torch.split`` so)."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import SliceAttrs
from qdqbridge.onnx_io.codecs.codec import Codec, Decoded, decoded
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow


def _read_sequence_at(node: NodeView) -> Decoded:
    source, index = node.operands[0], node.constant(1)
    maker = None if source is None else source.producer
    if maker is None or maker.op.name != "SplitToSequence" or index is None:
        raise NoRow("only SequenceAt of SplitToSequence at a constant place is a slice")
    position, axis, sizes = int(index.reshape(-1)[0]), *_split_to_sequence_sizes(maker)
    if not -len(sizes) <= position < len(sizes):
        raise node.fault(
            f"position {position} is outside of a sequence of {len(sizes)}",
            why=f"the tensor is split into parts of {sizes}",
        )
    start = sum(sizes[: position % len(sizes)])
    end = start + sizes[position]
    return decoded("Slice", SliceAttrs((start,), (end,), (axis,), (1,)), [maker.operand(0)])


def _split_to_sequence_sizes(maker: Node) -> tuple[int, list[int]]:
    """Returns the axis and the extents of the parts."""
    numbers = maker.attributes.node.integers()  # type: ignore[attr-defined] # a foreign record
    x = maker.operand(0)
    if x.type.shape is None or not numbers.get("keepdims", 1):
        raise NoRow("the rank of the split tensor is unknown, or the axis is dropped")
    axis = int(numbers.get("axis", 0)) % len(x.type.shape)
    extent = x.type.shape[axis]
    if not isinstance(extent, int):
        raise NoRow("the split extent is symbolic")
    split = maker.optional(1)
    if split is None:
        return axis, [1] * extent
    if split.constant is None:
        raise NoRow("the parts are computed at run time")
    sizes = np.asarray(split.constant.numpy())
    if sizes.ndim:
        return axis, [int(size) for size in sizes]
    size = int(sizes)
    if size < 1:
        raise NoRow(f"parts of {size} elements")
    return axis, [min(size, extent - start) for start in range(0, extent, size)]


CODECS = (Codec(onnx_name="SequenceAt", row="Slice", read=_read_sequence_at),)
