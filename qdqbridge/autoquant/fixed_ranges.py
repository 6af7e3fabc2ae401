"""Activations that are quantized while a model runs get fixed parameters, from data.

The parameters are those that ``DynamicQuantizeLinear`` would compute of all the data at once, so
that a model whose data shows every extreme computes the same as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.canonical.driver import canonicalize
from qdqbridge.canonical.rule import made_by
from qdqbridge.errors import InputDataError
from qdqbridge.graph.batches import Batch, batches
from qdqbridge.graph.copying import copied
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.edit import Editor
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.interpreter import check_inputs, evaluate, evaluate_node
from qdqbridge.graph.numerics import quantize
from qdqbridge.graph.operator import NO_ATTRIBUTES, Operator
from qdqbridge.graph.quantization import QuantParams, per_tensor
from qdqbridge.ops.build import constant, quantized, result
from qdqbridge.ops.cast import CAST
from qdqbridge.ops.convolution import CONV
from qdqbridge.ops.dynamic import DYNAMIC_DENSE, dynamic_parameters
from qdqbridge.ops.elementwise import MUL, SUB
from qdqbridge.ops.matmul import DENSE

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
    products = [found for node in own.nodes if (found := _product(node)) is not None]
    if not products:
        return FixedRanges(own, ())
    operands = list(dict.fromkeys(product.x for product in products))
    params = {x: _parameters(*ends) for x, ends in _extremes(own, operands, data).items()}
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
        node: The product.
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


def _product(node: Node) -> _DynamicProduct | None:
    if node.op is DYNAMIC_DENSE:
        return _DynamicProduct(node, node.operand(0), node.output, DENSE, node.inputs[1:])
    return _convolution(node) if node.op is CONV else None


def _convolution(node: Node) -> _DynamicProduct | None:
    """Reads ``Cast(Cast(Conv(Cast(q) - Cast(z), w))) * (s * sw)``, as ConvInteger is written."""
    shifted, w = made_by(node.operand(0), SUB), node.operand(1)
    parts = [] if shifted is None else [made_by(shifted.operand(i), CAST) for i in (0, 1)]
    read = [part.operand(0) for part in parts if part is not None]
    source = made_by(read[0], "DynamicQuantizeLinear") if len(read) == len(_SHIFTED) else None
    if source is None or [source.outputs[i] for i in _SHIFTED] != read or node.optional(2):
        return None
    end = _sole_reader(_sole_reader(node, CAST), CAST)
    end = _sole_reader(end, MUL)
    scales = None if end is None else [made_by(end.operand(i), MUL) for i in (0, 1)]
    factors = next((each for each in scales or () if each is not None), None)
    if end is None or factors is None or source.outputs[_SCALE] not in factors.inputs:
        return None
    known = [v.constant for v in factors.inputs if v is not None and v.constant is not None]
    if len(known) != 1 or known[0].size != 1 or w.constant is None or w.quant is None:
        return None
    params = w.quant.params
    if not params.per_tensor or float(params.scale) != 1:
        return None
    scaled = replace(params, scale=known[0].numpy().reshape(()))
    weight = constant(w.constant, scaled, w.name)
    return _DynamicProduct(node, source.operand(0), end.output, CONV, [weight])


_SCALE, _SHIFTED = 1, (0, 2)
"""Results of DynamicQuantizeLinear: the scale; the stored numbers and their zero point."""


def _sole_reader(node: Node | None, op: Operator) -> Node | None:
    """Returns the only node that reads a result, if it is that operator."""
    readers = [] if node is None else [reader for reader, _ in node.output.users]
    return readers[0] if len(readers) == 1 and readers[0].op is op else None


def _parameters(low: np.float32, high: np.float32) -> QuantParams:
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
