"""The choices between equivalent forms that differ from table to table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.tvm.qnn.emit.dtypes import storage

if TYPE_CHECKING:
    from qdqbridge.tvm.qnn.emit.emitter import FunctionEmitter

Row = Callable[["FunctionEmitter", Node], Any]
"""Emits a node whose data is quantized; returns None where its form does not apply."""


def add_bias(emitter: FunctionEmitter, acc: Any, bias: NDArray[Any], axis: int) -> Any:
    """``add(acc, bias)``, the bias shaped to broadcast along ``axis``."""
    trailing = emitter.rank(acc) - 1 - axis
    column = bias.reshape(-1, *([1] * trailing)) if trailing and axis >= 0 else bias
    return emitter.emit(emitter.op.add(acc, emitter.number(column)))


def requantize(
    emitter: FunctionEmitter, acc: Any, scale: NDArray[np.float32], axis: int, params: QuantParams
) -> Any:
    """``requantize(acc, scale, 0, sy, zy)`` and the clamp of a narrower range."""
    attrs = {
        "axis": axis, "rounding": "TONEAREST_EVEN", "compute_dtype": "float32",
        "out_dtype": storage(params),
    }  # fmt: skip
    zero = emitter.number(np.zeros((), np.int32))
    args = [acc, emitter.number(scale), zero, emitter.scale(params), emitter.zero_point(params)]
    return emitter.clamp(emitter.qnn("requantize", args, attrs), params)


def clip(emitter: FunctionEmitter, stored: Any, params: QuantParams) -> Any:
    """``clip(stored, qmin, qmax)``."""
    return emitter.emit(emitter.op.clip(stored, params.qmin, params.qmax))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Variant:
    """How equivalent things are written; the defaults are the canonical form.

    Attributes:
        name: What it is called.
        bias: Adds an integer bias along an axis of the accumulator (-1: the last).
        zero_bias: True to add a bias of zeros where a convolution or product has none.
        scalar_zero_point: True to give a kernel zero point that is all zeros as one number.
        requantize: Rounds an accumulator into the result's type.
        clamp: Limits stored values to a range narrower than their type.
        kernel_layout: ``(depthwise, transposed) -> layout`` of 2-D kernels under channels-last
            data; None keeps the graph's.
        rows: Forms of quantized operators that come before the canonical ones, by operator.
    """

    name: str = "canonical"
    bias: Callable[[FunctionEmitter, Any, NDArray[Any], int], Any] = add_bias
    zero_bias: bool = False
    scalar_zero_point: bool = False
    requantize: Callable[[FunctionEmitter, Any, NDArray[np.float32], int, QuantParams], Any] = (
        requantize
    )
    clamp: Callable[[FunctionEmitter, Any, QuantParams], Any] = clip
    kernel_layout: Callable[[bool, bool], str] | None = None
    rows: Mapping[Operator, Row] = field(default_factory=lambda: MappingProxyType({}))


CANONICAL = Variant()
