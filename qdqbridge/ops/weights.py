"""How the second operand of a product lies: which axis numbers the results, and what is summed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qdqbridge.graph.graph import Node
from qdqbridge.graph.operator import Array, Attributes, Operator
from qdqbridge.ops.attributes import ConvAttrs, ConvTransposeAttrs, GemmAttrs


@dataclass(frozen=True, slots=True)
class WeightGeometry:
    """The axes of a weight.

    Attributes:
        axis: The axis that numbers the channels of the result: of one group of them where
            ``tiles`` says that there are several. Scales per channel lie along it.
        groups: Groups of channels that are not summed over together.
        tiles: How often the axis goes through the channels of the result, once for each group of
            a ConvTranspose.
        image: True where the results' channels are on axis 1, False where they are on the last.
    """

    axis: int
    groups: int = 1
    tiles: int = 1
    image: bool = False

    def channels(self, shape: tuple[int, ...]) -> int:
        """Returns the number of channels of the result."""
        return shape[self.axis] * self.tiles

    def result_axis(self, rank: int) -> int:
        """Returns the axis of a result of ``rank`` axes that numbers its channels."""
        return 1 if self.image else rank - 1

    def terms(self, shape: tuple[int, ...]) -> int:
        """Returns how many products are summed to an element of the result, at most."""
        return math.prod(shape) // max(shape[self.axis], 1)

    def spread(self, along: Array) -> Array:
        """Returns numbers along the axis, or one for all, as the result's channels have them."""
        return np.tile(along, self.tiles) if along.ndim else along

    def rows(self, weight: Array) -> Array:
        """Returns the weight as one row of terms for each channel of the result."""
        if self.tiles > 1:
            split = weight.reshape(self.tiles, -1, *weight.shape[1:])
            weight = np.moveaxis(split, 2, 1).reshape(-1, split.shape[1], *weight.shape[2:])
        else:
            weight = np.moveaxis(weight, self.axis, 0)
        return weight.reshape(len(weight), -1)


def weight_geometry(
    op: Operator, attributes: Attributes, rank: int | None
) -> WeightGeometry | None:
    """Returns how the weight of a product lies.

    Args:
        op: The product.
        attributes: Its attributes.
        rank: Rank of the weight.

    Returns:
        None for a vector, whose product has no channels, and for what is no product.
    """
    match attributes:
        case ConvAttrs():
            return WeightGeometry(0, attributes.group, image=True)
        case ConvTransposeAttrs():
            return WeightGeometry(1, attributes.group, attributes.group, image=True)
        case GemmAttrs():
            return WeightGeometry(0 if attributes.trans_b else 1)
        case _ if op.name == "Dense":
            return WeightGeometry(0)
        case _ if op.name == "MatMul" and rank is not None and rank > 1:
            return WeightGeometry(rank - 1)
        case _:
            return None


def geometry_of(node: Node) -> WeightGeometry | None:
    """Returns how operand 1 of a node lies; see :func:`weight_geometry`."""
    return weight_geometry(node.op, node.attributes, node.operand(1).rank)
