"""Normalizations in inference."""

from __future__ import annotations

from qdqbridge.onnx_io.codecs.codec import Codec, Decoded, Encoded, Operands, decoded, encoded
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.ops.attributes import EpsilonAttrs, NormAttrs

_EPSILON = 1e-5


def _read_layer(node: NodeView) -> Decoded:
    if node.results() > 1:
        raise NoRow("mean or deviation is a result")
    if node.int_("stash_type", 1) != 1:
        raise NoRow("it does not compute in float32")
    axis = node.wrap(node.int_("axis", -1))
    attributes = NormAttrs(axis, node.float_("epsilon", _EPSILON))
    return decoded("LayerNormalization", attributes, node.operands)


def _write_layer(attributes: NormAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    return encoded("LayerNormalization", operands, axis=attributes.axis, epsilon=attributes.epsilon)


def _read_batch(node: NodeView) -> Decoded:
    if node.flag("training_mode") or node.results() > 1:
        raise NoRow("it is in training mode")
    if not node.flag("spatial", default=True):
        raise NoRow("it normalizes every position on its own (spatial=0)")
    attributes = EpsilonAttrs(node.float_("epsilon", _EPSILON))
    return decoded("BatchNormalization", attributes, node.operands)


def _read_instance(node: NodeView) -> Decoded:
    attributes = EpsilonAttrs(node.float_("epsilon", _EPSILON))
    return decoded("InstanceNormalization", attributes, node.operands)


def _write_instance(attributes: EpsilonAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    return encoded("InstanceNormalization", operands, epsilon=attributes.epsilon)


def _write_batch(attributes: EpsilonAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    return encoded("BatchNormalization", operands, epsilon=attributes.epsilon)


CODECS = (
    Codec(
        onnx_name="LayerNormalization",
        row="LayerNormalization",
        read=_read_layer,
        write=_write_layer,
        introduced=17,
    ),
    Codec(
        onnx_name="BatchNormalization",
        row="BatchNormalization",
        read=_read_batch,
        write=_write_batch,
    ),
    Codec(
        onnx_name="InstanceNormalization",
        row="InstanceNormalization",
        read=_read_instance,
        write=_write_instance,
    ),
)
