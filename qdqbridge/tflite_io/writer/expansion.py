"""Operators that TFLite does not have, written out with those that it has, on floats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import NO_ORIGIN, Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow, Operator
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.graph.types import Shape, TensorType
from qdqbridge.core.ops.attributes import (
    AlphaAttrs,
    AxisAttrs,
    DepthSpaceAttrs,
    GeluAttrs,
)
from qdqbridge.core.ops.bodies import (
    LETTERS,
    OPERANDS,
    body_of,
    folded,
    form_for,
    named,
    step_shape,
    trimmed,
)
from qdqbridge.core.ops.build import constant, dequantized, quantized, result
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.ops.unary import ELU, ERF
from qdqbridge.core.rewrite import Proposal, Replace, Rule, RuleContext, rule, stored_behind
from qdqbridge.tflite_io.writer.rows import ROWS
from qdqbridge.tflite_io.writer.rows.elementwise import OPAQUE

_OWN = ROWS.keys() - OPAQUE.keys()
"""Operators of the table that TFLite has."""
_TINY = 1e-20
"""What keeps a quotient from being 0 / 0 and is lost beside any other number."""


@rule("operator-written-out")
def operator_written_out(node: Node, context: RuleContext) -> Proposal:
    """``Mish(x) -> Mul(x, Tanh(…))``: an operator without a counterpart as what it stands for.

    ``Erf(x) -> 2 · Gelu(v) / v - 1``, ``v = x · sqrt(2)``, which is what Gelu is made of. The chain
    computes on floats; quantized operands and results keep their parameters.
    """
    del context
    if not _lacks(node.op, node.attributes) or node.output.type.shape is None:
        return None
    operands = [_dequantized_value(value) for value in node.inputs if value is not None]
    made = _expanded(node.op, node.attributes, operands, node)
    return None if made is None else _replace_requantized(node, made)


@rule("steps-written-out", "Composition")
def steps_written_out(node: Node, context: RuleContext) -> Proposal:
    """``Composition(x; … Erf …) -> Composition(x; …)`` of steps that TFLite has."""
    del context
    attributes = node.record(CompositionAttrs)
    if not any(_lacks(step.op, step.attributes) for step in attributes.steps):
        return None
    values = [_dequantized_value(value) for value in node.inputs if value is not None]
    for step in attributes.steps:
        operands = [values[index] for index in step.operands]
        made: Value | None = None
        if _lacks(step.op, step.attributes):
            made = _expanded(step.op, step.attributes, operands, node)
            if made is None:
                return None
        values.append(made or _apply(step.op.name, operands, node, step.attributes))
    return _replace_requantized(node, values[-1])


def _lacks(op: Operator, attributes: Attributes) -> bool:
    """True for an operator that TFLite does not have with these attributes, but others of it."""
    if op is ELU:
        return isinstance(attributes, AlphaAttrs) and attributes.alpha != 1.0
    by_body = op.body is not None and op.flow in (Flow.ELEMENTWISE, Flow.ROUND)
    return op.name not in _OWN and (bool(op.forms) or by_body or op is ERF)


def _expanded(
    op: Operator, attributes: Attributes, operands: Sequence[Value], node: Node
) -> Value | None:
    if op is ERF:
        return _error_function(operands[0], node)
    if op.body is not None:
        return _expand_by_body(op, attributes, operands, node)
    form = form_for(op, attributes)
    if form is None or op.arity != len(operands):
        return None
    known: dict[str, Value] = dict(zip(OPERANDS[op.arity], operands, strict=True))
    return _built(form.pattern, known, op.values(attributes), node)


def _built(
    pattern: Pattern, known: Mapping[str, Value], numbers: Mapping[str, object], node: Node
) -> Value | None:
    if isinstance(pattern, str):
        if pattern.startswith("#"):
            return _float32_scalar(float(str(numbers[pattern[1:]])))
        return known[pattern]
    if not isinstance(pattern, tuple):
        return _float32_scalar(float(pattern))
    name, *parts = pattern
    row = BY_NAME.get(str(name))
    # A row of any number of operands does not say where its operands end and its attributes begin.
    if row is None or row.arity == 0:
        return None
    count = len(parts) - len(row.fields)
    operands = [_built(part, known, numbers, node) for part in parts[:count]]
    given = [value for value in operands if value is not None]
    if len(given) != len(operands):
        return None
    fields = [numbers[p[1:]] if isinstance(p, str) and p[:1] == "#" else p for p in parts[count:]]
    attributes = row.attributes(*fields)
    if _lacks(row, attributes):
        return _expanded(row, attributes, given, node)
    return _apply(row.name, given, node, attributes) if row.name in _OWN else None


def _expand_by_body(
    op: Operator, attributes: Attributes, operands: Sequence[Value], node: Node
) -> Value | None:
    def step(row: Operator, own: Attributes, values: list[Value | None]) -> Value | None:
        given = [value for value in trimmed(values) if value is not None]
        if len(given) < len(trimmed(values)):
            return None
        stored = [value.constant for value in given]
        if None not in stored:
            arrays = [data.numpy() for data in stored if data is not None]
            name = given[0].name if row.flow is Flow.MOVE else ""
            return constant(row.compute(own, arrays)[0], None, name)
        if _lacks(row, own):
            return _expanded(row, own, given, node)
        shape = named(step_shape(row, own, [value.type.shape for value in given]))
        if row.name not in _OWN or shape is None:
            return None
        return _apply(row.name, given, node, own, shape)

    body = body_of(op, attributes, operands[0].type.shape, len(operands))
    return folded(body, [*operands, *[None] * len(LETTERS)], step, _float32_scalar)


def _error_function(x: Value, node: Node) -> Value:
    v = _apply("Mul", [x, _float32_scalar(math.sqrt(2.0))], node)
    v = _apply("Add", [v, _float32_scalar(_TINY)], node)
    halves = _apply("Div", [_apply("Gelu", [v], node, GeluAttrs()), v], node)
    return _apply(
        "Sub", [_apply("Mul", [halves, _float32_scalar(2.0)], node), _float32_scalar(1.0)], node
    )


# ---- data movement ----------------------------------------------------------------------------


@rule("columns-before-rows", "DepthToSpace")
def columns_before_rows(node: Node, context: RuleContext) -> Proposal:
    """``DepthToSpace(x; CRD) -> DepthToSpace(x'; DCR)`` of channels in another order."""
    del context
    attributes, x = node.record(DepthSpaceAttrs), node.operand(0)
    shape, size = x.type.shape, attributes.block_size
    if (
        x.type.dtype is DType.INT16
        or attributes.mode != "CRD"
        or shape is None
        or isinstance(shape[1], str)
    ):
        return None
    if x.rank != 4 or sum(isinstance(extent, str) for extent in shape) > 1:
        return None
    depth = shape[1] // (size * size)
    if depth > 1:
        order = [c * size * size + b for b in range(size * size) for c in range(depth)]
        places = constant(Constant.of(np.asarray(order, np.int64)), None, "")
        x = result(BY_NAME["Gather"], AxisAttrs(1), [x, places], x.type, node.origin)
    output = node.output
    made = result(node.op, DepthSpaceAttrs(size, "DCR"), [x], output.type, node.origin, output.name)
    return Replace({output: made})


# ---- building ---------------------------------------------------------------------------------


def _dequantized_value(value: Value) -> Value:
    """Returns a value's real numbers; those of a constant at once."""
    stored = stored_behind(value) or value
    if stored.quant is None:
        return value
    params, data = stored.quant.params, stored.constant
    if data is None:
        return dequantized(value, DType.FLOAT32, NO_ORIGIN) if stored is value else value
    real = data.map(lambda array: dequantize(array, params), dtype=DType.FLOAT32)
    return constant(real, None, value.name)


def _replace_requantized(node: Node, made: Value) -> Replace:
    """Returns the replacement of a node by floats, rounded as its result is."""
    output = node.output
    if output.quant is None:
        made.name = output.name
        return Replace({output: made})
    return Replace({output: quantized(made, output.quant.params, node.origin, output.name)})


def _apply(
    name: str,
    operands: Sequence[Value],
    node: Node,
    attributes: Attributes = NO_ATTRIBUTES,
    shape: Shape = None,
) -> Value:
    """Returns the result of an operator on floats, of the shape of its largest operand."""
    if shape is None:
        shape = max((v.type.shape or () for v in operands), key=len)
    return result(
        BY_NAME[name], attributes, operands, TensorType(DType.FLOAT32, shape), node.origin
    )


def _float32_scalar(number: float) -> Value:
    return _unnamed_float_constant(np.asarray(number, np.float32))


def _unnamed_float_constant(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Value:
    return constant(Constant.of(array), None, "")


RULES: tuple[Rule, ...] = (
    operator_written_out,
    steps_written_out,
    columns_before_rows,
)
