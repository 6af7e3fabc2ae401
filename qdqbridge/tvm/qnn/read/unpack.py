"""qnn.unpack of a constant: a constant that is unpacked when somebody looks at it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Value
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.reading import Reading, tensor


def unpack(reading: Reading, call: Call) -> Value:
    """``qnn.unpack(bytes)``."""
    source, shape = reading.plain(call.args[0]).constant, call.result.shape
    bits, signed = call.integer("bits", 0), bool(call.get("signed", False))
    if source is None or shape is None or not all(isinstance(extent, int) for extent in shape):
        raise reading.refused("its bytes are no constant")
    extents = tuple(int(extent) for extent in shape)
    data = source.map(
        lambda array: _unpack_sub_byte(array, bits, signed=signed), dtype=call.dtype, shape=extents
    )
    return Value(tensor(call), call.name, constant=data.fleeting())


def _unpack_sub_byte(packed: NDArray[Any], bits: int, *, signed: bool) -> NDArray[Any]:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    codes = codes.reshape(*packed.shape[:-1], -1)
    if not signed:
        return codes
    half = np.uint8(1 << (bits - 1))
    return ((codes ^ half) - half).view(np.int8)
