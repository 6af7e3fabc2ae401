"""The words that rules are written in: predicates over one node of a file, and what is said of it.

A predicate is true of a node or not; ``&``, ``|`` and ``~`` combine them. ``X``, ``W``, ``BIAS``
and ``Y`` are the stored tensors around a node, by their parameters::

    when(op("Pad") & mode("constant") & X.signed & ~X.zero_in(0, MAX),
         "'{x}' is {x.dtype} with zero point {x.zero}", "x")

is a check: it gives a reason where the predicate is true. In its text ``{x}`` is the tensor's name.
What is unknown is not so: a predicate about a tensor that is not stored is false.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeAlias

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.finding import Check, Effect, Reason

Test: TypeAlias = "Callable[[FileView, FileNode], bool]"
Find: TypeAlias = "Callable[[FileView, FileNode], FileEncoding | None]"
MIN, MAX = "MIN", "MAX"
"""Zero points at the ends of whatever type is stored."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """What is true of a node, or not.

    Attributes:
        test: Says which.
    """

    test: Test

    def __and__(self, other: Predicate) -> Predicate:
        return Predicate(lambda view, node: self.test(view, node) and other.test(view, node))

    def __or__(self, other: Predicate) -> Predicate:
        return Predicate(lambda view, node: self.test(view, node) or other.test(view, node))

    def __invert__(self) -> Predicate:
        return Predicate(lambda view, node: not self.test(view, node))


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored tensor beside a node, or of it: the parameters of its Q or DQ.

    Attributes:
        name: What texts call it.
        find: Returns its parameters, None where it is not stored.
    """

    name: str
    find: Find

    def has(self, test: Callable[[FileEncoding], bool]) -> Predicate:
        """Returns a predicate over its parameters."""
        find = self.find
        return Predicate(lambda view, node: (own := find(view, node)) is not None and test(own))

    @property
    def known(self) -> Predicate:
        """True where it is stored."""
        return self.has(lambda own: True)

    @property
    def signed(self) -> Predicate:
        """True where it is int8 or int16."""
        return self.of(DType.INT8, DType.INT16)

    @property
    def symmetric(self) -> Predicate:
        """True where every zero point is known to be 0."""
        return self.has(lambda own: own.symmetric)

    @property
    def per_tensor(self) -> Predicate:
        """True where one scale holds for all of it."""
        return self.has(lambda own: own.per_tensor)

    @property
    def channels(self) -> Predicate:
        """True where it has several scales, or ones that are not constant."""
        return self.has(lambda own: not own.per_tensor)

    @property
    def scales(self) -> Predicate:
        """True where it is known to have several scales."""
        return self.has(lambda own: own.scale is not None and not own.per_tensor)

    @property
    def blocks(self) -> Predicate:
        """True where it is quantized in blocks."""
        return self.has(lambda own: bool(own.block_size))

    @property
    def written(self) -> Predicate:
        """True where the zero point is written."""
        return self.has(lambda own: own.explicit)

    @property
    def constant(self) -> Predicate:
        """True where what is stored is a constant."""
        find = self.find

        def test(view: FileView, node: FileNode) -> bool:
            own = find(view, node)
            return own is not None and view.is_constant(own.node.input(0))

        return Predicate(test)

    @property
    def entering(self) -> Predicate:
        """True where no node makes what is stored."""
        find = self.find

        def test(view: FileView, node: FileNode) -> bool:
            own = find(view, node)
            return own is not None and view.producer(own.node.input(0)) is None

        return Predicate(test)

    def of(self, *dtypes: DType | None) -> Predicate:
        """Returns a predicate: it is of one of these types."""
        return self.has(lambda own: own.dtype in dtypes)

    def zero_in(self, *points: int | str) -> Predicate:
        """Returns a predicate: its one zero point is one of these; see ``MIN`` and ``MAX``."""

        def test(own: FileEncoding) -> bool:
            ends = {} if own.dtype is None else {MIN: own.dtype.qmin, MAX: own.dtype.qmax}
            return own.zero() in [ends.get(p) if isinstance(p, str) else p for p in points]

        return self.has(test)


def operand(index: int, name: str) -> Stored:
    """Returns what is dequantized to an operand."""
    return Stored(name, lambda view, node: view.dequantized(node.input(index)))


def _result(view: FileView, node: FileNode) -> FileEncoding | None:
    found = view.quantized(node.output) if node.outputs else []
    return found[0] if found else None


def _converted(view: FileView, node: FileNode) -> FileEncoding | None:
    """Returns the parameters of a Q or DQ node that runs."""
    if is_dequantize(node) or (is_quantize(node) and not view.is_constant(node.input(0))):
        return view.encoding(node)
    return None


X, W, BIAS = operand(0, "x"), operand(1, "w"), operand(2, "bias")
Y = Stored("y", _result)
"""The result, as the first QuantizeLinear behind it stores it."""
OWN = Stored("own", _converted)
"""The parameters of a node that is itself a Q or a DQ."""
_NAMED = {side.name: side.find for side in (X, W, BIAS, Y, OWN)}

