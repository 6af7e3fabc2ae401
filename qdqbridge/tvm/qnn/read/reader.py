"""One call as the rows that read it see it: values, attributes, results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Note, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow
from qdqbridge.core.graph.types import QuantType, Shape, TensorType, ValueType, static_shape
from qdqbridge.core.ops.attributes import AxesAttrs, ReshapeAttrs, TransposeAttrs
from qdqbridge.core.ops.build import permuted_type
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.tvm.qnn import read
from qdqbridge.tvm.qnn.read.call import Call, Entry, constant_of, constant_value
from qdqbridge.tvm.qnn.read.reading import Reading, Row, flat

Ints: TypeAlias = "tuple[int, ...]"
Read: TypeAlias = "Entry | list[Value]"
"""What a row makes of a call."""
WITHOUT_PROVENANCE = "unrecorded"
"""Form of a transpose or reshape of which nothing says that it is more than a layout."""
TO_LAST, TO_FIRST = "to channels-last", "to channels-first"
"""Forms of a transpose or reshape of which a span says that it is a layout."""
CONVERTED, AS_WRITTEN = "carried", "as written"
"""Forms of a node whose span says that emission made it channels-last, and that it did not."""


@dataclass(frozen=True, slots=True, eq=False)
class CallReader:
    """A call, and the reading that it belongs to.

    Attributes:
        reading: The graph so far.
        call: The call in plain Python.
    """

    reading: Reading
    call: Call

    # ---- operands -----------------------------------------------------------------------------

    def value(self, index: int) -> Value:
        """Returns operand ``index``, one tensor."""
        return self.reading.value(self.call.args[index])

    def values(self, index: int) -> tuple[Value, ...]:
        """Returns the tensors of operand ``index``, a tuple (or the one tensor that it is)."""
        return tuple(self.reading.value(entry) for entry in flat([self.call.args[index]]))

    def real(self, index: int) -> Value:
        """Returns operand ``index`` as plain numbers: stored integers lose their meaning."""
        return self.plain(self.value(index))

    def plain(self, value: Value) -> Value:
        """Returns stored integers as a plain integer tensor."""
        return self.reading.plain(value)

    def array(self, index: int) -> NDArray[Any] | None:
        """Returns the elements of operand ``index`` where it is a constant expression."""
        return constant_of(self.value(index))

    # ---- attributes ---------------------------------------------------------------------------

    def ints(self, name: str, default: Sequence[int] = ()) -> Ints:
        """Returns an attribute that is a list of integers (or one integer)."""
        value = self.call.attrs.get(name)
        if value is None:
            return tuple(default)
        if isinstance(value, int):
            return (value,)
        if any(not isinstance(entry, int) for entry in value):
            raise self.refusal(f"its {name} is not known before the model runs")
        return tuple(value)

    def integer(self, name: str, default: int = 0) -> int:
        """Returns an attribute that is an integer."""
        return default if self.call.get(name) is None else self.call.integer(name)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Returns an attribute that is true or false."""
        value = self.call.attrs.get(name)
        return default if value is None else bool(value)

    def number(self, name: str, default: float = 0.0) -> float:
        """Returns an attribute that is a float32 number."""
        value = self.call.attrs.get(name)
        return float(np.float32(default if value is None else value))

    def text(self, name: str, default: str = "") -> str:
        """Returns an attribute that is a string."""
        value = self.call.attrs.get(name)
        return default if value is None else str(value)

    def axis(self, name: str = "axis", default: int = -1, *, rank: int | None = None) -> int:
        """Returns an axis of operand 0 (or of ``rank`` axes), counted from the front."""
        axis = self.integer(name, default)
        if rank is None:
            rank = len(self.shape(self.values(0)[0]))
        return axis + rank if axis < 0 else axis

    # ---- types --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Relay's name of the operator."""
        return self.call.op

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of the results."""
        return tuple(TensorType(DType.of(np.dtype(r.dtype)), r.shape) for r in self.call.results)

    @property
    def result(self) -> TensorType:
        """The type of the first result."""
        return self.results[0]

    def shape(self, value: Value) -> tuple[Any, ...]:
        """Returns the extents of ``value``; Relay knows every rank."""
        assert value.type.shape is not None
        return tuple(value.type.shape)

    def static(self, value: Value) -> Ints:
        """Returns the extents of ``value``, which must all be known."""
        shape = static_shape(value.type.shape)
        if shape is None:
            raise self.refusal("an extent is not known before the model runs")
        return shape

    def extents(self) -> Ints:
        """Returns the extents of the first result, which must all be known."""
        return self.static(Value(self.result))

    # ---- building -----------------------------------------------------------------------------

    def emit(
        self,
        op: str,
        operands: Sequence[Value | None],
        attributes: Attributes = NO_ATTRIBUTES,
        type_: ValueType | None = None,
    ) -> Value:
        """Returns the result of a new node; data movement keeps the operand's parameters.

        Args:
            op: The row's name.
            type_: The type of the result; by default that of this call's first result.
        """
        type_ = self.result if type_ is None else type_
        first = operands[0] if operands else None
        if BY_NAME[op].flow is Flow.MOVE and first is not None and isinstance(type_, TensorType):
            type_ = moved_type(first, type_)
        return self.reading.node(op, attributes, operands, type_, self.call)

    def shared(self) -> Read:
        """Returns what the row that hosts share makes of the call."""
        return read.ROWS[self.call.op](self.reading, self.call)

    def constant(self, array: NDArray[Any]) -> Value:
        """Returns a constant of the elements of ``array``."""
        return constant_value(array)

    def reshaped(self, value: Value, shape: Shape) -> Value:
        """Returns ``value`` in another shape."""
        if value.type.shape == shape:
            return value
        assert shape is not None
        target = tuple(extent if isinstance(extent, int) else -1 for extent in shape)
        return self.emit(
            "Reshape", [value], ReshapeAttrs(target), TensorType(value.type.dtype, shape)
        )

    def transposed(self, value: Value, perm: Ints, *, layout: bool = False) -> Value:
        """Returns ``value`` with its axes permuted.

        Args:
            value: Any tensor.
            perm: Axis i of the result is axis ``perm[i]`` of the value.
            layout: The transposition stands for a layout and may be cancelled.
        """
        if perm == tuple(range(len(perm))):
            return value
        type_ = permuted_type(value.type, perm)
        call = None if layout else self.call  # what comes from no call may be cancelled
        return self.reading.node("Transpose", TransposeAttrs(perm), [value], type_, call)

    def unsqueezed(self, value: Value, axes: Ints) -> Value:
        """Returns ``value`` with extents 1 inserted at ``axes`` of the result."""
        if not axes:
            return value
        shape = list(self.shape(value))
        for axis in sorted(axes):
            shape.insert(axis, 1)
        type_ = TensorType(value.type.dtype, tuple(shape))
        return self.emit("Unsqueeze", [value], AxesAttrs(tuple(sorted(axes))), type_)

    def note(self, rule: str, reason: str) -> None:
        """Leaves a remark about this call."""
        notes: list[Note] = self.reading.memory.setdefault(("notes",), [])
        notes.append(Note(rule, self.call.name, reason))

    def refusal(self, why: str) -> UnsupportedModelError:
        """Returns the error that says why this call cannot be read."""
        return UnsupportedModelError("this form of it has no counterpart", why=why)


def moved_type(value: Value, type_: TensorType) -> ValueType:
    """Returns the type of moved stored integers: that of the integers where it can be kept."""
    quant = value.quant
    if quant is None or not quant.params.per_tensor or quant.dtype is not type_.dtype:
        return type_
    return QuantType(quant.params, type_.shape)


def rows_of(rows: Mapping[str, Callable[[CallReader], Read]]) -> dict[str, Row]:
    """Returns rows that take a site as rows like all others."""

    def taking(row: Callable[[CallReader], Read]) -> Row:
        return lambda reading, call: row(CallReader(reading, call))

    return {name: taking(row) for name, row in rows.items()}
