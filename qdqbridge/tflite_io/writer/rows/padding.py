"""TFLite's two paddings, recognized by where the first window lies and how many there are."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import ConvAttrs, PoolAttrs
from qdqbridge.core.ops.windows import span, window_count
from qdqbridge.tflite_io.writer.values import NoCounterpart

SAME, VALID = 0, 1


def padding_of(
    attributes: ConvAttrs | PoolAttrs,
    kernel: Sequence[int],
    given: Sequence[int],
    made: Sequence[int],
) -> int | None:
    """Returns SAME or VALID where one of them gives these windows, else None.

    Args:
        attributes: Strides, dilations and pads.
        kernel: The window's extents.
        given: The image's extents, -1 where open.
        made: The result's.
    """
    spans = [span(k, d) for k, d in zip(kernel, attributes.dilations, strict=True)]
    if not any(attributes.pads) and all(
        into < 0 or out == window_count(into - size, stride)
        for into, out, size, stride in zip(given, made, spans, attributes.strides, strict=True)
    ):
        return VALID
    for axis, (into, out, size, stride) in enumerate(
        zip(given, made, spans, attributes.strides, strict=True)
    ):
        begin = attributes.pads[axis]
        if into < 0:
            end = attributes.pads[axis + len(given)]
            if stride != 1 or begin + end != size - 1 or begin != (size - 1) // 2:
                return None
        else:
            total = max((out - 1) * stride + size - into, 0)
            if out != -(-into // stride) or begin != total // 2:
                return None
    return SAME


def same_or_valid(node: Node, attributes: ConvAttrs | PoolAttrs, kernel: Sequence[int]) -> int:
    """Returns the padding of a node that is carried channels-last.

    Raises:
        NoCounterpart: It is neither of the two.
    """
    given, made = (
        [-1 if isinstance(e, str) else e for e in (value.type.shape or ())][1:-1]
        for value in (node.operand(0), node.output)
    )
    found = padding_of(attributes, kernel, given, made)
    if found is None:
        raise NoCounterpart(
            f"its pads {list(attributes.pads)} are neither SAME nor VALID",
            "pad the image with a Pad node",
        )
    return found
