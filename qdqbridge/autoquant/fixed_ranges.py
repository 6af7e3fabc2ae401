"""Activations that are quantized while a model runs get fixed parameters, from data.

The parameters are those that ``DynamicQuantizeLinear`` would compute of all the data at once, so
that a model whose data shows every extreme computes the same as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.form import canonicalize
from qdqbridge.core.graph.batches import Batch, batches
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import check_inputs, evaluate, evaluate_node
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Operator
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.build import quantized, result
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.dynamic import DYNAMIC_CONV, DYNAMIC_DENSE, dynamic_parameters
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.errors import InputDataError

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class FixedRange:
    """One product whose activation has fixed parameters now.

    Attributes:
        node: The product.
        params: The parameters.
        decibels: Its results over the data, against what they differ by; None where they do not.
    """

    node: str
    params: QuantParams
    decibels: float | None

    @property
    def text(self) -> str:
        """The range and the cost, in words."""
        ends = [(end - int(self.params.zero_point)) * float(self.params.scale) for end in (0, 255)]
        cost = "exact" if self.decibels is None else f"{self.decibels:.1f} dB signal to noise"
        return f"its activation is quantized to [{ends[0]:.4g}, {ends[1]:.4g}]: {cost}"


@dataclass(frozen=True, slots=True)
class FixedRanges:
    """A graph that quantizes with fixed parameters, and what that costs.

    Attributes:
        graph: A new graph.
        ranges: One entry for each product.
    """

    graph: Graph
    ranges: tuple[FixedRange, ...]


def fixed_ranges(graph: Graph, data: Mapping[str, Array]) -> FixedRanges:
    """Returns a graph whose products of dynamically quantized activations have fixed parameters.

    Args:
        graph: Any graph; it is not changed. Without such products there is nothing to do.
        data: One array per input, by name: examples of what the model will see.

    Raises:
        InputDataError: The data does not fit the inputs, or an activation is not finite.
        InvalidModelError: A node cannot be computed on the data.
    """
    own = copied(graph).graph
    products = [found for node in own.nodes if (found := _as_dynamic_product(node)) is not None]
    if not products:
        return FixedRanges(own, ())
    operands = list(dict.fromkeys(product.x for product in products))
    params = {
        x: _uint8_params_of_range(*ends) for x, ends in _extremes(own, operands, data).items()
    }
    stored = {x: quantized(x, found, name=x.name) for x, found in params.items()}
    made = {product: product.of(stored[product.x]) for product in products}
    noise = dict(_noise(own, made, params, data))
    editor = Editor(own)
    for product, value in made.items():
        editor.replace_value(product.end, value)
        editor.insert(value)
    editor.finish()
    own = canonicalize(own)
    ranges = (FixedRange(each.node.name, params[each.x], noise[each]) for each in products)
    return FixedRanges(own, tuple(ranges))


@dataclass(frozen=True, slots=True, eq=False)
class _DynamicProduct:
    """A product of an activation that is quantized while the model runs.

    Attributes:
        x: The activation.
        end: The real result, scales multiplied in.
        op: The operator that computes it of stored numbers.
        others: Its further operands.
    """

    node: Node
    x: Value
    end: Value
    op: Operator
    others: Sequence[Value | None]

    def of(self, x: Value) -> Value:
        """Returns the result for an activation that is stored."""
        attributes = NO_ATTRIBUTES if self.op is DENSE else self.node.attributes
        operands = [x, *self.others]
        return result(self.op, attributes, operands, self.end.type, self.node.origin, self.end.name)


def _as_dynamic_product(node: Node) -> _DynamicProduct | None:
    op = _STORED.get(node.op)
    if op is None:
        return None
    return _DynamicProduct(node, node.operand(0), node.output, op, node.inputs[1:])


_STORED: Mapping[Operator, Operator] = {DYNAMIC_DENSE: DENSE, DYNAMIC_CONV: CONV}
"""The product of stored numbers that a dynamic one becomes."""


def _uint8_params_of_range(low: np.float32, high: np.float32) -> QuantParams:
    scale, zero_point = dynamic_parameters(np.array([low, high], np.float32), rows=False)
    return per_tensor(DType.UINT8, np.float32(scale.item()), int(zero_point.item()))


def _fed(graph: Graph, data: Mapping[str, Array]) -> Iterator[Batch]:
    for batch in batches(graph.inputs, data):
        check_inputs(graph.inputs, batch.inputs)
        yield batch


def _extremes(
    graph: Graph, operands: Sequence[Value], data: Mapping[str, Array]
) -> dict[Value, tuple[np.float32, np.float32]]:
    """Returns the least and the largest number of each operand over the data, and 0."""
    found = dict.fromkeys(operands, (np.float32(0), np.float32(0)))
    for batch in _fed(graph, data):
        _, values = evaluate(graph, batch.inputs, wanted=operands)
        for x in operands:
            array, (low, high) = values[x], found[x]
            if not np.isfinite(array).all():
                raise InputDataError(
                    "an activation is not finite, so that it has no range",
                    where=f"tensor '{x.name}'",
                    fix="give data that the model computes finite numbers from",
                )
            if array.size:
                found[x] = min(low, array.min()), max(high, array.max())
    return found


def _noise(
    graph: Graph,
    made: Mapping[_DynamicProduct, Value],
    params: Mapping[Value, QuantParams],
    data: Mapping[str, Array],
) -> Iterator[tuple[_DynamicProduct, float | None]]:
    """Yields how far each product is from what it was, on the operands that it has."""
    signal, noise = dict.fromkeys(made, 0.0), dict.fromkeys(made, 0.0)
    wanted = [
        value
        for product in made
        for value in (product.x, *product.others, product.end)
        if value is not None and value.constant is None
    ]
    for batch in _fed(graph, data):
        _, values = evaluate(graph, batch.inputs, wanted=wanted)
        for product, value in made.items():
            assert value.producer is not None
            x = quantize(values[product.x], params[product.x])
            others = [None if v is None else _held(v, values) for v in product.others]
            ours = evaluate_node(value.producer, [x, *others])[0]
            theirs = values[product.end].astype(np.float64)
            signal[product] += float((theirs**2).sum())
            noise[product] += float(((ours - theirs) ** 2).sum())
    for product, lost in noise.items():
        yield product, float(10 * np.log10(max(signal[product], _LEAST) / lost)) if lost else None


_LEAST = 1e-300
"""Instead of no signal at all."""


def _held(value: Value, values: Mapping[Value, Array]) -> Array:
    return values[value] if value.constant is None else value.constant.numpy()
