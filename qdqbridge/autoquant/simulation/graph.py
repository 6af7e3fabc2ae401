"""A plan as a graph whose parameters are inputs: nothing is compiled to try other ones.

Behind every value that a plan may round stands a ``SimulateQuantization``, and every constant that
it may quantize is an input: what becomes of constants is computed once for each set of parameters,
not for each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.scales import is_rounded, product_of, stored_bias, suited
from qdqbridge.autoquant.planning.decide import Decision, stored_integers
from qdqbridge.autoquant.planning.plan import (
    Derived,
    Fixed,
    Observed,
    QuantizationPlan,
    Spec,
    Weight,
)
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.simulation.engines import OnnxRuntime
from qdqbridge.core.graph.copying import Copy, copied
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor, link, rewire
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import QuantParams, Shape, TensorType
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.core.ops.run_time_parameters import (
    CODES,
    DISABLED,
    FLOAT_CODES,
    SIMULATE,
    SimulatedAttrs,
)
from qdqbridge.errors import UnsupportedQuantization

Operand = tuple[Node, int]
"""A node and which of its operands: an edge of the plan's graph."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundingPlace:
    """One rounding of the simulated graph.

    Attributes:
        value: The value of the plan's graph that is rounded.
        reader: The operand that has this rounding for itself; None for all others' one.
        channels: Scales that it takes; None for one.
        axis: Along which axis they lie.
        inputs: The graph's inputs code, scale, zero_point, low and high.
        output: What the readers get.
    """

    value: Value
    reader: Operand | None
    channels: int | None
    axis: int | None
    inputs: tuple[Value, ...]
    output: Value


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedGraph:
    """The graph and where everything of the plan is in it.

    Attributes:
        graph: It has the plan's inputs, then parameters.
        samples: The inputs that take samples.
        places: Its roundings.
        constants: The input of every constant that a plan may quantize.
        values: The copy of every value of the plan's graph, before it is rounded.
    """

    graph: Graph
    samples: tuple[Value, ...]
    places: tuple[RoundingPlace, ...]
    constants: Mapping[Operand, Value]
    values: Mapping[Value, Value]


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be variable.

    Attributes:
        values: Values that may be rounded; per channel where an axis and an extent are given.
        apart: Operands that may be left out when other readers of their value get it rounded.
        constants: Constants that may be quantized.
        floats: Whether values may be rounded to float8.
    """

    values: Mapping[Value, tuple[int, int] | None]
    apart: frozenset[Operand]
    constants: frozenset[Operand]
    floats: bool = False

    @staticmethod
    def of(plans: Iterable[QuantizationPlan]) -> Needs:
        """Returns what is needed to try each of ``plans``."""
        values: dict[Value, tuple[int, int] | None] = {}
        apart: set[Operand] = set()
        constants: set[Operand] = set()
        floats = False
        for plan in plans:
            for value in plan.specs:
                values[value] = values.get(value) or _channels(plan, value)
            apart |= plan.unrounded
            constants |= {(weight.node, weight.index) for weight in plan.weights}
            floats = floats or any(map(_stores_floats, plan.specs.values()))
        return Needs(values, frozenset(apart), frozenset(constants), floats)

    def joined(self, other: Needs) -> Needs:
        """Returns what both need."""
        values = dict(self.values)
        for value, channels in other.values.items():
            values[value] = values.get(value) or channels
        constants, floats = self.constants | other.constants, self.floats or other.floats
        return Needs(values, self.apart | other.apart, constants, floats)

    def covers(self, other: Needs) -> bool:
        """True where a graph for this has all that ``other`` needs."""
        known = all(
            value in self.values and (channels is None or self.values[value] == channels)
            for value, channels in other.values.items()
        )
        constants = other.constants <= self.constants
        return known and other.apart <= self.apart and constants and self.floats >= other.floats


def _channels(plan: QuantizationPlan, value: Value) -> tuple[int, int] | None:
    spec = plan.specs[plan.root(value)]
    if not isinstance(spec, Fixed) or spec.params.axis is None:
        return None
    return spec.params.axis, len(spec.params.scale)


def _stores_floats(spec: Spec) -> bool:
    if isinstance(spec, Observed):
        return spec.format.is_float
    return isinstance(spec, Fixed) and spec.params.storage_dtype.is_small_float


def simulated(graph: Graph, needs: Needs) -> SimulatedGraph:
    """Returns ``graph`` with everything variable that ``needs`` lists.

    Args:
        graph: A canonical float graph; it is not changed.
        needs: From the plans that shall be tried.
    """
    copy = copied(graph)
    builder = _SimulatedBuilder(copy, needs)
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node, index in sorted(needs.constants, key=lambda operand: (order[operand[0]], operand[1])):
        builder.feed(node, index)
    for value, channels in needs.values.items():
        builder.round(value, channels)
    return builder.finished(graph)


class _SimulatedBuilder:
    def __init__(self, copy: Copy, needs: Needs) -> None:
        self._copy, self._needs = copy, needs
        self._editor = Editor(copy.graph)
        self._places: list[RoundingPlace] = []
        self._constants: dict[Operand, Value] = {}
        self._samples = tuple(copy.graph.inputs)
        self._taken = {value.name for value in self._samples} | set(copy.graph.output_names)
        self._name_values()

    def _name_values(self) -> None:
        """Gives every value a name of its own: parts of the graph become graphs."""
        for value in self._copy.values.values():
            if value not in self._samples:
                value.name = self._unused(value.name or "value")

    def _unused(self, name: str) -> str:
        number, free = 0, name
        while free in self._taken:
            number += 1
            free = f"{name}#{number}"
        self._taken.add(free)
        return free

    def _input(self, name: str, dtype: DType, shape: Shape) -> Value:
        value = Value(TensorType(dtype, shape), self._unused(name))
        self._copy.graph.inputs.append(value)
        return value

    def feed(self, node: Node, index: int) -> None:
        """Makes a constant operand an input."""
        copy = self._copy.nodes[node]
        old = copy.operand(index)
        # An input, so that one session tries every rounding of it.
        new = self._input(old.name, old.type.dtype, old.type.shape)
        rewire(copy, index, new)
        self._constants[node, index] = new
        if node.op is DENSE and index == 1 and node.operand(0).rank == 2:
            # A Gemm takes a weight that is not constant as it is stored, row by row.
            copy.origin = replace(node.origin, variant="Gemm")

    def round(self, value: Value, channels: tuple[int, int] | None) -> None:
        """Puts a rounding between a value and its readers, and more for readers of their own."""
        copy = self._copy.values[value]
        own = [(n, i) for n, i in value.users if (n, i) in self._needs.apart]
        apart = [(self._copy.nodes[n], i) for n, i in own]
        shared = [user for user in copy.users if user not in apart]
        if shared or self._editor.is_output(copy):
            place = self._place(value, None, channels)
            self._editor.replace_value(copy, place.output)
            self._link(place)
            for node, index in apart:
                rewire(node, index, copy)
        for operand, (node, index) in zip(own, apart, strict=True):
            place = self._place(value, operand, channels)
            self._link(place)
            rewire(node, index, place.output)

    def _link(self, place: RoundingPlace) -> None:
        assert place.output.producer is not None
        link(place.output.producer)

    def _place(
        self, value: Value, reader: Operand | None, channels: tuple[int, int] | None
    ) -> RoundingPlace:
        copy = self._copy.values[value]
        axis, extent = (None, None) if channels is None else channels
        shape: Shape = () if extent is None else (extent,)
        inputs = (
            self._input(f"{copy.name}.code", DType.INT32, ()),
            self._input(f"{copy.name}.scale", DType.FLOAT32, shape),
            self._input(f"{copy.name}.zero_point", DType.INT32, shape),
            self._input(f"{copy.name}.low", DType.INT32, ()),
            self._input(f"{copy.name}.high", DType.INT32, ()),
        )
        output = Value(copy.type, self._unused(f"{copy.name}.rounded"))
        Node(SIMULATE, SimulatedAttrs(axis, self._needs.floats), [copy, *inputs], [output])
        place = RoundingPlace(value, reader, extent, axis, inputs, output)
        self._places.append(place)
        return place

    def finished(self, graph: Graph) -> SimulatedGraph:
        self._editor.finish()
        self._copy.graph.canonical = False
        self._copy.graph.notes = []
        values = {value: self._copy.values[value] for value in _all(graph, self._copy.values)}
        return SimulatedGraph(
            self._copy.graph, self._samples, tuple(self._places), self._constants, values
        )


def _all(graph: Graph, known: Collection[Value]) -> list[Value]:
    return [value for value in graph.values() if value in known]


# ---- What the inputs of a simulated graph get for a decision -------------------------------------


Array = NDArray[Any]
_BITS = 16
_KEPT = 4


class Feeds:
    """Turns decisions into inputs; equal parameters give the same array objects again.

    Args:
        simulated: The graph that they are for.
    """

    def __init__(self, simulated: SimulatedGraph) -> None:
        self._simulated = simulated
        self._numbers: dict[tuple[RoundingPlace, QuantParams | None], tuple[Array, ...]] = {}
        self._arrays: dict[Operand, list[tuple[tuple[object, ...], Array]]] = {}
        self._plain = {
            operand: _contiguous(operand[0].operand(operand[1])) for operand in simulated.constants
        }

    def of(
        self, decision: Decision, constants: Mapping[Operand, Array] | None = None
    ) -> dict[Value, Array]:
        """Returns an array for every input that is no sample.

        Args:
            decision: What it does not mention stays float.
            constants: Real numbers instead of those of the graph, for constants of the plan.

        Raises:
            UnsupportedQuantization: Parameters that are not simulated.
        """
        result: dict[Value, Array] = {}
        for place in self._simulated.places:
            params = decision.values.get(place.value)
            if place.reader is not None and place.reader in decision.plan.unrounded:
                params = None
            result.update(zip(place.inputs, self._parameters(place, params), strict=True))
        real = {**self._plain, **decision.plan.biases, **(constants or {})}
        for operand, value in self._simulated.constants.items():
            result[value] = real[operand]
        for weight in decision.plan.weights:
            operand = (weight.node, weight.index)
            result[self._simulated.constants[operand]] = self._constant(
                weight, decision, real[operand], given=bool(constants and operand in constants)
            )
        return result

    # ---- roundings ----------------------------------------------------------------------------

    def _parameters(self, place: RoundingPlace, params: QuantParams | None) -> tuple[Array, ...]:
        if (place, params) not in self._numbers:
            self._numbers[place, params] = _fake_quant_feeds(place, params)
        return self._numbers[place, params]

    # ---- constants ----------------------------------------------------------------------------

    def _constant(self, weight: Weight, decision: Decision, real: Array, *, given: bool) -> Array:
        """Returns what a constant is after it was stored and read back."""
        if isinstance(weight.spec, Derived):
            return self._bias(weight, decision, real)
        params = decision.weights.get(weight)
        if params is None:
            return real
        integers = decision.integers.get(weight)
        source = real if given or integers is None else integers
        return self._cached(
            (weight.node, weight.index),
            (params, _SameArray(source)),
            lambda: _fake_quantized_weight(weight, params, decision, real if given else None),
        )

    def _cached(
        self, operand: Operand, key: tuple[object, ...], compute: Callable[[], Array]
    ) -> Array:
        """Returns what ``key`` gave before; the last few results of each operand are kept."""
        kept = self._arrays.setdefault(operand, [])
        for known, array in kept:
            if known == key:
                return array
        kept.append((key, compute()))
        # A search goes on from the last decisions; earlier ones rarely come back, and weights are
        # large.
        del kept[:-_KEPT]
        return kept[-1][1]

    def _bias(self, weight: Weight, decision: Decision, real: Array) -> Array:
        """Returns a bias as a whole number of ``scale_x * scale_w``."""
        product = product_of(weight)
        if product is None:
            return real
        x = decision.values.get(product.operand(0))
        w = next((p for k, p in decision.weights.items() if k.node is product), None)
        key = (x, w, is_rounded(product, decision), _SameArray(real))
        operand = (weight.node, weight.index)
        return self._cached(operand, key, lambda: _in_units(weight, decision, real))


class _SameArray:
    """Equal for one and the same array, which it keeps alive."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        # By identity: to compare weights would take longer than to round them again.
        return isinstance(other, _SameArray) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


