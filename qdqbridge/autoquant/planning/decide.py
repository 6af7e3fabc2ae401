"""Parameters for everything that a plan leaves open, and the graph that has them.

Parameters are decided in topological order. Then every value is rounded once, and the canonical
rules do the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.choosers import Chooser, Context, RangeChooser
from qdqbridge.autoquant.hardware.scales import (
    half_a_step,
    is_rounded,
    product_of,
    stored_bias,
    suited,
)
from qdqbridge.autoquant.planning.constants import of_constant
from qdqbridge.autoquant.planning.formats import Unstored
from qdqbridge.autoquant.planning.plan import (
    Derived,
    Fixed,
    Observed,
    QuantizationPlan,
    Shared,
    Spec,
    Weight,
    root,
)
from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.planning.unstored import RECURRENT, packed_variant, read_dynamically
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.copying import Copy, copied, put_constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor, rewire
from qdqbridge.core.graph.graph import NO_ORIGIN, Graph, Node, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, geometry_of
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.build import constant, dequantized, quantized, result, retyped
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.errors import InputDataError
from qdqbridge.onnx_io.control_flow.bodies import replace_bodies
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.runtime import operators

if TYPE_CHECKING:
    from qdqbridge.autoquant.simulation.graph import QuantizedPrefix

Look: TypeAlias = "Callable[[Value, Mapping[Value, QuantParams]], Sequence[NDArray[Any]]]"
"""Returns a value for every batch of samples, behind the parameters of those before it."""


@dataclass(frozen=True, slots=True, eq=False)
class NewBodies:
    """What an If, Loop or Scan becomes whose bodies are quantized.

    Attributes:
        operands: Its operands: values of the plan's graph.
        places: Of the bodies that are quantized.
    """

    attributes: OpaqueAttrs
    operands: tuple[Value | None, ...]
    places: frozenset[str]


@dataclass(slots=True, eq=False)
class Decision:
    """The parameters of every value and weight of a plan.

    Attributes:
        plan: What was to be decided.
        values: Parameters of activations.
        weights: Parameters of constants; what is derived is not among them.
        integers: Stored integers of weights that were not just rounded.
        bodies: What nodes become whose bodies are quantized.
    """

    plan: QuantizationPlan
    values: dict[Value, QuantParams] = field(default_factory=dict["Value", "QuantParams"])
    weights: dict[Weight, QuantParams] = field(default_factory=dict["Weight", "QuantParams"])
    integers: dict[Weight, NDArray[np.generic]] = field(
        default_factory=dict["Weight", "NDArray[np.generic]"]
    )
    bodies: dict[Node, NewBodies] = field(default_factory=dict[Node, NewBodies])


def decide(
    plan: QuantizationPlan,
    stats: Mapping[Value, TensorStats],
    target: Target,
    samples: Samples | None = None,
) -> Decision:
    """Returns parameters for every value and weight of ``plan``.

    Args:
        plan: What has to be decided.
        stats: What was seen of every observed value.
        target: Its choosers decide.
        samples: What choosers may look at, behind what is quantized already.
    """
    result = Decision(plan)
    result.values = activations(plan, stats, target.chooser, _looks(plan, target, samples))
    chosen = {value.name: params for value, params in result.values.items()}
    result.weights = _chosen(plan.weights, target, chosen)
    result.weights = suited(plan, result.values, result.weights)
    return result


def _chosen(
    weights: Sequence[Weight], target: Target, chosen: Mapping[str, QuantParams]
) -> dict[Weight, QuantParams]:
    """Returns the parameters of weights, but for derived ones."""
    found: dict[Weight, QuantParams] = {}
    for weight in weights:
        if isinstance(weight.spec, Fixed):
            found[weight] = weight.spec.params
        elif isinstance(weight.spec, Observed):
            format = weight.spec.format
            context = context_of(weight.value, chosen)
            chooser = target.chooser_of_weights(format)
            found[weight] = of_constant(weight.value, format, chooser, context)
    return found


def _looks(plan: QuantizationPlan, target: Target, samples: Samples | None) -> Look | None:
    """Returns what choosers look at values by; the first look prepares it."""
    # A chooser of ranges looks at statistics only.
    if samples is None or isinstance(target.chooser, RangeChooser):
        return None
    prefix: list[QuantizedPrefix] = []

    def look(value: Value, chosen: Mapping[Value, QuantParams]) -> Sequence[NDArray[Any]]:
        from qdqbridge.autoquant.simulation.graph import QuantizedPrefix  # it simulates decisions

        if not prefix:
            prefix.append(QuantizedPrefix(plan, samples, lambda few: _chosen(few, target, {})))
        return prefix[0].look(value, chosen)

    return look


def activations(
    plan: QuantizationPlan,
    stats: Mapping[Value, TensorStats],
    chooser: Chooser,
    look: Look | None = None,
) -> dict[Value, QuantParams]:
    """Returns the parameters of every value of ``plan``, those that share included.

    Args:
        plan: What has to be decided.
        stats: What was seen of every observed value.
        chooser: Decides.
        look: Returns a value's samples behind parameters that are chosen.
    """
    found: dict[Value, QuantParams] = {}
    chosen: dict[str, QuantParams] = {}
    for value, spec in plan.specs.items():
        if isinstance(spec, Fixed):
            found[value] = spec.params
        elif isinstance(spec, Observed):
            seen = joined_stats(plan.joined, stats, value)
            context = context_of(value, chosen)
            if look is not None:
                context = replace(context, samples=partial(look, value, found))
            found[value] = _checked(chooser(seen, spec.format, context), value)
        else:
            continue
        chosen[value.name] = found[value]
    return {value: found[root(plan.specs, value)] for value in plan.specs}


def _checked(params: object, value: Value) -> QuantParams:
    """Returns what a chooser said, which may be a user's.

    Raises:
        InputDataError: It is nothing that a tensor can be stored with.
    """
    if not isinstance(params, QuantParams):
        said = f"it returned {type(params).__name__}, not QuantParams"
    elif params.axis is not None:
        said = f"it returned parameters along axis {params.axis}; activations have one pair"
    elif not 0 < float(params.scale) < np.inf:
        said = f"it returned a scale of {float(params.scale)}"
    else:
        return params
    raise InputDataError(
        "the chooser says no parameters",
        where=f"tensor '{value.name}'",
        why=said,
        fix="return format.params(low, high) of two finite numbers",
    )


def joined_stats(
    joined: Mapping[Value, Sequence[Value]], stats: Mapping[Value, TensorStats], value: Value
) -> TensorStats:
    """Returns the statistics of a value and of those whose parameters it decides as well.

    Extremes per channel are left out of joined ones: channels of two tensors are not the same ones.
    """
    seen = stats[value]
    for other in joined.get(value, ()):
        seen = replace(seen, channels=None).merged(replace(stats[other], channels=None))
    return seen


def context_of(value: Value, chosen: Mapping[str, QuantParams]) -> Context:
    """Returns what a chooser knows about ``value``."""
    readers = tuple(sorted({node.op.name for node, _ in value.users}))
    if value.producer is None:
        return Context(value.name, "", readers, chosen=chosen)
    op = value.producer.op
    return Context(value.name, op.name, readers, chosen, interval=op.interval)


def apply(decision: Decision) -> Graph:
    """Returns the plan's graph quantized, canonical; the float graph is not changed.

    ``quantize`` and ``dequantize`` go behind every value with parameters and before every weight;
    the canonical rules move them into the types. A bias whose sum nobody rounds is stored as well:
    kernels add it as an integer.
    """
    copy = copied(decision.plan.graph)
    graph = copy.graph
    editor = Editor(graph)
    for node, new in decision.bodies.items():
        operands = [None if value is None else copy.values[value] for value in new.operands]
        replace_bodies(copy.nodes[node], new.attributes, operands)
    for (node, index), array in decision.plan.biases.items():
        put_constant(copy.nodes[node], index, array)
    for weight, params in decision.weights.items():
        _store(copy.nodes[weight.node], weight, params, decision)
    for weight in decision.plan.weights:
        if isinstance(weight.spec, Derived):
            _store_bias(copy.nodes[weight.node], weight, decision)
    unrounded = {(copy.nodes[node], index) for node, index in decision.plan.unrounded}
    for value, params in decision.values.items():
        _round(editor, copy.values[value], params, unrounded)
    _read_unstored(editor, copy, decision)
    for weight, params in parted(decision):
        stored = stored_integers(weight, params, decision)
        _part(editor, copy.nodes[weight.node], stored.numpy(), params)
    editor.finish()
    graph.canonical, graph.notes = False, []  # what stood in the way of integers stands no more
    return canonicalize(graph)


def parted(decision: Decision) -> list[tuple[Weight, QuantParams]]:
    """Returns the weights of products that are computed in two parts (``PairRoom.parted``)."""
    room = decision.plan.room
    return [
        (weight, params)
        for weight, params in decision.weights.items()
        if room is not None
        and weight.index == 1
        and room.is_parted(weight.node, params, decision.values.get(weight.node.operand(0)))
    ]


def stored_integers(weight: Weight, params: QuantParams, decision: Decision) -> Constant:
    """Returns the stored integers of a weight: those decided, else the nearest ones."""
    constant_ = weight.value.constant
    assert constant_ is not None
    integers = decision.integers.get(weight)
    if integers is not None:
        return Constant.of(integers)
    return constant_.map(lambda array: quantize(array, params), dtype=params.storage_dtype)


def _store(node: Node, weight: Weight, params: QuantParams, decision: Decision) -> None:
    value = weight.value
    stored = stored_integers(weight, params, decision)
    real = dequantized(
        constant(stored, params, value.name), value.type.dtype, node.origin, value.name
    )
    rewire(node, weight.index, real)


def _store_bias(node: Node, bias: Weight, decision: Decision) -> None:
    """Stores the bias of a sum that leaves as a real number; where it is rounded the rules do.

    They do not know of what hardware drops, which is stored with the bias.
    """
    product, value, real = product_of(bias), bias.value, decision.plan.bias(bias)
    if product is None or real is None:
        return
    if is_rounded(product, decision) and not half_a_step(product, decision):
        return
    stored = stored_bias(bias, decision, real)
    if stored is not None:
        data = constant(Constant.of(stored[0]), stored[1], value.name)
        rewire(node, bias.index, dequantized(data, value.type.dtype, node.origin, value.name))


def _read_unstored(editor: Editor, copy: Copy, decision: Decision) -> None:
    """Says of products whose activation nobody stores how they read it."""
    for node in decision.plan.unstored:
        if node.op.name in RECURRENT:
            _read_recurrent(copy.nodes[node], node, decision)
    for weight, params in decision.weights.items():
        read, node = decision.plan.unstored.get(weight.node), copy.nodes[weight.node]
        if weight.node.op.name in RECURRENT:
            continue
        if read is Unstored.FLOAT:
            variant = packed_variant(node, params)
            node.origin = replace(node.origin, variant=variant or node.origin.variant)
        elif read is not None:
            stored = stored_integers(weight, params, decision)
            rows = read is Unstored.DYNAMIC_ROWS
            read_dynamically(editor, node, stored, params, rows=rows)


def _read_recurrent(node: Node, original: Node, decision: Decision) -> None:
    """Makes an LSTM quantize while it runs where that is wished; others keep stored weights."""
    if decision.plan.unstored[original] is Unstored.FLOAT:
        return
    found = {w.index: (w, p) for w, p in decision.weights.items() if w.node is original}
    if {1, 2} <= set(found) and all(_around_zero(params) for _, params in found.values()):
        stored = [stored_integers(*found[index], decision).numpy() for index in (1, 2)]
        scales = [found[index][1].scale for index in (1, 2)]
        operators.read_dynamically(node, (stored[0], stored[1]), (scales[0], scales[1]))


def _around_zero(params: QuantParams) -> bool:
    return params.storage_dtype is DType.INT8 and not params.zero_point.any()


def _part(editor: Editor, node: Node, stored: NDArray[Any], params: QuantParams) -> None:
    """Makes a product the sum of two, of every other term each (``PairRoom.parted``)."""
    geometry, output = geometry_of(node), node.output
    assert geometry is not None
    count = stored.shape[1 - geometry.axis]
    # Instructions add neighbours: of every other term each pair has one product and a zero.
    odd = np.expand_dims(np.array([term % 2 for term in range(count)], np.int8), geometry.axis)
    made: list[Value] = []
    for kept, end in ((np.int8(1) - odd, ""), (odd, "_odd")):
        part = constant(stored * kept.astype(stored.dtype), params, node.operand(1).name + end)
        real = dequantized(part, DType.FLOAT32, node.origin, part.name)
        operands = [node.operand(0), real, *(() if end else node.inputs[2:])]
        made.append(retyped(node, operands, output.type, f"{output.name}{end or '_even'}"))
    total = result(ADD, NO_ATTRIBUTES, made, output.type, node.origin, output.name)
    editor.replace_value(output, total)
    editor.insert(total)


def _round(
    editor: Editor, value: Value, params: QuantParams, unrounded: set[tuple[Node, int]]
) -> None:
    """Makes all readers of ``value`` but a few read ``dequantize(quantize(value))``."""
    origin = NO_ORIGIN if value.producer is None else value.producer.origin
    stored = quantized(value, params, origin, f"{value.name}_quantized")
    real = dequantized(stored, value.type.dtype, origin, value.name)
    # Before all readers are replaced: afterwards nobody knows which they were.
    kept = [user for user in value.users if user in unrounded]
    editor.replace_value(value, real)
    editor.insert(real)
    for node, index in kept:
        rewire(node, index, value)


def about_copy(decision: Decision, copy: Copy) -> Decision:
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
        {copy.nodes[n]: read for n, read in plan.unstored.items()},
        plan.arithmetic,
        plan.least_scales,
        {(copy.nodes[n], index): array for (n, index), array in plan.biases.items()},
        room=plan.room,
    )
    bodies = {
        copy.nodes[n]: replace(
            b, operands=tuple(None if v is None else value_of(v) for v in b.operands)
        )
        for n, b in decision.bodies.items()
    }
    return replace(
        decision,
        plan=new,
        bodies=bodies,
        values={value_of(v): params for v, params in decision.values.items()},
        weights={weights[w]: params for w, params in decision.weights.items()},
        integers={weights[w]: array for w, array in decision.integers.items()},
    )
