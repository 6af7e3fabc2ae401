"""Products with a constant weight, all seen alike: groups x results x operands x taps.

A weight of whatever operator is one array ``[groups, out / groups, in / groups, taps]``, so that
what is said of channels is said once: a depthwise convolution has one result and one operand in
each group, a matrix has one group and one tap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow, WeightGeometry, geometry_of
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import (
    ClipAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    PadAttrs,
    ReduceAttrs,
    ResizeAttrs,
)
from qdqbridge.core.ops.matmul import GEMM
from qdqbridge.core.ops.normalization import BATCH_NORMALIZATION, OVER_CHANNELS, OVER_ROWS
from qdqbridge.core.ops.shapes import laid_along
from qdqbridge.core.ops.unary import ABS, LEAKY_RELU, NEG, RELU

Array = NDArray[Any]
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ProductLayer:
    """A product ``op(x, w)`` with a float32 constant ``w``.

    Attributes:
        geometry: How its weight lies.
        outputs: Number of result channels.
        inputs: Number of operand channels.
    """

    node: Node
    geometry: WeightGeometry
    outputs: int
    inputs: int

    @property
    def groups(self) -> int:
        """Number of groups; 1 for matrices."""
        return self.geometry.groups

    @property
    def weight(self) -> Array:
        """The weight as the operator has it."""
        constant = self.node.operand(1).constant
        assert constant is not None
        return constant.numpy()

    @property
    def operand_axis(self) -> int:
        """The axis of the operand that numbers its channels, counted from the end for matrices."""
        return 1 if self.geometry.image else -1

    @property
    def result_axis(self) -> int:
        """The axis of the result that numbers its channels, counted from the end for matrices."""
        return self.operand_axis

    def grid(self, weight: Array) -> Array:
        """Returns ``weight`` as ``[groups, out / groups, in / groups, taps]``, a view if it can."""
        split = weight.reshape(self.groups, weight.shape[0] // self.groups, weight.shape[1], -1)
        return split if self.geometry.axis == 0 else split.transpose(0, 2, 1, 3)

    def ungrid(self, grid: Array) -> Array:
        """Returns the weight whose grid is given."""
        split = grid if self.geometry.axis == 0 else grid.transpose(0, 2, 1, 3)
        return np.ascontiguousarray(split).reshape(self.weight.shape)

    def peaks(self) -> Vector:
        """Returns the largest magnitude over the taps: ``[groups, out / groups, in / groups]``."""
        return np.abs(self.grid(self.weight)).max(axis=3, initial=0.0).astype(np.float64)

    def multiplied(self, results: Vector, operands: Vector) -> NDArray[np.float32]:
        """Returns the weight times one factor per result channel and one per operand channel."""
        wide = self.grid(self.weight.astype(np.float64))
        rows = results.reshape(self.groups, -1, 1, 1)
        columns = operands.reshape(self.groups, 1, -1, 1)
        return np.ascontiguousarray(self.ungrid(wide * rows * columns), np.float32)


def layer_of(node: Node) -> ProductLayer | None:
    """Returns a product as a layer; None for other nodes, and for weights that are computed.

    A weight is a matrix, or has the taps of a window that slides.
    """
    weight = node.optional(1)
    if weight is None or weight.constant is None or not is_float32(weight):
        return None
    shape, geometry = weight.constant.shape, geometry_of(node)
    taps = isinstance(node.attributes, (ConvAttrs, ConvTransposeAttrs))
    gemm = GEMM.of(node)
    if geometry is None or not (taps or len(shape) == 2) or (gemm and gemm.trans_a):
        return None
    inputs = shape[1] * geometry.groups if geometry.axis == 0 else shape[0]
    return ProductLayer(node, geometry, geometry.channels(shape), inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A normalization whose result is ``x * gamma + beta`` with constants.

    Attributes:
        node: The normalization.
        outputs: Number of result channels.
        result_axis: The axis of the result that numbers them.
    """

    node: Node
    outputs: int
    result_axis: int


