"""Resize: nearest copies elements, the other methods interpolate in float32 and round once."""

from __future__ import annotations

from typing import Any

from qdqbridge.graph.graph import Node
from qdqbridge.graph.types import Shape
from qdqbridge.ops.attributes import ResizeAttrs
from qdqbridge.ops.resize import moves
from qdqbridge.relax.emit.scope import Expr, Scope, op, unsupported

_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}


def emit_resize(scope: Scope, node: Node) -> Expr:
    """Emits a Resize of any rank and mode on quantized values, and 2-D interpolation of floats."""
    attributes, value, result = node.attributes, node.operand(0), node.output
    assert isinstance(attributes, ResizeAttrs)
    if value.quant is None or result.quant is None:
        return _floating(scope, node, attributes)
    rank = _spatial(attributes, value.type.shape, result.type.shape)
    attrs = _attributes(node, attributes, rank)
    params = value.quant.params, result.quant.params
    args = [scope.value(value)]
    for each in params:
        args += [scope.scale(each), scope.zero_point(each)]
    name = f"resize{rank}d" if rank else "resize"
    resized = scope.qnn(name, args, attrs)
    return resized if moves(attributes) else scope.clamp(resized, result.quant.params)


def _spatial(attributes: ResizeAttrs, shape: Shape, result: Shape) -> int:
    """Returns 1 to 3 where only the axes after batch and channels are resized, else 0."""
    if shape is None or result is None or not 3 <= len(shape) <= 5:
        return 0
    kept = shape[:2] == result[:2]
    factors = attributes.scales is None or attributes.scales[:2] == (1.0, 1.0)
    return len(shape) - 2 if kept and factors else 0


def _attributes(node: Node, attributes: ResizeAttrs, rank: int) -> dict[str, Any]:
    before, after = node.operand(0).type.shape, node.output.type.shape
    if before is None or after is None:
        raise unsupported(node, "the rank of its input is unknown")
    lead = len(after) - rank if rank else 0
    size: list[int] = []
    for old, new in zip(before[lead:], after[lead:], strict=True):
        if isinstance(new, str) and new != old:
            raise unsupported(node, "it resizes an axis of symbolic extent")
        size.append(new if isinstance(new, int) else 0)
    attrs: dict[str, Any] = {
        "size": size,
        "scales": list(attributes.scales[lead:]) if attributes.scales else [],
        "method": _METHODS[attributes.mode],
        "coordinate_transformation_mode": attributes.coordinate_transformation_mode,
        "rounding_method": attributes.nearest_mode,
        "cubic_alpha": attributes.cubic_coeff_a,
        "cubic_exclude": attributes.exclude_outside,
        "extrapolation_value": attributes.extrapolation_value,
    }
    if attributes.roi:
        half = len(attributes.roi) // 2
        attrs["roi"] = [*attributes.roi[lead:half], *attributes.roi[half + lead :]]
    return attrs


def _floating(scope: Scope, node: Node, attributes: ResizeAttrs) -> Expr:
    value = scope.real(node.operand(0))
    shape = node.output.type.shape
    rank = _spatial(attributes, node.operand(0).type.shape, shape)
    if rank != 2 or shape is None or attributes.antialias:
        raise unsupported(node, "TVM resizes floats in two spatial axes only")
    size = [dim for dim in shape[2:] if isinstance(dim, int)]
    if len(size) != 2:
        raise unsupported(node, "it resizes an axis of symbolic extent")
    rounding = {
        "round_prefer_floor": "round", "round_prefer_ceil": "round_prefer_ceil",
        "floor": "floor", "ceil": "ceil",
    }  # fmt: skip
    resized = scope.emit(
        op.image.resize2d(
            value,
            tuple(size),
            layout="NCHW",
            method=_METHODS[attributes.mode],
            coordinate_transformation_mode=attributes.coordinate_transformation_mode,
            rounding_method=rounding[attributes.nearest_mode],
            cubic_alpha=attributes.cubic_coeff_a,
            cubic_exclude=int(attributes.exclude_outside),
        )
    )
    quant = node.output.quant
    return resized if quant is None else scope.quantize(resized, quant.params)
