"""From a float graph and a target to a plan: which values are quantized, and who decides how.

A *unit* is what computes between two roundings: a product with its bias and clamp, or elementwise
operators in a row that are one function of one tensor. Only what enters and leaves a unit is
quantized; the values inside are never rounded, so they need no parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.arithmetic import CONTRACT, IntegerArithmetic
from qdqbridge.autoquant.hardware.pair_room import PairRoom
from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.autoquant.planning.targets import (
    CLAMPS,
    E4M3,
    E5M2,
    RECURRENT_WEIGHTS,
    S8,
    SYMMETRIC_S16,
    U8,
    U16,
    WEIGHTS,
    OperatorRule,
    Target,
)
from qdqbridge.autoquant.planning.units import Units
from qdqbridge.autoquant.planning.unstored import RECURRENT, refusal, weight_format
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.graph.types import QuantParams, TensorType
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.elementwise import ADD, CONCAT, DIV, MAX, MIN, MUL, PRELU, SUB, WHERE
from qdqbridge.core.ops.matmul import GEMM, MATMUL
from qdqbridge.core.ops.selection import PAD
from qdqbridge.core.ops.shape_values import SHAPE
from qdqbridge.core.ops.unary import RELU
from qdqbridge.errors import UnsupportedTargetError

_CODES = Format(DType.UINT8)
"""Of activations where a target stores none and the user wants some."""


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
        unstored: Products of which only the weight is stored, and how they read the activation.
        arithmetic: How the target adds and rounds.
        least_scales: By the name of a product, scales of its weight that data asked for, instead
            of those that every input asks for.
        biases: Corrected biases by operand, which quantized products get instead of the graph's:
            the graph stays what the float model computes.
        room: Scales with which no pair saturates that was seen; None where pairs do not matter.
    """

    graph: Graph
    specs: dict[Value, Spec] = field(default_factory=dict["Value", "Spec"])
    weights: list[Weight] = field(default_factory=list[Weight])
    rules: dict[Node, str] = field(default_factory=dict[Node, str])
    floats: dict[Node, str] = field(default_factory=dict[Node, str])
    joined: dict[Value, list[Value]] = field(default_factory=dict["Value", "list[Value]"])
    unrounded: set[tuple[Node, int]] = field(default_factory=set[tuple[Node, int]])
    float_biases: bool = False
    unstored: dict[Node, Unstored] = field(default_factory=dict["Node", "Unstored"])
    arithmetic: IntegerArithmetic = CONTRACT
    least_scales: Mapping[str, NDArray[np.float64]] = field(
        default_factory=dict["str", "NDArray[np.float64]"]
    )
    biases: dict[tuple[Node, int], NDArray[Any]] = field(
        default_factory=dict["tuple[Node, int]", "NDArray[Any]"]
    )
    room: PairRoom | None = None

    def bias(self, bias: Weight) -> NDArray[Any] | None:
        """Returns the real numbers of a bias, corrected ones where there are; None if unknown."""
        constant = bias.value.constant
        own = None if constant is None else constant.numpy()
        return self.biases.get((bias.node, bias.index), own)

    def observed(self) -> list[Value]:
        """Returns the values whose statistics are needed."""
        open_ = [value for value, spec in self.specs.items() if isinstance(spec, Observed)]
        return [*open_, *(v for value in open_ for v in self.joined.get(value, ()))]

    def root(self, value: Value) -> Value:
        """Returns the value that decides about ``value``: itself unless it shares parameters."""
        return root(self.specs, value)


