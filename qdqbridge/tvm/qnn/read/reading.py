"""A graph while it is being read: its nodes so far, and what rows need to make more of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor, name_values
from qdqbridge.core.graph.graph import NO_ORIGIN, Graph, Node, Origin, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow, NoAttributes, Operator
from qdqbridge.core.graph.patterns import AnyPattern, PatternMatch
from qdqbridge.core.graph.types import QuantParams, QuantType, Shape, TensorType, ValueType
from qdqbridge.core.ops.conversion import REINTERPRET, REQUANTIZE
from qdqbridge.core.ops.integers import propagate_parameters
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite import (
    Growing,
    Proposal,
    Reject,
    Replace,
    Rule,
    RuleContext,
    pattern_rule,
    run,
)
from qdqbridge.errors import QdqBridgeError, UnsupportedModelError
from qdqbridge.tvm.qnn.origin import Provenance, ranks_of
from qdqbridge.tvm.qnn.read.call import Call, Entry, product_behind
from qdqbridge.tvm.qnn.read.rules import FROM_RELAX, WHOLE
from qdqbridge.tvm.qnn.read.rules.recorded import (
    UNREAD,
    as_written,
    provenance_of_node,
    recorded_origin,
)

_LISTED = 8


class Reading:
    """Makes a graph of the calls of one function, in their order.

    Args:
        rows: What each operator becomes, by Relay's name.
        calls: The rules of calls that decide types, asked before the rows.
        where: Names the module in messages.
        rules: What completes operators of several calls.
    """

    def __init__(
        self, rows: Mapping[str, Row], calls: Sequence[Rule], where: str = "",
        rules: Sequence[Rule] = FROM_RELAX,
    ) -> None:  # fmt: skip
        self.rows, self.where, self.rules = rows, where, rules
        self._calls = Growing(calls)
        self.nodes: list[Node] = []
        self.whys: dict[Node, str] = {}
        self.hints: dict[Value, QuantParams | None] = {}
        self.ranks: dict[Value, int] = {}
        """Constants that a layout plan gave more axes: how many they had."""
        self.memory: dict[tuple[Any, ...], Any] = {}
        self._typed: dict[tuple[Value, QuantParams | None], Value] = {}

    # ---- values -------------------------------------------------------------------------------

    def constant(self, array: NDArray[Any], name: str = "") -> Value:
        """Returns a plain constant value; quantization comes with the call that reads it."""
        data = Constant.of(array)
        return Value(TensorType(data.dtype, data.shape), name, constant=data)

    def input(self, name: str, dtype: str, shape: Shape) -> Value:
        """Returns a plain graph input; ``finish`` gives it the parameters its readers agree on."""
        return Value(TensorType(DType.of(np.dtype(dtype)), shape), name)

    def stored(self, entry: Entry, params: QuantParams) -> Value:
        """Returns an operand as a quantized value of ``params``."""
        value = self.value(entry)
        if value.quant is not None:
            # What a call states is float32; the value's own parameters may say more, such as a
            # scale of half floats.
            if _same_numbers(value.quant.params, params):
                return value
            value = self.plain(value)
        # One reinterpretation for all readers: each would be a node of its own in the graph, and
        # nothing would show that they read one tensor.
        key = (value, params)
        if key not in self._typed:
            self._typed[key] = self._stored(value, params)
        return self._typed[key]

    def _stored(self, value: Value, params: QuantParams) -> Value:
        type_ = QuantType(params, value.type.shape)
        if value.constant is None:
            return self.node(REINTERPRET, NO_ATTRIBUTES, [value], type_)
        data = value.constant
        if data.dtype is not params.storage_dtype:
            kind = params.storage_dtype
            # Hosts store these floats as bytes: a cast would convert numbers, and these are bits.
            bits = kind.is_small_float and data.dtype is DType.UINT8
            data = data.map(
                lambda array: array.view(kind.numpy) if bits else array.astype(kind.numpy),
                dtype=kind,
            )
        return Value(type_, value.name, constant=data)

    def plain(self, entry: Entry) -> Value:
        """Returns an operand as its stored numbers, without quantization."""
        value = self.value(entry)
        if value.quant is None:
            return value
        key = (value, None)
        if key not in self._typed:
            type_ = TensorType(value.type.dtype, value.type.shape)
            self._typed[key] = self.node(REINTERPRET, NO_ATTRIBUTES, [value], type_)
        return self._typed[key]

    def value(self, entry: Entry) -> Value:
        """Returns an operand that must be one tensor.

        Raises:
            UnsupportedModelError: It is a tuple, or an accumulator, which no graph value is.
        """
        if product_behind(entry) is not None:
            raise self.refused("the int32 result of a product is neither rounded nor dequantized")
        if isinstance(entry, Value):
            return entry
        raise self.refused("a tuple is given where one tensor belongs")

    # ---- nodes --------------------------------------------------------------------------------

    def node(
        self,
        op: Operator | str,
        attributes: Attributes,
        operands: Sequence[Value | None],
        type_: ValueType,
        call: Call | None = None,
    ) -> Value:
        """Adds a node with one result and returns that; name and origin come from the call."""
        return self.several(op, attributes, operands, [type_], call)[0]

    def several(
        self,
        op: Operator | str,
        attributes: Attributes,
        operands: Sequence[Value | None],
        types: Sequence[ValueType],
        call: Call | None = None,
    ) -> list[Value]:
        """Adds a node with any number of results and returns them."""
        provenance = None if call is None else call.provenance
        names = () if provenance is None else provenance.names
        results = [Value(t, n) for t, n in zip(types, [*names, *[""] * len(types)], strict=False)]
        if results and not results[0].name and call is not None:
            results[0].name = call.name
        row = op if isinstance(op, Operator) else BY_NAME[op]
        written = as_written(row, operands, provenance)
        node = Node(row, attributes, written, results, _origin(provenance, call))
        self.nodes.append(node)
        return results

    def unread(self, call: Call, why: str = "") -> list[Value]:
        """Adds a node that stands for a call without a meaning here.

        It may still be part of something that has one; what is left of it at the end is refused.
        """
        op = Operator(
            name=UNREAD + call.op, flow=Flow.FLOAT, attributes=NoAttributes, compute=_never
        )
        operands = [self.value(each) for each in flat(call.args) if product_behind(each) is None]
        types = [TensorType(DType.of(np.dtype(r.dtype)), r.shape) for r in call.results]
        results = self.several(op, NO_ATTRIBUTES, operands, types, call)
        if results and results[0].producer is not None:
            self.whys[results[0].producer] = why or "it has no counterpart"
        return results

    def narrowed(self, value: Value, params: QuantParams, call: Call) -> Value:
        """Returns a quantized value clamped to the narrower range of ``params``."""
        return self.node(
            REQUANTIZE, NO_ATTRIBUTES, [value], QuantType(params, value.type.shape), call
        )

    def retyped(self, value: Value, type_: ValueType, call: Call) -> Value:
        """Returns the result of the node behind ``value`` in another type."""
        node = value.producer
        assert node is not None
        return self.node(node.op, node.attributes, node.inputs, type_, call)

    # ---- calls --------------------------------------------------------------------------------

    def call(self, call: Call) -> Entry:
        """Reads one call; an operator without a row stands for itself until ``finish``."""
        row = self.rows.get(call.op)
        try:
            looked = self._calls.looks_at(call.op)
            found = self._calls.proposal(self._call_node(call)) if looked else None
            if isinstance(found, Replace):
                return next(iter(found.values.values()))
            if isinstance(found, Reject):
                return self.unread(call, found.reason)[0]
            entry = self.unread(call) if row is None else row(self, call)
        # Not an error yet: the call may be a step of an operator that a rule puts together, such as
        # a comparison inside of a Round. What is still unread at the end is listed as a whole.
        except QdqBridgeError as error:
            entry = self.unread(call, f"{error.what}{': ' if error.why else ''}{error.why}")
        if isinstance(entry, list) and len(entry) == 1 and len(call.results) == 1:
            return entry[0]
        return entry

    def _call_node(self, call: Call) -> Node:
        """Returns a call as a node that is not read yet."""
        op = Operator(name=call.op, flow=Flow.FLOAT, attributes=CallNode, compute=_never)
        operands = [entry if isinstance(entry, Value) else None for entry in call.args]
        results = [Value(tensor(call), call.name)]
        return Node(op, CallNode(call, self), operands, results)

    def refused(self, why: str) -> UnsupportedModelError:
        """Returns the error of a call that cannot be read."""
        return UnsupportedModelError("a call has no counterpart in a graph", why=why)

    # ---- the end ------------------------------------------------------------------------------

    def finish(
        self,
        inputs: Sequence[Value],
        outputs: Sequence[Entry],
        output_names: Sequence[str],
        name: str = "",
    ) -> Graph:
        """Returns the raw graph.

        Raises:
            UnsupportedModelError: Calls without a counterpart are left; lists every one.
        """
        results = [self.value(entry) for entry in flat(outputs)]
        graph = Graph(list(inputs), results, list(output_names), self.nodes, name=name)
        # Rules look at readers, so that the nodes are linked before they run.
        Editor(graph).finish()
        run(graph, self.rules)
        left = [node for node in graph.nodes if node.op.name.startswith(UNREAD)]
        if left:
            raise self._left(left)
        self._forget_spans(graph)
        # Behind the rules: a form that is put together carries codes which its steps, taken as
        # floats, do not.
        propagate_parameters(graph, self.hints)
        run(graph, WHOLE)
        return name_values(graph)

    def _forget_spans(self, graph: Graph) -> None:
        for node in graph.nodes:
            provenance = provenance_of_node(node)
            if provenance is None:
                continue
            node.origin = provenance.origin
            for index, rank in ranks_of(provenance).items():
                value = node.optional(index)
                if value is not None and value.is_constant:
                    self.ranks[value] = rank

    def _left(self, nodes: Sequence[Node]) -> UnsupportedModelError:
        listed: dict[str, list[str]] = {}
        for node in nodes:
            call = f"{node.op.name.removeprefix(UNREAD)} '{node.name}'"
            listed.setdefault(self.whys[node], []).append(call)
        return UnsupportedModelError(
            f"{len(nodes)} call(s) have no counterpart in a graph",
            where=self.where,
            why="; ".join(f"{_some(calls)}: {why}" for why, calls in listed.items()),
            fix="rewrite them, or keep them outside of the function that is read",
        )


@dataclass(frozen=True, slots=True, eq=False)
class CallNode(Attributes):
    """What a node says that stands for a call before it is read.

    Attributes:
        reading: The graph so far.
    """

    call: Call
    reading: Reading


def call_rule(
    name: str, pattern: AnyPattern
) -> Callable[[Callable[[Reading, Call, PatternMatch], Value | Reject | None]], Rule]:
    """Makes a rule of a call on its arguments, which are read already, and of a function.

    The function makes what stands for the call, whose type the rows of later calls see.

    Args:
        name: Kebab-case.
        pattern: The call, by Relay's name, on what it reads.
    """

    def make(build: Callable[[Reading, Call, PatternMatch], Value | Reject | None]) -> Rule:
        @pattern_rule(name, pattern)
        @wraps(build)
        def propose(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
            del context
            given = node.record(CallNode)
            made = build(given.reading, given.call, match)
            return Replace({node.output: made}) if isinstance(made, Value) else made

        return propose

    return make


Row: TypeAlias = "Callable[[Reading, Call], Entry | list[Value]]"
"""What one operator becomes: adds nodes to the reading and returns what the call stands for."""


def _same_numbers(own: QuantParams, given: QuantParams) -> bool:
    """True where both stand for the same real numbers; hosts know scales of float32 only."""
    if own.same_mapping(given):
        return True
    return (
        (own.storage_dtype, own.axis, own.block_size)
        == (given.storage_dtype, given.axis, given.block_size)
        and np.array_equal(own.scale.astype(np.float32), given.scale.astype(np.float32))
        and np.array_equal(own.zero_point, given.zero_point)
    )


def _some(calls: Sequence[str]) -> str:
    more = f" and {len(calls) - _LISTED} more" if len(calls) > _LISTED else ""
    return ", ".join(calls[:_LISTED]) + more


def flat(entries: Sequence[Entry]) -> list[Entry]:
    """Returns entries with tuples replaced by their fields."""
    found: list[Entry] = []
    for entry in entries:
        found += [entry] if isinstance(entry, Value) else flat(entry)
    return found


def tensor(call: Call, shape: Shape | None = None) -> TensorType:
    """Returns the plain type of a call's result, as the host has it."""
    return TensorType(call.dtype, call.result.shape if shape is None else shape)


def _origin(provenance: Provenance | None, call: Call | None) -> Origin:
    if provenance is not None:
        return recorded_origin(provenance)
    return NO_ORIGIN if call is None or not call.name else Origin((call.name,))


def _never(attributes: Any, operands: Any) -> tuple[NDArray[Any], ...]:
    del attributes, operands
    raise UnsupportedModelError("a call has no counterpart in a graph")
