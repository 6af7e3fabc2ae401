"""A value as a composite sees it: shape, element type, parameters, and the data of a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.tvm.byoc.terms import Extents, Term, constant

RANGES = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
}
"""Smallest and largest value of the integer types."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor:
    """A value as it is stored.

    Attributes:
        shape: Its extents; symbolic ones by name.
        dtype: Its element type.
        term: Where it comes from.
        scale: float32, rank 0 (per tensor) or 1 (along ``axis``); None for values whose
            parameters the composite does not state: floats, and moved data.
        zero_point: int32, of the scale's shape or rank 0.
        axis: The axis of rank-1 parameters.
    """

    shape: Extents
    dtype: str
    term: Term
    scale: NDArray[np.float32] | None = None
    zero_point: NDArray[np.int32] | None = None
    axis: int | None = None

    def __repr__(self) -> str:
        extents = "?" if self.shape is None else ", ".join(map(str, self.shape))
        parts = [f"{self.dtype}[{extents}]", "constant" if self.is_constant else ""]
        if self.scale is not None and self.zero_point is not None:
            one = self.per_tensor
            parts.append(f"scale={float(self.scale):.9g}" if one else f"{self.scale.size} scales")
            parts.append(f"zero_point={self.zero_point}" if one else f"axis={self.axis}")
        return f"<{' '.join(part for part in parts if part)}>"

    @property
    def data(self) -> NDArray[Any] | None:
        """The elements of a constant, None for what is computed."""
        return constant(self.term)

    @property
    def is_constant(self) -> bool:
        """True for a constant that is embedded in the composite."""
        return constant(self.term) is not None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return 0 if self.shape is None else len(self.shape)

    @property
    def is_float(self) -> bool:
        """True for floating-point elements."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def per_tensor(self) -> bool:
        """True where one scale and one zero point hold for all elements."""
        return all(p is None or p.size == 1 for p in (self.scale, self.zero_point))

    @property
    def symmetric(self) -> bool:
        """True where every zero point is 0."""
        return self.zero_point is None or not self.zero_point.any()

    def same_params(self, other: Tensor) -> bool:
        """True where both map stored integers to the same real numbers, bit for bit."""
        if self.scale is None or other.scale is None or self.dtype != other.dtype:
            return self.scale is other.scale and self.dtype == other.dtype
        assert self.zero_point is not None and other.zero_point is not None
        return np.array_equal(self.scale, other.scale) and np.array_equal(
            self.zero_point, other.zero_point
        )
