"""qnn.add and its relatives: dequantize each operand, one float32 operation, quantize."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from tvm import te, topi

from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Operator
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.ops.bodies import OPERANDS
from qdqbridge.core.ops.elementwise import OPERATORS, POW
from qdqbridge.core.ops.shapes import broadcast_columns
from qdqbridge.tvm.qnn.dialect.arithmetic import (
    Prim,
    analyzer,
    entry,
    fenced,
    kind_of,
    quantized,
    real,
    stage,
    tirx,
)
from qdqbridge.tvm.qnn.dialect.context import Attribute, CallContext, Extent, QnnOp, ResultType
from qdqbridge.tvm.qnn.dialect.quantize import REQUANTIZE
from qdqbridge.tvm.qnn.dialect.unary import index_of, quantize_table, real_codes
from qdqbridge.tvm.qnn.ranges import is_code

# Element-wise operators of two operands as TIR expressions, by the rows of the operator table.

Number: TypeAlias = "Callable[[float], Prim]"
"""Returns a float32 constant, of as many lanes as the operands have."""

Guard: TypeAlias = "Callable[[Prim], Prim]"
"""Keeps LLVM from fusing a step with what follows."""

STEPS: Mapping[str, Callable[..., Prim]] = {
    "Abs": tirx.abs,
    "Add": lambda a, b: a + b,
    "Ceil": tirx.ceil,
    "Div": lambda a, b: a / b,
    "Floor": tirx.floor,
    "Greater": lambda a, b: a > b,
    "Less": lambda a, b: a < b,
    "Max": tirx.max,
    "Min": tirx.min,
    "Mul": lambda a, b: a * b,
    "Neg": lambda a: -a,
    "Sub": lambda a, b: a - b,
    "Where": tirx.Select,
}
"""What TIR computes as one float32 operation, bit for bit as ONNX says."""


def computable(op: Operator) -> bool:
    """Returns whether an operator is a step, or written with nothing but steps."""
    return op.arity == 2 and (op.name in STEPS or _steps_only(op))


def formula(op: Operator, number: Number, guard: Guard) -> Callable[[Prim, Prim], Prim]:
    """Returns an operator of two float32 operands.

    Args:
        op: The operator; :func:`computable` says which.
        number: Makes the constants of its form.
        guard: Goes around every step but the last.
    """
    if op.name in STEPS:
        return STEPS[op.name]

    def compute(a: Prim, b: Prim) -> Prim:
        known = dict(zip(OPERANDS[2], (a, b), strict=True))
        return _computed(op.forms[0].pattern, known, number, guard)

    return compute


def _computed(pattern: Pattern, known: Mapping[str, Prim], number: Number, guard: Guard) -> Prim:
    if isinstance(pattern, str):
        return known[pattern]
    if not isinstance(pattern, tuple):
        return number(float(pattern))
    # Every step but the last is guarded: LLVM would fuse a product and a sum, and round once.
    parts = [_computed(part, known, number, guard) for part in pattern[1:]]
    parts = [
        guard(part) if isinstance(inner, tuple) and inner[0] in _ROUNDED else part
        for part, inner in zip(parts, pattern[1:], strict=True)
    ]
    return STEPS[pattern[0]](*parts)


_ROUNDED = ("Add", "Div", "Mul", "Sub")
"""Steps whose result LLVM could keep unrounded."""


def _steps_only(op: Operator) -> bool:
    return bool(op.forms) and _is_pattern_computable(op.forms[0].pattern)


def _is_pattern_computable(pattern: Pattern) -> bool:
    if not isinstance(pattern, tuple):
        return not isinstance(pattern, str) or not pattern.startswith("#")
    return pattern[0] in STEPS and all(_is_pattern_computable(part) for part in pattern[1:])


# ---- numPy broadcasting of extents that may be symbolic ------------------------------------------


def _one(extent: Extent) -> bool:
    return _static_extent(extent) == 1


def _static_extent(extent: Extent) -> int | None:
    """Returns a known extent as an int, None where it is symbolic."""
    value = extent.value if isinstance(extent, tirx.IntImm) else extent
    return value if isinstance(value, int) else None


def _equal(a: Extent, b: Extent) -> bool:
    known = _static_extent(a), _static_extent(b)
    if None not in known:
        return known[0] == known[1]
    return analyzer().can_prove_equal(a, b)


def broadcast_shape(context: CallContext, *shapes: Sequence[Extent]) -> list[Extent]:
    """Returns the common shape.

    Raises:
        GraphError: Two extents differ, or cannot be shown to be equal, and neither is 1.
    """
    result: list[Extent] = []
    for extents in broadcast_columns(*shapes):
        wide = [extent for extent in extents if not _one(extent)]
        for extent in wide[1:]:
            if not _equal(wide[0], extent):
                context.fail(f"shapes {[list(shape) for shape in shapes]} do not broadcast")
        result.append(wide[0] if wide else 1)
    return result


def broadcast_indices(indices: Sequence[Prim], shape: Sequence[Any]) -> list[Prim]:
    """Returns the indices of an operand of ``shape`` for an element of the broadcast result."""
    own = list(indices)[len(indices) - len(shape) :]
    return [0 if _one(extent) else index for index, extent in zip(own, shape, strict=True)]


EIGHT = (
    "lhs",
    "rhs",
    "lhs_scale",
    "lhs_zero_point",
    "rhs_scale",
    "rhs_zero_point",
    "output_scale",
    "output_zero_point",
)
OUT_DTYPE = Attribute("out_dtype", "", "empty takes the type of the first integer operand")
ATTRIBUTES = (
    Attribute("lhs_axis", -1, "the lhs axis of rank-1 lhs parameters"),
    Attribute("rhs_axis", -1, "the rhs axis of rank-1 rhs parameters"),
    OUT_DTYPE,
)


def operand_axis(
    context: CallContext, index: int, scale: int, zero_point: int, attribute: str
) -> int:
    """Returns the channel axis of an operand after checking its type and parameters."""
    shape, dtype = context.tensor(index)
    if not is_code(dtype) and dtype != "float32":
        context.fail(
            f"{context.arguments[index]} has dtype {dtype}",
            "give an 8- or 16-bit integer or float32",
        )
    axis = context.axis(len(shape), attribute)
    context.expect_params(scale, zero_point, shape[axis] if shape else None, what=f"of axis {axis}")
    return axis


def result_dtype(context: CallContext, *operands: int) -> str:
    """Returns ``out_dtype``, by default the type of the first integer operand."""
    stated = context.attr("out_dtype")
    integers = [context.dtype(i) for i in operands if is_code(context.dtype(i))]
    dtype = stated or (integers[0] if integers else "")
    if not is_code(dtype):
        context.fail(f"out_dtype is {dtype!r}", "give an 8- or 16-bit integer")
    return dtype


def _infer_qnn_binary(context: CallContext) -> ResultType:
    operand_axis(context, 0, 2, 3, "lhs_axis")
    operand_axis(context, 1, 4, 5, "rhs_axis")
    context.expect_params(6, 7)
    shape = broadcast_shape(context, context.shape(0), context.shape(1))
    return ResultType.of(shape, result_dtype(context, 0, 1))


def operand(
    tensor: te.Tensor,
    indices: tuple[Prim, ...],
    scale: te.Tensor,
    zero_point: te.Tensor,
    axis: int,
    zero: te.Tensor,
) -> Prim:
    """Returns the float32 value of an operand for an element of the broadcast result."""
    own = broadcast_indices(indices, tensor.shape)
    code = tensor(*own)
    if kind_of(code) == "float32":
        return code
    return fenced(real(code, entry(zero_point, own, axis), entry(scale, own, axis)), zero)


def _lower_binary(row: Operator) -> Any:
    def lower(context: CallContext) -> Any:
        lhs_axis = operand_axis(context, 0, 2, 3, "lhs_axis")
        rhs_axis = operand_axis(context, 1, 4, 5, "rhs_axis")
        out = result_dtype(context, 0, 1)

        def binary(
            a: te.Tensor,
            b: te.Tensor,
            sa: te.Tensor,
            za: te.Tensor,
            sb: te.Tensor,
            zb: te.Tensor,
            sy: te.Tensor,
            zy: te.Tensor,
            zero: te.Tensor,
        ) -> te.Tensor:
            def element(*i: Prim) -> Prim:
                x = operand(a, i, sa, za, lhs_axis, zero)
                y = operand(b, i, sb, zb, rhs_axis, zero)
                compute = formula(row, _tir_float32, lambda value: fenced(value, zero))
                return quantized(compute(x, y), sy[0], zy[0], out)

            shape = broadcast_shape(context, a.shape, b.shape)
            return stage(shape, element, name=row.qnn)

        args = [*context.args[:2], *context.params((2, 3), (4, 5), (6, 7)), context.fence()]
        return context.call_te(f"qnn_{row.qnn}", binary, args)

    return lower


def _tir_float32(value: float) -> Prim:
    return tirx.const(value, "float32")


def _lower_power(context: CallContext) -> Any:
    """A table over the base's codes (constant exponent), or over pairs of 8-bit codes."""
    for index in (0, 1):
        if context.vector(2 + 2 * index).size > 1:
            context.fail("power with per-channel operands has no legalization")
    base = real_codes(context.dtype(0), context.constant(2), context.constant(3))
    single = context.is_constant(1) and context.constant(1).size == 1
    if single:
        exponent = context.constant(1).reshape(1)
        if exponent.dtype != np.float32:
            exponent = (exponent.astype(np.int32) - context.vector(5)).astype(
                np.float32
            ) * context.vector(4)
    elif {context.dtype(0), context.dtype(1)} <= {"int8", "uint8"}:
        exponent = real_codes(context.dtype(1), context.constant(4), context.constant(5))
    else:
        context.fail("power needs a constant exponent, or operands of 8 bits")
    (values,) = POW.compute(NO_ATTRIBUTES, (base[:, None], exponent[None, :]))
    out = result_dtype(context, 0, 1)
    table = quantize_table(values, context.constant(6), context.constant(7), out).reshape(-1)

    def power(a: te.Tensor, b: te.Tensor, entries: te.Tensor) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            index = index_of(a(*broadcast_indices(i, a.shape)))
            # Both codes choose the entry: 64 Ki of them, so only bytes have such a table.
            if not single:
                index = index * 256 + index_of(b(*broadcast_indices(i, b.shape)))
            return entries[index]

        return stage(broadcast_shape(context, a.shape, b.shape), element, name="power")

    return context.call_te("qnn_power", power, [*context.args[:2], context.const(table, out)])


