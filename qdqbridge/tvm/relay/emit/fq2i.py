"""The variant of ``FakeQuantizationToInteger``, for tables written for its output."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relay as _relay

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.tvm.qnn.emit.dtypes import storage
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter
from qdqbridge.tvm.qnn.emit.variant import clip
from qdqbridge.tvm.relay.emit.forms import bias_add, params_of, rescaled

relay: Any = _relay


def kernel_layout(depthwise: bool, transposed: bool) -> str:
    """OHWI, IOHW for transposed kernels."""
    del depthwise
    return "IOHW" if transposed else "OHWI"


def bias(emitter: FunctionEmitter, acc: Expr, array: NDArray[Any], axis: int) -> Expr:
    """``nn.bias_add`` after a convolution, ``add`` after a product (ONNX's Gemm)."""
    if emitter.rank(acc) > 3:
        return bias_add(emitter, acc, array, axis)
    return emitter.emit(emitter.op.add(acc, emitter.number(array)))


def clamp(emitter: FunctionEmitter, stored: Expr, params: QuantParams) -> Expr:
    """``maximum(stored, zero point)`` for a ReLU, else ``clip``."""
    upper = params.qmax == params.storage_dtype.qmax
    if not upper or not params.per_tensor or params.qmin != int(params.zero_point):
        return clip(emitter, stored, params)
    zero = emitter.number(np.asarray(params.qmin, storage(params)))
    return emitter.emit(emitter.op.maximum(stored, zero))


def global_average_pool(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """``requantize(int32) -> nn.global_avg_pool2d -> requantize``."""
    found = params_of(node)
    if found is None or node.operand(0).rank != 4:
        return None
    wide = rescaled(emitter, emitter.value(node.operand(0)), *found, out_dtype="int32")
    layout = emitter.layout(node, 4)
    mean = emitter.emit(relay.nn.global_avg_pool2d(wide, layout=layout))
    return emitter.clamp(rescaled(emitter, mean, found[1], found[1]), found[1])
