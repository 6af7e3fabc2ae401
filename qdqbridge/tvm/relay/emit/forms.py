"""Forms that several variants share, in Relay's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relay as _relay

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.tvm.qnn.emit.dtypes import storage
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter
from qdqbridge.tvm.qnn.emit.nodes import float_form
from qdqbridge.tvm.qnn.emit.variant import clip

# ---- the variant of ``FakeQuantizationToInteger``, for tables written for its output -------------


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


# ---- the variant of TVM's MXNet and PyTorch importers, from which its DNNL table starts ----------


def requantize(
    emitter: FunctionEmitter, acc: Expr, scale: NDArray[np.float32], axis: int, params: QuantParams
) -> Expr:
    """``requantize(out_dtype int32) -> clip -> cast [-> clip]``.

    The table takes 0..255 as the first clip's range, whatever is there, so that a narrower range
    of uint8 gets a clip of its own.
    """
    zero = emitter.number(np.zeros((), np.int32))
    args = [acc, emitter.number(scale), zero, emitter.scale(params), emitter.zero_point(params)]
    wide = emitter.qnn("requantize", args, {"axis": axis, "out_dtype": "int32"})
    low, high = _range(params)
    held = emitter.cast(emitter.emit(emitter.op.clip(wide, low, high)), storage(params))
    return held if (low, high) == (params.qmin, params.qmax) else clip(emitter, held, params)


def _range(params: QuantParams) -> tuple[int, int]:
    full = params.storage_dtype
    return (full.qmin, full.qmax) if full is DType.UINT8 else (params.qmin, params.qmax)


def add(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """``qnn.add -> clip`` with the product that nobody else reads in front; else plain.

    The table computes such an addition with the product before it, and asks for the clip also
    where it limits nothing. A product that others read as well would be computed twice.
    """
    result, values = node.output.quant, [node.operand(0), node.operand(1)]
    alone = [value for value in values if _is_single_use_product(value)]
    if result is None or not alone:
        return None
    front = alone[0]
    args: list[Expr] = []
    pair = [front, values[1] if front is values[0] else values[0]]
    for value in pair:
        if value.quant is None or not value.quant.params.per_tensor:
            return None
        args += [emitter.scale(value.quant.params), emitter.zero_point(value.quant.params)]
    if front is not values[0]:
        emitter.swap()
    params = result.params
    args += [emitter.scale(params), emitter.zero_point(params)]
    operands = [emitter.value(value) for value in pair]
    total = emitter.qnn("add", [*operands, *args], {"out_dtype": storage(params)})
    low, high = _range(params)
    held = emitter.emit(emitter.op.clip(total, low, high))
    return held if (low, high) == (params.qmin, params.qmax) else clip(emitter, held, params)


def _is_single_use_product(value: Value) -> bool:
    node = value.producer
    return node is not None and node.op.flow is Flow.ACCUMULATE and len(value.users) == 1


# --------------------------------------------------------------------------------------------------

relay: Any = _relay


def params_of(node: Node) -> tuple[QuantParams, QuantParams] | None:
    """Returns the parameters of operand and result where both have one scale and zero point."""
    x, y = node.operand(0).quant, node.output.quant
    if x is None or y is None or not (x.params.per_tensor and y.params.per_tensor):
        return None
    return x.params, y.params


def bias_add(emitter: FunctionEmitter, acc: Expr, bias: NDArray[Any], axis: int) -> Expr:
    """``nn.bias_add(acc, bias; axis)``; a bias of no single axis is added."""
    if bias.ndim != 1:
        return emitter.emit(emitter.op.add(acc, emitter.number(bias)))
    axis = axis if axis >= 0 else emitter.rank(acc) - 1
    return emitter.emit(relay.nn.bias_add(acc, emitter.number(bias), axis))


def in_floats(emitter: FunctionEmitter, node: Node) -> Expr:
    """``dequantize -> float operator -> quantize``."""
    return emitter.emit(float_form(emitter, node))


def rescaled(
    emitter: FunctionEmitter, stored: Expr, source: QuantParams, result: QuantParams, *,
    out_dtype: str = "", terms: int = 1,
) -> Expr:  # fmt: skip
    """``requantize`` from one mapping to another; a sum of codes has ``terms`` zero points."""
    zero = np.asarray(source.zero_point * terms, np.int32)
    args = [stored, emitter.scale(source), emitter.number(zero)]
    args += [emitter.scale(result), emitter.zero_point(result)]
    attrs = {"out_dtype": out_dtype or storage(result)}
    return emitter.qnn("requantize", args, attrs)
