"""Where arrays lie in one block of memory: those that are needed at the same time apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqbridge.errors import GraphError

ALIGNED = 8
"""Bytes: what the largest element type wants."""


@dataclass(frozen=True, slots=True)
class ArenaNeed:
    """An array, and when it is needed.

    Attributes:
        nbytes: Its size.
        first: The step that writes it.
        last: The last step that reads it.
    """

    nbytes: int
    first: int
    last: int

    def meets(self, other: ArenaNeed) -> bool:
        """True where both are needed in one step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Arena:
    """Where arrays lie.

    Attributes:
        offsets: One per array, in bytes.
        nbytes: The size of the whole.
    """

    offsets: tuple[int, ...]
    nbytes: int


def arena(needs: Sequence[ArenaNeed]) -> Arena:
    """Returns a place for every array, the largest ones first, each as low as it can be.

    Raises:
        GraphError: Two that are needed together overlap, which would be an error of this function.
    """
    offsets = [0] * len(needs)
    done: list[int] = []
    for index in sorted(range(len(needs)), key=lambda i: (-needs[i].nbytes, i)):
        own = needs[index]
        taken = sorted(
            (offsets[i], offsets[i] + needs[i].nbytes) for i in done if needs[i].meets(own)
        )
        place = 0
        for begin, end in taken:
            if place + own.nbytes <= begin:
                break
            place = max(place, -(-end // ALIGNED) * ALIGNED)
        offsets[index] = place
        done.append(index)
    size = max((o + n.nbytes for o, n in zip(offsets, needs, strict=True)), default=0)
    found = Arena(tuple(offsets), -(-size // ALIGNED) * ALIGNED)
    _prove(needs, found)
    return found


def _prove(needs: Sequence[ArenaNeed], found: Arena) -> None:
    """Sees that no two arrays share a byte in a step in which both are needed."""
    for i, one in enumerate(needs):
        begin, end = found.offsets[i], found.offsets[i] + one.nbytes
        if begin % ALIGNED or end > found.nbytes:
            raise GraphError("an array lies outside of the arena", where=f"array {i}")
        for j in range(i):
            other = found.offsets[j]
            apart = end <= other or other + needs[j].nbytes <= begin
            if not apart and one.meets(needs[j]):
                raise GraphError("two arrays of the arena overlap", where=f"arrays {j} and {i}")
