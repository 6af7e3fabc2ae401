"""qnn.concatenate: operands take the parameters of the result, then they are joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import topi

from qdqbridge.tvm.qnn.dialect.op import Attribute, QnnOp
from qdqbridge.tvm.qnn.dialect.quantize import REQUANTIZE
from qdqbridge.tvm.qnn.dialect.site import DialectSite, ResultType
from qdqbridge.tvm.qnn.ranges import is_code


def _fields(site: DialectSite, index: int) -> list[Any]:
    """Returns the members of a tuple argument."""
    fields = site.host.fields(site.args[index])
    if fields is None:
        site.fail(f"{site.arguments[index]} is not a tuple expression", "write the tuple inline")
    return fields


def _types(site: DialectSite, index: int) -> list[Any]:
    """Returns the types of the members of a tuple argument."""
    types = site.host.field_types(site.types[index])
    if types is None:
        site.fail(f"{site.arguments[index]} is not a tuple")
    return types


def _infer(site: DialectSite) -> ResultType:
    data, scales, zero_points = (_types(site, index) for index in range(3))
    if not data or len(data) != len(scales) or len(data) != len(zero_points):
        site.fail(
            f"{len(data)} tensors, {len(scales)} scales and {len(zero_points)} zero points",
            "give as many of each, at least one",
        )
    types = [site.tensor_of(type_, f"data[{i}]") for i, type_ in enumerate(data)]
    shape, dtype = types[0]
    axis = site.axis(len(shape))
    extent: Any = 0
    for i, (other, other_dtype) in enumerate(types):
        if len(other) != len(shape) or other_dtype != dtype or not is_code(dtype):
            site.fail(f"data[{i}] is {other_dtype}{other}, data[0] {dtype}{shape}")
        for d, (a, b) in enumerate(zip(shape, other, strict=True)):
            if d != axis:
                site.expect_equal(a, b, f"axis {d} of data[0] and data[{i}]")
        extent = extent + other[axis]
    site.expect_params(3, 4)
    return ResultType.of([*shape[:axis], extent, *shape[axis + 1 :]], dtype)


def _lower(site: DialectSite) -> Any:
    scale, zero_point = site.constant(3), site.constant(4)
    members = zip(*(_fields(site, index) for index in range(3)), strict=True)
    types = list(zip(*(_types(site, index) for index in range(3)), strict=True))
    parts: list[Any] = []
    for (expr, s, z), own_types in zip(members, types, strict=True):
        own = all(
            np.array_equal(site.constant_of(param, label).reshape(-1), wanted.reshape(-1))
            for param, label, wanted in ((s, "scale", scale), (z, "zero point", zero_point))
        )
        parts.append(expr if own else _recoded(site, [expr, s, z], own_types))
    axis = site.axis(len(site.tensor_of(types[0][0], "data")[0]))

    def concatenate(*tensors: Any) -> Any:
        return topi.concatenate(tensors, axis)

    return site.call_te("qnn_concatenate", concatenate, parts)


def _recoded(site: DialectSite, args: Sequence[Any], types: Sequence[Any]) -> Any:
    attrs = REQUANTIZE.complete({"out_dtype": site.tensor_of(types[0], "data")[1]})
    nested = site.nested(
        REQUANTIZE.name,
        REQUANTIZE.arguments,
        [*args, *site.args[3:]],
        [*types, *site.types[3:]],
        attrs,
    )
    return site.host.bind(REQUANTIZE.lower(nested))


OPS = (
    QnnOp(
        "qnn.concatenate",
        ("data", "input_scales", "input_zero_points", "output_scale", "output_zero_point"),
        (Attribute("axis", 0, "the axis that grows"),),
        _infer,
        _lower,
        "operands are requantized to the result's parameters, then joined",
    ),
)
