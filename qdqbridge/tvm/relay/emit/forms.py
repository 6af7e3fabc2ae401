"""Forms that several variants share, in Relay's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relay as _relay

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.tvm.qnn.emit.dtypes import storage
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter
from qdqbridge.tvm.qnn.emit.nodes import float_form

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
