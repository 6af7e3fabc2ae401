"""A node of a file as a rule of reading sees it, and the nodes that are made in its place.

A file is read node by node. Before a node is read, the rules look at it as a node of the raw graph
whose operands are read already, with their types; what a rule makes in its place are nodes of ONNX,
read one by one, so the rule sees their types too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Attributes, Flow, Operator
from qdqbridge.core.graph.patterns import AnyPattern, PatternMatch, match_value_pattern
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.rewrite import (
    Proposal,
    Reject,
    Replace,
    Rule,
    RuleContext,
    pattern_rule,
    rule,
)
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.onnx_io.codecs.view import NodeView
from qdqbridge.onnx_io.reading.structure import plain_domain
from qdqbridge.onnx_io.tensors import dtype_to_onnx, from_bytes

MICROSOFT = "com.microsoft"
"""The domain in which QuantizeLinear and DequantizeLinear exist alike under every opset."""


class NodeMaker(Protocol):
    """Who reads nodes of ONNX, one after the other, and knows what was read.

    Attributes:
        file: File name, for messages.
        opset: The version of ONNX's own domain.
    """

    file: str
    opset: int

    def fresh(self, hint: str, *, numbered: bool = False) -> str:
        """Returns a tensor name that nothing has: the hint, or with a number behind it."""
        ...

    def enter(self, constant: Constant, name: str) -> Value:
        """Returns a new constant."""
        ...

    def named(self, value: Value) -> str:
        """Returns a name under which nodes read a value."""
        ...

    def make(self, proto: NodeProto, opset: int, variant: str) -> list[Value]:
        """Reads a node and returns its results; a writer may have to write the variant."""
        ...

    def known(self, value: Value) -> Constant | None:
        """Returns the data of what only constants determine."""
        ...

    def is_constant(self, value: Value) -> bool:
        """Returns whether only constants determine a value."""
        ...


# ---- Nodes of a file, before they are read -------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class UnreadNode(Attributes):
    """What a node says that is not read yet.

    Attributes:
        opset: The version of its domain that it is written in.
        maker: Who reads it.
        made_in: The opset of what is made in its place.
    """

    proto: NodeProto
    opset: int
    maker: NodeMaker
    made_in: int


def file_operator(proto: NodeProto) -> str:
    """Returns the name that a node's operator has before the node is read."""
    domain = plain_domain(proto.domain)
    return f"{domain}::{proto.op_type}" if domain else proto.op_type


def file_node(
    proto: NodeProto, opset: int, operands: Sequence[Value | None], maker: NodeMaker,
    made_in: int = 0,
) -> Node:  # fmt: skip
    """Returns a node of a file as one of the raw graph, its results without types.

    Args:
        opset: The version of its domain.
        operands: What it reads.
        maker: Who reads what stands for it.
        made_in: The opset that this is written in; that of the file if 0.
    """
    results = [Value(TensorType(DType.FLOAT32, None), name) for name in proto.output if name]
    attributes = UnreadNode(proto, opset, maker, made_in or maker.opset)
    return Node(_unread_operator(file_operator(proto)), attributes, operands, results)


@cache
def _unread_operator(name: str) -> Operator:
    return Operator(name=name, flow=Flow.FLOAT, attributes=UnreadNode, compute=_never_computed)


def _never_computed(attributes: Attributes, operands: Any) -> tuple[NDArray[Any], ...]:
    del attributes, operands
    raise UnsupportedModelError("a node that is not read yet computes nothing")


Made: TypeAlias = "Value | Sequence[Value] | None"
"""What stands for the results of a node; None where a rule leaves the node as it is."""


class NoNewForm(Exception):
    """A node means something that nothing stands for, or not without what is unknown of it.

    Raised inside of rules only; the message says why.
    """


