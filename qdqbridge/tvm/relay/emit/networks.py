"""Relay's ``nn`` operators under Relax's names and with Relax's arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relay as _relay

from qdqbridge.tvm.relay.dialect.host import typed
from qdqbridge.tvm.relay.emit.expressions import Expr, constant, like, shape_of

relay: Any = _relay
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