def norm_of(node: Node) -> Norm | None:
    """Returns a normalization with constant gamma and beta; None for other nodes."""
    constants = [v.constant for v in node.inputs[1:3] if v is not None]
    floats = all(is_float32(v) for v in node.inputs[1:3] if v is not None)
    if not constants or not floats or any(c is None or len(c.shape) != 1 for c in constants):
        return None
    first = constants[0]
    assert first is not None
    if node.op in OVER_ROWS:
        return Norm(node, first.shape[0], -1)
    if node.op in OVER_CHANNELS and node.op is not BATCH_NORMALIZATION:
        return Norm(node, first.shape[0], 1)
    return None


def is_float32(value: Value) -> bool:
    """True for plain float32 tensors."""
    return isinstance(value.type, TensorType) and str(value.type.dtype) == "float32"


# ---- paths ---------------------------------------------------------------------------------------
# Where the channels of a tensor go: through what keeps a factor, to the products that read them.
#
# A factor per channel passes unchanged through operators ``f`` with ``f(c * x) = c * f(x)`` for
# ``c > 0``, and through whatever moves values. Channels are followed by what happens to their
# numbers: data-movement operators are run on them.


Numbers = NDArray[np.int64]
_HOMOGENEOUS = (RELU, LEAKY_RELU, NEG, ABS)
_IMAGES = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize", "Pad")
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")


class PathRefused(Exception):
    """A factor per channel does not pass; the message says what stops it."""


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """A product that reads the channels.

    Attributes:
        layer: The product.
        channels: For each channel of its operand the one that it comes from.
    """

    layer: ProductLayer
    channels: Numbers


@dataclass(slots=True, eq=False)
class Reach:
    """All that has to be changed with the channels of a tensor.

    Attributes:
        ends: The products that read them.
        constants: Constants added on the way (node, operand) with the channel of each element of
            the sum, broadcastable.
        clips: Bounds on the way, which a factor would move.
    """

    ends: list[End] = field(default_factory=list[End])
    constants: list[tuple[Node, int, Numbers]] = field(
        default_factory=list["tuple[Node, int, Numbers]"]
    )
    clips: list[Node] = field(default_factory=list[Node])


def reach(outputs: Iterable[Value], value: Value, axis: int) -> Reach:
    """Returns where the channels of ``value`` go.

    Args:
        outputs: The graph's outputs.
        value: A tensor with channels along ``axis``.
        axis: May count from the end.

    Raises:
        Refused: Something on the way does not keep a factor per channel.
    """
    shape = _concrete_shape(value)
    axis %= len(shape)
    numbers = laid_along(np.arange(shape[axis]), axis, len(shape))
    walk = _PathWalk(set(outputs))
    walk.follow(value, np.broadcast_to(numbers, shape))
    return walk.found


def _concrete_shape(value: Value) -> tuple[int, ...]:
    """Returns the shape with 1 for every symbolic extent."""
    if value.type.shape is None:
        raise PathRefused(f"the shape of {value.name!r} is not known")
    return tuple(d if isinstance(d, int) else 1 for d in value.type.shape)


@dataclass(slots=True, eq=False)
class _PathWalk:
    outputs: set[Value]
    found: Reach = field(default_factory=Reach)

    def follow(self, value: Value, numbers: Numbers) -> None:
        if value in self.outputs:
            raise PathRefused(f"{value.name!r} leaves the graph")
        for node, index in value.users:
            self._pass(node, index, numbers)

    def _pass(self, node: Node, index: int, numbers: Numbers) -> None:
        name, layer = node.op.name, layer_of(node)
        if layer is not None and index == 0:
            channels = _channel_numbers(numbers, layer.operand_axis, node)
            if len(channels) != layer.inputs:
                raise PathRefused(f"{_describe_node(node)} reads other channels")
            self.found.ends.append(End(layer, channels))
        elif name in ("Add", "Sub") and _other_is_constant(node, index):
            self.found.constants.append((node, 1 - index, numbers))
            self.follow(node.output, _with_other(node, index, numbers))
        elif name == "Mul" or (name in ("Div", "PRelu") and index == 0):
            if not _other_is_constant(node, index):
                raise PathRefused(f"{_describe_node(node)} joins two tensors")
            self.follow(node.output, _with_other(node, index, numbers))
        else:
            if name == "Clip":
                self.found.clips.append(node)
            for value, moved in zip(node.outputs, _moved(node, index, numbers), strict=False):
                self.follow(value, moved)


