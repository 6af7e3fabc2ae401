"""Conv and ConvTranspose."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs
from qdqbridge.core.ops.shapes import split_padding
from qdqbridge.onnx_io.codecs.codec import Decode, Decoded, decoded
from qdqbridge.onnx_io.codecs.view import Ints, NodeView, NoRow
from qdqbridge.onnx_io.codecs.windows import ResolvedWindow, open_kernel_of, window_of


def _read_conv(node: NodeView) -> Decoded:
    window = window_of(node, open_kernel_of(node, 1))
    group = node.int_("group", 1)
    weight = node.shape(1) or ()
    _check_group(node, group, node.extent(1), weight[0] if weight else None)
    if len(weight) > 1 and isinstance(weight[1], int):
        channels = node.extent(1)
        if channels is not None and channels != weight[1] * group:
            raise node.fault(
                "the weight does not fit the input's channels",
                why=f"the input has {channels} channels, the weight takes {weight[1]} × {group}",
                fix="correct group or the weight",
            )
    attributes = ConvAttrs(window.strides, window.dilations, window.pads, group)
    return decoded("Conv", attributes, node.operands)


def _check_group(node: NodeView, group: int, *channels: object) -> None:
    if group < 1 or any(isinstance(c, int) and c % group for c in channels):
        raise node.fault(
            "group does not divide the channels",
            why=f"group is {group}, the channels are {list(channels)}",
            fix="correct group",
        )


def _read_transpose(node: NodeView) -> Decoded:
    window = window_of(node, open_kernel_of(node, 1), pad_now=False)
    rank = len(window.kernel)
    group = node.int_("group", 1)
    weight = node.shape(1) or ()
    _check_group(node, group, node.extent(1), weight[0] if weight else None)
    extra = node.ints("output_padding", (0,) * rank) or (0,) * rank
    if len(extra) != rank or any(entry < 0 for entry in extra):
        raise node.fault(
            "output_padding does not fit the kernel",
            why=f"it is {list(extra)} for {rank} spatial axes",
            fix="correct output_padding",
        )
    shape = node.ints("output_shape", ())
    pads = window.pads
    if shape or window.same:
        pads, extra = _pads_for(node, window, extra, shape[-rank:] if shape else None)
    attributes = ConvTransposeAttrs(window.strides, window.dilations, pads, extra, group)
    return decoded("ConvTranspose", attributes, node.operands)


def _pads_for(
    node: NodeView, window: ResolvedWindow, extra: Ints, shape: Ints | None
) -> tuple[Ints, Ints]:
    """Returns pads and output padding that give a wanted output shape (ONNX ConvTranspose).

    SAME makes the output the input times the stride where that crops. ONNX's text says so where the
    kernel is smaller than the stride as well; its shape inference and onnxruntime (1.32) then leave
    the output as it is, and files are made for that shape.
    """
    totals: list[int] = []
    extras: list[int] = []
    for i, (span, stride) in enumerate(zip(window.spans(), window.strides, strict=True)):
        if shape is None:
            totals.append(max(extra[i] + span - stride, 0))
            extras.append(extra[i])
            continue
        total = stride * (node.known_extent(i + 2) - 1) + extra[i] + span - shape[i]
        totals.append(max(total, 0))
        extras.append(extra[i] + max(-total, 0))
        if total < 0 and extras[-1] >= max(stride, window.dilations[i]):
            raise NoRow("output_shape is larger than the operator reaches")
    return split_padding(totals, upper=window.auto_pad == "SAME_UPPER"), tuple(extras)


READ: Mapping[str, Decode] = {"Conv": _read_conv, "ConvTranspose": _read_transpose}
