"""Every codec, by ONNX name and by row."""

from __future__ import annotations

import logging

from qdqbridge.control_characters import visible
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs import attention, data_movement, derived, elementwise, linear
from qdqbridge.onnx_io.codecs.codec import (
    OLDEST,
    Codec,
    Decoded,
    Encoded,
    Operands,
    check,
    narrowed,
)
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow

log = logging.getLogger(__name__)

CODECS: tuple[Codec, ...] = (
    *derived.CODECS,
    *elementwise.CODECS,
    *data_movement.SEQUENCE_CODECS,
    *linear.CODECS,
    *attention.CODECS,
)
BY_ONNX = {(codec.domain, codec.onnx_name): codec for codec in CODECS}
BY_ROW = {codec.row: codec for codec in CODECS if codec.write is not None}
OLDEST_READ = 7
"""Before opset 7 broadcasting was an attribute."""


def why_not(node: NodeView) -> str:
    """Returns why :func:`decode` gives None for a node; empty where it does not."""
    result = _decode(node)
    return str(result) if isinstance(result, NoRow) else ""


def decode(node: NodeView) -> Decoded | None:
    """Returns a node in the terms of the operator table.

    Returns:
        None where there is no row for the operator, or none for this form of it.

    Raises:
        InvalidModelError: The node breaks ONNX's rules.
    """
    result = _decode(node)
    if isinstance(result, NoRow):
        log.debug("%s is kept as it is: %s", *map(visible, (node.describe(), str(result))))
        return None
    return result


def _decode(node: NodeView) -> Decoded | NoRow:
    codec = BY_ONNX.get((node.domain, node.op_type))
    if codec is None:
        return NoRow(f"operator {node.op_type} has no row")
    if node.domain == "" and node.opset < OLDEST_READ:
        return NoRow(f"opset {node.opset} is older than {OLDEST_READ}")
    check(node, codec.known)
    if node.domain == "" and node.opset < OLDEST and narrowed(node, OLDEST):
        return NoRow(f"opset {OLDEST} has no {node.op_type} of its element type")
    try:
        return codec.read(node)
    except NoRow as reason:
        return reason


def encode(row: str, attributes: Attributes, operands: Operands, opset: int) -> Encoded:
    """Returns a node of the operator table in ONNX's terms.

    Args:
        row: Name of the row.
        attributes: Its attribute record.
        opset: The default-domain opset to write for, 13 or more.

    Raises:
        UnsupportedTargetError: That opset cannot express the node.
        KeyError: ONNX has no operator of that name.
    """
    codec = BY_ROW[row]
    needed = codec.since(attributes)
    if opset < needed:
        raise UnsupportedTargetError(
            f"{row} cannot be written for opset {opset}",
            why=f"these attributes need opset {needed}",
            fix=f"write for opset {needed} or later",
        )
    assert codec.write is not None
    return codec.write(attributes, operands, opset)


def since(row: str, attributes: Attributes) -> int:
    """Returns the lowest opset (13 or more) that can express a node of the operator table."""
    return BY_ROW[row].since(attributes)
