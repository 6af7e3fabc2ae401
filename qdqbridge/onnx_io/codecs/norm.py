"""Normalizations in inference."""

from __future__ import annotations

from qdqbridge.core.ops.attributes import EpsilonAttrs, GroupNormAttrs, NormAttrs
from qdqbridge.onnx_io.codecs.codec import Codec, Decoded, Encoded, Operands, decoded, encoded
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow

_EPSILON = 1e-5


def _over_axes(row: str, introduced: int, name: str = "") -> Codec:
    """Returns the codec of an operator that normalizes ``axis`` and all axes after it.

    onnxruntime has both in ONNX's own domain at every opset, and writes them so.

    Args:
        row: The row.
        introduced: The opset since which ONNX has it.
        name: Another name of onnxruntime's, which is only read.
    """

    def read(node: NodeView) -> Decoded:
        if node.results() > 1:
            raise NoRow("mean or deviation is a result")
        if node.int_("stash_type", 1) != 1:
            raise NoRow("it does not compute in float32")
        axis = node.wrap(node.int_("axis", -1))
        return decoded(row, NormAttrs(axis, node.float_("epsilon", _EPSILON)), node.operands)

    def write(attributes: NormAttrs, operands: Operands, opset: int) -> Encoded:
        del opset
        return encoded(row, operands, axis=attributes.axis, epsilon=attributes.epsilon)

    return Codec(
        onnx_name=name or row, row=row, read=read, write=None if name else write,
        introduced=introduced, known=("axis", "epsilon", "stash_type"),
    )  # fmt: skip


def _read_group(node: NodeView) -> Decoded:
    groups, channels = node.int_("num_groups", 0), node.extent(1)
    if groups < 1 or (channels is not None and channels % groups):
        raise node.fault(
            "num_groups does not divide the channels",
            why=f"{groups} groups, {channels} channels",
        )
    if node.opset < 21 and groups != channels:
        raise NoRow("its scale is per group (before opset 21)")
    if node.int_("stash_type", 1) != 1:
        raise NoRow("it does not compute in float32")
    attributes = GroupNormAttrs(groups, node.float_("epsilon", _EPSILON))
    return decoded("GroupNormalization", attributes, node.operands)


def _write_group(attributes: GroupNormAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    return encoded(
        "GroupNormalization",
        operands,
        num_groups=attributes.num_groups,
        epsilon=attributes.epsilon,
    )


def _read_batch(node: NodeView) -> Decoded:
    if node.flag("training_mode") or node.results() > 1:
        raise NoRow("it is in training mode")
    if not node.flag("spatial", default=True):
        raise NoRow("it normalizes every position on its own (spatial=0)")
    attributes = EpsilonAttrs(node.float_("epsilon", _EPSILON))
    return decoded("BatchNormalization", attributes, node.operands)


def _write_batch(attributes: EpsilonAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    return encoded("BatchNormalization", operands, epsilon=attributes.epsilon)


CODECS = (
    _over_axes("LayerNormalization", 17),
    _over_axes("RMSNormalization", 23),
    _over_axes("RMSNormalization", 23, "SimplifiedLayerNormalization"),
    Codec(
        onnx_name="GroupNormalization",
        row="GroupNormalization",
        read=_read_group,
        write=_write_group,
        introduced=21,
    ),
    Codec(
        onnx_name="BatchNormalization",
        row="BatchNormalization",
        read=_read_batch,
        write=_write_batch,
    ),
)
