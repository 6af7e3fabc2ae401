"""What was measured of an engine: a table that ``scripts/engines/engine_patterns.py`` writes.

A row for each operator between DequantizeLinear and QuantizeLinear, and a column for each type:
the most axes up to which it is taken; ``left`` where the engine leaves it to something slower, and
``refused`` where the file does not load. What results are worth is not in it: rules say that.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.profiles.file_view import FileNode, FileView
from qdqbridge.targets.profiles.predicates import Predicate

COLUMNS: Mapping[str, DType] = {
    "u8": DType.UINT8, "s8": DType.INT8, "u16": DType.UINT16, "s16": DType.INT16,
}  # fmt: skip
LEFT, REFUSED = "left", "refused"
_IMAGE = 4


@dataclass(frozen=True, slots=True)
class Fact:
    """What is taken of one operator.

    Attributes:
        operator: Its name, without a domain.
        cells: By type, a cell of the table.
    """

    operator: str
    cells: Mapping[DType, str]

    @property
    def most_axes(self) -> int:
        """The most axes of any type, 0 where none is taken."""
        return max(int(cell) if cell.isdigit() else 0 for cell in self.cells.values())

    def takes(self, dtype: DType) -> bool:
        """True where the type is taken of images at least, which have four axes."""
        return self.cells[dtype].isdigit() and int(self.cells[dtype]) >= _IMAGE


class Facts:
    """An engine's table.

    Args:
        rows: Its rows.
    """

    def __init__(self, rows: Mapping[str, Fact]) -> None:
        self.rows = rows

    @classmethod
    def of(cls, lines: Iterable[str]) -> Facts:
        """Returns the table that these lines are; those behind ``#`` say how it was made."""
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        found = (
            Fact(row["operator"], {dtype: row[name] for name, dtype in COLUMNS.items()})
            for row in rows
        )
        return cls({fact.operator: fact for fact in found})

    @classmethod
    def shipped(cls, name: str) -> Facts:
        """Returns a table of this package: ``hexagon``."""
        text = files("qdqbridge.targets.profiles").joinpath(f"{name}.csv").read_text("utf-8")
        return cls.of(text.splitlines())

    def names(self, test: Callable[[Fact], bool]) -> frozenset[str]:
        """Returns the operators of which something is true."""
        return frozenset(name for name, fact in self.rows.items() if test(fact))

    def where(self, test: Callable[[Fact], bool]) -> Predicate:
        """Returns a predicate over a node's row; false where there is none."""
        known = self.names(test)
        return Predicate(lambda _, node: node.op in known)

    @property
    def left(self) -> Predicate:
        """What is left to something slower, whatever it is of."""
        return self.where(lambda fact: set(fact.cells.values()) == {LEFT})

    @property
    def refused(self) -> Predicate:
        """What does not load, whatever it is of."""
        return self.where(lambda fact: set(fact.cells.values()) == {REFUSED})

    @property
    def untaken(self) -> Predicate:
        """What is taken, and not of the type of its first operand."""
        of_type = {dtype: self.names(_all_but(dtype)) for dtype in COLUMNS.values()}

        def test(view: FileView, node: FileNode) -> bool:
            own = view.dequantized(node.input(0))
            return (
                own is not None and own.dtype is not None and node.op in of_type.get(own.dtype, ())
            )

        return Predicate(test)


def _all_but(dtype: DType) -> Callable[[Fact], bool]:
    """Returns whether an operator is taken, and not of a type."""
    return lambda fact: fact.most_axes > 0 and not fact.takes(dtype)
