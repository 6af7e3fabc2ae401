"""Products of stored integers whose scales or zero points only the run knows.

Between Q and DQ of run time a product would be one of floats, rounded in its sums and once more in
its division. These are what the QLinear operators mean: an exact int32 sum, one float32 multiplier
``M = (sx * sw) / sy``, one rounding, half to even, and then the zero point.

Source: ONNX QLinearMatMul-10 and -21, QLinearConv-10; onnxruntime
core/providers/cpu/quantization/quantize_linear_matmul.cc, qlinearconv.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from qdqbridge.onnx_io.lowering.layout import usual_rank
from qdqbridge.onnx_io.lowering.site import LoweringSite

_BYTES = (TensorProto.INT8, TensorProto.UINT8)
_ROUND = 11
"""The opset since which there is Round."""
_SPAN, _EXACT = 255, 1 << 24
"""The largest difference of two 8-bit integers, and the end of float32's exact ones."""


def of_run_time(site: LoweringSite, parameters: Sequence[str], data: Sequence[str]) -> bool:
    """True where a scale or zero point is not constant, and all data are integers of 8 bits."""
    known = site.known
    constant = all(known.is_constant(name) for name in parameters if name)
    return not constant and all(known.element_type(name) in _BYTES for name in data)


def matmul_sum(site: LoweringSite, left: tuple[str, str], right: tuple[str, str]) -> str:
    """Returns ``(a - za) @ (b - zb)`` in int32; operands are data and zero point."""
    (a, za), (b, zb) = left, right
    if not za and zb:
        kind = site.known.element_type(a)
        if kind not in _BYTES:
            raise site.refusal(
                "only its second operand has a zero point",
                "the type of a zero point for the first one is unknown",
                "give both zero points",
            )
        za = site.enter(np.zeros((), np.int8 if kind == TensorProto.INT8 else np.uint8), "zero")
    return site.op("MatMulInteger", [a, b, za, zb])


def conv_sum(
    site: LoweringSite, left: tuple[str, str], right: tuple[str, str], result: str = ""
) -> str:
    """Returns ``Conv(x - zx, w - zw)`` in int32; operands are data and zero point.

    Where float32 holds every sum exactly it is ``Cast(Conv(x - zx, DQ(w, scale 1)))``: where
    ``255 * sum |w - zw| < 2^24`` for every output channel, each partial sum is an integer that
    float32 represents, in any order of additions. Elsewhere it is a ConvInteger. onnxruntime's has
    one zero point of the weight: where there may be one per channel, the sum of each window is
    subtracted as often as it says.
    """
    (x, zx), (w, zw) = left, right
    window = site.same_attributes("channels_last")
    weight, zero = site.known.array(w), np.zeros((), np.int64)
    zero = site.known.array(zw) if zw else zero
    if weight is not None and zero is not None and _exact(site, weight, zero):
        real = site.op("Cast", [x], to=TensorProto.FLOAT)
        if zx:
            real = site.op("Sub", [real, site.op("Cast", [zx], to=TensorProto.FLOAT)])
        unit = site.enter(np.ones(zero.shape, np.float32), "unit")
        total = site.op("Conv", [real, site.dequantize(w, unit, zw, axis=0)], **window)
        return site.op("Cast", [total], result, to=TensorProto.INT32)
    if not zw or site.known.shape(zw) in ((), (1,)):
        return site.op("ConvInteger", [x, w, zx, zw], result, **window)
    if weight is not None:
        ones = site.enter(np.ones(weight.shape, np.uint8), "ones")
    else:
        whole = site.op("Cast", [w], to=TensorProto.INT32)
        ones = site.op("Cast", [site.op("Equal", [whole, whole])], to=TensorProto.UINT8)
    sums = conv_sum(site, left, (ones, ""))
    wide = site.op("Cast", [along_channels(site, zw, w)], to=TensorProto.INT32)
    plain = conv_sum(site, left, (w, ""))
    return site.op("Sub", [plain, site.op("Mul", [sums, wide])], result)


def _exact(site: LoweringSite, weight: NDArray[Any], zero: NDArray[Any]) -> bool:
    if weight.ndim == 0 or zero.size not in (1, len(weight)):
        raise site.fault(
            "the weight's zero point does not fit",
            why=f"it has shape {zero.shape}, the weight {weight.shape}",
        )
    if not weight.size:
        return True
    rows = weight.reshape(len(weight), -1).astype(np.int64) - zero.reshape(-1, 1).astype(np.int64)
    return int(np.abs(rows).sum(axis=1).max(initial=0)) * _SPAN < _EXACT


def along_channels(site: LoweringSite, vector: str, weight: str) -> str:
    """Returns a parameter of each channel so that it broadcasts along axis 1 of a result."""
    if site.known.shape(vector) in ((), (1,)):
        return vector
    shape = [-1, *([1] * (usual_rank(site, weight) - 2))]
    return site.op("Reshape", [vector, site.enter(np.array(shape, np.int64), "shape")])


def along_rows(site: LoweringSite, vector: str) -> str:
    """Returns a parameter of each row so that it broadcasts against a matrix."""
    shape = site.known.shape(vector)
    if shape is None or len(shape) != 1 or shape == (1,):
        return vector
    return site.op("Reshape", [vector, site.enter(np.array([-1, 1], np.int64), "shape")])


def rounded(
    site: LoweringSite, total: str, scales: tuple[str, str, str], zero_point: str, result: str = ""
) -> str:
    """Returns ``saturate(rint(float32(total) * M) + zy)`` with ``M = (sx * sw) / sy``.

    Args:
        site: The node.
        total: The int32 sum.
        scales: Of both operands and of the result, so that they broadcast against it.
        zero_point: Of the result.
        result: The name of the result.
    """
    left, right, own = (_float32(site, scale) for scale in scales)
    multiplier = site.op("Div", [site.op("Mul", [left, right]), own])
    real = site.op("Mul", [site.op("Cast", [total], to=TensorProto.FLOAT), multiplier])
    shape = site.known.shape(zero_point)
    if shape in ((), (1,)):
        unit = site.enter(np.ones((1,) * len(shape), np.float32), "unit")
        return site.quantize(real, unit, zero_point, zero_point, result)
    if site.main_opset < _ROUND:
        one = site.enter(np.ones((1,), np.float32), "one")
        unit = site.op("Expand", [one, site.op("Shape", [zero_point])])
        return site.quantize(real, unit, zero_point, zero_point, result)
    shift = site.op("Cast", [along_rows(site, zero_point)], to=TensorProto.FLOAT)
    shifted = site.op("Add", [site.op("Round", [real]), shift])
    unit = site.enter(np.ones((), np.float32), "unit")
    return site.quantize(shifted, unit, "", zero_point, result)


def _float32(site: LoweringSite, scale: str) -> str:
    if site.known.element_type(scale) == TensorProto.FLOAT:
        return scale
    return site.op("Cast", [scale], to=TensorProto.FLOAT)
