"""What a graph needs to know about an operator: one record per operator, made in ``ops``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.graph.types import Dim, NestedType, Shape, ValueType

if TYPE_CHECKING:
    from qdqbridge.core.graph.constant import Constant
    from qdqbridge.core.graph.graph import Node


# How the second operand of a product lies: which axis numbers the results, and what is summed.


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
        rank: Rank of the weight.

    Returns:
        None for a vector, whose product has no channels, and for what is not a product.
    """
    return None if op.weight is None else op.weight(attributes, rank)


def geometry_of(node: Node) -> WeightGeometry | None:
    """Returns how operand 1 of a node lies; see :func:`weight_geometry`."""
    return weight_geometry(node.op, node.attributes, node.operand(1).rank)


Array: TypeAlias = "NDArray[Any]"
Operands: TypeAlias = "Sequence[Array | None]"
Types: TypeAlias = "Sequence[ValueType | None]"


@dataclass(frozen=True, slots=True)
class Nested:
    """What a node without a row is given where its operand is not a tensor.

    Attributes:
        type: What it is.
        value: A list of arrays, an array, or None for an optional that is empty.
    """

    type: NestedType
    value: Any


@dataclass(frozen=True, slots=True)
class Attributes:
    """Base of the typed attribute records."""

    def stated(self) -> Mapping[str, Any]:
        """Returns what a file says of an operator without a record: nothing where it has one."""
        return {}

    def captured(self) -> int:
        """Returns how many of a node's last operands are read by graphs among its attributes."""
        return 0

    def captured_once(self, firsts: Sequence[int]) -> Attributes:
        """Returns the record where graphs read each captured operand under one name only.

        Args:
            firsts: Of each captured operand, which one, itself or before it, is the same.
        """
        del firsts
        return self


@dataclass(frozen=True, slots=True)
class Serialized:
    """An attribute that is bytes, which the text form writes as a short hash."""

    data: bytes

    def __repr__(self) -> str:
        return f"#{sha256(self.data).hexdigest()[:16]}"


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


def _no_problems(node: Node, attributes: Attributes) -> Iterator[str]:
    del node, attributes
    return iter(())


class Magnitude(Enum):
    """How large the intermediate results of an element-wise operator get; its float32 error."""

    RESULT = "as large as the result"
    UNIT = "as large as 1"
    OPERAND = "as large as the operand"