def _infer_where(context: CallContext) -> ResultType:
    context.expect_dtype(0, "bool")
    for index, attribute in ((1, "lhs_axis"), (2, "rhs_axis")):
        operand_axis(context, index, 2 * index + 1, 2 * index + 2, attribute)
    context.expect_params(7, 8)
    shape = broadcast_shape(context, *(context.shape(index) for index in range(3)))
    return ResultType.of(shape, result_dtype(context, 1, 2))


def _lower_where(context: CallContext) -> Any:
    axes = [operand_axis(context, 1, 3, 4, "lhs_axis"), operand_axis(context, 2, 5, 6, "rhs_axis")]
    out = result_dtype(context, 1, 2)

    def where(
        condition: te.Tensor,
        a: te.Tensor,
        b: te.Tensor,
        sa: te.Tensor,
        za: te.Tensor,
        sb: te.Tensor,
        zb: te.Tensor,
        sy: te.Tensor,
        zy: te.Tensor,
        zero: te.Tensor,
    ) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            chosen = tirx.Select(
                condition(*broadcast_indices(i, condition.shape)),
                operand(a, i, sa, za, axes[0], zero),
                operand(b, i, sb, zb, axes[1], zero),
            )
            return quantized(chosen, sy[0], zy[0], out)

        shape = broadcast_shape(context, condition.shape, a.shape, b.shape)
        return stage(shape, element, name="where")

    args = [*context.args[:3], *context.params((3, 4), (5, 6), (7, 8)), context.fence()]
    return context.call_te("qnn_where", where, args)


