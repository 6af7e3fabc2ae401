"""ONNX operators, in every opset version from 7 on, to rows of the operator table and back."""

from qdqbridge.onnx_io.codecs.codec import Codec, Decoded, Encoded
from qdqbridge.onnx_io.codecs.table import (
    BY_ONNX,
    BY_ROW,
    OLDEST_READ,
    decode,
    encode,
    since,
    why_not,
)
from qdqbridge.onnx_io.codecs.view import NodeView

__all__ = [
    "BY_ONNX",
    "BY_ROW",
    "OLDEST_READ",
    "Codec",
    "Decoded",
    "Encoded",
    "NodeView",
    "decode",
    "encode",
    "since",
    "why_not",
]