@dataclass(frozen=True, slots=True)
class Form:
    """A way to write an operator with others.

    Attributes:
        pattern: The chain: its operand is ``"x"`` (``"a"`` and ``"b"`` of two), and its attributes
            are ``"#alpha"`` and so on (``"#-alpha"``: the number is their negative).
        given: Attributes that this form stands for without a number in the chain.
        unmistakable: True of what hosts and their frontends write for this operator and nobody
            writes for anything else: it is read as the operator though nothing names it.
    """

    pattern: Pattern
    given: Mapping[str, float | str] = field(default_factory=dict[str, "float | str"])
    unmistakable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOp:
    """How ONNX writes an operator whose attributes are ONNX's own.

    Attributes:
        name: ONNX's name.
        domain: Its domain; those of other domains than ONNX's are only read.
        since: The opset that introduced it; 0 for those that every opset has.
        defaults: ONNX's defaults of the fields of the operator's attribute record; those of windows
            are 1 and 0.
        operands: Fields that ONNX has as operands behind the first one, in its order, and the
            opset from which it has; before, they are attributes.
        left_out: Those among ``operands`` that are left out where they are empty: all axes.
        later: Fields that ONNX has from a later opset on, and that opset; 0 for those that it never
            has. Before, they have their defaults.
        newer: Values of fields that ONNX has from a later opset on, and that opset.
        unsaid: Fields that are left out where they have their defaults.
        fixed: Attributes that no field holds, because a row has them with one value only: that
            value, and what to say of another.
        choices: What the strings among them may be.
        first: Fields that files state first; the others follow in the record's order.
        read_only: It is another way to write an operator, which is only read.
    """

    name: str
    domain: str = ""
    since: int = 0
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    operands: Mapping[str, int] = field(default_factory=dict[str, int])
    left_out: tuple[str, ...] = ()
    later: Mapping[str, int] = field(default_factory=dict[str, int])
    newer: Mapping[str, Mapping[Any, int]] = field(default_factory=dict[str, Mapping[Any, int]])
    unsaid: tuple[str, ...] = ()
    fixed: Mapping[str, tuple[int, str]] = field(default_factory=dict[str, "tuple[int, str]"])
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    first: tuple[str, ...] = ()
    read_only: bool = False


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Operator:
    """One row of the operator table.

    Everything else about an element-wise operator follows from its row: its ONNX codec, its
    ``qnn`` operator with emission and reading on every host, the rules that recognize it where a
    file writes it out, its kernels, error bounds, pattern-table entry and quantization targets.

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
        check: Yields what is wrong with a node of this operator and its attributes, in words.
        inside: Computes a node by what is inside it, from its stored operands, where it has bodies
            that quantize, or products that lose something on simulated hardware; None of other
            nodes, and None for operators of the table.
        steps: How much it takes to compute, where the table does not know (``ops/folding.py``):
            operators outside the table.
        numerics: The contract in words, with every known difference from onnxruntime.
        arity: The number of operands of an element-wise operator (2: or more, folded from left to
            right); 0 for operators whose readers and writers are written by hand.
        onnx: How ONNX writes it; empty where a codec is written by hand.
        qnn: Its name in the QNN dialect, after ``qnn.``, with ``{rank}`` for the number of spatial
            axes; empty where it has no call of that kind.
        tvm: TVM's operator on floats, which takes its operands and then its attributes; empty
            where hosts write it out by the first of ``forms``, or in a way of their own.
        forms: Ways in which hosts and files write it out. The first is what emission writes where
            there is no call; every one can be fused (:mod:`qdqbridge.core.canonical.fusions`).
        body: The operators that it stands for, from its attributes and the shape of its first
            operand (:mod:`qdqbridge.core.ops.bodies`); for what is not of single elements.
        magnitude: How large its intermediate results get.
        interval: The real interval of its results where it is known.
        quantize: Whether quantization targets run it on integers.
        weight: How the second operand of a product lies, from its attributes and that operand's
            rank; None for a vector, whose product has no channels.
        bias: A product adds its third operand, a vector over the channels of its result.
        apart: Hosts emit it as a call of a function of its own.
        known: Returns the attributes that mean the same once extents of the first operand are
            known, from the attributes and its shape; None where they say nothing about extents.
    """

    name: str
    flow: Flow
    attributes: type[Attributes]
    compute: Compute
    contract: Contract | None = None
    data: tuple[int, ...] | None = None
    commuting: int = 0
    check: Callable[[Node, Any], Iterator[str]] = field(default=_no_problems)
    inside: Callable[[Node, Operands], Sequence[Array] | None] | None = None
    steps: Steps | None = None
    numerics: str = ""
    arity: int = 0
    onnx: tuple[OnnxOp, ...] = ()
    qnn: str = ""
    tvm: str = ""
    forms: tuple[Form, ...] = ()
    body: Callable[[Any, tuple[Dim | None, ...]], Pattern] | None = None
    magnitude: Magnitude = Magnitude.RESULT
    interval: tuple[float, float] | None = None
    quantize: bool = True
    weight: Callable[[Any, int | None], WeightGeometry | None] | None = None
    bias: bool = False
    apart: bool = False
    known: Callable[[Any, Shape], Attributes] | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its attributes, in their record's order."""
        return tuple(self.attributes.__dataclass_fields__)

    @property
    def by_steps(self) -> bool:
        """Whether hosts have no call of it, and compute the steps of its body."""
        return self.body is not None and not (self.tvm or self.qnn)

    def values(self, attributes: Attributes) -> dict[str, Any]:
        """Returns a record of its attributes by name."""
        return {name: getattr(attributes, name) for name in self.fields}

    def problems(self, node: Node) -> Iterator[str]:
        """Yields what is wrong with a node of this operator, in words."""
        return self.check(node, node.attributes)

    def is_data(self, index: int) -> bool:
        """True where operand ``index`` carries values that may be quantized."""
        return self.data is None or index in self.data

    def __repr__(self) -> str:
        return f"Operator({self.name})"


AnyAttributes = TypeVar("AnyAttributes", bound=Attributes)
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Row(Operator, Generic[AnyAttributes]):
    """An operator of the table, whose record of attributes the type checker knows.

    Rows are singletons: code that means one operator compares with its row (``node.op is CONV``,
    ``node.op in (GEMM, MATMUL)``), and asks it for the attributes of a node.
    """

    attributes: type[AnyAttributes]
    check: Callable[[Node, AnyAttributes], Iterator[str]] = field(default=_no_problems)

    def of(self, node: Node) -> AnyAttributes | None:
        """Returns the attributes of a node of this operator, None for a node of another one."""
        if node.op is self and isinstance(node.attributes, self.attributes):
            return node.attributes
        return None


def typed(
    row: Row[AnyAttributes], function: Callable[Concatenate[Node, AnyAttributes, _P], _R]
) -> tuple[Operator, Callable[Concatenate[Node, _P], _R]]:
    """Returns the entry of a row in a table of functions that take the attributes it has.

    Tables by operators are made of such entries, so that the type checker proves that a function
    stands at a row with its record.
    """

    def of_node(node: Node, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return function(node, node.record(row.attributes), *args, **kwargs)

    return row, of_node


UNSAID = "unsaid"
"""Metadata of a field of attributes that the text form leaves out where it has its default."""


@dataclass(frozen=True, slots=True)
class NoAttributes(Attributes):
    """For operators without attributes."""


NO_ATTRIBUTES = NoAttributes()
