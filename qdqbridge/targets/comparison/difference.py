"""How far two recordings of one tensor lie apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantType, ValueType

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """One tensor on two engines.

    Attributes:
        name: The tensor's name in the file.
        node: Operator and name of the node that makes it.
        type: Its type; None where neither engine knows it.
        is_output: True for outputs of the model.
        count: Elements compared.
        mismatches: Elements that differ in any bit that matters (NaN equals NaN, -0 equals 0).
        max_lsb: Largest difference of stored integers; None for floats.
        max_abs: Largest difference of real values.
        max_ulp: Largest distance of floats in units in the last place; None for integers.
        sqnr_db: Power of the reference over that of the difference, in dB; infinite where equal.
        top1: Share of rows with the same largest element; for outputs of rank 2.
        causes: Number of differing elements by cause (local comparison).
        bound: Largest error bound that explains a cause, in LSB; of floats in real units (local
            comparison).
        moved: How far exact values had to be moved for that, at most, in the same units.
    """

    name: str
    node: str
    type: ValueType | None
    is_output: bool
    count: int
    mismatches: int
    max_lsb: int | None
    max_abs: float
    max_ulp: int | None
    sqnr_db: float
    top1: float | None
    causes: Mapping[str, int] = field(default_factory=dict[str, int])
    bound: float | None = None
    moved: float | None = None

    @property
    def equal(self) -> bool:
        """True where no element differs."""
        return self.mismatches == 0

    @property
    def operator(self) -> str:
        """The operator of the node that makes it."""
        return self.node.partition(" ")[0]

    @property
    def fraction(self) -> float:
        """Share of elements that differ."""
        return self.mismatches / self.count if self.count else 0.0


@dataclass(slots=True, eq=False)
class Tally:
    """Adds up the differences of one tensor over the batches."""

    name: str
    node: str
    type: ValueType | None
    is_output: bool
    count: int = 0
    mismatches: int = 0
    max_lsb: int | None = None
    max_abs: float = 0.0
    max_ulp: int | None = None
    signal: float = 0.0
    noise: float = 0.0
    rows: int = 0
    agreeing: int = 0
    causes: dict[str, int] = field(default_factory=dict[str, int])
    bound: float | None = None
    moved: float | None = None

    def add(self, a: Array, b: Array) -> None:
        """Adds one batch: ``a`` against the reference ``b``, both as stored."""
        differs = differing(a, b)
        self.count += a.size
        self.mismatches += int(np.count_nonzero(differs))
        if a.dtype.kind in "iub" or not _is_float(a):
            distance = np.abs(_wide(a) - _wide(b)).max(initial=0)
            self.max_lsb = max(self.max_lsb or 0, int(distance))
        else:
            self.max_ulp = max(self.max_ulp or 0, int(_ulps(a, b).max(initial=0)))
        self._add_power(
            _dequantize_float64(a, self.type), _dequantize_float64(b, self.type), differs
        )
        if self.is_output and a.ndim == 2 and a.shape[1] > 1:
            self.rows += len(a)
            self.agreeing += int((_sortable(a).argmax(1) == _sortable(b).argmax(1)).sum())

    def _add_power(self, a: Array, b: Array, differs: Array) -> None:
        finite = np.isfinite(a) & np.isfinite(b)
        gap = np.where(differs, np.abs(np.where(finite, a - b, np.inf)), 0.0)
        self.max_abs = max(self.max_abs, float(gap.max(initial=0.0)))
        self.signal += float(np.square(np.where(np.isfinite(b), b, 0.0)).sum())
        self.noise += float(np.square(gap).sum())

    def blame(self, causes: Mapping[str, int], bound: float, moved: float) -> None:
        """Adds the causes of one batch's differences."""
        for cause, number in causes.items():
            self.causes[cause] = self.causes.get(cause, 0) + number
        self.bound = max(self.bound or 0.0, bound)
        self.moved = max(self.moved or 0.0, moved)

    def finish(self) -> TensorDifference:
        """Returns the sums."""
        return TensorDifference(
            self.name,
            self.node,
            self.type,
            self.is_output,
            self.count,
            self.mismatches,
            self.max_lsb,
            self.max_abs,
            self.max_ulp,
            self._sqnr(),
            self.agreeing / self.rows if self.rows else None,
            dict(self.causes),
            self.bound,
            self.moved,
        )

    def _sqnr(self) -> float:
        if self.noise == 0:
            return float("inf")
        if not np.isfinite(self.noise) or self.signal == 0:
            return float("-inf")
        return float(10 * np.log10(self.signal / self.noise))


def differing(a: Array, b: Array) -> NDArray[np.bool_]:
    """Returns where ``a`` and ``b`` differ; NaN equals NaN."""
    if a.dtype.kind in "biuf":
        both_nan = np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else False
        return np.asarray((a != b) & ~np.asarray(both_nan))
    wide_a, wide_b = _sortable(a), _sortable(b)
    return np.asarray((wide_a != wide_b) & ~(np.isnan(wide_a) & np.isnan(wide_b)))


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or "float" in array.dtype.name


def _wide(array: Array) -> Array:
    """Returns integers in a type whose differences do not overflow."""
    return array.astype(np.int64) if array.dtype != np.uint64 else array.astype(np.float64)


def _sortable(array: Array) -> Array:
    return array if array.dtype.kind in "iuf" else array.astype(np.float64)


def _dequantize_float64(stored: Array, type_: ValueType | None) -> Array:
    if isinstance(type_, QuantType):
        return np.asarray(dequantize(stored, type_.params, np.float64))
    return stored.astype(np.float64)


def _ulps(a: Array, b: Array) -> Array:
    """Returns the number of representable values between ``a`` and ``b`` (NaN: none)."""
    if a.dtype.itemsize not in (2, 4, 8):
        return np.zeros(a.shape, np.int64)
    bits = f"i{a.dtype.itemsize}"
    x, y = (np.ascontiguousarray(v).view(bits).astype(np.int64) for v in (a, b))
    lowest = np.int64(-(1 << (8 * a.dtype.itemsize - 1)))
    x, y = (np.where(v < 0, lowest - v, v) for v in (x, y))
    apart = np.abs(x.astype(np.float64) - y.astype(np.float64)) if bits == "i8" else np.abs(x - y)
    return np.where(differing(a, b) & ~_any_nan(a, b), apart, 0)


def _any_nan(a: Array, b: Array) -> Array:
    return np.isnan(_sortable(a)) | np.isnan(_sortable(b))
