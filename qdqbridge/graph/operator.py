"""What a graph needs to know about an operator: one record per operator, made in ``ops``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from qdqbridge.graph.types import ValueType

if TYPE_CHECKING:
    from qdqbridge.graph.constant import Constant
    from qdqbridge.graph.graph import Node

Array: TypeAlias = "NDArray[Any]"
Operands: TypeAlias = "Sequence[Array | None]"
Types: TypeAlias = "Sequence[ValueType | None]"


class Attributes:
    """Base of the typed attribute records (frozen dataclasses)."""

    __slots__ = ()


class Flow(Enum):
    """How quantization flows through an operator."""

    MOVE = "moves values; input and output have one quantization"
    ACCUMULATE = "exact integer dot products, one multiplier, one rounding"
    AVERAGE = "exact integer sum, one multiplier, one rounding"
    ELEMENTWISE = "dequantize, compute each element in float32, quantize"
    ROUND = "dequantize, compute in float32, quantize"
    CONVERT = "changes the type of a value"
    REINTERPRET = "gives the same stored bits another type"
    FLOAT = "has no quantized form"


Compute: TypeAlias = "Callable[[Any, Operands], tuple[Array, ...]]"
"""``compute(attributes, operands) -> results``: the real-valued operator in the operands' dtype."""

Contract: TypeAlias = "Callable[[Any, Operands, Types, Types], tuple[Array, ...] | None]"
"""``contract(attributes, stored operands, operand types, result types) -> stored results``.

Returns None where the operands' types have no integer form (then: dequantize, compute, quantize).
"""

Steps: TypeAlias = "Callable[[Any, Sequence[Constant | None]], int | None]"
"""``steps(attributes, operands)``: elements made, read and multiplied at most; None: not known."""

EVERY_OPERAND = 1 << 31
"""For :attr:`Operator.commuting`: as many operands as a node has."""


def _no_problems(node: Node) -> Iterator[str]:
    del node
    return iter(())


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Operator:
    """One row of the operator table.

    Attributes:
        name: The ONNX operator name, or ours for what ONNX does not have.
        flow: How quantization flows through it.
        attributes: The record type of its attributes.
        compute: The real-valued operator, in float32 or float64 (see :data:`Compute`).
        contract: The numeric contract on stored values where it is not
            "dequantize, compute, quantize".
        data: Indices of the operands whose values flow through (None: every operand). Other
            operands (indices, a condition) stay as they are.
        commuting: How many of the first operands may change places without changing a bit of the
            result (but the sign of a zero that an extreme chooses): 0, 2 or :data:`EVERY_OPERAND`.
        check: Yields what is wrong with a node of this operator, in words.
        steps: How much it takes to compute, where the table does not know (``ops/steps.py``):
            operators outside the table.
        numerics: The contract in words, with every known difference from onnxruntime.
    """

    name: str
    flow: Flow
    attributes: type[Attributes]
    compute: Compute
    contract: Contract | None = None
    data: tuple[int, ...] | None = None
    commuting: int = 0
    check: Callable[[Node], Iterator[str]] = field(default=_no_problems)
    steps: Steps | None = None
    numerics: str = ""

    def is_data(self, index: int) -> bool:
        """True where operand ``index`` carries values that may be quantized."""
        return self.data is None or index in self.data

    def __repr__(self) -> str:
        return f"Operator({self.name})"


@dataclass(frozen=True, slots=True)
class NoAttributes(Attributes):
    """For operators without attributes."""


NO_ATTRIBUTES = NoAttributes()
