"""Convolutions and averages of floats, and the pads of pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qdqbridge.graph.graph import Node
from qdqbridge.ops.attributes import ConvAttrs, ConvTransposeAttrs, PoolAttrs, ReduceAttrs
from qdqbridge.qnn.emit.scope import Expr, Scope, unsupported

Emit = Callable[[Scope, Node, list[Expr]], Expr]


def window_pads(
    scope: Scope, node: Node, attributes: PoolAttrs, have: list[Any]
) -> tuple[int, ...]:
    """Returns pads under which a pool without ``ceil_mode`` has ONNX's windows.

    ONNX drops a last window that would start in the padding behind the data.
    """
    rank = len(attributes.kernel_shape)
    pads = list(attributes.pads)
    if not attributes.ceil_mode:
        return tuple(pads)
    extents = [have[axis] for axis in scope.spatial(node, rank + 2)]
    for i in range(rank):
        span = (attributes.kernel_shape[i] - 1) * attributes.dilations[i] + 1
        stride = attributes.strides[i]
        if not isinstance(extents[i], int):
            if pads[rank + i] + stride > span:
                raise unsupported(node, "a last window may start in the padding, or may not")
            pads[rank + i] += stride - 1
            continue
        data = extents[i] + pads[i]
        windows = -(-(data + pads[rank + i] - span) // stride) + 1
        if (windows - 1) * stride >= data:
            windows -= 1
        pads[rank + i] = max(0, (windows - 1) * stride + span - data)
    return tuple(pads)


def pool(scope: Scope, node: Node, kind: str, x: Expr, window: dict[str, Any]) -> Expr:
    """Emits ``nn.<kind>_pool<n>d`` with the arguments of ``window``."""
    rank = scope.rank(x)
    function = scope.function(f"nn.{kind}_pool{rank - 2}d")
    return function(x, layout=scope.layout(node, rank), **window)


def _conv(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes, x, w = node.attributes, args[0], args[1]
    assert isinstance(attributes, ConvAttrs | ConvTransposeAttrs)
    rank, last = scope.rank(x) - 2, node in scope.channels_last
    attrs: dict[str, Any] = {
        "strides": attributes.strides,
        "padding": attributes.pads,
        "dilation": attributes.dilations,
        "groups": attributes.group,
    }
    name = f"conv{rank}d"
    if isinstance(attributes, ConvTransposeAttrs):
        attrs["output_padding"] = attributes.output_padding
        name += "_transpose"
        if last:  # TVM computes these channels-first only
            turned = scope.emit(scope.op.permute_dims(x, [0, rank + 1, *range(1, rank + 1)]))
            first = scope.emit(scope.function(f"nn.{name}")(turned, w, **attrs))
            x = scope.emit(scope.op.permute_dims(first, [0, *range(2, rank + 2), 1]))
            return _plus(scope, x, args, 0)
    elif last:
        w = scope.emit(scope.op.permute_dims(w, [*range(2, rank + 2), 1, 0]))
        letters = "DHW"[3 - rank :]
        attrs |= {"data_layout": f"N{letters}C", "kernel_layout": f"{letters}IO"}
    result = scope.function(f"nn.{name}")(x, w, **attrs)
    return _plus(scope, result, args, 0 if last else rank)


def _plus(scope: Scope, result: Expr, args: list[Expr], trailing: int) -> Expr:
    if len(args) < 3:
        return result
    column = scope.emit(scope.op.reshape(args[2], (-1, *([1] * trailing))))
    return scope.op.add(scope.emit(result), column if trailing else args[2])


def _average_pool(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes, x = node.attributes, args[0]
    assert isinstance(attributes, PoolAttrs)
    pads = window_pads(scope, node, attributes, scope.extents(x))
    beyond = any(p > q for p, q in zip(pads, attributes.pads, strict=True))
    if attributes.count_include_pad and beyond:
        # The windows of ceil_mode may reach beyond the padding, which does not count.
        ones = scope.emit(scope.op.ones_like(x))
        return _counted_pool(scope, node, x, ones, pads)
    window = {
        "pool_size": attributes.kernel_shape,
        "strides": attributes.strides,
        "padding": pads,
        "dilation": attributes.dilations,
        "count_include_pad": attributes.count_include_pad,
    }
    return pool(scope, node, "avg", x, window)


def _counted_pool(scope: Scope, node: Node, x: Expr, ones: Expr, pads: tuple[int, ...]) -> Expr:
    attributes = node.attributes
    assert isinstance(attributes, PoolAttrs)
    rank = len(attributes.kernel_shape)
    counted = [min(p, q) for p, q in zip(pads, attributes.pads, strict=True)]
    widths = [0] * (2 * (rank + 2))
    for i, axis in enumerate(scope.spatial(node, rank + 2)):
        widths[2 * axis : 2 * axis + 2] = [counted[i], counted[rank + i]]
    window = {
        "pool_size": attributes.kernel_shape,
        "strides": attributes.strides,
        "padding": tuple(p - q for p, q in zip(pads, counted, strict=True)),
        "dilation": attributes.dilations,
        "count_include_pad": True,
    }
    whole = scope.emit(scope.op.nn.pad(x, widths, "constant", 0.0))
    total = scope.emit(pool(scope, node, "avg", whole, window))
    counts = scope.emit(scope.op.nn.pad(ones, widths, "constant", 1.0))
    return scope.op.divide(total, scope.emit(pool(scope, node, "avg", counts, window)))


def _reduce(name: str) -> Emit:
    def emit(scope: Scope, node: Node, args: list[Expr]) -> Expr:
        axes, keepdims = scope.spatial(node, scope.rank(args[0])), True
        if isinstance(node.attributes, ReduceAttrs):
            axes, keepdims = list(node.attributes.axes), node.attributes.keepdims
        return scope.function(name)(args[0], axes, keepdims)

    return emit


FLOATING_WINDOWS: dict[str, Emit] = {
    "Conv": _conv,
    "ConvTranspose": _conv,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _reduce("mean"),
    "ReduceMean": _reduce("mean"),
    "ReduceSum": _reduce("sum"),
}
