"""What the operator table says of a call of the dialect, for tests of every host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType
from qdqbridge.core.ops.table import BY_NAME

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Host:
    """What tests of the dialect need of a host; ``conftest.py`` of its folder makes it.

    Attributes:
        cases: Makes a collection of calls for a target, or for the host's default one.
        const: An array as a constant of its own type.
        targets: A plain CPU, and one with fused multiply-add.
    """

    cases: Callable[..., Any]
    const: Callable[[Array], Any]
    targets: tuple[Any, Any]

    def scale_of(self, p: QuantParams) -> Any:
        return self.const(np.asarray(p.scale, np.float32))

    def zero_of(self, p: QuantParams) -> Any:
        return self.const(np.asarray(p.zero_point, np.int32))

    def all_args(self, *pairs: QuantParams | None) -> list[Any]:
        """Scale and zero point of each; 1 and 0 for what is not quantized."""
        one = [self.const(np.array(1, np.float32)), self.const(np.array(0, np.int32))]
        return [
            c for p in pairs
            for c in ([self.scale_of(p), self.zero_of(p)] if p is not None else one)
        ]  # fmt: skip


def params(dtype: str, scale: Any, zero_point: Any = 0, axis: int | None = None) -> QuantParams:
    return QuantParams(
        DType.of(np.dtype(dtype)),
        np.asarray(scale, np.float32),
        np.asarray(zero_point, np.int32),
        axis=axis,
    )


def every_code(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Random codes among which both ends of the range occur."""
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    if data.size > 1:
        data.flat[0], data.flat[-1] = info.min, info.max
    return data


def contract(row: str, attributes: Any, operands: Any, types: Any, result: Any) -> Array:
    """What the operator table computes: its contract, else dequantize, compute, quantize."""
    operator, typed = (
        BY_NAME[row],
        [
            None
            if t is None
            else QuantType(t, None)
            if isinstance(t, QuantParams)
            else TensorType(DType.FLOAT32, None)
            for t in types
        ],
    )
    out = QuantType(result, None)
    if operator.contract is not None:
        stored = operator.contract(attributes, operands, typed, (out,))
        if stored is not None:
            return stored[0]
    real = [
        dequantize(o, t) if isinstance(t, QuantParams) else o
        for o, t in zip(operands, types, strict=True)
    ]
    with np.errstate(all="ignore"):
        (values,) = operator.compute(attributes, real)
    return quantize(values.astype(np.float32), result)
