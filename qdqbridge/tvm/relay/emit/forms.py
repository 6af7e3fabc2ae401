"""Forms that several variants share, in Relay's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relay as _relay

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.tvm.qnn.emit.dtypes import storage
from qdqbridge.tvm.qnn.emit.nodes import float_form
from qdqbridge.tvm.qnn.emit.scope import EmissionScope, Expr

relay: Any = _relay


def params_of(node: Node) -> tuple[QuantParams, QuantParams] | None:
    """Returns the parameters of operand and result where both have one scale and zero point."""
    x, y = node.operand(0).quant, node.output.quant
    if x is None or y is None or not (x.params.per_tensor and y.params.per_tensor):
        return None
    return x.params, y.params


def bias_add(scope: EmissionScope, acc: Expr, bias: NDArray[Any], axis: int) -> Expr:
    """``nn.bias_add(acc, bias; axis)``; a bias of no single axis is added."""
    if bias.ndim != 1:
        return scope.emit(scope.op.add(acc, scope.number(bias)))
    axis = axis if axis >= 0 else scope.rank(acc) - 1
    return scope.emit(relay.nn.bias_add(acc, scope.number(bias), axis))


def island(scope: EmissionScope, node: Node) -> Expr:
    """``dequantize -> float operator -> quantize``."""
    return scope.emit(float_form(scope, node))


def rescaled(
    scope: EmissionScope, stored: Expr, source: QuantParams, result: QuantParams, *,
    out_dtype: str = "", terms: int = 1,
) -> Expr:  # fmt: skip
    """``requantize`` from one mapping to another; a sum of codes has ``terms`` zero points."""
    zero = np.asarray(source.zero_point * terms, np.int32)
    args = [stored, scope.scale(source), scope.number(zero)]
    args += [scope.scale(result), scope.zero_point(result)]
    attrs = {"out_dtype": out_dtype or storage(result)}
    return scope.qnn("requantize", args, attrs)
