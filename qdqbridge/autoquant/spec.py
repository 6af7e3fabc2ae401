"""What is to be decided about a value: seen data, a fixed answer, or somebody else's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from qdqbridge.autoquant.formats import Format
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.quantization import QuantParams


@dataclass(frozen=True, slots=True)
class Observed:
    """A chooser picks parameters from what was seen of the value.

    Attributes:
        format: How it shall be stored.
    """

    format: Format


@dataclass(frozen=True, slots=True)
class Fixed:
    """The parameters are known without looking.

    Attributes:
        params: The parameters.
        reason: Who says so: a rule of the target, or the user.
    """

    params: QuantParams
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """The value has the parameters of another one, whose stored integers it moves.

    Attributes:
        source: The value whose parameters it has.
    """

    source: Value


@dataclass(frozen=True, slots=True)
class Derived:
    """The parameters follow from others: a bias counts in units of ``scale_x * scale_w``."""


Spec: TypeAlias = "Observed | Fixed | Shared | Derived"


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A constant operand that shall be stored quantized.

    Attributes:
        node: The node that reads it.
        index: Which operand it is.
        spec: Observed (of the constant itself), Fixed or Derived.
    """

    node: Node
    index: int
    spec: Spec

    @property
    def value(self) -> Value:
        """The constant."""
        return self.node.operand(self.index)


@dataclass(slots=True, eq=False)
class QuantizationPlan:
    """Everything that has to be decided, before anything is.

    Attributes:
        graph: The canonical float graph.
        specs: What to do about each value that shall be quantized, in topological order.
        weights: The constants that shall be.
        rules: By which rule of the target each quantized node is treated.
        floats: Why each other node stays float.
        joined: By the value that decides, others that share its parameters and whose statistics
            count as well.
        unrounded: Operands (node and index) that read a value as it is computed, although other
            readers of it get it rounded.
        float_biases: Biases of sums that nobody rounds stay real numbers.
    """

    graph: Graph
    specs: dict[Value, Spec] = field(default_factory=dict["Value", "Spec"])
    weights: list[Weight] = field(default_factory=list[Weight])
    rules: dict[Node, str] = field(default_factory=dict[Node, str])
    floats: dict[Node, str] = field(default_factory=dict[Node, str])
    joined: dict[Value, list[Value]] = field(default_factory=dict["Value", "list[Value]"])
    unrounded: set[tuple[Node, int]] = field(default_factory=set[tuple[Node, int]])
    float_biases: bool = False

    def observed(self) -> list[Value]:
        """Returns the values whose statistics are needed."""
        open_ = [value for value, spec in self.specs.items() if isinstance(spec, Observed)]
        return [*open_, *(v for value in open_ for v in self.joined.get(value, ()))]

    def root(self, value: Value) -> Value:
        """Returns the value that decides about ``value``: itself unless it shares parameters."""
        spec = self.specs[value]
        while isinstance(spec, Shared):
            value = spec.source
            spec = self.specs[value]
        return value
