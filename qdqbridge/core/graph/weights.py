"""How the second operand of a product lies: which axis numbers the results, and what is summed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from qdqbridge.core.graph.graph import Node
    from qdqbridge.core.graph.operator import Attributes, Operator

Array: TypeAlias = "NDArray[Any]"


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
        return math.prod(shape) // max(shape[self.axis] * self.tiles, 1)

    def depthwise(self, shape: tuple[int | str, ...]) -> bool:
        """Returns whether sums run over the taps of one channel."""
        alone = shape[0] == self.tiles if self.tiles > 1 else shape[1] == 1
        return self.image and self.groups > 1 and alone

    def alone(self, shape: tuple[int | str, ...]) -> bool:
        """Returns whether each channel of an image makes one of the result, and no other."""
        return self.image and self.tiles == 1 and shape[1] == 1 and shape[0] == self.groups

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
    """Returns how the weight of a product lies, as its row says.

    Args:
        op: The product.
        attributes: Its attributes.
        rank: Rank of the weight.

    Returns:
        None for a vector, whose product has no channels, and for what is not a product.
    """
    return None if op.weight is None else op.weight(attributes, rank)


def geometry_of(node: Node) -> WeightGeometry | None:
    """Returns how operand 1 of a node lies; see :func:`weight_geometry`."""
    return weight_geometry(node.op, node.attributes, node.operand(1).rank)
