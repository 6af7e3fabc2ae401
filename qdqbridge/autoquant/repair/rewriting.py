"""Graphs with other constants, and decisions about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.decide import Decision
from qdqbridge.autoquant.plan import QuantizationPlan, Shared, Spec, Weight
from qdqbridge.graph.copying import Copy, copied
from qdqbridge.graph.edit import rewire
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Attributes
from qdqbridge.ops.build import constant

Slot = tuple[Node, int]
"""An operand of a node."""


def rewritten(
    graph: Graph,
    constants: Mapping[Slot, NDArray[Any]],
    attributes: Mapping[Node, Attributes] | None = None,
) -> Copy:
    """Returns a copy of ``graph`` that reads other constants in some places.

    A constant that several nodes read is changed for those alone that are named. An operand behind
    the last one is appended.

    Args:
        graph: Not changed.
        constants: The new constants; float arrays become float32.
        attributes: New attributes of nodes.
    """
    copy = copied(graph)
    for (node, index), array in constants.items():
        _put(copy.nodes[node], index, np.ascontiguousarray(array, np.float32))
    for node, changed in (attributes or {}).items():
        copy.nodes[node].attributes = changed
    return copy


def _put(node: Node, index: int, array: NDArray[np.float32]) -> None:
    old = node.optional(index)
    name = f"{node.output.name}_bias" if old is None else old.name
    rewire(node, index, constant(array, None, name))


def moved(decision: Decision, copy: Copy) -> Decision:
    """Returns ``decision`` about a copy of its graph."""
    plan = decision.plan
    weights = {w: Weight(copy.nodes[w.node], w.index, w.spec) for w in plan.weights}

    def spec_of(spec: Spec) -> Spec:
        return Shared(copy.values[spec.source]) if isinstance(spec, Shared) else spec

    def value_of(value: Value) -> Value:
        return copy.values[value]

    new = QuantizationPlan(
        copy.graph,
        {value_of(v): spec_of(spec) for v, spec in plan.specs.items()},
        list(weights.values()),
        {copy.nodes[n]: rule for n, rule in plan.rules.items()},
        {copy.nodes[n]: reason for n, reason in plan.floats.items()},
        {value_of(v): [value_of(o) for o in others] for v, others in plan.joined.items()},
        {(copy.nodes[n], index) for n, index in plan.unrounded},
        plan.float_biases,
    )
    return replace(
        decision,
        plan=new,
        values={value_of(v): params for v, params in decision.values.items()},
        weights={weights[w]: params for w, params in decision.weights.items()},
        integers={weights[w]: array for w, array in decision.integers.items()},
    )