def root(specs: Mapping[Value, Spec], value: Value) -> Value:
    """Returns the value whose parameters ``value`` has."""
    spec = specs[value]
    while isinstance(spec, Shared):
        value = spec.source
        spec = specs[value]
    return value


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a user says on top of the target.

    Attributes:
        floats: Nodes that stay float, and why.
        fixed: Parameters by value.
        formats: Formats of values by node: what the node reads and computes.
        weights: Formats of constant weights by node, in the operator's own axes or as a target
            has them.
    """

    floats: Mapping[Node, str] = field(default_factory=dict[Node, str])
    fixed: Mapping[Value, QuantParams] = field(default_factory=dict[Value, QuantParams])
    formats: Mapping[Node, Format | Unstored] = field(
        default_factory=dict["Node", "Format | Unstored"]
    )
    weights: Mapping[Node, Format] = field(default_factory=dict[Node, Format])


def plan(graph: Graph, target: Target, overrides: Overrides | None = None) -> QuantizationPlan:
    """Returns what has to be decided to quantize ``graph`` for ``target``.

    Args:
        graph: A canonical float graph; it is not changed.
        target: The hardware.
        overrides: What the user wants otherwise.
    """
    planner = _QuantizationPlanner(target, overrides or Overrides())
    planner.decide(graph.inputs, graph.nodes, graph.outputs)
    return QuantizationPlan(
        graph,
        planner.specs,
        planner.constants,
        {node: rule.name for node, rule in planner.rules.items()},
        planner.floats,
        planner.joined,
        planner.unrounded,
        target.float_biases,
        planner.unstored,
        target.arithmetic,
        target.least_scales,
    )


class _QuantizationPlanner:
    """Fills what a plan consists of (:class:`QuantizationPlan`)."""

    def __init__(self, target: Target, overrides: Overrides) -> None:
        self.target, self.overrides = target, overrides
        self.specs: dict[Value, Spec] = {}
        self.constants: list[Weight] = []
        self.rules: dict[Node, OperatorRule] = {}
        self.floats: dict[Node, str] = {}
        self.joined: dict[Value, list[Value]] = {}
        self.unrounded: set[tuple[Node, int]] = set()
        self.unstored: dict[Node, Unstored] = {}
        self.wanted: dict[Value, list[Format]] = {}
        self.ranges: dict[Value, OperatorRule] = {}

    def decide(
        self, inputs: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> None:
        """Finds the rule of every node, the values that are wanted, and who decides about each."""
        self._treat(nodes)
        self.outputs = frozenset(outputs)
        integers = set(self.rules) - set(self.unstored)
        functions = self.target.functions
        self.units = Units(nodes, self.outputs, integers, functions=functions)
        self.read_as_codes = self._read_as_codes(nodes)
        for node in nodes:
            if node in self.unstored:
                self._store_weight(node, self.rules[node])
            elif node in self.rules:
                self._want(node, self.rules[node])
        # Before parameters are decided: what only moves elements has the format of what it moves.
        self._spread_over_data_movement(nodes)
        for value in (*inputs, *(result for node in nodes for result in node.outputs)):
            if value in self.wanted:
                self._decide(value)
        for node, rule in self.rules.items():
            if rule.shares:
                self._share(node)
        for node in self.rules:
            if node.op in CLAMPS:
                self._reach_for_clamp(node)

    def _treat(self, nodes: Sequence[Node]) -> None:
        # Arithmetic of shapes is no part of the network, even where it is done in floats.
        indices = {node for node in _of_extents(nodes) if self._rule_for(node) is None}
        for node in nodes:
            rule = self._rule_for(node)
            if node in self.overrides.floats:
                self.floats[node] = self.overrides.floats[node]
            # What moves elements has no rule: it follows the values that it moves.
            elif node.op.flow is Flow.MOVE or not has_floats(node) or node in indices:
                continue
            elif rule is None:
                self.floats[node] = self.target.why_float(node)
            elif not all(_is_float32(v) for _, v in node.data_operands()):
                self.floats[node] = "its operands are not float32"
            else:
                self._treat_by(rule, node)

    def _rule_for(self, node: Node) -> OperatorRule | None:
        """Returns the rule for a node; the user may want weights that a target leaves float."""
        if node.op.name in RECURRENT and isinstance(self.overrides.formats.get(node), Unstored):
            return RECURRENT_WEIGHTS
        return self.target.rule_for(node)

    def _treat_by(self, rule: OperatorRule, node: Node) -> None:
        """Notes the rule of a node whose operands are float32."""
        read = self.overrides.formats.get(node) or rule.operands or self.target.activations
        # Recurrent layers have no kernels that take stored activations: only their weights are
        # stored.
        if node.op.name in RECURRENT and not isinstance(read, Unstored):
            read = rule.operands or Unstored.FLOAT
        if isinstance(read, Unstored):
            reason = refusal(node, read)
            if reason:
                self.floats[node] = reason
                return
            self.unstored[node] = read
        self.rules[node] = rule

    def _store_weight(self, node: Node, rule: OperatorRule) -> None:
        """Stores the weights of what reads its activation as it is computed."""
        self.unrounded.add((node, 0))
        for index in (1, 2) if node.op.name in RECURRENT else (1,):
            self.constants.append(Weight(node, index, Observed(self._weight_format(node, rule))))

    def _weight_format(self, node: Node, rule: OperatorRule) -> Format:
        format = self.overrides.weights.get(node) or rule.weights or self.target.weights
        return weight_format(node, format, results_axis(node))

    def _format(self, *wanted: Format | Unstored | None) -> Format:
        """Returns the first format of those wanted, the target's where there is none."""
        found = (f for f in (*wanted, self.target.activations) if isinstance(f, Format))
        return next(found, _CODES)

    def _want(self, node: Node, rule: OperatorRule) -> None:
        own = self.overrides.formats.get(node)
        operands = self._format(own, rule.operands)
        for index, value in node.data_operands():
            if value.is_constant:
                self._weight(node, index, value, rule)
            elif node.op.flow is Flow.ACCUMULATE and index == 2:
                continue  # a bias that is computed is added as it is
            elif self._stays_unrounded(node, value):
                self.unrounded.add((node, index))
            elif not self.units.is_inside(value):
                required = rule.operands if own is None else None
                self._want_operand(value, index, operands, required)
        for value in node.outputs:
            if self.units.is_inside(value) or not _is_float32(value):
                continue
            if self._ends_product(node) and value not in self.read_as_codes:
                continue  # its float result costs nothing and is not rounded twice
            self.wanted.setdefault(value, []).append(self._format(own, rule.result))
            if rule.fixed is not None or rule.whole_reciprocal:
                self.ranges[value] = rule

    def _want_operand(
        self, value: Value, index: int, format: Format, required: Format | Unstored | None
    ) -> None:
        """Notes a format; what a rule requires goes before what others want of the value.

        Unsigned storage that begins at zero has the zero point 0 that symmetric storage is for.
        """
        own = self.wanted.setdefault(value, [])
        if not isinstance(required, Format):
            own.append(format)
            return
        source = value
        while source.producer is not None and self._moves(source.producer):
            source = source.producer.operand(0)
        if index == 0 and required.symmetric and self._begins_at_zero(source):
            own.append(self._format())
            return
        # In front: the first of those that are wanted is what it gets.
        own.insert(0, required)
        if source is not value and not (source.is_constant or self.units.is_inside(source)):
            self.wanted.setdefault(source, []).insert(0, required)

    def _begins_at_zero(self, value: Value) -> bool:
        """True for what the target stores without a sign, and that is never negative."""
        own, made = self._format(), value.producer
        if own.storage.is_signed or own.symmetric or made is None:
            return False
        return made.op is RELU or (made.op.interval is not None and made.op.interval[0] == 0)

    def _stays_unrounded(self, node: Node, value: Value) -> bool:
        """True for an operand of a residual Add that the target wants float."""
        producer = value.producer
        if self.target.residuals or node.op is not ADD or producer not in self.rules:
            return False
        both = not any(v.is_constant for _, v in node.data_operands())
        return both and producer.op.flow is Flow.ACCUMULATE and not self.units.is_inside(value)

    def _read_as_codes(self, nodes: Sequence[Node]) -> set[Value]:
        """Returns the values that integer operators or quantized outputs need, also moved."""
        needed = {value for value in self.outputs if self._leaves_as_codes(value)}
        # From the outputs back, so that what a mover hands on is known before the mover is.
        for node in reversed(nodes):
            moves = self._moves(node)
            integer = node in self.rules and node not in self.unstored
            if integer or (moves and needed & set(node.outputs)):
                operands = (value for _, value in node.data_operands())
                needed |= {v for v in operands if not self._stays_unrounded(node, v)}
        return needed

    def _moves(self, node: Node) -> bool:
        """True for data movement whose operand and result are quantized alike."""
        return node.op.flow is Flow.MOVE and node not in self.floats

    def _leaves_as_codes(self, value: Value) -> bool:
        """True for an output of the graph that the target wants rounded."""
        producer = value.producer
        while producer and self._moves(producer):
            value = producer.operand(0)
            producer = value.producer
        if producer in self.unstored:
            return False
        product = self._product_of(producer) if producer in self.rules else None
        free = product is not None and product.op.name in self.target.float_results
        return self.target.outputs and not free

    def _product_of(self, node: Node) -> Node | None:
        """Returns the product whose sums ``node`` ends: itself, or the one before its bias."""
        if node.op.flow is Flow.ACCUMULATE:
            return node
        operands = (value for _, value in node.data_operands() if self.units.is_inside(value))
        return next(operands).producer if self.units.adds_bias(node) else None

    def _ends_product(self, node: Node) -> bool:
        return self._product_of(node) is not None

    def _weight(self, node: Node, index: int, value: Value, rule: OperatorRule) -> None:
        if node.op.flow is Flow.ACCUMULATE:
            if index == 1 or (index == 0 and node.op in (MATMUL, GEMM)):
                format = self._weight_format(node, rule)
                format = format if index == 1 else format.per_tensor()
                self.constants.append(Weight(node, index, Observed(format)))
            elif index == 2:
                self.constants.append(Weight(node, index, Derived()))
        elif self.units.adds_bias(node):
            self.constants.append(Weight(node, index, Derived()))
        elif (
            self.target.constants
            and not self.units.extends_function(node)
            and _worth_quantizing(node)
        ):
            format = self._format(rule.operands).per_tensor()
            self.constants.append(Weight(node, index, Observed(format)))

    def _spread_over_data_movement(self, nodes: Sequence[Node]) -> None:
        """Operand and result of data movement are quantized where one of both is."""
        movers = [node for node in nodes if self._moves(node)]
        for node in movers:
            if node.operand(0) in self.wanted:
                for value in node.outputs:
                    if _is_float32(value):
                        self.wanted.setdefault(value, [])
        for node in reversed(movers):
            source = node.operand(0)
            moved = [v for v in node.outputs if v in self.wanted]
            known = source in self.wanted or source.is_constant or self.units.is_inside(source)
            if moved and not known and _is_float32(source):
                formats = [f for v in moved for f in self.wanted[v]]
                self.wanted[source] = formats or [self._format()]

    def _decide(self, value: Value) -> None:
        producer, specs = value.producer, self.specs
        if value in self.overrides.fixed:
            specs[value] = Fixed(self.overrides.fixed[value], "the user")
            return
        if producer is not None and producer.op.flow is Flow.MOVE:
            source = producer.operand(0)
            if source in specs and producer not in self.floats:
                specs[value] = Shared(source)
                return
        format = widest(self.wanted[value]) or self._format()
        rule = self.ranges.get(value)
        if rule is not None and rule.fixed is not None:
            specs[value] = Fixed(bounded(format, rule.fixed), f"rule {rule.name}")
        else:
            whole = rule is not None and rule.whole_reciprocal
            specs[value] = Observed(replace(format.per_tensor(), whole_reciprocal=whole))

    def _share(self, node: Node) -> None:
        specs, result = self.specs, node.output
        operands = [value for _, value in node.data_operands() if value in specs]
        if result in specs and len(operands) == 1:
            self._follow(result, operands[0])
        elif result in specs:
            for value in operands:
                self._follow(value, result)

    def _reach_for_clamp(self, clamp: Node) -> None:
        """Gives what is moved and clamped then, and read by nobody else, the clamp's parameters.

        What the clamp cuts off is not worth a code: ``Relu(MaxPool(Conv(x)))`` is rounded to the
        range of the Relu where the Conv ends.
        """
        specs, result = self.specs, clamp.output
        source = clamp.operand(0)
        while self._moves_alone(source):
            assert source.producer is not None
            source = source.producer.operand(0)
        own, other = specs.get(source), specs.get(result)
        if source is clamp.operand(0) or not self._read_once(source):
            return
        if isinstance(own, Observed) and own == other and source not in self.joined:
            specs[source] = Shared(result)

    def _moves_alone(self, value: Value) -> bool:
        """True where an operator that shares parameters makes ``value``, which is read once."""
        spec = self.specs.get(value)
        return isinstance(spec, Shared) and self._read_once(value) and moves_only(value.producer)

    def _read_once(self, value: Value) -> bool:
        return len(value.users) == 1 and value not in self.outputs

    def _follow(self, value: Value, leader: Value) -> None:
        """Gives ``value``, and all that share its parameters, those of ``leader``."""
        specs, joined = self.specs, self.joined
        value, leader = root(specs, value), root(specs, leader)
        own, other = specs[value], specs[leader]
        if value is leader or not isinstance(own, Observed):
            return
        if isinstance(other, Observed) and other.format == own.format:
            joined[leader] = [*joined.get(leader, ()), value, *joined.pop(value, ())]
        elif not (isinstance(other, Fixed) and other.params.storage_dtype is own.format.storage):
            return
        specs[value] = Shared(leader)


