"""The one order of what may change places: operands of nodes, and steps of compositions.

Both are ordered by what computes them, never by names.

``a + b`` and ``b + a`` are the same bits, so one of them is canonical. What comes first is, in this
order: what is not constant; what is computed in fewer steps from the graph's inputs (the skip of a
residual before its branch, as most exporters write it); graph inputs by their number; then the
operator's name and a hash of all that stands behind the operand. Operands that agree in all of this
are the same number, computed twice; the order is then that of their other readers.

Hashes are made only for operands that stand otherwise alike, and those of long constants only where
everything else behind two operands is alike: nothing reads a file's weights for their sake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TypeAlias

from qdqbridge.core.graph.edit import execution_order, link, unlink
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.printer import attributes_text, elements, params_text
from qdqbridge.core.graph.types import QuantType, ValueType
from qdqbridge.core.ops.build import requantized, result, retyped
from qdqbridge.core.ops.composition import CompositionAttrs, Step
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, rule

_Key: TypeAlias = "Callable[[Value], Any]"
_LITERAL = 16
"""Constants of so many elements are part of every hash."""


def order_operands(graph: Graph) -> None:
    """Brings the operands of commuting nodes of ``graph`` into their one order."""
    nodes = [node for node in graph.nodes if _commuting_operand_count(node) > 1]
    if not nodes:
        return
    places = _Places(graph.inputs, graph.nodes, graph.outputs)
    alike: dict[Node, tuple[Any, ...]] = {}
    for node in nodes:
        values, keys = _sorted(node, places)
        _reorder(node, values)
        # Nothing behind or in front of them differs; any order gives the same numbers, but text and
        # digest need one that does not depend on the file's.
        if len(set(keys)) < len(set(values)):
            alike[node] = tuple(keys)
    if alike:
        _order_by_first_use(graph.outputs, alike)
    graph.nodes = execution_order(graph.outputs)


def commuting(node: Node) -> Sequence[Value | None]:
    """Returns the operands of ``node`` that may change places."""
    return node.inputs[: node.op.commuting]


def _commuting_operand_count(node: Node) -> int:
    """Returns how many different operands may change places; 0 where one is left out."""
    operands = commuting(node)
    return 0 if None in operands else len(set(operands))


def _sorted(node: Node, places: _Places) -> tuple[list[Value], list[Any]]:
    """Returns the commuting operands in order, and what they were sorted by."""
    values = [value for value in commuting(node) if value is not None]
    chosen: list[_Key] = []
    pairs: list[tuple[Value, Any]] = []
    # From the cheapest to the dearest, each only where those before leave operands alike: nothing
    # hashes a file's weights to order an Add of two activations.
    for key in (places.near, places.form, places.contents, places.readers):
        chosen.append(key)
        keys = {value: tuple(part(value) for part in chosen) for value in values}
        pairs = sorted(((v, keys[v]) for v in values), key=lambda pair: pair[1])
        if len(set(keys.values())) == len(keys):
            break
    return [value for value, _ in pairs], [key for _, key in pairs]


def _reorder(node: Node, values: Sequence[Value]) -> None:
    operands = [*values, *node.inputs[len(values) :]]
    if operands != node.inputs:
        unlink(node)
        node.inputs = operands
        link(node)


def _order_by_first_use(outputs: Sequence[Value], alike: dict[Node, tuple[Any, ...]]) -> None:
    """Orders operands that nothing tells apart as a walk from the outputs meets them."""
    met: dict[Value, int] = {}
    stack: list[Value] = list(reversed(outputs))
    while stack:
        value = stack.pop()
        if value in met:
            continue
        met[value] = len(met)
        node = value.producer
        if node is None:
            continue
        keys = alike.pop(node, None)
        if keys is not None:
            values = [v for v in commuting(node) if v is not None]
            late = len(met) + 1
            ranked = sorted(
                zip(keys, values, strict=True), key=lambda p: (p[0], met.get(p[1], late))
            )
            _reorder(node, [v for _, v in ranked])
        stack += [v for v in reversed(node.inputs) if v is not None]


class _Places:
    """What tells the values of a graph apart, from the cheapest to the dearest."""

    def __init__(
        self, inputs: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> None:
        self.inputs = {value: index for index, value in enumerate(inputs)}
        self.nodes, self.outputs = nodes, outputs
        self.depths: dict[Value, int] = {}
        for node in nodes:
            behind = (self.depths.get(v, 0) for v in node.inputs if v is not None)
            depth = 1 + max(behind, default=0)
            self.depths.update(dict.fromkeys(node.outputs, depth))
        self.forms: dict[Value, bytes] = {}
        self.hashes: dict[Value, bytes] = {}
        self.contexts: dict[Value, bytes] | None = None

    def near(self, value: Value) -> tuple[object, ...]:
        """Constant or not, the steps behind a value, its number or its operator's name."""
        if value.constant is not None:
            return (True, value.type.dtype.label, value.constant.shape)
        name = () if value.producer is None else tuple(-ord(c) for c in value.producer.op.name)
        return (False, self.depths.get(value, 0), self.inputs.get(value, 0), name)

    def form(self, value: Value) -> bytes:
        """A hash of all that stands behind a value but the elements of long constants."""
        return self._behind(value, self.forms, contents=False)

    def contents(self, value: Value) -> bytes:
        """A hash of all that stands behind a value."""
        return self._behind(value, self.hashes, contents=True)

    def readers(self, value: Value) -> bytes:
        """A hash of all that a value leads to."""
        if self.contexts is None:
            self.contexts = self._ahead()
        return self.contexts[value]

    def _behind(self, value: Value, known: dict[Value, bytes], *, contents: bool) -> bytes:
        stack = [value]
        while stack:
            current = stack[-1]
            node = current.producer
            if current in known:
                stack.pop()
            elif node is None:
                known[current] = _hash(self._leaf(current, contents=contents))
            else:
                missing = [v for v in node.inputs if v is not None and v not in known]
                stack += missing
                if not missing:
                    whole = _hash(*_node_hash_parts(node, known))
                    for index, result in enumerate(node.outputs):
                        known[result] = _hash(whole, str(index))
        return known[value]

    def _leaf(self, value: Value, *, contents: bool) -> str:
        data = value.constant
        if data is None:
            return f"input {self.inputs.get(value, -1)}"
        literal = contents or data.size <= _LITERAL
        text = elements(data.numpy()) if literal else ""
        return f"const {_type_text(value.type)} {data.shape} {text}"

    def _ahead(self) -> dict[Value, bytes]:
        ends: dict[Value, list[bytes]] = {}
        for slot, value in enumerate(self.outputs):
            ends.setdefault(value, []).append(_hash("output", str(slot)))
        found: dict[Value, bytes] = {}
        for node in reversed(self.nodes):
            for value in node.outputs:
                found[value] = _hash(*sorted(ends.pop(value, [])))
            whole = _hash(*(found[v] for v in node.outputs), self.contents(node.output))
            for index, value in enumerate(node.inputs):
                if value is not None:
                    place = "any" if index < node.op.commuting else str(index)
                    ends.setdefault(value, []).append(_hash(whole, place))
        for value, leads in ends.items():
            found[value] = _hash(*sorted(leads))
        return found


