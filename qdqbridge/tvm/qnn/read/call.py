"""What a host's reader hands over: one call, decoded into plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import AnyAttributes, Attributes, Flow, Operator
from qdqbridge.core.graph.types import QuantParams, Shape, TensorType
from qdqbridge.core.ops.folding import Budget, folded
from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from qdqbridge.tvm.qnn.origin import Provenance


@dataclass(frozen=True, slots=True)
class Result:
    """Type of a call's result as the host infers it.

    Attributes:
        dtype: NumPy's name of the element type.
        shape: Extents, names for symbolic ones; None where the rank is unknown.
    """

    dtype: str
    shape: Shape


def _never_computed(attributes: Attributes, operands: Any) -> tuple[NDArray[Any], ...]:
    del attributes, operands
    raise UnsupportedModelError("a product that nothing rounds is no value of a graph")


@dataclass(frozen=True, slots=True, eq=False)
class UnroundedProduct(Attributes):
    """An integer product that no call has rounded or dequantized yet: what a node of it says.

    Only rules of calls take the result of that node; no graph has it.

    Attributes:
        op: The graph operator that it will be (Conv, ConvTranspose, Dense, MatMul, Gemm).
        x: First operand, quantized.
        w: Second operand, quantized; its parameters are per tensor or per output channel.
        scale: The accumulator's scale ``f32(sx * sw)``, rank 0 or 1.
        result: Type of the call's result (int32 or int64).
        bias: What has been added so far, as int64, as it is broadcast to the result.
        back: How the result's axes lie in the host: axis i of the host's tensor is axis
            ``back[i]`` of the graph's; None where they are the same.
        provenance: What the span of the product says.
    """

    op: Operator
    attributes: Attributes
    x: Value
    w: Value
    scale: NDArray[np.float32]
    result: Result
    bias: NDArray[Any] | None = None
    back: tuple[int, ...] | None = None
    provenance: Provenance | None = None

    @property
    def params(self) -> tuple[QuantParams, QuantParams]:
        """Parameters of both operands."""
        assert self.x.quant is not None and self.w.quant is not None
        return self.x.quant.params, self.w.quant.params


class CallOperands(tuple["Entry", ...]):
    """The operands of a call; one that the call lacks is refused by its number."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Entry: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Entry, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Any:
        """Returns an operand.

        Raises:
            InvalidModelError: The call has fewer.
        """
        try:
            return super().__getitem__(index)
        except IndexError as error:
            raise InvalidModelError(
                f"the call lacks operand {index}",
                why=f"it has {len(self)}",
                fix="save the module anew",
            ) from error


UNROUNDED = Operator(
    name="unrounded", flow=Flow.FLOAT, attributes=UnroundedProduct, compute=_never_computed
)
"""The operator of products of which no call has said how they end."""


def unrounded(product: UnroundedProduct) -> Value:
    """Returns the result of a product, in int32."""
    type_ = TensorType(DType.of(np.dtype(product.result.dtype)), product.result.shape)
    value = Value(type_)
    Node(UNROUNDED, product, [product.x, product.w], [value])
    return value


def product_behind(entry: Entry) -> UnroundedProduct | None:
    """Returns the product whose result an entry is."""
    node = entry.producer if isinstance(entry, Value) else None
    given = None if node is None else node.attributes
    return given if isinstance(given, UnroundedProduct) else None


Entry: TypeAlias = "Value | Sequence[Entry]"
"""What an expression of the host stands for; a tuple is a sequence of entries."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator.

    Attributes:
        op: Relay's name of the operator (``qnn.conv2d``, ``nn.relu``, ``transpose``), whatever the
            host's own is.
        args: What its tensor arguments stand for; constants are constant values.
        attrs: Its attributes under Relay's names: ints, floats, strings, None, and tuples of these.
            Arguments that are shapes or numbers on a host are attributes here.
        results: Types of its results; several where it returns a tuple.
        provenance: What its span says, if an emitter of this package wrote it.
        name: A name for its result, where the host has one.
    """

    op: str
    args: tuple[Entry, ...]
    attrs: Mapping[str, Any]
    results: tuple[Result, ...]
    provenance: Provenance | None = None
    name: str = ""
    where: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", CallOperands(self.args))

    @property
    def result(self) -> Result:
        """Type of the first result."""
        return self.results[0]

    @property
    def dtype(self) -> DType:
        """Element type of the first result."""
        return DType.of(np.dtype(self.results[0].dtype))

    def stated(self, kind: type[AnyAttributes]) -> AnyAttributes | None:
        """Returns the attributes that the call's span says, where they are records of ``kind``."""
        given = None if self.provenance is None else self.provenance.attributes
        return given if isinstance(given, kind) else None

    def ints(self, name: str, count: int = 0) -> tuple[int, ...]:
        """Returns an attribute of integers; one number stands for ``count`` equal ones."""
        value = self.attrs.get(name)
        if isinstance(value, int):
            return (value,) * max(count, 1)
        if not isinstance(value, tuple) or not all(isinstance(item, int) for item in value):  # pyright: ignore[reportUnknownVariableType]
            raise InvalidModelError(
                f"the attribute '{name}' of {self.op} is not a list of integers",
                where=self.where,
                why=f"it is {value!r:.100}",
                fix="save the module anew",
            )
        return value  # pyright: ignore[reportUnknownVariableType]

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns an attribute that is an integer.

        Args:
            default: What stands for an attribute that the call has not; None where it must have it.

        Raises:
            InvalidModelError: It is missing, or something else.
        """
        value = self.attrs.get(name, default)
        if isinstance(value, int):
            return int(value)
        raise InvalidModelError(
            f"the attribute '{name}' of {self.op} is not an integer",
            where=self.where,
            why=f"it is {value!r:.100}",
            fix="save the module anew",
        )

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an attribute, or ``default`` where the call has none of that name."""
        return self.attrs.get(name, default)


# ---- Constants that a module computes: the elements of an expression that depends on no input ----


def constant_value(array: NDArray[Any], name: str = "") -> Value:
    """Returns a constant of the elements of ``array``."""
    constant = Constant.of(np.ascontiguousarray(array).reshape(array.shape))
    return Value(TensorType(constant.dtype, constant.shape), name, constant=constant)


def constant_of(value: Value) -> NDArray[Any] | None:
    """Returns the elements of a constant expression, None where it depends on an input."""
    if value.constant is not None:
        return value.constant.numpy()
    cone = _cone(value)
    if cone is None:
        return None
    known: dict[Value, Constant] = {}
    budget = Budget()
    for node in cone:
        operands = [None if v is None else v.constant or known[v] for v in node.inputs]
        try:
            results = folded(node, operands, budget)
        except InvalidModelError:  # the constants do not fit together
            return None
        if results is None:
            return None
        known[node.output] = results[0]
    return known[value].numpy()


def _cone(value: Value) -> list[Node] | None:
    """Returns the nodes behind a value, operands first; None where not all of it is known."""
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[tuple[Value, bool]] = [(value, False)]
    while stack:
        current, ready = stack.pop()
        node = current.producer
        if current.constant is not None or node in done:
            continue
        if node is None or len(node.outputs) != 1 or not node.inputs or ":" in node.op.name:
            return None
        if ready:
            done.add(node)
            order.append(node)
            continue
        stack.append((current, True))
        stack += [(operand, False) for operand in node.inputs if operand is not None]
    return order
