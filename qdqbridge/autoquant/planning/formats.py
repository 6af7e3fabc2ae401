"""How numbers shall be stored, and the parameters that a range of real numbers gives then.

Integers stand for steps of a scale, small floats (float8, float6, float4) for its multiples: their
scale maps the largest real number to the largest one of the type. Scales are computed in float64
and rounded to float32; zero points follow from the rounded scale, which is the one that the file
will hold.

What stays a real number until the model runs has an :class:`Unstored` instead of a format.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.errors import InputDataError, UnsupportedTargetError

_TINY = float(np.finfo(np.float32).tiny)
_FINE = 1 << 12


class Unstored(Enum):
    """How a product with a stored weight reads an activation that has no format of its own."""

    FLOAT = "float"
    """As it is: only the weight is stored (weight-only quantization)."""
    DYNAMIC = "dynamic"
    """As 8-bit codes by the tensor's own extremes, while the model runs."""
    DYNAMIC_ROWS = "dynamic-rows"
    """The same, every row by its own extremes."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Format:
    """How a tensor shall be stored.

    Attributes:
        storage: An integer type, or a float of 8 bits or fewer, which is symmetric.
        symmetric: The range reaches as far on both sides of zero; the zero point is the middle of
            the codes (0 for signed storage, 128 for uint8).
        restricted: A signed symmetric type leaves its smallest code out, as [-127, 127].
        bits: So many bits of the storage are used, for sums that have to fit narrow accumulators;
            None for all.
        microscaled: The scale is a power of two stored as float8_e8m0fnu, as in the microscaling
            formats of the Open Compute Project (MX, version 1.0). It is the smallest one that
            clips nothing; choosers may take a smaller one.
        power_of_two: The scale is a power of two.
        whole_reciprocal: The reciprocal of a scale below 1 is whole in float32, or barely above:
            for kernels that multiply with the whole part of it.
        axis: The axis with parameters per channel; None for one pair per tensor.
        block: Every so many neighbours along ``axis`` have parameters of their own; None for one
            pair for each index of the axis. In a target the axis is any but None then: the planner
            puts that of the terms of a sum.
    """

    storage: DType
    symmetric: bool = False
    restricted: bool = True
    power_of_two: bool = False
    axis: int | None = None
    block: int | None = None
    bits: int | None = None
    microscaled: bool = False
    whole_reciprocal: bool = False

    def __post_init__(self) -> None:
        own = self.storage
        if own.is_integer and not self.microscaled:
            return
        if not own.is_small_float or own is DType.FLOAT8_E8M0 or self.bits is not None:
            raise UnsupportedTargetError(
                f"no file stores quantized numbers as {own}"
                + (" with a shared exponent" if self.microscaled else ""),
                why="ONNX has integers of 2 to 16 bits, float8, float6 and float4",
                fix="use int8, float8_e4m3fn, or mxfp8_e4m3",
            )
        if not self.symmetric:
            raise UnsupportedTargetError(
                f"a {own} has no zero point", fix="write Format(..., symmetric=True)"
            )

    @property
    def is_float(self) -> bool:
        """True where numbers are stored as small floats."""
        return self.storage.is_small_float

    @property
    def low(self) -> int:
        """The smallest code used, of integers."""
        narrow = self.symmetric and self.restricted and self.storage.is_signed
        low = -(1 << (self._bits - 1)) if self.storage.is_signed else 0
        return low + 1 if narrow else low

    @property
    def high(self) -> int:
        """The largest code used, of integers."""
        return (1 << (self._bits - self.storage.is_signed)) - 1

    @property
    def _bits(self) -> int:
        return self.bits or self.storage.bits

    @property
    def middle(self) -> int:
        """The zero point of a symmetric range."""
        return 0 if self.storage.is_signed or self.is_float else (self.high + 1) // 2

    @property
    def levels(self) -> int:
        """Number of codes used."""
        return self.high - self.low + 1

    @property
    def fine(self) -> bool:
        """Whether codes are so many that rounding errors are negligible beside clipping."""
        return not self.is_float and self.levels >= _FINE

    @property
    def grid(self) -> NDArray[np.float64]:
        """What numbers stand for in units of the scale, with a zero point of 0, from below."""
        if not self.is_float:
            return np.arange(self.low, self.high + 1, dtype=np.float64)
        bits = np.arange(1 << self.storage.bits, dtype=np.uint8)
        numbers = bits.view(self.storage.numpy).astype(np.float64)
        return np.unique(numbers[np.abs(numbers) <= self.storage.largest])

    def per_tensor(self) -> Format:
        """Returns this format with one pair of parameters."""
        return replace(self, axis=None, block=None)

    def __str__(self) -> str:
        return f"{self.storage}" if self.block is None else f"{self.storage}/{self.block}"

    def scale(self, low: Any, high: Any) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Returns scale and zero point whose codes cover ``[low, high]`` and zero.

        Args:
            low: Smallest real number to be covered, of any shape; values above 0 count as 0.
            high: Largest one, of the same shape; values below 0 count as 0.

        Returns:
            float32 scales, positive and normal, and int32 zero points.
        """
        bottom = np.minimum(np.asarray(low, np.float64), 0)
        top = np.maximum(np.asarray(high, np.float64), 0)
        step = self._step(bottom, top)
        if self.power_of_two or self.microscaled:
            step = np.exp2(np.ceil(np.log2(step)))
        elif self.whole_reciprocal:
            step = _next_with_whole_reciprocal(step)
        scale = np.asarray(np.maximum(step, _TINY), np.float32)
        if self.symmetric:
            return scale, np.full(scale.shape, self.middle, np.int32)
        zero_point = np.rint(self.low - bottom / scale.astype(np.float64))
        return scale, np.asarray(np.clip(zero_point, self.low, self.high), np.int32)

    def _step(self, bottom: NDArray[Any], top: NDArray[Any]) -> NDArray[Any]:
        if self.is_float:
            step = np.maximum(top, -bottom) / self.storage.largest
        elif not self.symmetric:
            step = (top - bottom) / (self.high - self.low)
        else:
            reach = np.maximum(top, -bottom)
            # Storage that reaches further down than up, as [-128, 127], is used to its middle.
            step = reach / ((self.high - self.low) / 2)
        return np.where(step > 0, step, 1.0)

    def params(self, low: Any, high: Any) -> QuantParams:
        """Returns the parameters of a tensor.

        Args:
            low: Smallest real number: one, an array along ``axis``, or, in blocks, an array of the
                tensor's rank whose extent along ``axis`` counts blocks.
            high: Largest one, of the same shape.

        Raises:
            InputDataError: They are not finite.
        """
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise InputDataError(
                f"a range from {low} to {high} has no parameters",
                fix="give finite numbers; look for NaN and infinities in the data",
            )
        return self.params_of(*self.scale(low, high))

    def params_of(self, scale: NDArray[np.float32], zero_point: NDArray[np.int32]) -> QuantParams:
        """Returns the parameters of scales and zero points, of a shape as :meth:`params` says."""
        whole = self.is_float or (self.low, self.high) == (self.storage.qmin, self.storage.qmax)
        narrow = not whole
        return QuantParams(
            self.storage,
            scale.astype(DType.FLOAT8_E8M0.numpy) if self.microscaled else scale,
            zero_point,
            axis=self.axis,
            block_size=self.block,
            qmin=self.low if narrow else 0,
            qmax=self.high if narrow else -1,
        )


def _next_with_whole_reciprocal(step: NDArray[Any]) -> NDArray[np.float64]:
    """Returns the smallest scales that reach as far, but for a rounding, and lose no fraction."""
    count = np.maximum(np.floor((1 + 2.0**-40) / step), 1)
    scale = np.asarray(1 / count, np.float32)
    below = np.where(np.float32(1) / scale < count, np.nextafter(scale, np.float32(0)), scale)
    return np.where(step < 1, below.astype(np.float64), step)
