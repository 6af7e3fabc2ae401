"""What distinguishes two types, parameters or constants, in words with values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import QuantType, ValueType

_CHUNK = 1 << 22


def type_words(a: ValueType, b: ValueType) -> Iterator[tuple[bool, str]]:
    """Yields how two types differ, shapes left out, with True where it is quantization.

    Args:
        a: One type.
        b: The other one.
    """
    if isinstance(a, QuantType) and isinstance(b, QuantType):
        yield from ((True, words) for words in params_words(a.params, b.params))
    elif isinstance(a, QuantType) != isinstance(b, QuantType):
        yield True, f"{_kind(a)} -> {_kind(b)}"
    elif a.dtype is not b.dtype:
        yield False, f"{a.dtype} -> {b.dtype}"


def _kind(type_: ValueType) -> str:
    if not isinstance(type_, QuantType):
        return f"not quantized ({type_.dtype})"
    params = type_.params
    scale = f"scale {float(params.scale):.6g}, " if params.per_tensor else ""
    zero = f"zero point {int(params.zero_point)}" if params.per_tensor else granularity(params)
    return f"quantized ({type_.dtype}, {scale}{zero})"


def granularity(params: QuantParams) -> str:
    """Returns how finely parameters vary."""
    if params.blocked:
        return f"in blocks of {params.block_size} along axis {params.axis}"
    return "per tensor" if params.per_tensor else f"per channel along axis {params.axis}"


def params_words(a: QuantParams, b: QuantParams) -> Iterator[str]:
    """Yields how quantization parameters differ, bit for bit."""
    if a == b:
        return
    shift = _recentred(a, b)
    if shift is not None:
        yield f"{a.storage_dtype} -> {b.storage_dtype} with all integers moved by {shift}"
        return
    if a.storage_dtype is not b.storage_dtype:
        yield f"storage {a.storage_dtype} -> {b.storage_dtype}"
    if a.expressed_dtype is not b.expressed_dtype:
        yield f"expressed type {a.expressed_dtype} -> {b.expressed_dtype}"
    if granularity(a) != granularity(b):
        yield f"granularity {granularity(a)} -> {granularity(b)}"
    if a.scale.shape == b.scale.shape:
        yield from _array_words("scale", a.scale, b.scale)
        yield from _array_words("zero point", a.zero_point, b.zero_point)
    elif granularity(a) == granularity(b):
        yield f"number of scales {a.scale.size} -> {b.scale.size}"
    else:
        yield f"scale {_format_value_range(a.scale)} -> {_format_value_range(b.scale)}"
    if (a.qmin, a.qmax) != (b.qmin, b.qmax) and not (a.full_range and b.full_range):
        yield f"range {a.qmin}..{a.qmax} -> {b.qmin}..{b.qmax}"
    if a.saturate is not b.saturate:
        yield f"saturate {a.saturate} -> {b.saturate}"


def _recentred(a: QuantParams, b: QuantParams) -> int | None:
    """Returns by how much stored integers move where they stand for the same real numbers."""
    same = a.scale.shape == b.scale.shape and a.scale.tobytes() == b.scale.tobytes()
    if not same or a.storage_dtype is b.storage_dtype or granularity(a) != granularity(b):
        return None
    shifts = b.zero_point.astype(np.int64) - a.zero_point
    shift = int(shifts.reshape(-1)[0]) if shifts.size else 0
    moved = (a.qmin + shift, a.qmax + shift) == (b.qmin, b.qmax)
    return shift if moved and (shifts == shift).all() else None


def _array_words(name: str, a: NDArray[Any], b: NDArray[Any]) -> Iterator[str]:
    if a.dtype == b.dtype and a.tobytes() == b.tobytes():
        return
    wide, other = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    changed = np.flatnonzero(wide != other)
    if not changed.size:
        yield f"{name}: the same numbers as {b.dtype} instead of {a.dtype}"
        return
    worst = int(changed[np.argmax(np.abs(other - wide)[changed])])
    pair = f"{_nine_digits(wide[worst])} -> {_nine_digits(other[worst])}"
    if name == "scale" and wide[worst]:
        pair += f" ({(other[worst] / wide[worst] - 1) * 100:+.3g} %)"
    where = "" if a.ndim == 0 else f" in {changed.size} of {a.size}, most at {worst}:"
    yield f"{name}{where} {pair}"


def _nine_digits(value: float) -> str:
    return f"{value:.9g}"


def _format_value_range(array: NDArray[Any]) -> str:
    wide = array.astype(np.float64)
    if wide.size == 1:
        return _nine_digits(float(wide.reshape(())))
    return f"{_nine_digits(wide.min())} .. {_nine_digits(wide.max())}" if wide.size else "none"


def constant_words(a: Constant, b: Constant, *, quantized: bool) -> str | None:
    """Returns how the elements of two constants differ, None where they are equal bit for bit.

    Args:
        a: One constant.
        b: The other one.
        quantized: True where the integers are stored codes, which are counted in LSB.
    """
    if a.shape != b.shape:
        return f"shape {list(a.shape)} -> {list(b.shape)}"
    first, second = a.numpy(), b.numpy()
    if np.object_ in (first.dtype, second.dtype):
        return None if first.tolist() == second.tolist() else "other strings"
    count, largest = _distance(first, second)
    if not count:
        return None if first.dtype == second.dtype else f"{a.dtype} -> {b.dtype}, equal numbers"
    unit = f"{largest:.0f} LSB" if quantized else f"{largest:.6g}"
    return f"{count} of {a.size} elements differ, by at most {unit}"


def _distance(a: NDArray[Any], b: NDArray[Any]) -> tuple[int, float]:
    """Returns the number of differing elements and the largest distance, a part at a time."""
    if a.ndim == 0 or a.nbytes <= _CHUNK:
        return _distance_of(a, b)
    rows = max(1, _CHUNK * len(a) // a.nbytes)
    parts = [_distance_of(a[i : i + rows], b[i : i + rows]) for i in range(0, len(a), rows)]
    return sum(count for count, _ in parts), max(largest for _, largest in parts)


def _distance_of(a: NDArray[Any], b: NDArray[Any]) -> tuple[int, float]:
    wide, other = a.astype(np.float64), b.astype(np.float64)
    differs = (wide != other) & ~(np.isnan(wide) & np.isnan(other))
    differs |= np.signbit(wide) != np.signbit(other)
    if not differs.any():
        return 0, 0.0
    with np.errstate(invalid="ignore"):
        return int(differs.sum()), float(np.abs(wide - other)[differs].max())