def reading_rule(
    name: str, pattern: AnyPattern
) -> Callable[[Callable[[LoweringContext], Made]], Rule]:
    """Makes a rule of an operator on its operands, and of a function that makes what stands for it.

    Args:
        name: Kebab-case.
        pattern: The operator, its operands in the order of the file; those that may be left out end
            with ``?``.
    """

    def make(build: Callable[[LoweringContext], Made]) -> Rule:
        @pattern_rule(name, pattern)
        @wraps(build)
        def propose(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
            del match, context
            return _proposal(build, node)

        return propose

    return make


def reading_rule_of_any(
    name: str, *ops: str
) -> Callable[[Callable[[LoweringContext], Made]], Rule]:
    """Makes the same of operators that have any number of operands."""

    def make(build: Callable[[LoweringContext], Made]) -> Rule:
        @rule(name, *ops)
        @wraps(build)
        def propose(node: Node, context: RuleContext) -> Proposal:
            del context
            return _proposal(build, node)

        return propose

    return make


def _proposal(build: Callable[[LoweringContext], Made], node: Node) -> Proposal:
    try:
        made = build(LoweringContext(node))
    except NoNewForm as reason:
        return Reject(str(reason))
    if made is None:
        return None
    values = [made] if isinstance(made, Value) else made
    return Replace(dict(zip(node.outputs, values, strict=True)))


UNSIGNED = {2: DType.UINT2, 4: DType.UINT4, 8: DType.UINT8}
"""The unsigned element type of a width."""


def unpacked(data: NDArray[Any], bits: int, count: int) -> NDArray[np.uint8]:
    """Returns the first ``count`` codes of every row of bytes (the last axis)."""
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    codes = (data[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)[..., :count]


def packed(codes: NDArray[Any], bits: int) -> bytes:
    """Returns the bytes of codes in row-major order."""
    per_byte = 8 // bits
    flat = codes.reshape(-1).astype(np.uint8)
    rows = np.pad(flat, (0, -flat.size % per_byte)).reshape(-1, per_byte)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    return np.bitwise_or.reduce(rows << shifts, axis=1).astype(np.uint8).tobytes()


# ---- channels-last nodes, as channels-first ones between transpositions that cancel --------------
# onnxruntime's NHWC transformer gives QLinearConv, QLinearAveragePool, QLinearGlobalAveragePool
# and MaxPool the layout (N, spatial…, C), and leaves elementwise operators between them as they
# are.

_USUAL_RANK = 4
Perm = tuple[int, ...]
_TRANSPOSED = ("Transpose", "source", {"perm": "#perm"})


def to_first(rank: int) -> Perm:
    """Returns the permutation (N, spatial…, C) -> (N, C, spatial…)."""
    return (0, rank - 1, *range(1, rank - 1))


def to_last(rank: int) -> Perm:
    """Returns the permutation (N, C, spatial…) -> (N, spatial…, C)."""
    return (0, *range(2, rank), 1)


def _source_of(value: Value) -> tuple[Value, Perm] | None:
    """Returns what a value is the transposition of, and which."""
    found = PatternMatch()
    if not match_value_pattern(value, _TRANSPOSED, found):
        return None
    return found["source"], found.numbers["perm"]


def transposed(context: LoweringContext, value: Value, perm: Perm, result: str = "") -> Value:
    """Returns ``Transpose(value)``, or its source where the two cancel and no name is asked for."""
    source = None if result else _source_of(value)
    if source is not None and source[1] == tuple(int(axis) for axis in np.argsort(perm)):
        return source[0]
    return context.op("Transpose", [value], result, perm=list(perm))


def usual_rank(value: Value) -> int:
    """Returns the rank of a tensor, 4 where nothing tells it."""
    return value.rank or _USUAL_RANK


def common_source(values: Sequence[Value]) -> tuple[list[Value], Perm | None]:
    """Returns what ``values`` are transpositions of, where all are the same one."""
    sources = [_source_of(value) for value in values]
    perms = {None if source is None else source[1] for source in sources}
    perm = next(iter(perms))
    if len(perms) != 1 or perm is None:
        return list(values), None
    return [source[0] for source in sources if source is not None], perm


class LoweringContext(NodeView):
    """A node, typed access to it, and a builder of the nodes that say the same.

    New nodes carry the node's name and metadata, and use tensor names that nothing else has.

    Args:
        node: A node of a file.

    Attributes:
        maker: Who reads the file.
        made_in: The opset that new nodes of ONNX's own domain are written in.
    """

    __slots__ = ("_names", "made_in", "maker", "node")

    def __init__(self, node: Node) -> None:
        given = node.record(UnreadNode)
        super().__init__(given.proto, given.opset, node.inputs, given.maker.file)
        self.node, self.maker, self.made_in = node, given.maker, given.made_in
        self._names = {
            value: name
            for name, value in zip(given.proto.input, node.inputs, strict=False)
            if value is not None
        }

    # ---- reading ------------------------------------------------------------------------------

    @property
    def main_opset(self) -> int:
        """The version of ONNX's own domain in the file."""
        return self.maker.opset

    @property
    def output(self) -> str:
        """The name of the first result."""
        return self.proto.output[0]

    def inputs(self, count: int) -> tuple[Any, ...]:
        """Returns the first operands, None for each that is left out.

        The rule's pattern says which cannot be.
        """
        return tuple(self.optional(index) for index in range(count))

    def wants(self, index: int) -> bool:
        """True where the node names a result."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def known(self, value: Value) -> NDArray[Any] | None:
        """Returns the data of what only constants determine, None for others."""
        found = self.maker.known(value)
        return None if found is None else found.numpy()

    def are_constant(self, values: Sequence[Value | None]) -> bool:
        """True where only constants determine values; some may be left out."""
        return all(self.maker.is_constant(value) for value in values if value is not None)

    def array(self, index: int, what: str) -> NDArray[Any]:
        """Returns the data of an input that has to be constant.

        Raises:
            NoNewForm: It is computed at run time.
        """
        found = self.known(self.operand(index))
        if found is None:
            raise self.refusal(
                f"{what} is not constant",
                f"input {index} ('{self.proto.input[index]}') is known only at run time",
                "make it an initializer",
            )
        return found

    def packed(self, index: int, what: str) -> NDArray[np.uint8]:
        """Returns the bytes of an input that has to be constant and of an 8-bit integer type.

        Raises:
            NoNewForm: It is computed at run time, or of another type.
        """
        array = self.array(index, what)
        if array.dtype.itemsize != 1 or array.dtype.kind not in "iu":
            raise self.refusal(
                f"{what} is not an array of packed codes",
                f"input {index} ('{self.proto.input[index]}') is {array.dtype}",
                "store it as uint8",
            )
        return array.view(np.uint8)

    def refusal(self, what: str, why: str, fix: str) -> NoNewForm:
        """Returns why an encoding has no counterpart."""
        return NoNewForm(f"{self.op_type}: {what} ({why}); it is kept as it is; to read it: {fix}")

    # ---- making -------------------------------------------------------------------------------

    def enter(self, array: NDArray[Any] | np.generic, hint: str) -> Value:
        """Enters a constant."""
        return self.enter_constant(Constant.of(np.asarray(array)), hint)

    def fresh(self, hint: str) -> str:
        """Returns a name that no tensor has."""
        return self.maker.fresh(f"{self.output}.{hint}")

    def enter_codes(self, codes: NDArray[Any], bits: int, hint: str) -> Value:
        """Enters a constant of unsigned codes."""
        data = np.frombuffer(packed(codes, bits), np.uint8)
        return self.enter_constant(from_bytes(data, UNSIGNED[bits], codes.shape), hint)

    def enter_constant(self, constant: Constant, hint: str) -> Value:
        """Enters a constant."""
        return self.maker.enter(constant, self.fresh(hint))

    def op(
        self, op_type: str, inputs: Sequence[Value | None], result: str = "", *, domain: str = "",
        variant: str = "", **attributes: Any,
    ) -> Value:  # fmt: skip
        """Makes a node; returns its first result.

        Args:
            op_type: The operator.
            inputs: Its operands; what is left out at the end is dropped.
            result: Name of the first result; a new one where empty.
            domain: The operator's domain.
            variant: How the file writes it, where a writer may have to write it so again.
            **attributes: ONNX attributes; None leaves one out.
        """
        first = result or self.fresh(op_type)
        return self.several(op_type, inputs, [first], domain, variant, **attributes)[0]

    def several(
        self, op_type: str, inputs: Sequence[Value | None], results: Sequence[str],
        domain: str = "", variant: str = "", **attributes: Any,
    ) -> list[Value]:  # fmt: skip
        """Makes a node of results with these names; the other arguments are those of :meth:`op`."""
        kept = ["" if v is None else self._names.get(v) or self.maker.named(v) for v in inputs]
        while kept and not kept[-1]:
            kept.pop()
        node = helper.make_node(op_type, kept, list(results), domain=domain)
        given = {key: value for key, value in attributes.items() if value is not None}
        node.attribute.extend(_attribute(key, value) for key, value in given.items())
        self.label(node)
        return self.maker.make(node, self.made_in, variant)

    def label(self, node: NodeProto) -> None:
        """Says where a new node comes from."""
        node.name = self.name
        node.metadata_props.extend(self.proto.metadata_props)

    def dequantize(
        self, stored: Value, scale: Value, zero_point: Value | None = None, *,
        axis: int | None = None, block_size: int | None = None, result: str = "",
    ) -> Value:  # fmt: skip
        """Returns ``DequantizeLinear(stored)``."""
        return self.op(
            "DequantizeLinear", [stored, scale, zero_point], result,
            domain=MICROSOFT, axis=axis, block_size=block_size,
        )  # fmt: skip

    def quantize(
        self, value: Value, scale: Value, zero_point: Value | None, like: Value, result: str = "",
        axis: int | None = None,
    ) -> Value:  # fmt: skip
        """Returns ``QuantizeLinear(value)``.

        Args:
            value: A float tensor.
            zero_point: Its zero point; None for 0.
            like: A tensor of the storage type, for a left-out zero point.
            result: Name of the result; a new one where empty.
            axis: The axis along which the parameters vary.
        """
        to = dtype_to_onnx(like.type.dtype) if zero_point is None else None
        return self.op(
            "QuantizeLinear", [value, scale, zero_point], result,
            domain=MICROSOFT, output_dtype=to, axis=axis,
        )  # fmt: skip

    def product(self, factors: Sequence[Value]) -> Value:
        """Returns the float product of constant scales, multiplied from left to right."""
        value = factors[0]
        for factor in factors[1:]:
            value = self.op("Mul", [value, factor])
        return value

    def same_attributes(self, *leave: str) -> dict[str, Any]:
        """Returns the node's attributes but those in ``leave``."""
        return {
            attribute.name: helper.get_attribute_value(attribute)
            for attribute in self.proto.attribute
            if attribute.name not in leave
        }


def _attribute(key: str, value: Any) -> AttributeProto:
    if isinstance(value, AttributeProto):
        return value
    empty = isinstance(value, list) and not value  # of integers, which all lists here are
    return helper.make_attribute(key, value, attr_type=AttributeProto.INTS if empty else None)
