"""What else could be decided for a model: layers left float, or stored with more bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.biases import product_of
from qdqbridge.autoquant.hardware.scales import suited
from qdqbridge.autoquant.planning.decide import Decision, activations, decide
from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.autoquant.planning.plan import (
    Fixed,
    Observed,
    Overrides,
    QuantizationPlan,
    Weight,
    plan,
)
from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.planning.units import Units
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.quantization import QuantParams


@dataclass(frozen=True, slots=True)
class Layer:
    """What computes between two roundings: a product with bias and clamp, or another operator.

    Attributes:
        nodes: Its nodes, in order.
    """

    nodes: tuple[Node, ...]

    @property
    def head(self) -> Node:
        """The node that gives it its name: a product where there is one."""
        products = (node for node in self.nodes if node.op.flow is Flow.ACCUMULATE)
        return next(products, self.nodes[0])

    @property
    def name(self) -> str:
        """The name of :attr:`head` in the file."""
        return self.head.name

    @property
    def kind(self) -> str:
        """The operator of :attr:`head`."""
        return self.head.op.name

    def __repr__(self) -> str:
        return f"Layer({self.kind} {self.name!r})"


def layers_of(plan: QuantizationPlan) -> list[Layer]:
    """Returns the layers that run on integers, in order."""
    units = Units(plan.graph.nodes, plan.graph.outputs, set(plan.rules))
    group: dict[Node, list[Node]] = {}
    for node in plan.graph.nodes:
        if node not in plan.rules:
            continue
        mine = [node]
        for _, value in node.data_operands():
            if value.producer in group and units.is_inside(value):
                joined = group[value.producer]
                mine = joined if mine is joined else [*joined, *mine]
        for member in mine:
            group[member] = mine
    unique = {id(nodes): nodes for nodes in group.values()}
    order = {node: index for index, node in enumerate(plan.graph.nodes)}
    found = [Layer(tuple(sorted(set(nodes), key=order.__getitem__))) for nodes in unique.values()]
    return sorted(found, key=lambda layer: order[layer.nodes[0]])


@dataclass(frozen=True, slots=True)
class LayerChange:
    """What a layer gets instead of what the target wants; it stays float without any format.

    Attributes:
        format: The format of what it reads and computes; None for the target's.
        reason: Why.
        weights: The format of its weights; None for the target's.
    """

    format: Format | None = None
    reason: str = "fallback"
    weights: Format | None = None

    @property
    def is_float(self) -> bool:
        """True where the layer stays float."""
        return self.format is None and self.weights is None

    def __str__(self) -> str:
        if self.is_float:
            return "float"
        own = [] if self.format is None else [str(self.format.storage)]
        return " and ".join(own + ([f"{self.weights.storage} weights"] if self.weights else []))


@dataclass(slots=True, eq=False)
class Variants:
    """Decisions next to one that was made.

    What a variant plans like the decision gets the decision's parameters, and its integers; only
    the rest is chosen anew.

    Attributes:
        base: The decision.
        target: The target it was made for.
        stats: Statistics of every float tensor of the graph.
        overrides: The overrides of its plan.
    """

    base: Decision
    target: Target
    stats: Mapping[Value, TensorStats]
    overrides: Overrides = field(default_factory=Overrides)
    _values: dict[tuple[object, ...], QuantParams] = field(init=False, repr=False)
    _weights: dict[tuple[object, ...], QuantParams] = field(init=False, repr=False)
    _stored: dict[tuple[Node, int], QuantParams] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        own = self.base.plan
        self._values = {
            _key(own, value, spec): self.base.values[value]
            for value, spec in own.specs.items()
            if isinstance(spec, Observed)
        }
        self._weights = {
            (weight.node, weight.index, weight.spec.format): params
            for weight, params in self.base.weights.items()
            if isinstance(weight.spec, Observed)
        }
        self._stored = {(w.node, w.index): params for w, params in self.base.weights.items()}

    @property
    def graph(self) -> Graph:
        """The float graph."""
        return self.base.plan.graph

    def overrides_for(self, changes: Mapping[Layer, LayerChange]) -> Overrides:
        """Returns the overrides with ``changes`` on top."""
        floats = dict(self.overrides.floats)
        formats = dict(self.overrides.formats)
        weights = dict(self.overrides.weights)
        for layer, change in changes.items():
            for node in layer.nodes:
                if change.is_float:
                    floats[node] = change.reason
                if change.format is not None:
                    formats[node] = change.format
                if change.weights is not None:
                    weights[node] = change.weights
        return replace(self.overrides, floats=floats, formats=formats, weights=weights)

    def plan_for(self, changes: Mapping[Layer, LayerChange]) -> QuantizationPlan:
        """Returns the plan with ``changes``."""
        own = plan(self.graph, self.target, self.overrides_for(changes))
        return replace(own, room=self.base.plan.room)

    def decision(self, changes: Mapping[Layer, LayerChange]) -> Decision:
        """Returns the decision with ``changes``; without any it is the base's."""
        if not changes:
            return self.base
        return self.decided(self.plan_for(changes))

    def decided(self, own: QuantizationPlan) -> Decision:
        """Returns a decision for a plan of the same graph."""
        result = Decision(own, bodies=self.base.bodies)
        roots = {value: own.root(value) for value in own.specs}
        found = {root: self._value(own, root) for root in dict.fromkeys(roots.values())}
        result.values = {value: found[root] for value, root in roots.items()}
        for weight in own.weights:
            params = self._weight(own, weight)
            if params is not None:
                result.weights[weight] = params
        own.biases = self._biases(result)
        result.weights = suited(own, result.values, result.weights)
        self._carry_integers(result)
        own.biases = self._biases(result)
        return result

    def _biases(self, decision: Decision) -> dict[tuple[Node, int], NDArray[Any]]:
        """Returns the corrections of products whose weights are stored as in the base.

        They make up for what these weights lost; float ones and others have their own biases.
        """
        alike = {w.node for w, params in decision.weights.items() if self._known(w) == params}
        return {
            (bias.node, bias.index): self.base.plan.biases[bias.node, bias.index]
            for bias in decision.plan.weights
            if (bias.node, bias.index) in self.base.plan.biases and product_of(bias) in alike
        }

    def _known(self, weight: Weight) -> QuantParams | None:
        """Returns the base's parameters of a weight of another plan."""
        return self._stored.get((weight.node, weight.index))

    def _value(self, own: QuantizationPlan, value: Value) -> QuantParams:
        spec = own.specs[value]
        if isinstance(spec, Fixed):
            return spec.params
        assert isinstance(spec, Observed)
        key = _key(own, value, spec)
        if key not in self._values:
            alone = QuantizationPlan(self.graph, specs={value: spec})
            if value in own.joined:
                alone.joined = {value: own.joined[value]}
            self._values[key] = activations(alone, self.stats, self.target.chooser)[value]
        return self._values[key]

    def _weight(self, own: QuantizationPlan, weight: Weight) -> QuantParams | None:
        spec = weight.spec
        if not isinstance(spec, Observed):
            return spec.params if isinstance(spec, Fixed) else None
        key = (weight.node, weight.index, spec.format)
        if key not in self._weights:
            alone = QuantizationPlan(self.graph, weights=[weight])
            self._weights[key] = decide(alone, {}, self.target).weights[weight]
        return self._weights[key]

    def _carry_integers(self, decision: Decision) -> None:
        """Gives weights that are stored as in the base the base's integers."""
        known = {(w.node, w.index): array for w, array in self.base.integers.items()}
        for weight, params in decision.weights.items():
            found = known.get((weight.node, weight.index))
            if found is not None and self._known(weight) == params:
                decision.integers[weight] = found


