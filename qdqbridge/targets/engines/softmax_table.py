"""onnxruntime's QLinearSoftmax, which is another function than a Softmax between DQ and Q.

Exponentials of all differences of codes stand in a table of float32; their sum is formed in
float32, element after element; and the scale of the result counts as ``1 / floor(1 / scale)``.
Source: onnxruntime 1.32, contrib_ops/cpu/quantization/qlinear_softmax.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import SoftmaxAttrs
from qdqbridge.core.ops.normalization import SOFTMAX

Array = NDArray[Any]
TABLE = "softmax by a table"
"""A cause: what :func:`softmax_by_table` gives, bit for bit."""
_LAST = 255
_RESERVE = 5.0
"""Powers of e that are left free, so that no sum leaves float32."""


def softmax_by_table(
    node: Node, operands: Sequence[Array | None]
) -> tuple[str, Sequence[Array]] | None:
    """Returns what QLinearSoftmax gives; None for nodes that it does not compute.

    Args:
        operands: What it is given, as it is stored.
    """
    x, result, attributes = node.inputs[0] if node.inputs else None, None, node.attributes
    if node.op is not SOFTMAX or x is None or not isinstance(attributes, SoftmaxAttrs):
        return None
    own, result, stored = x.quant, node.output.quant, operands[0]
    if own is None or result is None or stored is None or not stored.size:
        return None
    params, out = own.params, result.params
    bytes_ = params.storage_dtype.bits == 8 and params.storage_dtype is out.storage_dtype
    if not (bytes_ and params.storage_dtype.is_integer and params.per_tensor and out.per_tensor):
        return None
    count = math.prod(stored.shape[axis] for axis in attributes.axes)
    scale = float(params.scale)
    free = max(0.0, math.log(float(np.finfo(np.float32).max) / count) - _RESERVE) / scale
    steps = np.arange(-_LAST, 1, dtype=np.float64)
    table = np.exp((steps + free) * scale).astype(np.float32)
    codes = np.moveaxis(stored, attributes.axes, range(-len(attributes.axes), 0))
    rows = codes.reshape(-1, count).astype(np.int64)
    terms = table[_LAST + rows - rows.max(axis=1, keepdims=True)]
    total = np.add.accumulate(terms, axis=1, dtype=np.float32)[:, -1:]
    levels = np.floor(np.float32(1) / np.float32(out.scale))
    found = np.rint(terms * levels / total).astype(np.int64) + int(out.zero_point)
    kept = np.minimum(found, _LAST).astype(out.storage_dtype.numpy).reshape(codes.shape)
    return TABLE, [np.moveaxis(kept, range(-len(attributes.axes), 0), attributes.axes)]
