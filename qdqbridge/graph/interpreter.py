"""The meaning of a graph, in NumPy.

Every node is *the real-valued operator applied to the real values of its inputs, the result
rounded once into the type of its output*. :func:`evaluate` computes the numeric contract bit for
bit; with ``exact=True`` it computes that sentence in float64, the ideal that the contract
approximates: float values then stay float64 and only quantized results are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.errors import InputDataError
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.numerics import dequantize, quantize
from qdqbridge.graph.operator import Flow
from qdqbridge.graph.types import QuantType, TensorType

Array = NDArray[Any]


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    exact: bool = False,
    wanted: Iterable[Value] = (),
    visit: Callable[[Node], None] | None = None,
) -> tuple[dict[str, Array], dict[Value, Array]]:
    """Runs ``graph``.

    Args:
        graph: Any verified graph.
        inputs: One array per graph input, by name; quantized inputs take stored integers.
        exact: Compute in float64 and round only into quantized types.
        wanted: Intermediate values to return as well.
        visit: Called before each node runs (progress).

    Returns:
        The outputs by name and the wanted values, as they are stored.

    Raises:
        InputDataError: An input is missing, unknown, or of the wrong dtype or shape.
    """
    values = dict(zip(graph.inputs, check_inputs(graph, inputs), strict=True))
    keep = set(graph.outputs) | set(wanted)
    left = {value: len(value.users) for value in graph.values()}
    for node in graph.nodes:
        if visit is not None:
            visit(node)
        operands = [None if v is None else _stored(v, values) for v in node.inputs]
        for value, result in zip(
            node.outputs, evaluate_node(node, operands, exact=exact), strict=False
        ):
            values[value] = result
        for value in node.inputs:
            if value is not None:
                left[value] -= 1
                if left[value] == 0 and value not in keep:
                    values.pop(value, None)
    outputs = {
        name: _stored(value, values)
        for name, value in zip(graph.output_names, graph.outputs, strict=True)
    }
    return outputs, {value: _stored(value, values) for value in wanted}


def evaluate_node(
    node: Node, operands: Sequence[Array | None], *, exact: bool = False
) -> Sequence[Array]:
    """Runs one node on the stored values of its operands; returns stored results."""
    types = [None if value is None else value.type for value in node.inputs]
    results = [value.type for value in node.outputs]
    flow = node.op.flow
    stored_form = not exact or flow in (Flow.MOVE, Flow.REINTERPRET)
    if stored_form and node.op.contract is not None and _quantized(types, results):
        stored = node.op.contract(node.attributes, operands, types, results)
        if stored is not None:
            return stored
    if flow is Flow.MOVE and _moves(types, results):
        return node.op.compute(node.attributes, operands)
    dtype = np.float64 if exact else np.float32
    reals = [_real(o, t, dtype, exact=exact) for o, t in zip(operands, types, strict=True)]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        computed = node.op.compute(node.attributes, reals)
    return [
        _round(real, type_, exact=exact) for real, type_ in zip(computed, results, strict=False)
    ]


def _quantized(types: Sequence[object], results: Sequence[object]) -> bool:
    return any(isinstance(t, QuantType) for t in (*types, *results))


def _moves(types: Sequence[object], results: Sequence[object]) -> bool:
    first, result = types[0], results[0]
    if isinstance(first, QuantType) and isinstance(result, QuantType):
        return first.params.same_mapping(result.params)
    return isinstance(first, TensorType) and isinstance(result, TensorType)


def _stored(value: Value, values: Mapping[Value, Array]) -> Array:
    return values[value] if value.constant is None else value.constant.numpy()


def _real(operand: Array | None, type_: object, dtype: Any, *, exact: bool) -> Array | None:
    if operand is None:
        return None
    if isinstance(type_, QuantType):
        return dequantize(operand, type_.params, dtype)
    if exact and isinstance(type_, TensorType) and type_.dtype.is_float:
        return operand.astype(np.float64)
    return operand


def _round(real: Array, type_: QuantType | TensorType, *, exact: bool) -> Array:
    if isinstance(type_, QuantType):
        return quantize(real if real.dtype == np.float64 else real.astype(np.float32), type_.params)
    if exact and type_.dtype.is_float:
        return real
    return real.astype(type_.dtype.numpy, copy=False)


def check_inputs(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    """Returns the arrays of ``inputs`` in the order of the graph's inputs.

    Raises:
        InputDataError: ``inputs`` is no mapping, or an input is missing, unknown, or of the wrong
            dtype or shape.
    """
    check_mapping(graph.inputs, inputs)
    names = [value.name for value in graph.inputs]
    unknown = sorted(set(inputs) - set(names))
    missing = [name for name in names if name not in inputs]
    if unknown or missing:
        raise InputDataError(
            "the inputs given are not those of the model",
            why=f"missing: {missing or 'none'}; unknown: {unknown or 'none'}",
            fix=f"give exactly: {', '.join(names)}",
        )
    bound: dict[str, int] = {}
    return [_check_input(value, np.asarray(inputs[value.name]), bound) for value in graph.inputs]


def check_mapping(inputs: Sequence[Value], data: object) -> None:
    """Refuses data that does not give arrays by the names of the inputs.

    Raises:
        InputDataError: ``data`` is no mapping.
    """
    if not isinstance(data, Mapping):
        listed = ", ".join(f"'{value.name}': array" for value in inputs)
        raise InputDataError(
            "the inputs are given without their names",
            why=f"a mapping from names to arrays is expected, not {type(data).__name__}",
            fix=f"give {{{listed}}}",
        )


def _check_input(value: Value, array: Array, bound: dict[str, int]) -> Array:
    if array.dtype != value.type.dtype.numpy:
        raise InputDataError(
            f"input '{value.name}' has the wrong element type",
            why=f"it is {array.dtype}, the model wants {value.type.dtype}",
            fix=f"convert it: array.astype('{value.type.dtype}')",
        )
    shape = value.type.shape
    fits = shape is None or len(shape) == array.ndim
    for want, have in zip(shape or (), array.shape, strict=False):
        fits = fits and have == (bound.setdefault(want, have) if isinstance(want, str) else want)
    if not fits:
        raise InputDataError(
            f"input '{value.name}' has the wrong shape",
            why=f"it is {array.shape}, the model wants {shape}",
            fix="feed an array of that shape; names stand for extents that must agree",
        )
    return array
