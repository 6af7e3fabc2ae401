"""Relay's operators under Relax's names and with Relax's arguments, as ``qnn.emit`` calls them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relay as _relay

from qdqbridge.tvm.relay.dialect.half_even import rint
from qdqbridge.tvm.relay.dialect.host import typed
from qdqbridge.tvm.relay.emit.expressions import Expr, shape_of
from qdqbridge.tvm.relay.emit.networks import Networks

relay: Any = _relay
"""Relay's operators; their annotations deny the lists and numbers that they take."""


class Operators:
    """See ``tvm.relax.op`` for the meaning of every function; operands have known shapes.

    What Relay has under the same name and with the same arguments is Relay's own function.
    """

    nn = Networks()
    round = staticmethod(rint)

    def __getattr__(self, name: str) -> Any:
        """Returns Relay's function of that name."""
        return getattr(relay, name)

    @staticmethod
    def astype(x: Expr, dtype: str) -> Expr:
        """Changes the element type."""
        return relay.cast(x, dtype)

    @staticmethod
    def reshape(x: Expr, shape: Sequence[int]) -> Expr:
        """Lays elements out anew; -1 takes what is left."""
        wanted, total = [int(e) for e in shape], math.prod(shape_of(x))
        stated = math.prod(e for e in wanted if e != -1)
        left = total // stated if stated else 0
        # 0 copies an extent in Relay, and no number must mean anything but itself.
        return relay.reshape(x, [left if e == -1 else e for e in wanted], allowzero=True)

    @staticmethod
    def permute_dims(x: Expr, axes: Sequence[int] | None = None) -> Expr:
        """Transposes."""
        return relay.transpose(x, None if axes is None else list(axes))

    @staticmethod
    def squeeze(x: Expr, axes: Sequence[int]) -> Expr:
        """Drops axes of extent 1."""
        return relay.squeeze(x, list(axes))

    @staticmethod
    def expand_dims(x: Expr, axes: Sequence[int]) -> Expr:
        """Adds axes, which are axes of the result."""
        for axis in sorted(axes):
            x = typed(relay.expand_dims(x, axis))
        return x

    @staticmethod
    def concat(parts: Sequence[Expr], axis: int) -> Expr:
        """Joins along an axis."""
        return relay.concatenate(list(parts), axis)

    @staticmethod
    def take(x: Expr, indices: Expr, axis: int, mode: str) -> Expr:
        """Picks elements along an axis."""
        return relay.take(x, indices, axis=axis, mode=mode)

    @staticmethod
    def split(x: Expr, cuts: Sequence[int], axis: int) -> Expr:
        """Splits before every index of ``cuts``; returns a tuple."""
        return relay.split(x, tuple(cuts), axis).astuple()

    @staticmethod
    def strided_slice(
        x: Expr,
        axes: Sequence[int],
        begin: Sequence[int],
        end: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> Expr:
        """Slices some axes."""
        steps = [1] * len(list(axes)) if strides is None else list(strides)
        return relay.strided_slice(
            x, begin=list(begin), end=list(end), strides=steps, axes=list(axes)
        )

    @staticmethod
    def tile(x: Expr, repeats: Sequence[int]) -> Expr:
        """Repeats the whole."""
        return relay.tile(x, tuple(repeats))

    @staticmethod
    def repeat(x: Expr, count: int, axis: int) -> Expr:
        """Repeats every element."""
        return relay.repeat(x, count, axis)

    @staticmethod
    def broadcast_to(x: Expr, shape: Sequence[int]) -> Expr:
        """Broadcasts."""
        return relay.broadcast_to(x, [int(e) for e in shape])

    @staticmethod
    def mean(x: Expr, axes: Sequence[int], keepdims: bool = False) -> Expr:
        """Averages over axes."""
        return relay.mean(x, axis=list(axes), keepdims=keepdims)

    @staticmethod
    def sum(x: Expr, axes: Sequence[int], keepdims: bool = False) -> Expr:
        """Sums over axes."""
        return relay.sum(x, axis=list(axes), keepdims=keepdims)

    @staticmethod
    def max(x: Expr, axes: Sequence[int], keepdims: bool = False) -> Expr:
        """Returns the largest element along axes."""
        return relay.max(x, axis=list(axes), keepdims=keepdims)

    @staticmethod
    def min(x: Expr, axes: Sequence[int], keepdims: bool = False) -> Expr:
        """Returns the smallest element along axes."""
        return relay.min(x, axis=list(axes), keepdims=keepdims)

    @staticmethod
    def matmul(a: Expr, b: Expr) -> Expr:
        """Multiplies matrices, stacks of them, and vectors, as NumPy does."""
        single = len(shape_of(a)) == 1, len(shape_of(b)) == 1
        a = typed(relay.expand_dims(a, 0)) if single[0] else a
        b = typed(relay.expand_dims(b, 1)) if single[1] else b
        left, right = shape_of(a), shape_of(b)
        lead = list(np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2])))
        if not lead:
            product = relay.nn.dense(a, typed(relay.transpose(b)))
        else:
            product = relay.nn.batch_matmul(
                _stack(a, lead), _stack(b, lead), transpose_a=False, transpose_b=False
            )
        full = [*lead, left[-2], right[-1]]
        shape = [e for e, drop in zip(full[-2:], single, strict=True) if not drop]
        return relay.reshape(product, [*lead, *shape])


def _stack(x: Expr, lead: list[int]) -> Expr:
    extents = shape_of(x)
    if extents[:-2] != lead:
        x = typed(relay.broadcast_to(x, [*lead, *extents[-2:]]))
    return typed(relay.reshape(x, [math.prod(lead), *extents[-2:]]))