# ---- qnn.concatenate: operands take the parameters of the result, then they are joined -----------


def _fields(context: CallContext, index: int) -> list[Any]:
    """Returns the members of a tuple argument."""
    fields = context.host.fields(context.args[index])
    if fields is None:
        context.fail(
            f"{context.arguments[index]} is not a tuple expression", "write the tuple inline"
        )
    return fields


def _types(context: CallContext, index: int) -> list[Any]:
    """Returns the types of the members of a tuple argument."""
    types = context.host.field_types(context.types[index])
    if types is None:
        context.fail(f"{context.arguments[index]} is not a tuple")
    return types


def _infer_concatenate(context: CallContext) -> ResultType:
    data, scales, zero_points = (_types(context, index) for index in range(3))
    if not data or len(data) != len(scales) or len(data) != len(zero_points):
        context.fail(
            f"{len(data)} tensors, {len(scales)} scales and {len(zero_points)} zero points",
            "give as many of each, at least one",
        )
    types = [context.tensor_of(type_, f"data[{i}]") for i, type_ in enumerate(data)]
    shape, dtype = types[0]
    axis = context.axis(len(shape))
    extent: Any = 0
    for i, (other, other_dtype) in enumerate(types):
        if len(other) != len(shape) or other_dtype != dtype or not is_code(dtype):
            context.fail(f"data[{i}] is {other_dtype}{other}, data[0] {dtype}{shape}")
        for d, (a, b) in enumerate(zip(shape, other, strict=True)):
            if d != axis:
                context.expect_equal(a, b, f"axis {d} of data[0] and data[{i}]")
        extent = extent + other[axis]
    context.expect_params(3, 4)
    return ResultType.of([*shape[:axis], extent, *shape[axis + 1 :]], dtype)


