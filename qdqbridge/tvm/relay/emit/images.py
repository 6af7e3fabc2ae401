"""``image.resize2d`` where Relay's has ONNX's meaning, in the attributes that tables look for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relay as _relay

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter
from qdqbridge.tvm.qnn.weights import axis_weights

relay: Any = _relay
_NEAREST = (
    ("asymmetric", "floor", ""),
    ("align_corners", "round_prefer_ceil", ""),
    ("half_pixel", "round_prefer_ceil", "round_prefer_ceil"),
)
"""Coordinates, ONNX's nearest mode, and Relay's rounding method as tables want it stated."""
_LINEAR = (("half_pixel", "round_prefer_ceil"), ("asymmetric", ""), ("align_corners", ""))
"""Coordinates, and the rounding method that tables want stated although nothing is rounded."""


def resized(
    emitter: FunctionEmitter,
    node: Node,
    attributes: ResizeAttrs,
    source: QuantParams,
    result: QuantParams,
) -> Expr | None:
    """Returns a resize of the two spatial axes of an image; None where Relay has no such one."""
    x = emitter.value(node.operand(0))
    before, after = emitter.extents(x), node.output.type.shape
    if len(before) != 4 or after is None or attributes.antialias:
        return None
    axes = emitter.spatial(node, 4)
    size = [extent for axis in axes if isinstance(extent := after[axis], int)]
    others = [axis for axis in range(4) if axis not in axes]
    if len(size) != 2 or any(_resize_scale(attributes, axis) not in (None, 1.0) for axis in others):
        return None
    lengths = [before[axis] for axis in axes]
    mode = _mode(attributes, axes, lengths, size)
    if mode is None:
        return None
    attrs = {"layout": emitter.layout(node, 4), **mode}
    if attributes.mode == "nearest" and source.same_mapping(result):
        return emitter.clamp(emitter.emit(relay.image.resize2d(x, tuple(size), **attrs)), result)
    real = emitter.real(node.operand(0))
    return emitter.quantize(emitter.emit(relay.image.resize2d(real, tuple(size), **attrs)), result)


def _resize_scale(attributes: ResizeAttrs, axis: int) -> float | None:
    return None if attributes.scales is None else attributes.scales[axis]


def _mode(
    attributes: ResizeAttrs, axes: list[int], lengths: list[int], size: list[int]
) -> dict[str, Any] | None:
    """Returns method, coordinates and rounding under which every weight is ONNX's."""
    wanted = [axis_weights(attributes, *e) for e in zip(axes, lengths, size, strict=True)]
    if attributes.mode == "nearest":
        for coordinates, nearest, rounding in _NEAREST:
            plain = ResizeAttrs("nearest", coordinates, nearest, None, None)
            if _equal_resize_weights(wanted, plain, lengths, size):
                return _attrs("nearest_neighbor", coordinates, rounding)
    elif attributes.mode == "linear":
        for coordinates, rounding in _LINEAR:
            plain = ResizeAttrs("linear", coordinates, "floor", None, None)
            if _equal_resize_weights(wanted, plain, lengths, size):
                return _attrs("linear", coordinates, rounding)
    return None


def _attrs(method: str, coordinates: str, rounding: str) -> dict[str, Any]:
    return {
        "method": method,
        "coordinate_transformation_mode": coordinates,
        "rounding_method": rounding,
    }


def _equal_resize_weights(
    wanted: list[NDArray[Any]], plain: ResizeAttrs, lengths: list[int], size: list[int]
) -> bool:
    found = [axis_weights(plain, 0, n, m) for n, m in zip(lengths, size, strict=True)]
    return all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))
