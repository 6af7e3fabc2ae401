"""Parameters for everything that a plan leaves open, in topological order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.biases import with_room_for_biases
from qdqbridge.autoquant.choosers import Chooser, Context
from qdqbridge.autoquant.formats import Format
from qdqbridge.autoquant.plan import Fixed, Observed, QuantizationPlan, Weight, root
from qdqbridge.autoquant.stats import TensorStats
from qdqbridge.autoquant.targets import Target
from qdqbridge.graph.graph import Value
from qdqbridge.graph.quantization import QuantParams


@dataclass(slots=True, eq=False)
class Decision:
    """The parameters of every value and weight of a plan.

    Attributes:
        plan: What was to be decided.
        values: Parameters of activations.
        weights: Parameters of constants; what is derived is not among them.
        integers: Stored integers of weights that were not just rounded.
    """

    plan: QuantizationPlan
    values: dict[Value, QuantParams] = field(default_factory=dict["Value", "QuantParams"])
    weights: dict[Weight, QuantParams] = field(default_factory=dict["Weight", "QuantParams"])
    integers: dict[Weight, NDArray[np.generic]] = field(
        default_factory=dict["Weight", "NDArray[np.generic]"]
    )


def decide(plan: QuantizationPlan, stats: Mapping[Value, TensorStats], target: Target) -> Decision:
    """Returns parameters for every value and weight of ``plan``.

    Args:
        plan: What has to be decided.
        stats: What was seen of every observed value.
        target: Its choosers decide.
    """
    result = Decision(plan)
    result.values = activations(plan, stats, target.chooser)
    chosen = {value.name: params for value, params in result.values.items()}
    for weight in plan.weights:
        if isinstance(weight.spec, Fixed):
            result.weights[weight] = weight.spec.params
        elif isinstance(weight.spec, Observed):
            format = weight.spec.format
            context = context_of(weight.value, chosen)
            chooser = target.chooser_of_weights(format)
            result.weights[weight] = of_constant(weight, format, chooser, context)
    result.weights = with_room_for_biases(plan.weights, result.values, result.weights)
    return result


def activations(
    plan: QuantizationPlan, stats: Mapping[Value, TensorStats], chooser: Chooser
) -> dict[Value, QuantParams]:
    """Returns the parameters of every value of ``plan``, those that share included."""
    found: dict[Value, QuantParams] = {}
    chosen: dict[str, QuantParams] = {}
    for value, spec in plan.specs.items():
        if isinstance(spec, Fixed):
            found[value] = spec.params
        elif isinstance(spec, Observed):
            seen = joined_stats(plan.joined, stats, value)
            found[value] = chooser(seen, spec.format, context_of(value, chosen))
        else:
            continue
        chosen[value.name] = found[value]
    return {value: found[root(plan.specs, value)] for value in plan.specs}


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


def of_constant(weight: Weight, format: Format, chooser: Chooser, context: Context) -> QuantParams:
    """Returns the parameters of a constant, per tensor or one pair for each channel."""
    assert weight.value.constant is not None
    array = weight.value.constant.numpy()
    if format.axis is None:
        return chooser(TensorStats.of(array), format, context)
    rows = np.moveaxis(array, format.axis, 0).reshape(array.shape[format.axis], -1)
    each = [chooser(TensorStats.of(row), format.per_tensor(), context) for row in rows]
    return replace(
        each[0],
        scale=np.array([params.scale for params in each], np.float32),
        zero_point=np.array([params.zero_point for params in each], np.int32),
        axis=format.axis,
    )


def context_of(value: Value, chosen: Mapping[str, QuantParams]) -> Context:
    """Returns what a chooser is told about ``value``."""
    readers = tuple(sorted({node.op.name for node, _ in value.users}))
    producer = "" if value.producer is None else value.producer.op.name
    return Context(value.name, producer, readers, chosen)
