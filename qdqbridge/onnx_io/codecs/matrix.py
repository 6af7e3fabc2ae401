"""Gemm and MatMul."""

from __future__ import annotations

from qdqbridge.core.ops.attributes import GemmAttrs
from qdqbridge.onnx_io.codecs.codec import (
    Codec,
    Decoded,
    Encoded,
    Operands,
    decoded,
    encoded,
    plain,
)
from qdqbridge.onnx_io.codecs.view import NodeView


def _decode_gemm(node: NodeView) -> Decoded:
    attributes = GemmAttrs(
        node.float_("alpha", 1.0),
        node.float_("beta", 1.0),
        node.flag("transA"),
        node.flag("transB"),
    )
    return decoded("Gemm", attributes, node.operands)


def _write(attributes: GemmAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    return encoded(
        "Gemm",
        operands,
        alpha=attributes.alpha,
        beta=attributes.beta,
        transA=int(attributes.trans_a),
        transB=int(attributes.trans_b),
    )


CODECS = (plain("MatMul"), Codec(onnx_name="Gemm", row="Gemm", read=_decode_gemm, write=_write))