def _in_units(bias: Weight, decision: Decision, real: Array) -> Array:
    """Returns ``real`` rounded to what is stored of it; itself where it is stored as it is."""
    stored = stored_bias(bias, decision, real)
    return real if stored is None else dequantize(*stored).astype(np.float32)


def _contiguous(value: Value) -> Array:
    assert value.constant is not None
    return np.array(value.constant.numpy(), order="C")


def _fake_quantized_weight(
    weight: Weight, params: QuantParams, decision: Decision, given: Array | None
) -> Array:
    if given is None:
        stored = stored_integers(weight, params, decision).numpy()
    else:
        stored = quantize(given, params)
    return np.array(dequantize(stored, params), np.float32, order="C")


def _fake_quant_feeds(place: RoundingPlace, params: QuantParams | None) -> tuple[Array, ...]:
    shape = () if place.channels is None else (place.channels,)
    if params is None:
        scale, zero_point = np.ones(shape, np.float32), np.zeros(shape, np.int32)
        return _int32(DISABLED), scale, zero_point, _int32(0), _int32(0)
    storage = params.storage_dtype
    codes = FLOAT_CODES if storage.is_small_float else CODES
    if params.blocked or storage not in codes or storage.bits > _BITS:
        raise UnsupportedQuantization(
            f"a rounding to {storage} is not simulated",
            where=f"tensor '{place.value.name}'",
            fix="use integers of at most 16 bits, float8_e4m3fn or float8_e5m2, per tensor or per "
            "channel",
        )
    if params.axis is not None and params.axis != place.axis:
        raise UnsupportedQuantization(
            "scales per channel were not planned for",
            where=f"tensor '{place.value.name}'",
            why=f"the scales lie along axis {params.axis}",
            fix="fix parameters with that axis in the plan",
        )
    return (
        _int32(codes[storage]),
        np.array(np.broadcast_to(params.scale.astype(np.float32), shape)),
        np.array(np.broadcast_to(params.zero_point, shape)),
        _int32(0 if storage.is_small_float else params.qmin),
        _int32(0 if storage.is_small_float else params.qmax),
    )