def moves_only(node: Node | None) -> bool:
    """True for data movement whose results are values that they read, or bounds of them."""
    return node is not None and node.op.flow is Flow.MOVE and node.op is not PAD


def bounded(format: Format, interval: tuple[float, float]) -> QuantParams:
    """Returns parameters for a known interval.

    Codes that are not symmetric count steps of ``2**-n`` or ``2**(1 - n)`` for n bits, so that the
    upper end itself is the code after the last.
    """
    low, high = interval
    whole = 1.0 if low == 0 else 2.0
    if format.symmetric:
        return format.per_tensor().params(-max(-low, high), max(-low, high))
    step = whole / (format.high - format.low + 1)
    return format.per_tensor().params(low, low + step * (format.high - format.low))


def widest(formats: Collection[Format]) -> Format | None:
    """Returns the format with the most bits; of equals the one asked for first."""
    return max(formats, key=lambda f: f.storage.bits, default=None)


def results_axis(node: Node) -> int | None:
    """Returns the axis of operand 1 that numbers the results; None where scales cannot vary."""
    geometry, w = geometry_of(node), node.operand(1)
    stack = geometry is not None and not geometry.image and w.rank != 2
    return None if geometry is None or stack else geometry.axis


def _worth_quantizing(node: Node) -> bool:
    """False for operators whose constants are parameters of a function, not a second tensor."""
    return node.op in (ADD, SUB, MUL, DIV, MIN, MAX, PRELU, WHERE, CONCAT)


