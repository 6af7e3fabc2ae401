"""What files say of packed weights beyond the operators that these are read as: variants."""

from __future__ import annotations

from dataclasses import dataclass

_NAME = "MatMulNBits"
OWN_ORDER, PERMUTED = "own", "permuted"
EIGHT_BITS = 4
"""The accuracy_level that wants activations of 8 bits; the others are float32."""
_PAIRS, _BLOCKS_OF_PAIRS = 2, (32, 64, 128)
"""Codes of 2 bits, and their blocks that onnxruntime 1.32 multiplies in 8 bits."""


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """How a file writes a product with a packed weight.

    Attributes:
        accuracy_level: The attribute, None where the file leaves it out.
        zero_points: ``packed``, ``float``, or empty where the file leaves them out.
        order: It has a ``g_idx``: ``own``, which gives columns the blocks that they have anyway, or
            ``permuted``, where a Gather puts activations into the order of the blocks.
        bias: It adds a bias itself.
        block_size: How many neighbours of a row share a scale; 0 where that is not known.
    """

    accuracy_level: int | None = None
    zero_points: str = ""
    order: str = ""
    bias: bool = False
    block_size: int = 0

    def rounds(self, bits: int) -> bool:
        """True where onnxruntime 1.32 rounds the activations to 8 bits.

        Args:
            bits: Bits of a code of the weight.
        """
        rounding = (
            self.accuracy_level == EIGHT_BITS and self.zero_points != "float" and not self.order
        )
        return rounding and (bits != _PAIRS or self.block_size in _BLOCKS_OF_PAIRS)

    def text(self) -> str:
        """Returns the variant of a graph node."""
        flags = [self.zero_points, self.order, "bias" if self.bias else ""]
        level = "" if self.accuracy_level is None else str(self.accuracy_level)
        size = str(self.block_size) if self.block_size else ""
        return f"{_NAME}({','.join([level, *flags, size])})"


def packed_product(variant: str) -> PackedProduct | None:
    """Returns what the variant of a graph node says of a MatMulNBits; None where it is none."""
    if not variant.startswith(f"{_NAME}("):
        return None
    level, zero_points, order, bias, size = variant[len(_NAME) + 1 : -1].split(",")
    return PackedProduct(
        int(level) if level else None, zero_points, order, bool(bias), int(size or 0)
    )


_GATHER = "GatherBlockQuantized"


@dataclass(frozen=True, slots=True)
class PackedGather:
    """How a file writes a Gather of a packed table.

    Attributes:
        storage: ``uint8``, whose bytes hold codes, or the type of the codes.
        zero_points: It states them.
        axis: Along which axis codes are in blocks.
        block_size: How many neighbours share a scale.
    """

    storage: str
    zero_points: bool
    axis: int
    block_size: int

    def text(self) -> str:
        """Returns the variant of a graph node."""
        zeros = "zeros" if self.zero_points else ""
        return f"{_GATHER}({self.storage},{zeros},{self.axis},{self.block_size})"


def packed_gather(variant: str) -> PackedGather | None:
    """Returns what the variant of a graph node says of a GatherBlockQuantized, if it was one."""
    if not variant.startswith(f"{_GATHER}("):
        return None
    storage, zeros, axis, size = variant[len(_GATHER) + 1 : -1].split(",")
    return PackedGather(storage, bool(zeros), int(axis), int(size))
