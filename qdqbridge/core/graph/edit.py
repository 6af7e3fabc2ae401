"""The only place that changes a graph, and what must hold for every graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.errors import GraphError, InvalidModelError, ScalesError

# ---- the deterministic topological order of a graph ----------------------------------------------


def execution_order(outputs: Sequence[Value]) -> list[Node]:
    """Returns the nodes that ``outputs`` need, operands first.

    The order is the post-order of a depth-first walk from the outputs through the operands in
    their order, so it depends on the structure alone: not on names, nor on the file's order.

    Raises:
        InvalidModelError: The graph has a cycle.
    """
    # A stack of its own instead of recursion: chains of nodes are longer than Python's calls may
    # nest.
    order: list[Node] = []
    done: set[Node] = set()
    open_: set[Node] = set()
    for output in outputs:
        stack: list[tuple[Node, int]] = []
        if output.producer is not None and output.producer not in done:
            stack.append((output.producer, 0))
            open_.add(output.producer)
        while stack:
            node, index = stack.pop()
            if index == len(node.inputs):
                open_.discard(node)
                done.add(node)
                order.append(node)
                continue
            stack.append((node, index + 1))
            operand = node.inputs[index]
            producer = None if operand is None else operand.producer
            if producer is None or producer in done:
                continue
            if producer in open_:
                raise InvalidModelError(
                    "the graph has a cycle",
                    where=f"node '{node.name}', operand {index}",
                    why=f"it depends on the result of '{producer.name}', which depends on it",
                    fix="ONNX graphs must be acyclic; export the model again",
                )
            open_.add(producer)
            stack.append((producer, 0))
    return order


def link(node: Node) -> None:
    """Enters ``node`` into the user lists of its operands."""
    node.linked = True
    for index, value in enumerate(node.inputs):
        if value is not None:
            value.users[node, index] = None


def unlink(node: Node) -> None:
    """Takes ``node`` out of the user lists of its operands."""
    node.linked = False
    for index, value in enumerate(node.inputs):
        if value is not None:
            value.users.pop((node, index), None)


def rewire(node: Node, index: int, value: Value) -> None:
    """Makes a linked node read ``value`` as operand ``index``; one behind the last is appended."""
    old = node.optional(index)
    if old is not None:
        old.users.pop((node, index), None)
    node.inputs += [None] * (index + 1 - len(node.inputs))
    node.inputs[index] = value
    value.users[node, index] = None


class Editor:
    """Changes one graph; :meth:`finish` restores the deterministic order and drops dead nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._output_slots: dict[Value, list[int]] = {}
        for slot, value in enumerate(graph.outputs):
            self._output_slots.setdefault(value, []).append(slot)

    def is_output(self, value: Value) -> bool:
        """True where ``value`` leaves the graph."""
        return value in self._output_slots

    def is_dead(self, node: Node) -> bool:
        """True where nothing reads any result of ``node``."""
        return not any(value.users or value in self._output_slots for value in node.outputs)

    def insert(self, value: Value) -> list[Node]:
        """Links the nodes behind ``value`` that are still proposals; returns them."""
        added: list[Node] = []
        pending = [value.producer]
        while pending:
            node = pending.pop()
            if node is None or node.linked:
                continue
            link(node)
            added.append(node)
            pending.extend(v.producer for v in node.inputs if v is not None)
        return added

    def replace_value(
        self, old: Value, new: Value, users: Sequence[tuple[Node, int]] | None = None
    ) -> set[Node]:
        """Makes every reader of ``old``, or those given, read ``new``; returns the readers."""
        readers: set[Node] = set()
        # A copy, since rewiring takes readers out of ``old.users`` while they are walked.
        for node, index in list(old.users) if users is None else users:
            rewire(node, index, new)
            readers.add(node)
        if new.declared is None:
            new.declared = old.declared
        for slot in self._output_slots.pop(old, ()):
            self.graph.outputs[slot] = new
            self._output_slots.setdefault(new, []).append(slot)
        return readers

    def remove(self, node: Node) -> Iterable[Node]:
        """Removes a dead node; returns the producers of its operands, which may be dead now."""
        unlink(node)
        return {v.producer for v in node.inputs if v is not None and v.producer is not None}

    def finish(self) -> None:
        """Sets ``graph.nodes`` to the deterministic order of the nodes that outputs need."""
        order = execution_order(self.graph.outputs)
        alive = set(order)
        for node in self.graph.nodes:
            # A dead node would stay among the readers of what lives, and rules that ask for a sole
            # reader would not fire.
            if node not in alive and node.linked:
                unlink(node)
        for node in order:
            if not node.linked:
                link(node)
        self.graph.nodes = order


def name_values(graph: Graph) -> Graph:
    """Gives every computed value a name that no other has, in place, and returns the graph.

    Inputs keep theirs, and so does the first of several values of one name. The names depend on
    nothing but the graph.
    """
    taken = {value.name for value in graph.inputs}
    given = {v.name for node in graph.nodes for v in node.outputs} | taken
    counts: dict[str, int] = {}
    for node in graph.nodes:
        for value in node.outputs:
            if not value.name or value.name in taken:
                value.name = _fresh(value.name or node.op.name.lower(), given, counts)
                given.add(value.name)
            taken.add(value.name)
    return graph


