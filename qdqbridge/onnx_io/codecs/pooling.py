"""AveragePool, MaxPool and the global pools."""

from __future__ import annotations

from typing import Any

from qdqbridge.core.ops.attributes import PoolAttrs
from qdqbridge.core.ops.pooling import fitting
from qdqbridge.onnx_io.codecs.codec import (
    OLDEST,
    Codec,
    Decoded,
    Encoded,
    Operands,
    decoded,
    encoded,
    plain,
)
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.onnx_io.codecs.windows import kernel_of, window_of


def _decode_pool(node: NodeView) -> Decoded:
    if node.results() > 1:
        raise NoRow("its indices are a result")
    window = window_of(node, kernel_of(node, None))
    attributes = PoolAttrs(
        window.kernel,
        window.strides,
        window.dilations,
        window.pads,
        # SAME gives as many windows as fit exactly, so rounding up changes nothing.
        ceil_mode=node.flag("ceil_mode") and not window.same,
        count_include_pad=node.op_type == "AveragePool" and node.flag("count_include_pad"),
    )
    sizes = [node.extent(i + 2) for i in range(len(window.kernel))]
    return decoded(node.op_type, fitting(attributes, sizes), node.operands)


def _pool(name: str) -> Codec:
    def write(attributes: PoolAttrs, operands: Operands, opset: int) -> Encoded:
        fields: dict[str, Any] = {
            "kernel_shape": list(attributes.kernel_shape),
            "strides": list(attributes.strides),
            "pads": list(attributes.pads),
            "ceil_mode": int(attributes.ceil_mode),
        }
        if name == "AveragePool":
            fields["count_include_pad"] = int(attributes.count_include_pad)
        if name == "MaxPool" or opset >= 19:
            fields["dilations"] = list(attributes.dilations)
        return encoded(name, operands, **fields)

    def needs(attributes: PoolAttrs) -> int:
        dilated = any(dilation != 1 for dilation in attributes.dilations)
        return 19 if dilated and name == "AveragePool" else OLDEST

    return Codec(onnx_name=name, row=name, read=_decode_pool, write=write, needs=needs)


CODECS = (
    _pool("AveragePool"),
    _pool("MaxPool"),
    plain("GlobalAveragePool"),
    plain("GlobalMaxPool"),
)