def _node_hash_parts(node: Node, known: dict[Value, bytes]) -> list[str | bytes]:
    operands = [b"" if value is None else known[value] for value in node.inputs]
    count = min(node.op.commuting, len(operands))
    types = (_type_text(value.type) for value in node.outputs)
    head = f"{node.op.name}{attributes_text(node.attributes)}: {', '.join(types)}"
    return [head, *sorted(operands[:count]), *operands[count:]]


def _type_text(type_: ValueType) -> str:
    return params_text(type_.params) if isinstance(type_, QuantType) else str(type_.dtype)


def _hash(*parts: str | bytes) -> bytes:
    sha = blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(4, "little") + data)
    return sha.digest()


# ---- steps of compositions --------------------------------------------------------------------


def order_steps(nodes: Iterable[Node]) -> None:
    """Brings the steps and scalars of compositions into one order, each of them there once.

    Operands that may change places are ordered by what they are, as those of nodes are.
    """
    for node in nodes:
        given = node.attributes
        if not isinstance(given, CompositionAttrs):
            continue
        steps, operands = _ordered(given.steps, node.inputs)
        if steps != given.steps or operands != node.inputs:
            unlink(node)
            node.attributes, node.inputs = CompositionAttrs(steps), operands
            link(node)


def _ordered(
    given: Sequence[Step], operands: Sequence[Value | None]
) -> tuple[tuple[Step, ...], list[Value | None]]:
    """Returns the steps in the order of a walk from the result, and the operands they read."""
    keys = [_leaf_key(index, value) for index, value in enumerate(operands)]
    sources: list[tuple[int, ...]] = []
    for step in given:
        sources.append(_by_key(step, keys))
        keys.append(_step_key(step, [keys[i] for i in sources[-1]]))
    first = {key: index for index, key in reversed(list(enumerate(keys)))}  # equal ones are one
    count, end = len(operands), first[keys[-1]]
    scalars, order, seen, stack = [0], list[int](), {0}, [(end, False)]
    while stack:
        index, ready = stack.pop()
        if ready:
            order.append(index)
            continue
        if index in seen:
            continue
        seen.add(index)
        stack.append((index, True))
        for other in reversed([first[keys[i]] for i in sources[index - count]]):
            if other >= count:
                stack.append((other, False))
            elif other not in scalars:
                scalars.append(other)
    places = {index: place for place, index in enumerate((*scalars, *order))}
    steps = (
        replace(
            given[i - count], operands=tuple(places[first[keys[o]]] for o in sources[i - count])
        )
        for i in order
    )
    return tuple(steps), [operands[i] for i in scalars]


