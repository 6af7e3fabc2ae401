"""qnn.concatenate: operands take the parameters of the result, then they are joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import topi

from qdqbridge.tvm.qnn.dialect.context import CallContext, ResultType
from qdqbridge.tvm.qnn.dialect.op import Attribute, QnnOp
from qdqbridge.tvm.qnn.dialect.quantize import REQUANTIZE
from qdqbridge.tvm.qnn.ranges import is_code


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
    QnnOp(
        "qnn.concatenate",
        ("data", "input_scales", "input_zero_points", "output_scale", "output_zero_point"),
        (Attribute("axis", 0, "the axis that grows"),),
        _infer_concatenate,
        _lower_concatenate,
        "operands are requantized to the result's parameters, then joined",
    ),
)
