"""Relay's operators under Relax's names and with Relax's arguments, as ``qnn.emit`` calls them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relay as _relay

from qdqbridge.tvm.relay.dialect.half_even import rint
from qdqbridge.tvm.relay.dialect.host import typed

# ---- Types of expressions, and constants ---------------------------------------------------------


relay: Any = _relay
Expr = Any


def shape_of(x: Expr) -> list[int]:
    """Returns the extents of an expression."""
    return [int(extent) for extent in typed(x).checked_type.shape]


def dtype_of(x: Expr) -> str:
    """Returns the element type of an expression."""
    return str(typed(x).checked_type.dtype)


def constant(array: NDArray[Any]) -> Expr:
    """Returns a constant of the array's element type (``relay.const`` makes 64 bits 32)."""
    return typed(relay.Constant(tvm.nd.array(array)))


def like(x: Expr, value: float) -> Expr:
    """Returns a number of the element type of ``x``."""
    return constant(np.asarray(value, dtype_of(x)))


# ---- relay's ``nn`` operators under Relax's names and with Relax's arguments ---------------------

_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


def _int_tuple(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


class Networks:
    """See ``tvm.relax.op.nn`` for the meaning of every function."""

    def relu(self, x: Expr) -> Expr:
        """Returns ``max(x, 0)``."""
        return relay.nn.relu(x)

    def leakyrelu(self, x: Expr, alpha: float) -> Expr:
        """Returns ``x``, or ``alpha * x`` where that is below 0."""
        return relay.nn.leaky_relu(x, alpha)

    def softmax(self, x: Expr, axis: int) -> Expr:
        """Normalizes exponentials along an axis."""
        return relay.nn.softmax(x, axis)

    def log_softmax(self, x: Expr, axis: int) -> Expr:
        """Returns the logarithm of softmax; Relay takes the last axis only."""
        rank = len(shape_of(x))
        if axis % rank == rank - 1:
            return relay.nn.log_softmax(x, axis)
        order = [*(i for i in range(rank) if i != axis), axis]
        permuted = typed(relay.nn.log_softmax(typed(relay.transpose(x, order)), -1))
        return relay.transpose(permuted, list(np.argsort(order)))

    def gelu(self, x: Expr) -> Expr:
        """Returns ``0.5 * x * (1 + erf(x / sqrt(2)))``."""
        inner = relay.erf(relay.multiply(x, like(x, math.sqrt(0.5))))
        half = relay.multiply(x, like(x, 0.5))
        return relay.multiply(half, relay.add(inner, like(x, 1)))

    def gelu_tanh(self, x: Expr) -> Expr:
        """Returns Gelu's approximation by tanh."""
        cube = relay.multiply(relay.multiply(x, x), relay.multiply(x, like(x, 0.044715)))
        inner = relay.multiply(relay.add(x, cube), like(x, math.sqrt(2 / math.pi)))
        half = relay.multiply(x, like(x, 0.5))
        return relay.multiply(half, relay.add(relay.tanh(inner), like(x, 1)))

    def pad(self, x: Expr, widths: Sequence[int], mode: str = "constant", value: float = 0) -> Expr:
        """Pads every axis; ``widths`` holds before and after of each in turn."""
        pairs = [(int(widths[i]), int(widths[i + 1])) for i in range(0, len(widths), 2)]
        if mode == "circular":
            return _wrapped(x, pairs)
        return relay.nn.pad(x, pairs, like(x, value), _MODES[mode])

    def layer_norm(
        self, x: Expr, gamma: Expr, beta: Expr, axes: Sequence[int], epsilon: float
    ) -> Expr:
        """Normalizes over the last axes; Relay takes one."""
        shape = shape_of(x)
        if len(axes) == 1:
            return relay.nn.layer_norm(x, gamma, beta, axes[0], epsilon)
        size = math.prod(shape[axis] for axis in axes)
        flat = typed(relay.reshape(x, [*shape[: axes[0]], size]))
        vectors = [typed(relay.reshape(v, [size])) for v in (gamma, beta)]
        normal = typed(relay.nn.layer_norm(flat, *vectors, -1, epsilon))
        return relay.reshape(normal, shape)

    def instance_norm(
        self, x: Expr, gamma: Expr, beta: Expr, channel: int, axes: Sequence[int], epsilon: float
    ) -> Expr:
        """Normalizes each channel of each sample."""
        del axes
        return relay.nn.instance_norm(x, gamma, beta, channel, epsilon)

    def group_norm(
        self, x: Expr, gamma: Expr, beta: Expr, groups: int, channel: int, axes: Sequence[int],
        epsilon: float,
    ) -> Expr:  # fmt: skip
        """Normalizes each group of channels of each sample."""
        del axes
        return relay.nn.group_norm(x, gamma, beta, groups, channel, epsilon)

    def batch_norm(self, *args: Expr, axis: int, epsilon: float, training: bool) -> Expr:
        """Normalizes by given statistics; returns a tuple."""
        del training
        return relay.nn.batch_norm(*args, axis=axis, epsilon=epsilon).astuple()

    def __getattr__(self, name: str) -> Any:
        """Returns a pool or a convolution; those differ in how they take their windows only."""
        function = getattr(relay.nn, name)

        def window(*args: Expr, **attrs: Any) -> Expr:
            if "conv" in name:
                attrs |= _relay_conv_size_attrs(args[1], name, attrs)
            return function(*args, **{k: _ints_if_sequence(v) for k, v in attrs.items()})

        return window


def _ints_if_sequence(value: Any) -> Any:
    return _int_tuple(value) if isinstance(value, tuple | list) else value


def _relay_conv_size_attrs(weight: Expr, name: str, attrs: dict[str, Any]) -> dict[str, Any]:
    """Returns kernel size and channels, which Relay wants to be told."""
    shape, layout = shape_of(weight), str(attrs.get("kernel_layout", ""))
    if layout:
        size = [shape[layout.index(letter)] for letter in layout if letter not in "IO"]
        return {"kernel_size": size, "channels": shape[layout.index("O")]}
    channels = shape[1] * attrs["groups"] if "transpose" in name else shape[0]
    return {"kernel_size": shape[2:], "channels": channels}


def _wrapped(x: Expr, pairs: Sequence[tuple[int, int]]) -> Expr:
    """Repeats the data around itself, for which Relay has no pad mode."""
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            extent = shape_of(x)[axis]
            indices = np.arange(-before, extent + after) % extent
            x = typed(relay.take(x, constant(indices.astype(np.int64)), axis=axis))
    return x


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
