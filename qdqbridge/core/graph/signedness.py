"""uint8 as int8 or back, zero points shifted by 128: the same real numbers, bit for bit.

So for any type that has one of the other signedness and the same width.
"""

from __future__ import annotations

from dataclasses import replace

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.quantization import QuantParams

_PAIRS = (
    (DType.UINT2, DType.INT2),
    (DType.UINT4, DType.INT4),
    (DType.UINT8, DType.INT8),
    (DType.UINT16, DType.INT16),
)
_OTHER = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}


def shiftable(params: QuantParams) -> bool:
    """True where the storage type has a twin of the other signedness."""
    return params.storage_dtype in _OTHER


def shifted_params(params: QuantParams) -> QuantParams:
    """Returns parameters of the same real values in the type of the other signedness."""
    target = _OTHER[params.storage_dtype]
    shift = target.qmin - params.storage_dtype.qmin
    return replace(
        params,
        storage_dtype=target,
        zero_point=params.zero_point + shift,
        qmin=params.qmin + shift,
        qmax=params.qmax + shift,
    )


def shifted_constant(constant: Constant) -> Constant:
    """Returns stored integers in the type of the other signedness, shifted when looked at."""
    return constant.other_signedness(_OTHER[constant.dtype])
