"""The variant of TVM's MXNet and PyTorch importers, from which its DNNL table starts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.tvm.qnn.emit.dtypes import storage
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter
from qdqbridge.tvm.qnn.emit.variant import clip


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