def _key(own: QuantizationPlan, value: Value, spec: Observed) -> tuple[object, ...]:
    return (value, spec.format, *own.joined.get(value, ()))


_WIDE = {
    DType.INT8: DType.INT16, DType.UINT8: DType.UINT16,
    DType.INT4: DType.INT16, DType.UINT4: DType.UINT16,
}  # fmt: skip


def wider(format: Format | Unstored | None) -> Format | None:
    """Returns a format of integers in 16 bits; None where it has them, or is none."""
    if not isinstance(format, Format) or format.storage not in _WIDE:
        return None
    return replace(format, storage=_WIDE[format.storage])


def widened(target: Target) -> Format | None:
    """Returns the format of the target's activations in 16 bits; None where they have them."""
    return wider(target.activations)


def narrowed(target: Target) -> Format | None:
    """Returns the format of the target's activations in 8 bits; None where they have them."""
    own = target.activations
    if not isinstance(own, Format) or own.storage not in (DType.INT16, DType.UINT16):
        return None
    return replace(own, storage=DType.INT8 if own.storage.is_signed else DType.UINT8)


def widened_weights(target: Target) -> Format | None:
    """Returns the format of the target's weights in 8 bits; None where they have them."""
    own = target.weights
    storage = DType.INT8 if own.storage.is_signed else DType.UINT8
    return None if own.storage.bits >= 8 else replace(own, storage=storage)
