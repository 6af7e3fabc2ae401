"""SHA-256 of constants and of whole graphs."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.graph import Graph

_CHUNK = 1 << 24


def digest(graph: Graph) -> str:
    """Returns the SHA-256 of ``graph.text()`` in hexadecimal."""
    return hashlib.sha256(graph.text().encode()).hexdigest()


def array_hash(array: NDArray[Any]) -> str:
    """Returns a hash of the elements in row-major order (first 128 bits of SHA-256).

    Reads the array in chunks, so that a mapped or transposed one is never copied whole.
    """
    sha = hashlib.sha256()
    if array.flags.c_contiguous:
        sha.update(array.reshape(-1).view(np.uint8).data)
    elif array.ndim == 0 or array.nbytes <= _CHUNK:
        sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    else:
        rows = max(1, _CHUNK * len(array) // array.nbytes)
        for start in range(0, len(array), rows):
            part = np.ascontiguousarray(array[start : start + rows])
            sha.update(part.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()[:32]