def _fresh(base: str, given: set[str], counts: dict[str, int]) -> str:
    """Returns ``base`` with the first free number, counted on from where it was left."""
    count = counts.get(base, 1)
    while f"{base}_{count}" in given:
        count += 1
    counts[base] = count + 1
    return f"{base}_{count}"


# ---- What must hold for every graph, and what more must hold for a canonical one -----------------


_LISTED = 8


def verify(graph: Graph, file: str = "") -> None:
    """Checks the operators' own rules on every node, and the canonical form where the graph has it.

    Args:
        graph: Any graph.
        file: Name of the file it comes from, for messages.

    Raises:
        InvalidModelError: A node breaks its operator's rules (shapes, attributes), scales do not
            fit the shape of their tensor, or two results have one name.
        GraphError: The graph claims to be canonical and is not.
    """
    _check_names(graph.output_names, graph.outputs, file or graph.name)
    _check_scales(graph, file or graph.name)
    problems: list[tuple[Node, str]] = []
    for node in graph.nodes:
        problems += [(node, problem) for problem in node.op.problems(node)]
    if problems:
        raise _error(
            InvalidModelError, "the model breaks the rules of its operators", problems, file
        )
    if graph.canonical:
        # Many values share parameters, whose arrays have one entry per channel: each is looked at
        # once.
        sound: set[QuantParams] = set()
        broken = [(node, p) for node in graph.nodes for p in _canonical_problems(node, sound)]
        if broken:
            raise _error(GraphError, "the graph is not in canonical form", broken, file)


def _check_names(names: Sequence[str], outputs: Sequence[Value], where: str) -> None:
    """Refuses a name for two results: those of a run are distinguished by it.

    One result may have its name twice, which is one entry among the results of a run.
    """
    named: dict[str, Value] = {}
    for name, value in zip(names, outputs, strict=True):
        if named.setdefault(name, value) is not value:
            raise InvalidModelError(
                f"two outputs have the name '{name}'",
                where=where,
                why="they are different tensors",
                fix="give every output a name of its own",
            )


def _check_scales(graph: Graph, where: str) -> None:
    """Refuses types whose scales do not fit their shape: nobody could compute or write them."""
    for value in graph.values():
        if value.quant is not None and (problem := value.quant.misfit()):
            raise ScalesError(
                f"the scales of '{value.name}' do not fit its shape",
                where=where,
                why=problem,
                fix="give one scale per element of the axis, or per block of it",
            )


def _error(
    kind: type[InvalidModelError] | type[GraphError],
    what: str,
    problems: list[tuple[Node, str]],
    file: str,
) -> InvalidModelError | GraphError:
    listed = "; ".join(f"{n.op.name} '{n.name}': {text}" for n, text in problems[:_LISTED])
    more = f" (and {len(problems) - _LISTED} more)" if len(problems) > _LISTED else ""
    return kind(
        what,
        where=file or f"{problems[0][0].op.name} '{problems[0][0].name}'",
        why=listed + more,
        fix="correct these nodes, or export the model again",
    )


def _canonical_problems(node: Node, sound: set[QuantParams]) -> Iterator[str]:
    yield from _parameter_problems(node, sound)
    name, first = node.op.name, node.inputs[0] if node.inputs else None
    if first is None:
        return
    producer = first.producer
    converted = producer is not None and producer.op.flow is Flow.CONVERT
    if name == "quantize" and converted and _round_trips(node, first):
        yield "a quantize of a dequantize must be a requantize"
    if name in ("quantize", "requantize") and first.is_constant:
        yield "a constant must be stored quantized"
    keeps = all(_same_storage(first, result) for result in node.outputs)
    if node.op.flow is Flow.MOVE and isinstance(first.type, QuantType) and not keeps:
        yield "a data-movement operator must keep its operand's quantization"
    if node.op.flow is Flow.ACCUMULATE and first.quant and node.operand(1).quant:
        yield from _bias_problems(node)


def _parameter_problems(node: Node, sound: set[QuantParams]) -> Iterator[str]:
    """Yields what is wrong with parameters; those without fault are kept in ``sound``."""
    for value in (*node.inputs, *node.outputs):
        if value is None or value.quant is None or value.quant.params in sound:
            continue
        params = value.quant.params
        scale = params.scale.astype(np.float64)
        # A constant keeps a negative scale where its mirrored integers would not fit.
        if not np.isfinite(scale).all() or (not value.is_constant and (scale <= 0).any()):
            yield f"the scale of '{value.name}' is not positive and finite"
        elif (scale > 0).all():
            sound.add(params)


def _round_trips(node: Node, value: Value) -> bool:
    """True where a quantize of what is dequantized has the codes that there were."""
    stored = None if value.producer is None else value.producer.operand(0).quant
    divided = getattr(node.attributes, "precision", None) or DType.FLOAT32
    types = value.type.dtype, divided
    return stored is not None and all(stored.params.round_trips_in(real) for real in types)


def _same_storage(first: Value, result: Value) -> bool:
    a, b = first.quant, result.quant
    if a is None or b is None:
        return False
    return a.params.per_tensor == b.params.per_tensor and (
        not a.params.per_tensor or a.params.same_mapping(b.params)
    )


def _bias_problems(node: Node) -> Iterator[str]:
    bias = node.optional(2)
    if bias is None or bias.quant is None:
        return
    params = bias.quant.params
    if params.storage_dtype.label != "int32" or not params.symmetric or not bias.is_constant:
        yield f"the bias '{bias.name}' is not an int32 constant with zero point 0"
