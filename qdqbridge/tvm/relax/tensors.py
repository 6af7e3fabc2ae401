"""Arrays as TVM's tensors and back, without a copy where memory allows it."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.tvm.qnn.emit.dtypes import as_bytes, tvm_dtype

Array = NDArray[Any]
ALIGNMENT = 64
"""Bytes; TVM's code reads tensors in vectors of this size."""


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns an array with uninitialized elements that TVM takes without a copy."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, memory, -_address(memory) % ALIGNMENT)


def lasting(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns an array as :func:`aligned` does, for weights that every run reads.

    Large ones lie in as many large pages as they fill, if the system has some left: what is read
    from one end to the other, as a weight that meets one row, is read up to a third faster from
    these (measured). The heap has small ones, which it hands out again.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LARGE or _IN_LARGE_PAGES is None:
        return aligned(shape, dtype)
    memory = mmap.mmap(-1, nbytes + _LARGE, _PRIVATE)
    start = -_address(np.frombuffer(memory, np.uint8)) % _LARGE
    with contextlib.suppress(OSError):  # a system without them
        memory.madvise(_IN_LARGE_PAGES, start, nbytes // _LARGE * _LARGE)
    return np.frombuffer(memory, np.uint8, nbytes, start).view(dtype).reshape(shape)


_LARGE = 1 << 21
"""Bytes of a large page of memory."""
_IN_LARGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


def handed_over(array: Array) -> bool:
    """True where TVM can read an input in the caller's memory.

    It has to lie in C order from a multiple of 64 bytes on and be writable (DLPack has no way to
    say that it is not), with an element type that DLPack and TVM have.
    """
    if array.dtype not in _PLAIN or not array.flags.carray:  # in C order, writable, aligned
        return False
    return _address(array) % ALIGNMENT == 0


PLAIN = frozenset(
    dtype for dtype in DType if dtype.numpy.kind in "iuf" and dtype.numpy.isbuiltin == 1
)
"""Element types that NumPy, DLPack and TVM have."""
_PLAIN = frozenset(dtype.numpy for dtype in PLAIN)


def _address(array: Array) -> int:
    return array.__array_interface__["data"][0]


def to_tensor(array: Array, device: Any) -> Any:
    """Returns an input as TVM holds it: a byte per element of a sub-byte type.

    What cannot be handed over is copied: by NumPy where DLPack has the type, since TVM's way takes
    ten times as long.
    """
    if not array.size:  # NumPy gives it strides that TVM does not take
        return tvm.runtime.empty(array.shape, tvm_dtype(DType.of(array.dtype)), device)
    if handed_over(array):
        return tvm.runtime.from_dlpack(array)
    if array.dtype not in _PLAIN:
        array = as_bytes(np.asarray(array, order="C"))
        array = array.astype(tvm_dtype(DType.of(array.dtype)), copy=False)
    if array.dtype not in _PLAIN:
        return tvm.runtime.tensor(array, device)
    copy = aligned(array.shape, array.dtype)
    np.copyto(copy, array)
    return tvm.runtime.from_dlpack(copy)


def to_array(tensor: Any) -> Array:
    """Returns a copy of a result."""
    if str(tensor.dtype).rstrip("0123456789") not in ("int", "uint", "float"):
        return tensor.numpy()
    return np.from_dlpack(tensor).copy()
