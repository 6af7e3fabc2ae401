"""What the parameters of a Q or DQ node say that somebody should know, though they can be read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Note, Value
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.onnx_io.codecs.view import NodeView
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.reading.qdq import Encoding

_HUGE = 1e30
_TINY = 2.0**-24
"""The smallest float16 number: what producers write where a range is empty (idiom A28)."""


def remarks(view: NodeView, encoding: Encoding, params: QuantParams, data: Value) -> Iterator[Note]:
    """Yields a note for each oddity; its culprits are the names of data and scale.

    Args:
        view: The node.
        encoding: What it says.
        params: What that means.
        data: What the node reads.
    """
    culprits = (data.name, view.operand(1).name)
    node = view.proto.name or view.proto.output[0]
    for rule, reason in (*_about_variant(view, encoding, params), *_about_scale(encoding, params)):
        yield Note(rule, node, reason, culprits)


def _about_variant(
    view: NodeView, encoding: Encoding, params: QuantParams
) -> Iterator[tuple[str, str]]:
    if params.blocked and not encoding.block_size:
        yield (
            "inferred-block-size",
            f"block_size is left out; the shape of the scale, {encoding.scale.shape}, makes it "
            f"{params.block_size}",
        )
    half = encoding.scale.dtype != np.float32
    if half and view.opset < 19 and view.proto.domain in ONNX_DOMAINS:
        yield (
            "scale-before-its-opset",
            f"its scale is {encoding.scale.dtype}, which ONNX has since opset 19, not {view.opset}",
        )
    if params.storage_dtype is DType.INT32 and not params.symmetric:
        yield (
            "bias-zero-point",
            "int32 data has a zero point, which ONNX wants to be 0; it is subtracted",
        )


def _about_scale(encoding: Encoding, params: QuantParams) -> Iterator[tuple[str, str]]:
    scale = np.abs(params.scale.astype(np.float64)).reshape(-1)
    if (scale > _HUGE).any():
        yield (
            "huge-scale",
            f"a scale is {scale.max():.3g}: a mask of -inf or -3.4e38 was calibrated as data, and "
            "nothing else of the tensor is left",
        )
    small = int((scale <= _TINY).sum())
    if small and params.storage_dtype.bits <= 16:
        which = "its scale is" if scale.size == 1 else f"{small} of its {scale.size} scales are"
        yield (
            "degenerate-scale",
            f"{which} {scale.min():.3g}, as producers write where they saw no values but 0",
        )
    if (params.scale.astype(np.float32) < 0).any():
        yield "negative-scale", "a scale is negative; the integers are mirrored where they fit"
