"""What a file of encodings says of one tensor, before it meets a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType


class Unfit(Exception):
    """What a file says of one tensor cannot be had; the text is the reason."""


@dataclass(frozen=True, slots=True)
class TensorEncoding:
    """The parameters of one tensor: ``real = (stored - zero_point) * scale``.

    Attributes:
        name: The tensor in the float model.
        dtype: What it is stored as.
        scale: float32; rank 0, one for each channel, or the shape of the blocks.
        zero_point: int32, of the same shape.
        axis: The axis of several scales; None where the format does not say: that of the results.
        block_size: Elements along the axis for one scale.
        constant: Whether it is a constant (known where encodings are written).
        along_results: Whether ``axis`` is that of the results of all products that read it
            (known where encodings are written).
    """

    name: str
    dtype: DType
    scale: NDArray[np.float32]
    zero_point: NDArray[np.int32]
    axis: int | None = None
    block_size: int | None = None
    constant: bool = False
    along_results: bool = False

    @property
    def per_tensor(self) -> bool:
        """One scale for the whole tensor."""
        return self.scale.ndim == 0


def checked_encoding(
    name: str,
    dtype: DType,
    scale: Any,
    zero_point: Any = 0,
    *,
    axis: int | None = None,
    block_size: int | None = None,
) -> TensorEncoding:
    """Returns an encoding of the numbers in a file.

    Args:
        name: The tensor.
        dtype: What it is stored as.
        scale: A number, or nested lists of numbers; rounded to float32, as ONNX stores it.
        zero_point: Likewise, whole numbers; one stands for all.
        axis: The axis of the scales, if the format says it.
        block_size: Elements along the axis for one scale.

    Raises:
        Unfit: They are not numbers, not positive, not whole, or do not fit the type.
    """
    scales, offsets = numbers(scale, "scale"), numbers(zero_point, "zero point")
    with np.errstate(over="ignore"):
        rounded = scales.astype(np.float32)
    if not scales.size:
        raise Unfit("it has no scale")
    if not (rounded.min() > 0 and rounded.max() < np.inf):
        wrong = scales[~((rounded > 0) & (rounded < np.inf))]
        raise Unfit(f"its scale is {wrong[0]:g}, which is no positive float32")
    low, high = (dtype.qmin, dtype.qmax) if dtype.is_integer else (0, 0)
    whole = offsets == np.rint(offsets)
    if not (whole.all() and offsets.min(initial=low) >= low and offsets.max(initial=high) <= high):
        wrong = offsets[~(whole & (offsets >= low) & (offsets <= high))]
        raise Unfit(f"its zero point is {wrong[0]:g}, which {dtype} does not hold")
    if offsets.size == 1 != scales.size:
        offsets = np.broadcast_to(offsets.reshape(()), scales.shape)
    if offsets.size != scales.size:
        raise Unfit(f"it has scales of shape {scales.shape} and zero points of {offsets.shape}")
    offsets = offsets.reshape(scales.shape)
    if axis is None and scales.size == 1:
        rounded, offsets = rounded.reshape(()), offsets.reshape(())
    if axis is not None and not rounded.ndim:
        axis = None
    return TensorEncoding(name, dtype, rounded, offsets.astype(np.int32), axis, block_size)


def of_range(
    name: str, low: float, high: float, dtype: DType, *, symmetric: bool
) -> TensorEncoding:
    """Returns the encoding that onnxruntime's ``compute_scale_zp`` makes of a float32 range.

    Raises:
        Unfit: It is no range, or the type is no integer.
    """
    if not dtype.is_integer:
        raise Unfit(f"it has a range, from which no parameters of {dtype} follow")
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise Unfit(f"its range is {low:g} to {high:g}")
    lowest, highest = (float(np.float32(each)) for each in (min(low, 0.0), max(high, 0.0)))
    qmin, qmax = dtype.qmin, dtype.qmax
    if symmetric:
        highest = max(-lowest, highest)
        lowest = -highest
        if dtype.is_signed and dtype.bits > 4:
            qmin = -qmax
    scale = (highest - lowest) / (qmax - qmin)
    if scale < float(np.finfo(np.float32).tiny):
        return checked_encoding(name, dtype, 1.0)
    middle = np.rint((qmin + qmax) / 2.0)
    return checked_encoding(
        name, dtype, scale, middle if symmetric else np.rint(qmin - lowest / scale)
    )


def numbers(found: Any, what: str) -> NDArray[np.float64]:
    """Returns numbers of a JSON file as an array."""
    try:
        array = np.asarray(found)
    except ValueError as error:  # rows of unequal lengths
        raise Unfit(f"its {what} is no array of numbers") from error
    if array.dtype.kind not in "iuf":
        raise Unfit(f"its {what} is no number" if array.size else f"it has no {what}")
    return array.astype(np.float64)