def has_floats(node: Node) -> bool:
    """False for arithmetic of indices and extents, which nobody would quantize."""
    values = [*(v for _, v in node.data_operands()), *node.outputs]
    return any(map(_has_float_type, values))


def _of_extents(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yields what computes with nothing but extents and constants, and so is the same for all data.

    Casts of integers are among it: they compute nothing.
    """
    known: set[Value] = set()
    for node in nodes:
        read = [v for v in node.inputs if v is not None and not v.is_constant]
        if node.op is SHAPE or (read and known.issuperset(read)):
            known.update(node.outputs)
            yield node
        elif node.op is CAST and not any(_has_float_type(v) for v in read):
            yield node


def _has_float_type(value: Value) -> bool:
    return not isinstance(value.type, TensorType) or value.type.dtype.is_float


def _is_float32(value: Value) -> bool:
    return isinstance(value.type, TensorType) and str(value.type.dtype) == "float32"


# ---- format names --------------------------------------------------------------------------------
# Formats as users write them: ``int8``, ``int4/32`` (blocks of 32), ``float8_e5m2``, ``float``.


ACTIVATIONS: Mapping[str, Format | Unstored] = MappingProxyType(
    {
        "uint8": U8,
        "int8": S8,
        "uint16": U16,
        "int16": SYMMETRIC_S16,
        "float8_e4m3fn": E4M3,
        "float8_e5m2": E5M2,
        **{str(read): read for read in Unstored},
    }
)
"""Formats of activations by name, and how products read what nobody stores."""


def format_of(name: str) -> Format | Unstored:
    """Returns the format of activations that a name stands for.

    Raises:
        UnsupportedTargetError: There is none.
    """
    if name in WEIGHTS and WEIGHTS[name].microscaled:
        raise UnsupportedTargetError(
            f"no opset stores activations as {name}",
            why="the exponents of its blocks are those of each run; ONNX's are constants",
            fix="store weights so (--weight-format), and activations as float8_e4m3fn or float",
        )
    if name not in ACTIVATIONS:
        raise _unknown("format of activations", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def weights_of(name: str) -> Format:
    """Returns the format of weights that a name stands for, as ``int8`` or ``int4/32``.

    Raises:
        UnsupportedTargetError: There is none.
    """
    storage, separator, block = name.partition("/")
    if storage not in WEIGHTS:
        raise _unknown("type of weights", storage, WEIGHTS)
    if not separator:
        return WEIGHTS[storage]
    if not block.isdecimal():
        raise UnsupportedTargetError(f"'{name}' says no length of blocks", fix="write int4/32")
    return in_blocks(WEIGHTS[storage], int(block))


def in_blocks(format: Format, block: int) -> Format:
    """Returns a format of weights with a scale for every block of so many terms of a sum.

    Raises:
        UnsupportedTargetError: There are no such blocks.
    """
    if block < 2:
        raise UnsupportedTargetError(
            f"there are no blocks of {block} weights", fix="give 16, 32, 64 or 128"
        )
    lone = format.symmetric and format.storage.bits < 8  # every code counts in a short block
    return replace(format, axis=0, block=block, restricted=format.restricted and not lone)


def _unknown(kind: str, name: str, known: Mapping[str, object]) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        f"there is no {kind} '{name}'", why=f"there are {', '.join(known)}", fix="use one"
    )
