"""Convolutions and averages of floats, and the pads of pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qdqbridge.core.graph.attribute_codecs import call_attributes
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Attributes, Flow
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs, PoolAttrs, ReduceAttrs
from qdqbridge.core.ops.pooling import fitting
from qdqbridge.core.ops.reduction import (
    REDUCE_MAX,
    REDUCE_MEAN,
    REDUCE_MIN,
    REDUCE_SUM,
    reduction_of,
)
from qdqbridge.core.ops.shapes import reaching, span
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, fills, unsupported

Emit = Callable[[FunctionEmitter, Node, list[Expr]], Expr]


def window_pads(
    emitter: FunctionEmitter, node: Node, attributes: PoolAttrs, have: list[Any]
) -> tuple[int, ...]:
    """Returns pads under which a pool without ``ceil_mode`` has ONNX's windows.

    ONNX drops a last window that would start in the padding behind the data.
    """
    rank = len(attributes.kernel_shape)
    pads = list(attributes.pads)
    if not attributes.ceil_mode:
        return tuple(pads)
    extents = [have[axis] for axis in emitter.spatial(node, rank + 2)]
    for i in range(rank):
        kernel, stride = attributes.kernel_shape[i], attributes.strides[i]
        dilation = attributes.dilations[i]
        if isinstance(extents[i], int):
            both = (pads[i], pads[rank + i])
            pads[rank + i] = reaching(extents[i], kernel, stride, dilation, both)
        elif pads[rank + i] + stride > span(kernel, dilation):
            raise unsupported(node, "a last window may start in the padding, or may not")
        else:
            pads[rank + i] += stride - 1
    return tuple(pads)


def need_fitting_windows(emitter: FunctionEmitter, node: Node) -> None:
    """Lets a run end with an error where windows of a pool are wider than its padded input.

    Hosts round the number of windows down, to none, where ONNX's runtimes have one.
    """
    attributes = node.attributes
    if not isinstance(attributes, PoolAttrs) or attributes.ceil_mode:
        return
    rank = len(attributes.kernel_shape)
    have = emitter.extents(emitter.value(node.operand(0)))
    have = [have[axis] for axis in emitter.spatial(node, rank + 2)]
    if fitting(attributes, [e if isinstance(e, int) else None for e in have]) != attributes:
        raise unsupported(node, "its windows are wider than its input")
    for i, extent in enumerate(have):
        if not isinstance(extent, int):
            pads = attributes.pads[i] + attributes.pads[rank + i]
            least = span(attributes.kernel_shape[i], attributes.dilations[i]) - pads
            emitter.at_least(extent, least)


def pool(emitter: FunctionEmitter, node: Node, x: Expr, pads: tuple[int, ...]) -> Expr:
    """Emits the host's pool of a node with these pads, which say all about ``ceil_mode``."""
    rank = emitter.rank(x)
    function = emitter.function(node.op.tvm.format(rank=rank - 2))
    unsaid = {"ceil_mode"} if node.op.flow is Flow.AVERAGE else {"ceil_mode", "count_include_pad"}
    window = {k: v for k, v in call_attributes(node.attributes).items() if k not in unsaid}
    return function(x, layout=emitter.layout(node, rank), **window | {"padding": pads})


def _conv(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    x, w = args[0], args[1]
    rank, last = emitter.rank(x) - 2, node in emitter.channels_last
    attrs, function = (
        call_attributes(node.attributes),
        emitter.function(node.op.tvm.format(rank=rank)),
    )
    if last and isinstance(node.attributes, ConvTransposeAttrs):  # TVM's are channels-first only
        permuted = emitter.emit(emitter.op.permute_dims(x, [0, rank + 1, *range(1, rank + 1)]))
        first = emitter.emit(function(permuted, w, **attrs))
        x = emitter.emit(emitter.op.permute_dims(first, [0, *range(2, rank + 2), 1]))
        return _plus(emitter, x, args, 0)
    if last:
        w = emitter.emit(emitter.op.permute_dims(w, [*range(2, rank + 2), 1, 0]))
        letters = "DHW"[3 - rank :]
        attrs |= {"data_layout": f"N{letters}C", "kernel_layout": f"{letters}IO"}
    return _plus(emitter, function(x, w, **attrs), args, 0 if last else rank)


def _plus(emitter: FunctionEmitter, result: Expr, args: list[Expr], trailing: int) -> Expr:
    if len(args) < 3:
        return result
    column = emitter.emit(emitter.op.reshape(args[2], (-1, *([1] * trailing))))
    return emitter.op.add(emitter.emit(result), column if trailing else args[2])


def _average_pool(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    attributes, x = node.record(PoolAttrs), args[0]
    pads = window_pads(emitter, node, attributes, emitter.extents(x))
    beyond = any(p > q for p, q in zip(pads, attributes.pads, strict=True))
    if attributes.count_include_pad and beyond:
        # The windows of ceil_mode may reach beyond the padding, which does not count.
        ones = emitter.emit(emitter.op.ones_like(x))
        return _counted_pool(emitter, node, x, ones, pads)
    return pool(emitter, node, x, pads)


def _counted_pool(
    emitter: FunctionEmitter, node: Node, x: Expr, ones: Expr, pads: tuple[int, ...]
) -> Expr:
    attributes = node.record(PoolAttrs)
    rank = len(attributes.kernel_shape)
    counted = [min(p, q) for p, q in zip(pads, attributes.pads, strict=True)]
    widths = [0] * (2 * (rank + 2))
    for i, axis in enumerate(emitter.spatial(node, rank + 2)):
        widths[2 * axis : 2 * axis + 2] = [counted[i], counted[rank + i]]
    left = tuple(p - q for p, q in zip(pads, counted, strict=True))
    whole = emitter.emit(emitter.op.nn.pad(x, widths, "constant", 0.0))
    total = emitter.emit(pool(emitter, node, whole, left))
    counts = emitter.emit(emitter.op.nn.pad(ones, widths, "constant", 1.0))
    return emitter.op.divide(total, emitter.emit(pool(emitter, node, counts, left)))


def _wants_some(emitter: FunctionEmitter, node: Node, x: Expr) -> bool:
    """True where hosts divide integers by 0, or give a bound that the result's type has not."""
    if node.op is REDUCE_MEAN:
        return "float" not in emitter.dtype(x)
    quant = node.output.quant
    return node.op in (REDUCE_MAX, REDUCE_MIN) and quant is not None and not fills(quant.params)


def reduction(emitter: FunctionEmitter, node: Node, x: Expr) -> Expr:
    """Emits the host's reduction, of the spatial axes for a global pool."""
    found, have = reduction_of(node, emitter.spatial(node, emitter.rank(x))), emitter.extents(x)
    unset = not (emitter.reduces_nothing or node.op is REDUCE_SUM)
    if unset and any(have[axis] == 0 for axis in found.axes):
        raise unsupported(node, "it reduces no elements, and TVM leaves such a result unset")
    if _wants_some(emitter, node, x):
        for axis in found.axes:
            emitter.at_least(have[axis], 1)
    return emitter.function(node.op.tvm)(x, list(found.axes), found.keepdims)


FLOATING_WINDOWS: dict[type[Attributes], Emit] = {
    ConvAttrs: _conv,
    ConvTransposeAttrs: _conv,
    PoolAttrs: _average_pool,
    ReduceAttrs: lambda emitter, node, args: reduction(emitter, node, args[0]),
}
"""By the record of their attributes."""
