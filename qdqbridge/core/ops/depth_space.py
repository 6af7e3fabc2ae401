"""DepthToSpace and SpaceToDepth as steps: axes split into six, permuted, and joined again.

Letters name the six axes: ``n`` batch, ``d`` the channels beside a block, ``y`` and ``x`` the
block, ``h`` and ``w`` the image whose pixels are blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WIDE = ("n", "d", "hy", "wx")


@dataclass(frozen=True, slots=True)
class BlockSteps:
    """What becomes of the axes.

    Attributes:
        split: What each axis of the operand is split into, from the outside.
        joined: What each axis of the result is joined of.
    """

    split: tuple[str, ...]
    joined: tuple[str, ...]

    @property
    def perm(self) -> tuple[int, ...]:
        """The permutation of the six axes."""
        before = "".join(self.split)
        return tuple(before.index(letter) for letter in "".join(self.joined))

    def channels_last(self) -> BlockSteps:
        """Returns the same for images whose channels are the last axis."""
        return BlockSteps(*((n, h, w, c) for n, c, h, w in (self.split, self.joined)))

    def extents(self, shape: Sequence[Any], size: int) -> Mapping[str, Any]:
        """Returns the extent of each letter.

        Args:
            shape: Extents of the operand: numbers, expressions, or None for open ones.
            size: The extent of a block.
        """
        found: dict[str, Any] = {"y": size, "x": size}
        for group, extent in zip(self.split, shape, strict=True):
            (letter,) = (each for each in group if each not in found)
            blocks = size ** (len(group) - 1)
            found[letter] = extent if extent is None or len(group) == 1 else extent // blocks
        return found

    def between(self, shape: Sequence[Any], size: int) -> tuple[Any, ...]:
        """Returns the extents of the six axes before they are permuted."""
        extents = self.extents(shape, size)
        return tuple(extents[letter] for letter in "".join(self.split))

    def result(self, shape: Sequence[Any], size: int) -> tuple[Any, ...]:
        """Returns the extents of the result."""
        extents = self.extents(shape, size)
        made: list[Any] = []
        for group in self.joined:
            (letter,) = (each for each in group if each not in "yx")
            extent = extents[letter]
            for _ in group[1:]:
                extent = None if extent is None else extent * size
            made.append(extent)
        return tuple(made)


STEPS: Mapping[tuple[str, str], BlockSteps] = {
    ("DepthToSpace", "DCR"): BlockSteps(("n", "yxd", "h", "w"), _WIDE),
    ("DepthToSpace", "CRD"): BlockSteps(("n", "dyx", "h", "w"), _WIDE),
    ("SpaceToDepth", "DCR"): BlockSteps(_WIDE, ("n", "yxd", "h", "w")),
}
"""By operator and mode, of images whose channels are the second axis."""
