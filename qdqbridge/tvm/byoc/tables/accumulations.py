"""Convolutions, dense layers and matrix products: sum, bias, one rounding, clamp.

Each operator has three entries: ``conv2d`` is rounded into a quantized result; ``conv2d_float``
ends in a float result; ``conv2d_float_bias`` adds a float bias, and rounds if the result is
quantized.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqbridge.tvm.byoc import descriptions
from qdqbridge.tvm.byoc.pattern import (
    WEIGHT,
    Anything,
    CallPattern,
    ConstantPattern,
    Either,
    Optional,
    Pattern,
    choices,
    optional,
)
from qdqbridge.tvm.byoc.table import Describe, Entry

TWO = (ConstantPattern(), ConstantPattern())
"""A scale and a zero point."""
FOUR = TWO * 2


def clipped(inner: Pattern) -> Optional:
    """Returns ``inner``, clamped where the module clamps it."""
    return optional(inner, lambda p: CallPattern("clip", p).named("clip"))


def biased(inner: Pattern) -> Optional:
    """Returns ``inner`` with an integer bias where there is one; Relay has an operator for it."""
    bias = ConstantPattern().named("bias")
    return optional(inner, lambda p: choices("add", "nn.bias_add")(p, bias))


def _float_biased(inner: Pattern) -> Either:
    bias = ConstantPattern().named("float_bias")
    column = Either(bias, CallPattern("reshape", bias), CallPattern("expand_dims", bias))
    return choices("add", "nn.bias_add")(inner, column)


def _family(name: str, operator: Pattern, describing: Describe) -> Iterator[Entry]:
    total = biased(operator)
    rounded = clipped(CallPattern("qnn.requantize", total, *FOUR).named("requantize"))
    real = CallPattern("qnn.dequantize", total, *TWO).named("dequantize")
    added = _float_biased(CallPattern("qnn.dequantize", operator, *TWO).named("dequantize"))
    quantized = clipped(CallPattern("qnn.quantize", added, *TWO).named("quantize"))
    yield Entry(name, rounded, describing)
    yield Entry(f"{name}_float_bias", Either(quantized, added), describing)
    yield Entry(f"{name}_float", real, describing)


def _operator(name: str) -> CallPattern:
    return CallPattern(f"qnn.{name}", Anything(), WEIGHT, *FOUR).named("op")


def _flat(name: str) -> Optional:
    """A product of vectors has its axes of length 1 removed."""
    return optional(_operator(name), lambda p: CallPattern("squeeze", p))


def _dynamic(name: str, describing: Describe) -> Entry:
    product = CallPattern(f"qnn.{name}", Anything(), WEIGHT, *TWO).named("op")
    return Entry(name, Either(_float_biased(product), product), describing)


CONVOLUTIONS = tuple(
    entry
    for name in (
        "conv2d", "conv1d", "conv3d", "conv2d_transpose", "conv1d_transpose", "conv3d_transpose",
    )
    for entry in _family(name, _operator(name), descriptions.convolution)
)  # fmt: skip
DENSE = tuple(_family("dense", _operator("dense"), descriptions.dense))
DYNAMIC = (
    _dynamic("dynamic_dense", descriptions.dynamic_dense),
    *(_dynamic(f"dynamic_conv{n}d", descriptions.dynamic_convolution) for n in (1, 2, 3)),
)
MATMUL = tuple(_family("batch_matmul", _flat("batch_matmul"), descriptions.batch_matmul))
