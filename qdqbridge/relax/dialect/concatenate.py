"""qnn.concatenate: operands take the parameters of the result, then they are joined."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, topi

from qdqbridge.relax.dialect.kernel import emit
from qdqbridge.relax.dialect.op import Attribute, QnnOp, call, lower_call
from qdqbridge.relax.dialect.site import Site, is_code, tensor_type


def _fields(site: Site, index: int) -> list[Any]:
    """Returns the members of a tuple argument."""
    argument = site.args[index]
    if not isinstance(argument, relax.Tuple):
        site.fail(f"{site.arguments[index]} is not a tuple expression", "write the tuple inline")
    return list(argument.fields)


def _infer(site: Site) -> relax.TensorType:
    data, scales, zero_points = (_fields(site, index) for index in range(3))
    if not data or len(data) != len(scales) or len(data) != len(zero_points):
        site.fail(
            f"{len(data)} tensors, {len(scales)} scales and {len(zero_points)} zero points",
            "give as many of each, at least one",
        )
    types = [site.tensor_of(expr.ty, f"data[{i}]") for i, expr in enumerate(data)]
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
    return tensor_type([*shape[:axis], extent, *shape[axis + 1 :]], dtype)


def _lower(builder: relax.BlockBuilder, site: Site) -> Any:
    scale, zero_point = site.constant(3), site.constant(4)
    parts: list[Any] = []
    for expr, s, z in zip(*(_fields(site, index) for index in range(3)), strict=True):
        own = all(
            np.array_equal(site.constant_of(param, label).reshape(-1), wanted.reshape(-1))
            for param, label, wanted in ((s, "scale", scale), (z, "zero point", zero_point))
        )
        dtype = site.tensor_of(expr.ty, "data")[1]
        parts.append(expr if own else _recoded(builder, site, expr, s, z, dtype))
    axis = site.axis(len(site.tensor_of(parts[0].ty, "data")[0]))

    def concatenate(*tensors: Any) -> Any:
        return topi.concatenate(tensors, axis)

    return emit(builder, "qnn_concatenate", concatenate, parts)


def _recoded(
    builder: relax.BlockBuilder, site: Site, expr: Any, scale: Any, zero_point: Any, dtype: str
) -> Any:
    node = call(
        "qnn.requantize", [expr, scale, zero_point, site.args[3], site.args[4]],
        {"out_dtype": dtype},
    )
    typed: Any = builder.normalize(node)
    return builder.emit(lower_call(builder, typed))


OPS = (
    QnnOp(
        "qnn.concatenate",
        ("data", "input_scales", "input_zero_points", "output_scale", "output_zero_point"),
        (Attribute("axis", 0, "the axis that grows"),),
        _infer, _lower, "operands are requantized to the result's parameters, then joined",
    ),
)
