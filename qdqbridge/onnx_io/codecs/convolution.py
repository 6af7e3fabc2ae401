"""Conv and ConvTranspose."""

from __future__ import annotations

from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs
from qdqbridge.onnx_io.codecs.codec import Codec, Decoded, Encoded, Operands, decoded, encoded
from qdqbridge.onnx_io.codecs.view import Ints, NodeView, NoRow
from qdqbridge.onnx_io.codecs.windows import ResolvedWindow, open_kernel_of, split_pads, window_of


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


def _kernel_shape_attr(operands: Operands) -> dict[str, list[int]]:
    """Returns ``kernel_shape`` where the weight tells it (optional in ONNX, but customary)."""
    weight = operands[1]
    shape = None if weight is None else weight.type.shape
    spatial = [] if shape is None else [d for d in shape[2:] if isinstance(d, int)]
    return {"kernel_shape": spatial} if shape and len(spatial) == len(shape) - 2 else {}


def _write_conv(attributes: ConvAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    return encoded(
        "Conv",
        operands,
        group=attributes.group,
        strides=list(attributes.strides),
        dilations=list(attributes.dilations),
        pads=list(attributes.pads),
        **_kernel_shape_attr(operands),
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
    return split_pads(tuple(totals), upper=window.auto_pad == "SAME_UPPER"), tuple(extras)


def _write_transpose(attributes: ConvTransposeAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    return encoded(
        "ConvTranspose",
        operands,
        group=attributes.group,
        strides=list(attributes.strides),
        dilations=list(attributes.dilations),
        pads=list(attributes.pads),
        output_padding=list(attributes.output_padding),
        **_kernel_shape_attr(operands),
    )


CODECS = (
    Codec(onnx_name="Conv", row="Conv", read=_read_conv, write=_write_conv),
    Codec(
        onnx_name="ConvTranspose",
        row="ConvTranspose",
        read=_read_transpose,
        write=_write_transpose,
    ),
)