def _int32(number: int) -> Array:
    return np.array(number, np.int32)


# ---- prefix --------------------------------------------------------------------------------------
# Tensors as they arrive behind what is quantized already, while parameters are being chosen.
#
# Parameters are chosen in topological order, so that everything before a tensor is decided when a
# chooser looks at it. What lies between two looks is compiled and run once, whoever asks.


Chosen = Callable[[Sequence[Weight]], Mapping[Weight, QuantParams]]
"""Returns parameters for some weights, as they are before a target's arithmetic raises scales."""


class QuantizedPrefix:
    """The simulated graph, run as far as somebody has looked."""

    def __init__(self, plan: QuantizationPlan, samples: Samples, weights: Chosen) -> None:
        """Prepares it; nothing is run before the first look.

        Args:
            plan: What is quantized.
            samples: What is looked at.
            weights: Chooses parameters of weights where they are needed.
        """
        self._plan, self._weights = plan, weights
        self._graph = simulated(plan.graph, Needs.of([plan]))
        self._feeds, self._engine = Feeds(self._graph), OnnxRuntime(parts=1)
        self._nodes = self._graph.graph.nodes
        self._position = {node: index for index, node in enumerate(self._nodes)}
        self._originals: dict[Node, list[Weight]] = {}
        for weight in plan.weights:
            self._originals.setdefault(weight.node, []).append(weight)
        self._done, self._decided = 0, Decision(plan)
        self._order = {node: index for index, node in enumerate(plan.graph.nodes)}
        self._arrays: list[dict[Value, Array]] = [
            {value: np.asarray(piece[value.name]) for value in self._graph.samples}
            for piece in samples.batches(plan.graph.inputs)
        ]

    def look(self, value: Value, chosen: Mapping[Value, QuantParams]) -> list[Array]:
        """Returns a value of the plan's graph for every batch of samples, before its rounding.

        Args:
            chosen: Parameters of the values before it, by the value that decides.
        """
        wanted = self._graph.values[value]
        if wanted.producer is not None:
            end = self._position[wanted.producer] + 1
            if end > self._done:
                self._advance(end, value, chosen)
        return [_read_only(arrays[wanted]) for arrays in self._arrays]

    def _advance(self, end: int, value: Value, chosen: Mapping[Value, QuantParams]) -> None:
        """Runs the nodes up to a position."""
        plan, decision = self._plan, self._decided
        decision.values = {
            v: chosen[plan.root(v)] for v in plan.specs if plan.root(v) in chosen and v is not value
        }
        assert value.producer is not None
        last = self._order[value.producer]
        before = [n for n in self._originals if self._order[n] <= last]
        few = self._weights([w for n in before for w in self._originals.pop(n)])
        decision.weights.update(suited(plan, decision.values, few))
        nodes = self._nodes[self._done : end]
        made = dict.fromkeys(v for node in nodes for v in node.outputs)
        read = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
        inputs = [v for v in read if v not in made and not v.is_constant]
        outputs = [v for v in made if v is self._graph.values[value] or self._read_behind(v, end)]
        part = replace(
            self._graph.graph,
            inputs=inputs,
            outputs=outputs,
            output_names=[v.name for v in outputs],
            nodes=nodes,
            metadata={},
            notes=[],
        )
        run, feeds = self._engine(part), self._feeds.of(decision)
        for arrays in self._arrays:
            known = {**feeds, **arrays}
            found = run({v.name: known[v] for v in inputs})
            arrays.update(zip(outputs, found, strict=True))
            for v in [v for v in arrays if not self._read_behind(v, end) and v not in made]:
                del arrays[v]
        self._done = end

    def _read_behind(self, value: Value, end: int) -> bool:
        """True where a node from a position on reads a value."""
        return any(self._position[node] >= end for node, _ in value.users)


def _read_only(array: Array) -> Array:
    """Returns a view that nobody changes: what comes behind is computed of the same array."""
    view = array.view()
    view.flags.writeable = False
    return view
