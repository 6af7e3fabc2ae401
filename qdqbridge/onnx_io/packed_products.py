"""What a MatMulNBits says beyond the product that it is read as, for writers: a variant."""

from __future__ import annotations

from dataclasses import dataclass

_NAME = "MatMulNBits"


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """How a file writes a product with a packed weight.

    Attributes:
        accuracy_level: The attribute, None where the file leaves it out.
        zero_points: ``packed``, ``float``, or empty where the file leaves them out.
        order: It has a ``g_idx``, which gives columns the blocks that they have anyway.
        bias: It adds a bias itself.
    """

    accuracy_level: int | None = None
    zero_points: str = ""
    order: bool = False
    bias: bool = False

    def text(self) -> str:
        """Returns the variant of a graph node."""
        flags = [self.zero_points, "order" if self.order else "", "bias" if self.bias else ""]
        level = "" if self.accuracy_level is None else str(self.accuracy_level)
        return f"{_NAME}({','.join([level, *flags])})"


def packed_product(variant: str) -> PackedProduct | None:
    """Returns what the variant of a graph node says of a MatMulNBits; None where it is none."""
    if not variant.startswith(f"{_NAME}("):
        return None
    level, zero_points, order, bias = variant[len(_NAME) + 1 : -1].split(",")
    return PackedProduct(int(level) if level else None, zero_points, bool(order), bool(bias))
