"""Tiles as tables of indices, because LLVM computes their remainders wrongly.

TVM tiles by ``x[i % extent]``. The loop vectorizer of LLVM 22 (TVM 0.27) takes such an index for
a consecutive one where the extent is a power of two below the vector's length, so that with AVX2
or AVX-512 wrong elements are read, some of them behind the tensor's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax, tirx


def untiled(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a ``tile`` as ``take`` of constant indices.

    Axes whose extent is not a number keep their ``tile``: LLVM does not see a power of two there.
    """
    x: Any = call.args[0]
    attrs: Any = call.attrs
    repeats = [int(count) for count in attrs.repeats]
    if len(repeats) != len(x.ty.shape):
        return None
    for axis, extent in enumerate(x.ty.shape):
        if repeats[axis] > 1 and isinstance(extent, tirx.IntImm):
            index = relax.const(np.arange(int(extent) * repeats[axis]) % int(extent), "int64")
            x = builder.emit(relax.op.take(x, index, axis, mode="clip"))
            repeats[axis] = 1
    return relax.op.tile(x, repeats) if any(count != 1 for count in repeats) else x
