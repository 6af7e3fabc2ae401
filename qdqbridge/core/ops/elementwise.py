"""Operators of several operands, element by element with broadcasting; and Concat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import (
    EVERY_OPERAND,
    Array,
    Attributes,
    Compute,
    Flow,
    Form,
    NoAttributes,
    OnnxOp,
    Operands,
    Pattern,
    Row,
    Types,
)
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import AlphaAttrs, AxisAttrs
from qdqbridge.core.ops.bodies import Open, function
from qdqbridge.core.ops.shapes import differ, known
from qdqbridge.core.ops.stored import broadcast_into, converted, present


def _pairwise(function: Callable[[Array, Array], Array]) -> Compute:
    """Returns a ``compute`` that folds ``function`` over the operands from left to right."""

    def compute(attributes: Any, operands: Operands) -> tuple[Array, ...]:
        del attributes
        with np.errstate(all="ignore"):
            return (np.asarray(reduce(function, present(operands, len(operands)))),)

    return compute


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        quotient = np.abs(a) // np.abs(b)
        return np.asarray(np.where((a < 0) != (b < 0), -quotient, quotient), a.dtype)
    return a / b


def _power(a: Array, b: Array) -> Array:
    """Returns ``a ** b`` in the dtype of ``a``: float64 inside, one rounding.

    Integers are raised to integers exactly, modulo what their type holds.
    """
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return _integer_power(a, b)
    return np.asarray(np.power(a.astype(np.float64), b.astype(np.float64))).astype(a.dtype)


def _integer_power(a: Array, b: Array) -> Array:
    """A negative exponent leaves what is left of 1 / a ** -b: 0 but for 1 and -1."""
    wrapped = a.astype(np.uint64)  # two's complement: its products are those of every integer type
    raised = np.power(wrapped, np.where(b < 0, 0, b).astype(np.uint64)).astype(a.dtype)
    unit = np.where(b % 2 == 0, 1, a)
    cut = np.where((a == 1) | (a == -1), unit, 0)
    return np.where(b < 0, cut, raised).astype(a.dtype)


def _prelu(x: Array, slope: Array) -> Array:
    return np.where(x < 0, x * broadcast_into(slope, x.shape), x)


def _where(attributes: NoAttributes, operands: Operands) -> tuple[Array, ...]:
    del attributes
    condition, a, b = present(operands, 3)
    return (np.where(condition, a, b),)


def _compute_concat(attributes: AxisAttrs, operands: Operands) -> tuple[Array, ...]:
    return (np.concatenate(present(operands, len(operands)), axis=attributes.axis),)


def _in_result_type(operand: Array, type_: Any, result: QuantType) -> Array:
    """Returns an operand quantized as the result; unchanged where it already is."""
    if isinstance(type_, QuantType):
        return converted(operand, type_.params, result)
    return quantize(operand.astype(np.float32), result.params)


def _concat_contract(
    attributes: AxisAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    result = results[0]
    if not isinstance(result, QuantType) or not result.params.per_tensor:
        return None
    parts = [
        _in_result_type(operand, type_, result)
        for operand, type_ in zip(present(operands, len(operands)), types, strict=False)
    ]
    return _compute_concat(attributes, parts)


def _where_contract(
    attributes: NoAttributes, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    result = results[0]
    if not isinstance(result, QuantType) or not result.params.per_tensor:
        return None
    condition, a, b = present(operands, 3)
    parts = (_in_result_type(a, types[1], result), _in_result_type(b, types[2], result))
    return _where(attributes, (condition, *parts))


def _check_broadcast(node: Node) -> Iterator[str]:
    values = [value for value in node.inputs if value is not None]
    ranks = [value.rank for value in values if value.rank is not None]
    for axis in range(1, max(ranks, default=0) + 1):
        sizes = {size for value in values if (size := known(value, -axis)) is not None} - {1}
        if len(sizes) > 1:
            yield f"axis {-axis} has extents {sorted(sizes)}, which do not broadcast"


def _check_pair(node: Node, _: Attributes) -> Iterator[str]:
    if len(node.inputs) != 2 or None in node.inputs:
        yield f"needs two operands, has {len(node.inputs)}"
        return
    yield from _check_broadcast(node)


def _check_prelu(node: Node, attributes: Attributes) -> Iterator[str]:
    yield from _check_pair(node, attributes)
    if len(node.inputs) != 2 or None in node.inputs:
        return
    x, slope = node.operand(0), node.operand(1)
    if x.rank is not None and slope.rank is not None and slope.rank > x.rank:
        yield f"the slope has rank {slope.rank} and the input only {x.rank}"
    for axis in range(1, (slope.rank or 0) + 1):
        if known(slope, -axis) != 1 and differ(known(slope, -axis), known(x, -axis)):
            yield f"axis {-axis} of the slope does not broadcast to the input"


def _check_where(node: Node, _: Attributes) -> Iterator[str]:
    if len(node.inputs) != 3 or None in node.inputs:
        yield f"needs three operands, has {len(node.inputs)}"
        return
    yield from _check_broadcast(node)


def _check_variadic(node: Node, _: Attributes) -> Iterator[str]:
    if None in node.inputs:
        yield f"operand {node.inputs.index(None)} is left out"
        return
    yield from _check_broadcast(node)


def _check_concat(node: Node, attributes: AxisAttrs) -> Iterator[str]:
    if None in node.inputs:
        yield f"operand {node.inputs.index(None)} is left out"
        return
    values = [value for value in node.inputs if value is not None]
    ranks = {value.rank for value in values} - {None}
    if len(ranks) > 1:
        yield f"operands have ranks {sorted(rank for rank in ranks if rank is not None)}"
        return
    for rank in ranks:
        assert rank is not None
        if not 0 <= attributes.axis < rank:
            yield f"axis {attributes.axis} does not exist in operands of rank {rank}"
            return
        for axis in range(rank):
            sizes = {size for value in values if (size := known(value, axis)) is not None}
            if axis != attributes.axis and len(sizes) > 1:
                yield f"axis {axis} has different extents {sorted(sizes)}"


_EQUAL = "Against onnxruntime 1.31: no stored value differs."
_EXTREME = (
    "NaN where an operand is NaN; of +0 and -0 the result is either, as ONNX leaves it open and "
    "operands are sorted. "
)


def binary(
    name: str, function: Callable[[Array, Array], Array], formula: str, *, qnn: str = "",
    tvm: str = "", since: int = 0, variadic: bool = False, forms: tuple[Form, ...] = (),
    check: Callable[[Node, Any], Iterator[str]] | None = None, commuting: int = 0,
) -> Row[NoAttributes]:  # fmt: skip
    """Returns the row of an operator of two operands, broadcast to one shape.

    Args:
        name: ONNX's name.
        function: The real-valued function.
        formula: What is quantized, in words.
        qnn: Its name in the QNN dialect; by default the name in lower case.
        tvm: TVM's operator on floats; by default its name in the dialect where there is no form.
        since: The opset that introduced it.
        variadic: It takes any number of operands, folded from left to right.
        forms: Ways to write it out with other operators, on ``"a"`` and ``"b"``.
        check: What is wrong with a node, where that is more than shapes that do not broadcast.
        commuting: How many of the first operands may swap places without moving a bit.
    """
    qnn = qnn or name.lower()
    return Row(
        name=name, flow=Flow.ELEMENTWISE, attributes=NoAttributes, compute=_pairwise(function),
        commuting=commuting,
        check=check or (_check_variadic if variadic else _check_pair),
        numerics=f"quantize({formula}) in float32, operands dequantized. "
        f"{_EXTREME if variadic else ''}{_EQUAL}",
        arity=2, onnx=(OnnxOp(name=name, since=since),), qnn=qnn,
        tvm=tvm or ("" if forms else qnn), forms=forms,
    )  # fmt: skip


ADD = binary("Add", np.add, "a + b", commuting=2)
SUB = binary("Sub", np.subtract, "a - b", qnn="subtract")
MUL = binary("Mul", np.multiply, "a * b", tvm="multiply", commuting=2)
DIV = binary("Div", _divide, "a / b", qnn="divide")
MIN = binary(
    "Min", np.minimum, "min(a, b, ...)", qnn="minimum", variadic=True, commuting=EVERY_OPERAND
)
MAX = binary(
    "Max", np.maximum, "max(a, b, ...)", qnn="maximum", variadic=True, commuting=EVERY_OPERAND
)
_POW = binary("Pow", _power, "f32(f64(a) ** f64(b))", qnn="power")
POW = replace(
    _POW, numerics=_POW.numerics + " Integers raised to integers are exact, modulo what their type "
    "holds, and those of negative exponents are cut towards zero; 0 ** -1, which is no number, is "
    "0. onnxruntime goes through float64: its powers beyond 2^53 are rounded, and those "
    "that the type does not hold are what the processor makes of them. An integer raised to a "
    "float goes through float64 here too. Relay goes through float64.",
)  # fmt: skip
PRELU = binary(
    "PRelu", _prelu, "a * b where a < 0, else a", check=_check_prelu,
    forms=(Form(("Where", ("Less", "a", 0.0), ("Mul", "a", "b"), "a")),),
)  # fmt: skip
WHERE = Row(
    name="Where",
    flow=Flow.ELEMENTWISE,
    attributes=NoAttributes,
    compute=_where,
    contract=_where_contract,
    data=(1, 2),
    check=_check_where,
    onnx=(OnnxOp(name="Where"),),
    qnn="where",
    tvm="where",
    numerics="Operands are requantized to the result's parameters, then chosen. " + _EQUAL,
)
CONCAT = Row(
    name="Concat",
    onnx=(OnnxOp(name="Concat"),),
    flow=Flow.ELEMENTWISE,
    attributes=AxisAttrs,
    compute=_compute_concat,
    contract=_concat_contract,
    check=_check_concat,
    qnn="concatenate",
    tvm="concat",
    numerics="Operands are requantized to the result's parameters, then joined. " + _EQUAL,
)


def _gated(attributes: AlphaAttrs, shape: Open) -> Pattern:
    return ("Mul", ("Swish", "a", attributes), "b")


def _check_alike(node: Node, _: Attributes) -> Iterator[str]:
    """The two operands have one shape: ONNX broadcasts neither."""
    if len(node.inputs) != 2 or None in node.inputs:
        yield f"needs two operands, has {len(node.inputs)}"
        return
    a, b = node.operand(0), node.operand(1)
    if a.rank is None or b.rank is None:
        return
    if a.rank != b.rank or any(differ(known(a, i), known(b, i)) for i in range(a.rank)):
        yield f"its operands have different shapes, {a.type.shape} and {b.type.shape}"


SWIGLU = function(
    "SwiGLU",
    _gated,
    _check_alike,
    attributes=AlphaAttrs,
    onnx=(OnnxOp(name="SwiGLU", since=28, defaults={"alpha": 1.0}),),
    flow=Flow.ELEMENTWISE,
    numerics="w = swish(a) rounded to float32; y = quantize(w * b), operands dequantized. TVM's "
    "sigmoid is another one than the reference's: none of 390,000 results differs. onnxruntime "
    "1.32 loads no quantized file of opset 28; of the same function written out, no stored value "
    "differs.",
)

OPERATORS = (ADD, SUB, MUL, DIV, MIN, MAX, POW, PRELU, WHERE, CONCAT, SWIGLU)