def _describe_node(node: Node) -> str:
    return f"{node.op.name} {node.name!r}"


def _other_is_constant(node: Node, index: int) -> bool:
    return len(node.inputs) == 2 and node.operand(1 - index).is_constant


def _with_other(node: Node, index: int, numbers: Numbers) -> Numbers:
    other = node.operand(1 - index).constant
    assert other is not None
    return np.broadcast_to(numbers, np.broadcast_shapes(numbers.shape, other.shape))


def _channel_numbers(numbers: Numbers, axis: int, node: Node) -> Numbers:
    """Returns the channels along ``axis`` where they vary along nothing else."""
    lines = np.moveaxis(numbers, axis, 0).reshape(numbers.shape[axis], -1)
    if not lines.size or (lines != lines[:, :1]).any():
        raise PathRefused(f"{_describe_node(node)} mixes channels")
    return lines[:, 0]


def _moved(node: Node, index: int, numbers: Numbers) -> list[Numbers]:
    """Returns the channels of the results of an operator that keeps a factor per channel."""
    name, attributes = node.op.name, node.attributes
    if node.op in _HOMOGENEOUS or isinstance(attributes, ClipAttrs):
        return [numbers]
    if name in _IMAGES:
        return [_image(node, numbers)]
    if name in _REDUCTIONS and isinstance(attributes, ReduceAttrs):
        return [_reduced(node, attributes, numbers)]
    if node.op.flow is Flow.MOVE:
        return _through_node(node, index, numbers)
    several = sum(not v.is_constant for _, v in node.data_operands()) > 1
    raise PathRefused(
        f"{_describe_node(node)} " + ("joins two tensors" if several else "keeps no factor")
    )


def _image(node: Node, numbers: Numbers) -> Numbers:
    """Pools, resampling and padding with zeros: axis 1 stays what it is."""
    attributes = node.attributes
    if isinstance(attributes, PadAttrs) and attributes.mode == "constant" and attributes.value:
        raise PathRefused(f"{_describe_node(node)} adds numbers that are not zero")
    if isinstance(attributes, ResizeAttrs) and attributes.extrapolation_value:
        raise PathRefused(f"{_describe_node(node)} adds numbers that are not zero")
    shape = _concrete_shape(node.output)
    channels = _channel_numbers(numbers, 1, node)
    if len(shape) != numbers.ndim or shape[1] != len(channels):
        raise PathRefused(f"{_describe_node(node)} changes the channels")
    return np.broadcast_to(channels.reshape(1, -1, *[1] * (len(shape) - 2)), shape)


def _reduced(node: Node, attributes: ReduceAttrs, numbers: Numbers) -> Numbers:
    least = numbers.min(axis=attributes.axes, keepdims=attributes.keepdims)
    if (least != numbers.max(axis=attributes.axes, keepdims=attributes.keepdims)).any():
        raise PathRefused(f"{_describe_node(node)} mixes channels")
    return least


def _through_node(node: Node, index: int, numbers: Numbers) -> list[Numbers]:
    operands: list[NDArray[Any] | None] = []
    for i, value in enumerate(node.inputs):
        if i == index:
            operands.append(np.ascontiguousarray(numbers))
        elif value is not None and value.constant is None:
            raise PathRefused(f"{_describe_node(node)} is told at run time what to do")
        else:
            operands.append(None if value is None or not value.constant else value.constant.numpy())
    compute: Callable[..., Any] = node.op.compute
    try:
        return [np.asarray(result) for result in compute(node.attributes, operands)]
    except (ValueError, IndexError) as error:  # NumPy's word for shapes that do not fit
        raise PathRefused(f"{_describe_node(node)} needs extents that are symbolic") from error
