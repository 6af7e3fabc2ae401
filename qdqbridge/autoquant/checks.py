"""What is refused, and what stays float, before anything is decided."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from qdqbridge.autoquant.plan import QuantizationPlan
from qdqbridge.autoquant.stats import TensorStats
from qdqbridge.errors import InputDataError, UnsupportedModelError
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Flow
from qdqbridge.graph.types import TensorType

_HUGE = math.ldexp(1.0, 100)
"""Magnitudes that stand for infinity, such as the lowest float32 in an attention mask."""
_SHOWN = 5


def check_float(graph: Graph) -> None:
    """Refuses a graph that is quantized already, at least in part.

    Raises:
        InputDataError: It holds quantized values or operators on integers.
    """
    found = [value.name for value in graph.values() if value.quant is not None]
    names = [node.name for node in graph.nodes if "Integer" in node.op.name]
    if found or names:
        raise InputDataError(
            "the model is quantized already",
            why=f"quantized: {_listed(found or names)}",
            fix="give the float model that it was made from",
        )


def check_plan(plan: QuantizationPlan) -> None:
    """Refuses a plan that quantizes nothing.

    Raises:
        UnsupportedModelError: No node runs on integers; the message says why.
    """
    if plan.rules:
        return
    half = [v.name for v in plan.graph.values() if _is_half(v)]
    if half:
        raise UnsupportedModelError(
            "a float16 model cannot be quantized",
            why=f"float16: {_listed(half)}",
            fix="give the model as it was before its conversion to float16",
        )
    raise UnsupportedModelError(
        "nothing in the model can be quantized",
        why="; ".join(sorted(set(plan.floats.values()))) or "it has no operator that computes",
        fix="choose another target, or exclude less",
    )


def _is_half(value: Value) -> bool:
    kinds = (DType.FLOAT16, DType.BFLOAT16)
    return isinstance(value.type, TensorType) and value.type.dtype in kinds


def check_numbers(seen: Mapping[Value, TensorStats]) -> None:
    """Refuses statistics with NaN in them.

    Raises:
        InputDataError: A tensor held NaN; the first ones in the order of the graph are named.
    """
    found = [(value.name, stats.nans) for value, stats in seen.items() if stats.nans]
    if found:
        name, count = found[0]
        raise InputDataError(
            "the float model computes NaN on the data",
            where=f"tensor {name!r}, {count} times",
            why=f"NaN in {len(found)} tensors: {_listed([name for name, _ in found])}",
            fix="look at the data and at the operator that makes that tensor",
        )


def unusable(seen: Mapping[Value, TensorStats]) -> dict[Value, str]:
    """Returns the values that no range describes, and why."""
    result: dict[Value, str] = {}
    for value, stats in seen.items():
        if not stats.finite:
            result[value] = f"no sample put a finite number into {value.name!r}"
        elif stats.positive_infinities or stats.negative_infinities or stats.magnitude >= _HUGE:
            result[value] = f"{value.name!r} holds infinities, or numbers that stand for them"
    return result


def nodes_around(values: Mapping[Value, str]) -> dict[Node, str]:
    """Returns the nodes that have to stay float for ``values`` not to be rounded, and why.

    Data-movement operators are passed through: what they move would be quantized otherwise.
    """
    result: dict[Node, str] = {}
    pending = list(values.items())
    while pending:
        value, reason = pending.pop()
        for node in _neighbours(value):
            if node in result:
                continue
            result[node] = reason
            if node.op.flow is Flow.MOVE:
                pending += [(v, reason) for v in (node.operand(0), *node.outputs)]
    return result


def _neighbours(value: Value) -> Iterable[Node]:
    if value.producer is not None:
        yield value.producer
    yield from (node for node, _ in value.users)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
