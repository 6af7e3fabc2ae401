"""What ONNX leaves open, or onnxruntime does otherwise: nodes whose results nobody is judged by.

A row per operator, of a node's operands and attributes on one set of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from tests.onnx_models import Array

_GREATEST = (1 << 63) - 1
Operands = Sequence[Array | None]


def undefined(op_type: str, operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Returns whether the text leaves open what a node gives, or onnxruntime contradicts it."""
    row = _ROWS.get(op_type)
    return row is not None and row(operands, attributes)


def aborts(op_type: str, operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Returns whether a node ends onnxruntime's process.

    Unique of slices without elements, a ConvTranspose or InstanceNormalization of an image without
    any, an Einsum of two such operands.
    """
    if op_type == "Einsum":
        return all(a is not None and not a.size for a in operands)
    x = operands[0] if operands else None
    if x is None or x.size:
        return False
    return op_type in ("ConvTranspose", "InstanceNormalization") or (
        op_type == "Unique" and "axis" in attributes
    )


def _given(operands: Operands, index: int) -> Array:
    array = operands[index]
    assert array is not None
    return array


def _nan(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """What compares: ONNX says nothing about NaN among numbers."""
    del attributes
    return any(bool(np.isnan(a).any()) for a in operands if a is not None and a.dtype.kind == "f")


def _logarithm(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """NaN among float64: onnxruntime leaves it out of the sum, and gives logarithms above 0."""
    return _given(operands, 0).dtype == np.float64 and _nan(operands, attributes)


def _out_of_range(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """A float that the integer type does not hold."""
    x = _given(operands, 0)
    to = helper.tensor_dtype_to_np_dtype(attributes["to"]) if "to" in attributes else None
    dtype = np.dtype(to if to is not None else _given(operands, 1).dtype)
    if x.dtype.kind != "f" or dtype.kind not in "iu":
        return False
    info, wide = np.iinfo(dtype), x.astype(np.float64)
    high = float(info.max) if info.bits < 64 else 0.99 * float(info.max)
    return not bool(np.all(np.isfinite(wide) & (wide >= float(info.min)) & (wide <= high)))


def _quotient(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Of integers by 0, and of the least by -1."""
    del attributes
    x, divisor = _given(operands, 0), _given(operands, 1)
    if x.dtype.kind not in "iu":
        return False
    least = x.dtype.kind == "i" and bool(
        np.any(divisor == -1) and np.any(x == np.iinfo(x.dtype).min)
    )
    return least or bool(np.any(divisor == 0))


def _shift(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    del attributes
    count = _given(operands, 1)
    return bool(np.any(count >= count.itemsize * 8))


def _mean(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Of nothing; and of integers whose sum leaves their type."""
    del attributes
    x = _given(operands, 0)
    wraps = x.dtype.kind in "iu" and bool(np.any(np.abs(x.astype(np.float64)) > 1e6))
    return not x.size or wraps


def _joined(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """onnxruntime joins what is empty whatever its other extents are."""
    shapes = [a.shape for a in operands if a is not None]
    return len({tuple(np.delete(shape, attributes["axis"])) for shape in shapes}) > 1


def _sliced(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """onnxruntime takes the greatest number for the end of a slice backwards, too."""
    del attributes
    if len(operands) < 5:
        return False
    return bool(np.any((_given(operands, 4) < 0) & (_given(operands, 2) == _GREATEST)))


def _squeezed(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """onnxruntime squeezes every axis where the list of axes is there and empty."""
    del attributes
    return len(operands) == 2 and _given(operands, 1).size == 0


def _scalar(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """onnxruntime gives a NonZero of a scalar one axis; ONNX none."""
    del attributes
    return _given(operands, 0).ndim == 0


def _slope(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """onnxruntime lets the slope have more axes than the data, and stretches these."""
    del attributes
    x, slope = _given(operands, 0), _given(operands, 1)
    try:
        return np.broadcast_shapes(x.shape, slope.shape) != x.shape
    except ValueError:
        return True


def _wraps(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Integers whose products or sums leave the floats in which judges compute: some saturate."""
    del attributes
    arrays = [a for a in operands if a is not None and a.dtype.kind in "iu" and a.size]
    return any(bool(np.abs(a.astype(np.float64)).max() > _EXACT) for a in arrays)


_EXACT = 1 << 12
"""Products of two such numbers, and sums of a few, are exact in float32."""


def _float64(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """ONNX's reference computes some functions of float64 in float32, or by factors of float32."""
    del attributes
    return _given(operands, 0).dtype == np.float64


def _broken_index(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """ONNX cuts them to whole numbers; onnxruntime and ONNX's reference find them nowhere."""
    del attributes
    return any(bool(np.any(_given(operands, i) % 1 != 0)) for i in (0, 1))


def _single(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Normalized, one element is 0; onnxruntime leaves what large numbers cancel to."""
    del attributes
    return _given(operands, 0).size == np.prod(_given(operands, 0).shape[:2])


def _window(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """onnxruntime pads dilated windows of SAME by what plain ones need, and shifts small ones."""
    del operands
    kernel = attributes.get("kernel_shape", ())
    small = any(k < s for k, s in zip(kernel, attributes.get("strides", ()), strict=False))
    return "auto_pad" in attributes and ("dilations" in attributes or small)


def _maximum(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    return _nan(operands, attributes) or _window(operands, attributes)


def _average(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """ONNX's reference, which judges float64, takes NaN for padding.

    Below opset 19 onnxruntime divides by what lies beyond the padding as well.
    """
    x, kernel = _given(operands, 0), attributes.get("kernel_shape", ())
    wide = any(k > extent for k, extent in zip(kernel, x.shape[2:], strict=False))
    beyond = attributes.get("count_include_pad", 0) and (wide or attributes.get("ceil_mode", 0))
    referred = x.dtype == np.float64 and _nan(operands, attributes)
    return bool(beyond) or referred or _window(operands, attributes)


def _reference_hardmax(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """ONNX's reference judges all but float32, and has every opset's along one axis."""
    return _given(operands, 0).dtype != np.float32 or _nan(operands, attributes)


def _no_terms(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """onnxruntime leaves an integer product of nothing unset."""
    del attributes
    return not _given(operands, 0).size


def _power(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Negative powers of the integer 0, and powers that leave the type or float64."""
    del attributes
    x, exponent = np.broadcast_arrays(_given(operands, 0), _given(operands, 1))
    if x.dtype.kind not in "iu" or not x.size:
        return False
    with np.errstate(all="ignore"):
        power = np.abs(x.astype(np.float64)) ** exponent.astype(np.float64)
    most = min(float(np.iinfo(x.dtype).max), 2.0**53)
    return bool(np.any((x == 0) & (exponent < 0)) or np.any(~(power <= most)))


def _choice(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """ONNX lets a condition be shorter than what it chooses from, and says nothing of a longer."""
    x, axis = _given(operands, 0), attributes.get("axis")
    return _given(operands, 1).size > (x.size if axis is None else x.shape[axis])


def _unbounded(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Infinities that an absent bound cuts in ONNX's text, and leaves in its reference."""
    x, names = _given(operands, 0), ("min", "max")
    given = [len(operands) > i and operands[i] is not None for i in (1, 2)]
    given = [g or name in attributes for g, name in zip(given, names, strict=True)]
    if x.dtype.kind != "f" or all(given):
        return False
    return bool(np.isinf(x).any())


def _error_function(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Of integers: ONNX does not say how a fraction becomes one."""
    return _float64(operands, attributes) or _given(operands, 0).dtype.kind in "iu"


def _interpolated(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Along axes of scale 1, onnxruntime multiplies what is infinite by 0, TVM does not."""
    x, nearest = _given(operands, 0), attributes.get("mode", "nearest") in ("nearest", b"nearest")
    return not nearest and x.dtype.kind == "f" and not bool(np.isfinite(x).all())


def _scaled_away(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """0 times what is not finite is NaN in ONNX's formula; onnxruntime leaves the addend out."""
    addend = operands[2] if len(operands) > 2 else None
    left_out = addend is not None and attributes.get("beta") == 0
    return _wraps(operands, attributes) or bool(
        left_out and addend is not None and addend.dtype.kind == "f" and ~np.isfinite(addend).all()
    )


def _constant(operands: Operands, attributes: Mapping[str, Any]) -> bool:
    """Of a deviation of 0 onnxruntime makes NaN, or what two large numbers leave of each other."""
    x, axes = _given(operands, 0).astype(np.float64), tuple(attributes.get("axes", (0, 2, 3)))
    with np.errstate(all="ignore"):
        deviation, largest = x.std(axes), np.abs(x).max(axes, initial=0)
    return bool(np.any(deviation <= 1e-3 * largest))


_COMPARE = ("GlobalMaxPool", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "TopK",
            "Unique", "QuantizeLinear", "DynamicQuantizeLinear")  # fmt: skip
_ROWS: Mapping[str, Callable[[Operands, Mapping[str, Any]], bool]] = {
    **dict.fromkeys(_COMPARE, _nan), "MaxPool": _maximum,
    **dict.fromkeys(("Cast", "CastLike"), _out_of_range),
    "Pow": _power, "Div": _quotient, "Mod": _quotient, "BitShift": _shift, "ReduceMean": _mean,
    "Concat": _joined, "Slice": _sliced, "Squeeze": _squeezed, "NonZero": _scalar,
    "Gemm": _scaled_away, "MeanVarianceNormalization": _constant,
    **dict.fromkeys(("Einsum", "ReduceSum", "ReduceProd", "ReduceSumSquare"), _wraps),
    "Erf": _error_function, "HardSwish": _float64, "Compress": _choice, "Clip": _unbounded,
    **dict.fromkeys(("Resize", "Upsample"), _interpolated),
    "InstanceNormalization": _single, "PRelu": _slope, "LpPool": _window, "OneHot": _broken_index,
    "AveragePool": _average, "Hardmax": _reference_hardmax,
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), _no_terms), "LogSoftmax": _logarithm,
}  # fmt: skip