QUANTIZES = Predicate(lambda _, node: is_quantize(node))
DEQUANTIZES = Predicate(lambda _, node: is_dequantize(node))
PARAMETER = DEQUANTIZES & Predicate(lambda view, node: view.is_constant(node.input(0)))
"""The DQ of a constant."""
FOLDED = Predicate(lambda view, node: view.is_constant(node.output))
"""What is computed of constants alone, so that no runtime runs it."""


LEAVES = Predicate(
    lambda view, node: any(
        own.node.output in view.outputs for own in view.quantized(node.output)[:1]
    )
)
"""What is stored as an output of the graph."""
OTHER_DOMAIN = Predicate(lambda _, node: "::" in node.op)
"""An operator that is not ONNX's own."""


def op(*names: str) -> Predicate:
    """Returns a predicate: the node is one of these operators, its domain in front of the name."""
    known = frozenset(names)
    return Predicate(lambda _, node: node.op in known)


def domain(*names: str) -> Predicate:
    """Returns a predicate: the operator is of one of these domains, ``""`` is ONNX's own."""
    return Predicate(lambda _, node: node.domain in names)


def attribute(name: str, test: Callable[[Any], bool], default: object = None) -> Predicate:
    """Returns a predicate over an attribute, texts decoded."""

    def found(_: FileView, node: FileNode) -> bool:
        value = node.attributes.get(name, default)
        return test(value.decode() if isinstance(value, bytes) else value)

    return Predicate(found)


def mode(name: str) -> Predicate:
    """Returns a predicate: the attribute ``mode`` is this, ``constant`` where it is left out."""
    return attribute("mode", lambda value: value == name, "constant")


def constant(index: int) -> Predicate:
    """Returns a predicate: the operand is a constant."""
    return Predicate(lambda view, node: view.is_constant(node.input(index)))


def rank(test: Callable[[int], bool], index: int = 0) -> Predicate:
    """Returns a predicate over an operand's number of axes, 0 where it is not known."""
    return Predicate(lambda view, node: test(view.rank(node.input(index)) or 0))


class _Shown:
    """What a text may say of a stored tensor."""

    def __init__(self, own: FileEncoding | None) -> None:
        self._own = own
        points = None if own is None else own.zero_point
        known = points is not None and points.size > 0
        written = own is not None and own.explicit
        self.dtype = None if own is None else own.dtype
        self.scales = 0 if own is None or own.scale is None else own.scale.size
        self.zero = 0 if own is None else own.zero()
        unknown = "unknown" if written else 0
        self.point = int(points.reshape(-1)[0]) if known and points is not None else unknown
        self.block_size = 0 if own is None else own.block_size
        self.axis = 0 if own is None else own.axis

    def __str__(self) -> str:
        if self._own is None:
            return ""
        node = self._own.node
        return node.output if is_quantize(node) else node.input(0)


def when(
    predicate: Predicate, text: str, *tensors: str, steps: int = 0, effect: Effect | None = None
) -> Check:
    """Returns a check that gives a reason where a predicate is true.

    Args:
        text: One sentence. ``{x}``, ``{w}``, ``{bias}``, ``{y}`` and ``{own}`` are stored tensors,
            with ``dtype``, ``zero`` (0 where it has several), ``point`` (the first), ``scales``,
            ``block_size`` and ``axis``; ``{node}``, ``{inputs}`` and ``{output}`` are the node and
            its tensors.
        tensors: The tensors concerned: ``x``, ``output``, ``inputs[1]``, or a text's field.
        steps: See :class:`~qdqbridge.targets.profiles.finding.Reason`.
        effect: See there.
    """
    fields = [f"{{{name}}}" for name in tensors]

    def check(view: FileView, node: FileNode) -> Reason | None:
        if not predicate.test(view, node):
            return None
        said: dict[str, object] = {
            name: _Shown(find(view, node))
            for name, find in _NAMED.items()
            if f"{{{name}" in text or name in tensors
        }
        said |= {"node": node, "inputs": node.inputs}
        said["output"] = node.output if node.outputs else ""
        concerned = tuple(field.format_map(said) for field in fields)
        return Reason(text.format_map(said), concerned, steps, effect)

    return check


def where(predicate: Predicate, check: Check) -> Check:
    """Returns a check of the nodes that a predicate is true of."""
    return lambda view, node: check(view, node) if predicate.test(view, node) else None


def first(*checks: Check) -> Check:
    """Returns a check that gives the first reason that one of these gives."""
    return lambda view, node: next(_reasons(checks, view, node), None)


def _reasons(checks: Iterable[Check], view: FileView, node: FileNode) -> Iterator[Reason]:
    return (found for check in checks if (found := check(view, node)) is not None)


# ---- What was measured of an engine: a table that ``scripts/engines/engine_patterns.py`` writes
#
# A row for each operator between DequantizeLinear and QuantizeLinear, and a column for each type:
# the most axes up to which it is taken; ``left`` where the engine leaves it to something slower,
# and ``refused`` where the file does not load. What results are worth is not in it: rules say
# that.

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
    """An engine's table."""

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
