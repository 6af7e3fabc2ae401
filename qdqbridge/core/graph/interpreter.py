"""The meaning of a graph, in NumPy.

Every node is *the real-valued operator applied to the real values of its inputs, the result
rounded once into the type of its output*. :func:`evaluate` computes the numeric contract bit for
bit; with ``exact=True`` it computes that sentence in float64, the ideal that the contract
approximates: float values then stay float64 and only quantized results are rounded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import Flow, Nested
from qdqbridge.core.graph.types import (
    Dim,
    NestedType,
    QuantParams,
    QuantType,
    TensorType,
    static_shape,
)
from qdqbridge.errors import InputDataError, InvalidModelError, UnsupportedModelError

# ---- what a node's results may take, and what is said where they cannot be computed --------------

_BYTES_EACH = 8
"""An element is in memory as float32 and as something of at most that size, about."""

_UNKNOWN_MEMORY = 16 << 30


@cache
def most_bytes() -> int:
    """Returns how many bytes of data may be asked for at once: a quarter of the memory."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no POSIX system
        memory = _UNKNOWN_MEMORY
    return memory // 4


def most_elements() -> int:
    """Returns how many elements a value may have: those that a quarter of the memory holds."""
    return most_bytes() // _BYTES_EACH


@contextmanager
def computing(node: Node) -> Generator[None, None, None]:
    """Runs a node's computation, and names the node in what goes wrong.

    Raises:
        InvalidModelError: NumPy cannot bring the operands together.
        UnsupportedModelError: A result is larger than memory, or nothing here computes it.
    """
    for value in node.outputs:
        shape = static_shape(value.type.shape)
        if shape is not None and math.prod(shape) > most_elements():
            raise _too_large(node, f"a result has the shape {list(shape)}")
    try:
        yield
    except MemoryError as error:
        raise _too_large(node, str(error) or "memory is exhausted") from error
    except UnsupportedModelError as error:  # of what computes it, which knows no node
        if node.name not in error.where:
            error.where = f"{node.name}, {error.where}" if error.where else node.name
        raise
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        # NumPy's words for operands that do not fit each other, or the attributes.
        raise InvalidModelError(
            f"{node.op.name} '{node.name}' cannot be computed",
            where=node.name,
            why=" ".join(str(error).split())[:300],
            fix="feed inputs of the extents that the model is made for, or correct the node",
        ) from error


