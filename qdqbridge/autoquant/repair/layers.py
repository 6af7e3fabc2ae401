"""Products with a constant weight, all seen alike: groups x results x operands x taps.

A weight of whatever operator is one array ``[groups, out / groups, in / groups, taps]``, so that
what is said of channels is said once: a depthwise convolution has one result and one operand in
each group, a matrix has one group and one tap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import WeightGeometry, geometry_of
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs
from qdqbridge.core.ops.matmul import GEMM
from qdqbridge.core.ops.normalization import (
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
    RMS_NORMALIZATION,
)

Array = NDArray[Any]
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ProductLayer:
    """A product ``op(x, w)`` with a float32 constant ``w``.

    Attributes:
        node: The product.
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
    if node.op in (LAYER_NORMALIZATION, RMS_NORMALIZATION):
        return Norm(node, first.shape[0], -1)
    if node.op in (INSTANCE_NORMALIZATION, GROUP_NORMALIZATION):
        return Norm(node, first.shape[0], 1)
    return None


def is_float32(value: Value) -> bool:
    """True for plain float32 tensors."""
    return isinstance(value.type, TensorType) and str(value.type.dtype) == "float32"


def along(vector: Array, axis: int, rank: int) -> Array:
    """Returns a vector shaped to lie along ``axis`` of a tensor of ``rank`` axes."""
    return vector.reshape([-1 if i == axis % rank else 1 for i in range(rank)])
