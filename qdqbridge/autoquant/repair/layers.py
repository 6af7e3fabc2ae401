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

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.types import TensorType
from qdqbridge.ops.attributes import ConvAttrs, ConvTransposeAttrs, GemmAttrs
from qdqbridge.ops.matmul import DENSE
from qdqbridge.ops.normalization import (
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
    RMS_NORMALIZATION,
)

Array = NDArray[Any]
Vector = NDArray[np.float64]
_MATRICES = ("Gemm", "MatMul", "Dense")


@dataclass(frozen=True, slots=True, eq=False)
class ProductLayer:
    """A product ``op(x, w)`` with a float32 constant ``w``.

    Attributes:
        node: The product.
        groups: Number of groups; 1 for matrices.
        outputs: Number of result channels.
        inputs: Number of operand channels.
    """

    node: Node
    groups: int
    outputs: int
    inputs: int

    @property
    def weight(self) -> Array:
        """The weight as the operator has it."""
        constant = self.node.operand(1).constant
        assert constant is not None
        return constant.numpy()

    @property
    def operand_axis(self) -> int:
        """The axis of the operand that numbers its channels, counted from the end for matrices."""
        return -1 if self.node.op.name in _MATRICES else 1

    @property
    def result_axis(self) -> int:
        """The axis of the result that numbers its channels, counted from the end for matrices."""
        return self.operand_axis

    def grid(self, weight: Array) -> Array:
        """Returns ``weight`` as ``[groups, out / groups, in / groups, taps]``, a view if it can."""
        name = self.node.op.name
        if name in _MATRICES:
            return (weight if self._rows_first() else weight.T)[None, :, :, None]
        split = weight.reshape(self.groups, weight.shape[0] // self.groups, weight.shape[1], -1)
        return split if name == "Conv" else split.transpose(0, 2, 1, 3)

    def ungrid(self, grid: Array) -> Array:
        """Returns the weight whose grid is given."""
        name, shape = self.node.op.name, self.weight.shape
        if name in _MATRICES:
            return grid[0, :, :, 0] if self._rows_first() else grid[0, :, :, 0].T
        split = grid if name == "Conv" else grid.transpose(0, 2, 1, 3)
        return np.ascontiguousarray(split).reshape(shape)

    def _rows_first(self) -> bool:
        attributes = self.node.attributes
        if isinstance(attributes, GemmAttrs):
            return attributes.trans_b
        return self.node.op is DENSE

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
    """Returns a product as a layer; None for other nodes, and for weights that are computed."""
    weight = node.optional(1)
    if weight is None or weight.constant is None or not is_float32(weight):
        return None
    shape, attributes = weight.constant.shape, node.attributes
    match node.op.name:
        case "Conv" if isinstance(attributes, ConvAttrs):
            return ProductLayer(node, attributes.group, shape[0], shape[1] * attributes.group)
        case "ConvTranspose" if isinstance(attributes, ConvTransposeAttrs):
            return ProductLayer(node, attributes.group, shape[1] * attributes.group, shape[0])
        case "Gemm" if isinstance(attributes, GemmAttrs) and not attributes.trans_a:
            rows, columns = shape if attributes.trans_b else shape[::-1]
            return ProductLayer(node, 1, rows, columns)
        case "Dense":
            return ProductLayer(node, 1, shape[0], shape[1])
        case "MatMul" if len(shape) == 2:
            return ProductLayer(node, 1, shape[1], shape[0])
        case _:
            return None


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