def _too_large(node: Node, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the result of {node.op.name} '{node.name}' does not fit in memory",
        where=node.name,
        why=why,
        fix="feed a smaller batch, or correct the shapes that the model asks for",
    )


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
        InvalidModelError: A node cannot be computed on these inputs.
        UnsupportedModelError: A value does not fit in memory.
    """
    values = dict(zip(graph.inputs, check_inputs(graph.inputs, inputs), strict=True))
    keep = set(graph.outputs) | set(wanted)
    # Values are let go of when their last reader has run: a network holds far more than it needs at
    # a time.
    left = {value: len(value.users) for value in graph.values()}
    for node in graph.nodes:
        if visit is not None:
            visit(node)
        operands = [None if v is None else _constant_or_evaluated(v, values) for v in node.inputs]
        results = computed(node, operands, exact=exact)
        values.update(zip(node.outputs, results, strict=False))
        for value in node.inputs:
            if value is not None:
                left[value] -= 1
                if left[value] == 0 and value not in keep:
                    values.pop(value, None)
    outputs = {
        name: _constant_or_evaluated(value, values)
        for name, value in zip(graph.output_names, graph.outputs, strict=True)
    }
    return outputs, {value: _constant_or_evaluated(value, values) for value in wanted}


def computed(
    node: Node, operands: Sequence[Array | None], *, exact: bool = False
) -> Sequence[Array]:
    """Runs one node as :func:`evaluate_node` does; what NumPy cannot do is refused by name.

    Raises:
        InvalidModelError: The operands do not fit the operator, or a result has another shape than
            the graph says: what was decided by that shape would be wrong.
        UnsupportedModelError: The results do not fit in memory.
    """
    for value, operand in zip(node.inputs, operands, strict=False):
        if value is None or isinstance(value.type, NestedType):
            continue
        if isinstance(operand, list):
            raise InvalidModelError(
                f"{node.op.name} '{node.name}' reads no tensor",
                where=node.name,
                why=f"'{value.name}' is a sequence or an optional when it is computed",
                fix="correct the node, or what makes its operand",
            )
    with computing(node):
        results = evaluate_node(node, operands, exact=exact)
    for value, array in zip(node.outputs, results, strict=False):
        shape = value.type.shape
        if shape is not None and not _has_shape(array, shape):
            raise InvalidModelError(
                f"{node.op.name} '{node.name}' gives another shape than the model says",
                where=node.name,
                why=f"'{value.name}' has the shape {array.shape}, the model says {shape}",
                fix="correct what the model declares about it, or feed what the model is made for",
            )
    return results


def _has_shape(array: Array, shape: tuple[Dim, ...]) -> bool:
    return array.ndim == len(shape) and all(
        isinstance(want, str) or want == have for want, have in zip(shape, array.shape, strict=True)
    )


def evaluate_node(
    node: Node, operands: Sequence[Array | None], *, exact: bool = False
) -> Sequence[Array]:
    """Runs one node on the stored values of its operands; returns stored results."""
    if node.op.inside is not None and not exact:
        results = node.op.inside(node, operands)
        if results is not None:
            return results
    types = [None if value is None else value.type for value in node.inputs]
    results = [value.type for value in node.outputs]
    flow = node.op.flow
    stored_form = not exact or flow in (Flow.MOVE, Flow.REINTERPRET)
    if stored_form and node.op.contract is not None and _has_quantized_type(types, results):
        stored = node.op.contract(node.attributes, operands, types, results)
        if stored is not None:
            return stored
    if flow is Flow.MOVE and _moves(types, results):
        return node.op.compute(node.attributes, operands)
    dtype = np.float64 if exact else np.float32
    wide = exact or flow is not Flow.FLOAT  # an opaque operator takes its own element types
    plain = not exact and not any(isinstance(type_, QuantType) for type_ in results)
    reals = [
        _compute_operand(o, t, dtype, wide=wide, plain=plain)
        for o, t in zip(operands, types, strict=True)
    ]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        computed = node.op.compute(node.attributes, reals)
    return [
        _round(real, type_, exact=exact) for real, type_ in zip(computed, results, strict=False)
    ]


def _has_quantized_type(types: Sequence[object], results: Sequence[object]) -> bool:
    return any(isinstance(t, QuantType) for t in (*types, *results))


def _moves(types: Sequence[object], results: Sequence[object]) -> bool:
    first, result = types[0], results[0]
    if isinstance(first, QuantType) and isinstance(result, QuantType):
        return first.params.same_mapping(result.params)
    return isinstance(first, TensorType) and isinstance(result, TensorType)


def _constant_or_evaluated(value: Value, values: Mapping[Value, Array]) -> Array:
    return values[value] if value.constant is None else value.constant.numpy()


def _compute_operand(
    operand: Array | None, type_: object, dtype: Any, *, wide: bool, plain: bool
) -> Array | None:
    """Returns an operand as it is computed with: float16 and bfloat16 in float32, as engines do.

    What is dequantized to such a type is rounded into it first where ``plain``: in front of an
    operator of floats.
    """
    if isinstance(type_, NestedType):
        return cast("Array", Nested(type_, operand))
    if operand is None:
        return None
    if isinstance(type_, QuantType):
        real = dequantize(operand, type_.params, dtype)
        kind = type_.params.expressed_dtype.numpy
        return real.astype(kind).astype(dtype) if plain and kind.itemsize < 4 else real
    if wide and isinstance(type_, TensorType) and type_.dtype.is_float:
        least = np.float32 if operand.itemsize < 4 else operand.dtype
        return operand.astype(np.promote_types(dtype, least), copy=False)
    return operand


def _is_nested(result: object) -> bool:
    """True for a sequence, or an optional."""
    return not isinstance(result, np.ndarray | np.generic)


def _round(real: Any, type_: QuantType | TensorType, *, exact: bool) -> Any:
    if isinstance(type_, NestedType) or _is_nested(real):
        return real
    if isinstance(type_, QuantType):
        return quantize(real if real.dtype == np.float64 else real.astype(np.float32), type_.params)
    if exact and type_.dtype.is_float:
        return real
    return real.astype(type_.dtype.numpy, copy=False)


def check_inputs(values: Sequence[Value], inputs: Mapping[str, Array]) -> list[Array]:
    """Returns the arrays of ``inputs`` in the order of a graph's inputs.

    Raises:
        InputDataError: ``inputs`` is no mapping, or an input is missing, unknown, or of the wrong
            dtype or shape, or holds integers outside the range of its type.
    """
    check_mapping(values, inputs)
    names = [value.name for value in values]
    unknown = sorted(set(inputs) - set(names))
    missing = [name for name in names if name not in inputs]
    if unknown or missing:
        raise InputDataError(
            "the inputs given are not those of the model",
            why=f"missing: {missing or 'none'}; unknown: {unknown or 'none'}",
            fix=f"give exactly: {', '.join(names)}",
        )
    bound: dict[str, int] = {}
    return [_given(value, inputs[value.name], bound) for value in values]


def _given(value: Value, data: Any, bound: dict[str, int]) -> Array:
    if isinstance(value.type, NestedType):
        return _check_nested(value, value.type.layers, data)
    return _check_input(value, array_of(value.name, data), bound)


def _check_nested(value: Value, layers: Sequence[str], data: Any) -> Any:
    """Returns a sequence as a list of arrays, an optional as what it holds or None."""
    if not layers:
        plain = Value(TensorType(value.type.dtype, None), value.name)
        return _check_input(plain, array_of(value.name, data), {})
    if layers[0] == "optional":
        return None if data is None else _check_nested(value, layers[1:], data)
    if not isinstance(data, list | tuple):
        raise InputDataError(
            f"input '{value.name}' is not a sequence",
            why=f"it is {type(data).__name__}, the model wants {value.type}",
            fix="feed a list of arrays",
        )
    return [_check_nested(value, layers[1:], each) for each in cast("list[Any]", data)]


def array_of(name: str, data: object) -> Array:
    """Returns what is fed to an input as an array.

    Raises:
        InputDataError: It cannot be one.
    """
    try:
        return np.asarray(data)
    except Exception as error:  # nested lists of different lengths, or what a tensor of others says
        raise InputDataError(
            f"input '{name}' is not an array",
            why=str(error).split(". ")[0],
            fix="feed one numpy array for it",
        ) from error


def check_mapping(inputs: Sequence[Value], data: object) -> None:
    """Refuses data that does not give arrays by the names of the inputs.

    Raises:
        InputDataError: ``data`` is not a mapping.
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
    if value.quant is not None and not value.quant.params.full_range:
        _check_range(value.name, value.quant.params, array)
    return array


def _check_range(name: str, params: QuantParams, array: Array) -> None:
    """Refuses numbers that an input's type excludes: what reads them relies on it."""
    if not array.size:
        return
    lowest, highest = int(array.min()), int(array.max())
    if not params.qmin <= lowest <= highest <= params.qmax:
        raise InputDataError(
            f"input '{name}' holds numbers outside its range",
            why=f"they go from {lowest} to {highest}, the model's type from "
            f"{params.qmin} to {params.qmax}",
            fix=f"clip them: array.clip({params.qmin}, {params.qmax})",
        )
