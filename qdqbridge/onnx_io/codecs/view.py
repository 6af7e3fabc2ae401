"""Typed access to one ONNX node: attributes, operands, configuring constants, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, numpy_helper

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantType, Shape
from qdqbridge.errors import InvalidModelError
from qdqbridge.onnx_io.reading.constants import Folding
from qdqbridge.onnx_io.reading.structure import plain_domain

Ints = tuple[int, ...]
D = TypeVar("D")


class NoRow(Exception):
    """This form of an operator has no row in the operator table; the message says why.

    Raised inside codecs only; :func:`qdqbridge.onnx_io.codecs.decode` turns it into None.
    """


class NodeView:
    """One node as a codec sees it.

    Args:
        opset: Version of the node's domain.
        operands: One value per input, None where left out.
        file: File name, for messages.
        folding: Computes operands that the file writes as nodes; one for all nodes of a file.

    Raises:
        InvalidModelError: An attribute is given twice, or refers to a function's attribute.
    """

    __slots__ = ("_attributes", "file", "folding", "operands", "opset", "proto")

    def __init__(
        self,
        proto: onnx.NodeProto,
        opset: int,
        operands: Sequence[Value | None],
        file: str = "",
        folding: Folding | None = None,
    ) -> None:
        self.proto, self.opset, self.file = proto, opset, file
        self.folding = Folding() if folding is None else folding
        self.operands = list(operands)
        self._attributes: dict[str, AttributeProto] = {}
        for attribute in proto.attribute:
            if attribute.name in self._attributes:
                raise self.fault(
                    f"attribute '{attribute.name}' is given twice",
                    why="ONNX does not say which one counts",
                    fix="keep one of them",
                )
            if attribute.ref_attr_name:
                raise self.fault(
                    f"attribute '{attribute.name}' refers to an attribute of a function",
                    why=f"'{attribute.ref_attr_name}' exists only inside a function body",
                )
            self._attributes[attribute.name] = attribute

    @staticmethod
    def of_operands(op_type: str, operands: Sequence[Value | None]) -> NodeView:
        """Returns the view of a node whose attributes are held elsewhere."""
        return NodeView(onnx.NodeProto(op_type=op_type), 0, operands)

    @property
    def op_type(self) -> str:
        """ONNX's operator name."""
        return self.proto.op_type

    @property
    def domain(self) -> str:
        """The operator's domain, empty for ONNX itself."""
        return plain_domain(self.proto.domain)

    @property
    def name(self) -> str:
        """The node's name, or that of its first result."""
        return self.proto.name or (self.proto.output[0] if self.proto.output else "")

    def describe(self) -> str:
        """Returns ``Conv 'conv1'`` for messages."""
        return f"{self.op_type} '{self.name}'"

    def fault(
        self, what: str, *, why: str = "", fix: str = "export the model again"
    ) -> InvalidModelError:
        """Returns the error for a node that breaks ONNX's rules."""
        where = f"{self.file}, {self.describe()}" if self.file else self.describe()
        return InvalidModelError(what, where=where, why=why, fix=fix)

    # ---- attributes ---------------------------------------------------------------------------

    @property
    def attribute_names(self) -> list[str]:
        """The attributes that the node gives."""
        return list(self._attributes)

    def has(self, name: str) -> bool:
        """True where the node gives the attribute."""
        return name in self._attributes

    def int_(self, name: str, default: D) -> int | D:
        """Returns an integer attribute."""
        attribute = self._typed(name, AttributeProto.INT)
        return default if attribute is None else int(attribute.i)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Returns an integer attribute that means yes or no."""
        return bool(self.int_(name, int(default)))

    def float_(self, name: str, default: float) -> float:
        """Returns a float attribute; ONNX's attributes are float32 numbers."""
        attribute = self._typed(name, AttributeProto.FLOAT)
        # A default of 1e-5 in double precision is another number than the same one in a file.
        return float(np.float32(default if attribute is None else attribute.f))

    def string(self, name: str, default: str) -> str:
        """Returns a string attribute."""
        attribute = self._typed(name, AttributeProto.STRING)
        return default if attribute is None else attribute.s.decode(errors="replace")

    def ints(self, name: str, default: D) -> Ints | D:
        """Returns a list-of-integers attribute."""
        attribute = self._typed(name, AttributeProto.INTS)
        return default if attribute is None else tuple(int(i) for i in attribute.ints)

    def floats(self, name: str, default: D) -> tuple[float, ...] | D:
        """Returns a list-of-floats attribute."""
        attribute = self._typed(name, AttributeProto.FLOATS)
        return default if attribute is None else tuple(float(f) for f in attribute.floats)

    def strings(self, name: str) -> tuple[str, ...]:
        """Returns a list of strings; an empty one where it is absent."""
        found = self._typed(name, AttributeProto.STRINGS)
        return () if found is None else tuple(text.decode() for text in found.strings)

    def tensor(self, name: str) -> NDArray[Any] | None:
        """Returns a tensor attribute."""
        attribute = self._typed(name, AttributeProto.TENSOR)
        return None if attribute is None else numpy_helper.to_array(attribute.t)

    def _typed(self, name: str, kind: int) -> AttributeProto | None:
        attribute = self._attributes.get(name)
        if attribute is not None and attribute.type != kind:
            names = AttributeProto.AttributeType
            raise self.fault(
                f"attribute '{name}' has the wrong type",
                why=f"it is {names.Name(attribute.type)}, and {self.op_type} takes "
                f"{names.Name(kind)}",  # pyright: ignore[reportArgumentType]
            )
        return attribute

    # ---- operands -----------------------------------------------------------------------------

    def optional(self, index: int) -> Value | None:
        """Returns an operand, None where it is left out."""
        return self.operands[index] if index < len(self.operands) else None

    def operand(self, index: int) -> Value:
        """Returns an operand that has to be there."""
        value = self.optional(index)
        if value is None:
            raise self.fault(f"input {index} is missing")
        return value

    def results(self) -> int:
        """Returns the number of results that have a name."""
        return sum(1 for name in self.proto.output if name)

    def constant(self, index: int) -> NDArray[Any] | None:
        """Returns the real values of a small constant operand; None where it is left out.

        Raises:
            NoRow: Its value is known only at run time.
        """
        value = self.optional(index)
        if value is None:
            return None
        data = self.folding.constant(value)
        if data is None:
            raise NoRow(f"input {index} ('{value.name}') is known only at run time")
        if data.dtype is DType.STRING:
            raise self.fault(f"input {index} ('{value.name}') is a string, not a number")
        array = data.numpy()
        return dequantize(array, value.type.params) if isinstance(value.type, QuantType) else array

    def constant_ints(self, index: int) -> Ints | None:
        """Returns a constant operand that lists integers; None where it is left out."""
        array = self.constant(index)
        if array is None:
            return None
        if array.dtype.kind not in "iu" or array.ndim > 1:
            raise self.fault(
                f"input {index} is not a list of integers",
                why=f"it is {array.dtype}{list(array.shape)}",
            )
        return tuple(int(i) for i in array.reshape(-1))

    def constant_number(self, index: int) -> float | None:
        """Returns a constant operand of one number; None where it is left out or empty.

        Raises:
            NoRow: It has more elements, is no finite-precision real, or a Python float cannot
                hold it exactly.
        """
        array = self.constant(index)
        if array is None or array.size == 0:
            return None
        if array.size > 1:
            raise NoRow(f"input {index} has {array.size} elements")
        item = array.reshape(-1)[0]
        number = float(item)
        # NaN is unequal to itself, which a record of attributes must not be; a large integer would
        # be another one as a float.
        if np.isnan(number) or (array.dtype.kind in "iu" and int(number) != int(item)):
            raise NoRow(f"input {index} is {item}")
        return number

    # ---- shapes -------------------------------------------------------------------------------

    def shape(self, index: int) -> Shape:
        """Returns the shape of an operand, None where it is unknown or the operand left out."""
        value = self.optional(index)
        return None if value is None else value.type.shape

    def rank(self, index: int = 0) -> int:
        """Returns the rank of an operand.

        Raises:
            NoRow: It is unknown.
        """
        shape = self.shape(index)
        if shape is None:
            raise NoRow(f"the rank of input {index} is unknown")
        return len(shape)

    def extent(self, axis: int, index: int = 0) -> int | None:
        """Returns an operand's extent along a non-negative axis, None where unknown."""
        shape = self.shape(index)
        if shape is None or axis >= len(shape):
            return None
        extent = shape[axis]
        return extent if isinstance(extent, int) and extent >= 0 else None

    def known_extent(self, axis: int, index: int = 0) -> int:
        """Returns an operand's extent along a non-negative axis.

        Raises:
            NoRow: It is unknown.
        """
        extent = self.extent(axis, index)
        if extent is None:
            raise NoRow(f"the extent of input {index} along axis {axis} is unknown")
        return extent

    def wrap(self, axis: int, *, extra: int = 0, index: int = 0) -> int:
        """Returns ``axis`` as a non-negative one of an operand's axes.

        Args:
            axis: As written.
            extra: Axes beyond those of the operand (Unsqueeze), or 1 where the end is allowed.
            index: The operand.

        Raises:
            NoRow: The axis counts from the end and the rank is unknown.
        """
        shape = self.shape(index)
        if shape is None and axis >= 0:
            return axis
        rank = self.rank(index)
        if not -rank - extra <= axis < rank + extra:
            raise self.fault(
                f"axis {axis} does not exist",
                why=f"input {index} has rank {rank}",
                fix=f"use an axis in [{-rank - extra}, {rank + extra - 1}]",
            )
        return axis + rank + extra if axis < 0 else axis

    def wrap_all(self, axes: Sequence[int], *, extra: int = 0, index: int = 0) -> Ints:
        """Returns ``axes`` as non-negative axes, in the order written, each only once."""
        wrapped = tuple(self.wrap(axis, extra=extra, index=index) for axis in axes)
        if len(set(wrapped)) != len(wrapped):
            raise self.fault("an axis is named twice", why=f"the axes are {list(axes)}")
        return wrapped
