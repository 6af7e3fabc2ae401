"""What must hold for every graph, and what more must hold for a canonical one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import QuantType
from qdqbridge.errors import GraphError, InvalidModelError, ScalesError

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
    if name == "quantize" and converted and _round_trips(first):
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


def _round_trips(value: Value) -> bool:
    stored = None if value.producer is None else value.producer.operand(0).quant
    return stored is not None and stored.params.round_trips


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
