"""Batch normalizations folded into the products before them, also where they are a Mul and an Add.

They are a scale and an offset per channel, which go into the weights, so that the weights that are
quantized are those that are multiplied. A graph of another layout transposes in between: what
undoes itself is taken out first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.channels import CHANNELS
from qdqbridge.core.canonical.data_movement import moved_constant
from qdqbridge.core.canonical.reshapes import moved_twice, reshape_nothing
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import WeightGeometry, geometry_of
from qdqbridge.core.graph.patterns import Part, PatternMatch
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import EpsilonAttrs, GemmAttrs
from qdqbridge.core.ops.build import constant, retyped
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.data_movement import TRANSPOSE
from qdqbridge.core.ops.elementwise import ADD, DIV, MUL
from qdqbridge.core.ops.matmul import DENSE, GEMM
from qdqbridge.core.rewrite import Proposal, Replace, Rule, RuleContext, pattern_rule, run

_IMAGE = 4
_PRODUCTS = tuple(op.name for op in (CONV, CONV_TRANSPOSE, GEMM, DENSE))
_PRODUCT = Part("product", (_PRODUCTS, "x", "w", "bias?"), sole=True)


@dataclass(frozen=True, slots=True, eq=False)
class ChannelAffine:
    """``y = x * scale + offset`` for each channel; both are float64 vectors."""

    scale: NDArray[np.float64]
    offset: NDArray[np.float64]


_STATISTICS = tuple(Part(name, constant=True) for name in ("gamma", "beta", "mean", "variance"))


@pattern_rule("fold-batch-norm", ("BatchNormalization", _PRODUCT, *_STATISTICS))
def fold_batch_norm(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``BatchNormalization(Conv(x, w, b)) -> Conv(x, w', b')`` for constant statistics."""
    del context
    return _folded_channels(node, match, _statistics(node))


@pattern_rule(
    "fold-channel-affine",
    (
        ("Mul", "Add", "Sub", "Div"),
        _PRODUCT,
        Part("other", constant=True),
    ),
)
def fold_channel_affine(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(Mul(Conv(x, w, b), scale), offset) -> Conv(x, w', b')`` for constants per channel."""
    del context
    product = match.node("product")
    if product.output.quant is not None or node.output.type != product.output.type:
        return None
    return _folded_channels(node, match, _per_channel(node, product, match["other"]))


def _folded_channels(node: Node, match: PatternMatch, affine: ChannelAffine | None) -> Proposal:
    product = match.node("product")
    if affine is None or not _is_plain(product):
        return None
    value = scaled(product, affine, node.output.name)
    if value is None or value.producer is None:
        return None
    value.producer.origin = match.origin()
    return Replace({node.output: value})


def _per_channel(node: Node, product: Node, other: Value) -> ChannelAffine | None:
    """Returns what a constant does to each channel of a product; None for what is no such map."""
    geometry, weight, rank = geometry_of(product), product.operand(1).constant, node.output.rank
    data = other.constant
    if geometry is None or weight is None or rank is None or data is None or other.quant:
        return None
    if not other.type.dtype.is_float or len(data.shape) > rank:
        return None
    channels, axis = geometry.channels(weight.shape), geometry.result_axis(rank)
    shape = (1,) * (rank - len(data.shape)) + data.shape
    if any(extent != 1 for place, extent in enumerate(shape) if place != axis):
        return None
    if shape[axis] != channels:  # one number for all may be part of an activation
        return None
    numbers = data.numpy().astype(np.float64).reshape(-1)
    ones, zeros = np.ones(channels), np.zeros(channels)
    if node.op is MUL:
        return ChannelAffine(numbers, zeros)
    if node.op is DIV:
        return ChannelAffine(1 / numbers, zeros) if numbers.all() else None
    return ChannelAffine(ones, numbers if node.op is ADD else -numbers)


FOLDS: tuple[Rule, ...] = (fold_batch_norm, fold_channel_affine)


def without_layout(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """Returns a graph with rules applied, and without transposes of images that are in the way.

    The graph keeps its transposes where nothing is left out if they are carried down.

    Args:
        graph: A float graph; it is not changed.
        rules: What else is done to it.
    """
    plain = copied(graph).graph
    run(plain, rules)
    turns = _turns(plain)
    if not turns:
        return plain
    moved = copied(graph).graph
    run(moved, (*rules, *CHANNELS, moved_twice, reshape_nothing, moved_constant))
    shorter = len(moved.nodes) < len(plain.nodes) and _turns(moved) <= turns
    return moved if shorter else plain


def _turns(graph: Graph) -> int:
    return sum(node.op is TRANSPOSE and node.output.rank == _IMAGE for node in graph.nodes)


def _is_plain(product: Node) -> bool:
    """True where weight and bias are float32 constants and the attributes hide no factor."""
    attributes = product.attributes
    if isinstance(attributes, GemmAttrs) and (attributes.alpha, attributes.beta) != (1.0, 1.0):
        return False
    operands = [product.operand(1), product.optional(2)]
    return all(
        v is None or (v.constant is not None and isinstance(v.type, TensorType)) for v in operands
    )


def _statistics(node: Node) -> ChannelAffine | None:
    constants = [value.constant for value in node.inputs[1:5] if value is not None]
    arrays = [c.numpy().astype(np.float64) for c in constants if c is not None]
    attributes = node.attributes
    if len(arrays) != 4 or not isinstance(attributes, EpsilonAttrs):
        return None
    gamma, beta, mean, variance = arrays
    factor = gamma / np.sqrt(variance + attributes.epsilon)
    return ChannelAffine(factor, beta - mean * factor)


def scaled(product: Node, affine: ChannelAffine, name: str) -> Value | None:
    """Returns the result of ``product`` with ``affine`` in its weight and bias.

    Args:
        product: A product with constant weight and bias.
        affine: One scale and offset per output channel.
        name: What to call the result.

    Returns:
        None where the channels do not fit.
    """
    weight, bias = product.operand(1), product.optional(2)
    assert weight.constant is not None
    array = weight.constant.numpy()
    geometry = geometry_of(product)
    if geometry is None or geometry.channels(array.shape) != len(affine.scale):
        return None
    old = (
        np.zeros(len(affine.scale)) if bias is None else _bias_per_channel(bias, len(affine.scale))
    )
    if old is None:
        return None
    operands = [
        product.operand(0),
        _float32_constant(_times(array, affine.scale, geometry), weight.name),
        _float32_constant(old * affine.scale + affine.offset, "" if bias is None else bias.name),
    ]
    return retyped(product, operands, product.output.type, name)


def _times(
    array: NDArray[Any], scale: NDArray[np.float64], geometry: WeightGeometry
) -> NDArray[np.float64]:
    tiles, axis = geometry.tiles, geometry.axis
    wide = array.astype(np.float64)
    split = wide.reshape(tiles, array.shape[0] // tiles, *array.shape[1:])
    along = [array.shape[i] if i == axis else 1 for i in range(array.ndim)]
    factors = scale.reshape(tiles, *along)
    return (split * factors).reshape(array.shape)


def _bias_per_channel(bias: Value, channels: int) -> NDArray[np.float64] | None:
    assert bias.constant is not None
    array = bias.constant.numpy().astype(np.float64)
    return array.reshape(-1) * np.ones(channels) if array.size in (1, channels) else None


def _float32_constant(array: NDArray[np.float64], name: str) -> Value:
    return constant(Constant.of(array.astype(np.float32)), None, name)