_StepKey: TypeAlias = "tuple[bool, int, tuple[int, ...], bytes]"
"""Constant or not, how many steps stand behind it, the operator's name, a hash of it all."""


def _leaf_key(index: int, value: Value | None) -> _StepKey:
    if index == 0 or value is None or value.constant is None:
        return False, 0, (), str(index).encode()
    data = value.constant.numpy()
    return True, 0, (), f"{value.type.dtype}{data.shape}{elements(data)}".encode()


def _by_key(step: Step, keys: Sequence[_StepKey]) -> tuple[int, ...]:
    count = step.op.commuting
    return (*sorted(step.operands[:count], key=lambda i: keys[i]), *step.operands[count:])


def _step_key(step: Step, behind: Sequence[_StepKey]) -> _StepKey:
    sha = blake2b(f"{step.op.name}{attributes_text(step.attributes)}".encode(), digest_size=16)
    for *_, part in behind:
        sha.update(len(part).to_bytes(4, "little") + part)
    name = tuple(-ord(letter) for letter in step.op.name)
    return False, 1 + max(depth for _, depth, *_ in behind), name, sha.digest()


# ---- Rules for operands that may change places or stand there twice

_EXTREMES = ("Min", "Max")


@rule("constants-last")
def constants_last(node: Node, context: RuleContext) -> Proposal:
    """``Add(const, x) -> Add(x, const)``, so that other rules find a constant on the right.

    The order among the others is settled when no rule has anything to say any more
    (:mod:`qdqbridge.core.canonical.order`).
    """
    del context
    operands = [value for value in commuting(node) if value is not None]
    if len(operands) < 2 or len(node.outputs) != 1:
        return None
    ordered = sorted(operands, key=lambda value: value.is_constant)
    if ordered == operands or len(operands) < min(node.op.commuting, len(node.inputs)):
        return None
    ordered += node.inputs[len(operands) :]  # type: ignore[arg-type] # those that stay
    return Replace({node.output: retyped(node, ordered, node.output.type, node.output.name)})


@rule("extreme-of-extremes", *_EXTREMES)
def extreme_of_extremes(node: Node, context: RuleContext) -> Proposal:
    """``Max(Max(a, b), c) -> Max(a, b, c)``: rounding twice into one type rounds once."""
    operands: list[Value | None] = []
    inner: list[Node] = []
    for value in node.inputs:
        made = None if value is None else value.producer
        if (
            made is not None
            and value is not None
            and made.op is node.op
            and value.type.shape is not None
            and _same_type(value, node.output)
            and set(context.readers(value)) == {node}
            and not context.is_output(value)
        ):
            inner.append(made)
            operands += made.inputs
        else:
            operands.append(value)
    if not inner:
        return None
    output, origin = node.output, node.origin
    for made in inner:
        origin = origin.joined(made.origin)
    value = result(node.op, node.attributes, operands, output.type, origin, output.name)
    return Replace({output: value})


def _same_type(value: Value, other: Value) -> bool:
    if value.quant is None or other.quant is None:
        return value.quant is other.quant and value.type.dtype is other.type.dtype
    params = value.quant.params
    return params == other.quant.params and params.round_trips and params.per_tensor


@rule("extreme-of-equals", *_EXTREMES)
def extreme_of_equals(node: Node, context: RuleContext) -> Proposal:
    """``Max(x, y, x) -> Max(x, y)``, and ``Max(x) -> x``, rounded into the result's type."""
    del context
    operands = list(dict.fromkeys(node.inputs))
    output = node.output
    if len(operands) < len(node.inputs) and len(operands) > 1:
        return Replace({output: retyped(node, operands, output.type, output.name)})
    x = operands[0]
    if len(operands) > 1 or x is None or x.is_constant:
        return None
    if x.type == output.type or (x.quant is None and output.quant is None):
        return Replace({output: x})
    if x.quant is None or output.quant is None or not x.quant.params.round_trips:
        return None
    return Replace({output: requantized(x, output.quant.params, node.origin, output.name)})