def _lower_concatenate(context: CallContext) -> Any:
    scale, zero_point = context.constant(3), context.constant(4)
    members = zip(*(_fields(context, index) for index in range(3)), strict=True)
    types = list(zip(*(_types(context, index) for index in range(3)), strict=True))
    parts: list[Any] = []
    for (expr, s, z), own_types in zip(members, types, strict=True):
        # Compared by number: only operands that are stored otherwise are requantized.
        own = all(
            np.array_equal(context.constant_of(param, label).reshape(-1), wanted.reshape(-1))
            for param, label, wanted in ((s, "scale", scale), (z, "zero point", zero_point))
        )
        parts.append(expr if own else _recoded(context, [expr, s, z], own_types))
    axis = context.axis(len(context.tensor_of(types[0][0], "data")[0]))

    def concatenate(*tensors: Any) -> Any:
        return topi.concatenate(tensors, axis)

    return context.call_te("qnn_concatenate", concatenate, parts)


def _recoded(context: CallContext, args: Sequence[Any], types: Sequence[Any]) -> Any:
    attrs = REQUANTIZE.complete({"out_dtype": context.tensor_of(types[0], "data")[1]})
    nested = context.nested(
        REQUANTIZE.name,
        REQUANTIZE.arguments,
        [*args, *context.args[3:]],
        [*types, *context.types[3:]],
        attrs,
    )
    return context.host.bind(REQUANTIZE.lower(nested))


OPS = (
    *(
        QnnOp(
            f"qnn.{row.qnn}",
            EIGHT,
            ATTRIBUTES,
            _infer_qnn_binary,
            _lower_binary(row),
            f"quantize({row.qnn}) of dequantized operands, each step one float32 operation",
        )
        for row in OPERATORS
        if computable(row)
    ),
    QnnOp(
        "qnn.power",
        EIGHT,
        ATTRIBUTES,
        _infer_qnn_binary,
        _lower_power,
        "quantize(f32(f64(a) ** f64(b))), a table",
    ),
    QnnOp(
        "qnn.where",
        ("condition", *EIGHT),
        ATTRIBUTES,
        _infer_where,
        _lower_where,
        "quantize(lhs where condition, else rhs)",
    ),
    QnnOp(
        "qnn.concatenate",
        ("data", "input_scales", "input_zero_points", "output_scale", "output_zero_point"),
        (Attribute("axis", 0, "the axis that grows"),),
        _infer_concatenate,
        _lower_concatenate,
        "operands are requantized to the result's parameters, then joined",
    ),
)
