"""Operators that choose or surround stored values: Slice, Gather, Split and Pad."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import Array, Flow, OnnxOp, Operands, Row, Types
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import AxisAttrs, PadAttrs, SliceAttrs, SplitAttrs
from qdqbridge.core.ops.data_movement import data_movement
from qdqbridge.core.ops.shapes import axes_fit, known, sliced
from qdqbridge.core.ops.stored import converted, present

_MODES: dict[str, Literal["reflect", "edge", "wrap"]] = {
    "reflect": "reflect",
    "edge": "edge",
    "wrap": "wrap",
}


def _slice(attributes: SliceAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    region = [slice(None)] * x.ndim
    for start, end, axis, step in zip(
        attributes.starts, attributes.ends, attributes.axes, attributes.steps, strict=True
    ):
        taken = sliced(x.shape[axis], start, end, step)
        # A stop of -1 is "in front of element 0" in a range, and the last element in a slice of
        # Python.
        region[axis] = slice(taken.start, taken.stop if taken.stop >= 0 else None, step)
        if not taken:
            region[axis] = slice(0, 0)
    return (x[tuple(region)],)


def _gather(attributes: AxisAttrs, operands: Operands) -> tuple[Array, ...]:
    x, indices = present(operands, 2)
    return (np.take(x, indices.astype(np.int64), axis=attributes.axis),)


def _compute_split(attributes: SplitAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    borders = np.cumsum(attributes.sizes)[:-1]
    return tuple(np.split(x, borders, axis=attributes.axis))


def within(begin: int, end: int, size: int) -> tuple[int, int]:
    """Returns a pair of pads that crops no more than the ``size`` elements of an axis.

    What one end crops beyond these is taken off what the other adds.
    """
    if begin < -size:
        return -size, end + begin + size
    return (begin + end + size, -size) if end < -size else (begin, end)


def _surrounded(attributes: PadAttrs, x: Array, value: Array) -> Array:
    """Returns ``x`` cropped by negative pads, then padded; ``value`` is in x's dtype."""
    rank = x.ndim
    begin, end = attributes.pads[:rank], attributes.pads[rank:]
    begin, end = zip(*map(within, begin, end, x.shape), strict=True) if rank else ((), ())
    if any(size + b + e < 0 for b, e, size in zip(begin, end, x.shape, strict=True)):
        raise ValueError(f"pads {attributes.pads} crop more than there is of {list(x.shape)}")
    crop = tuple(
        slice(max(-b, 0), max(size - max(-e, 0), 0))
        for b, e, size in zip(begin, end, x.shape, strict=True)
    )
    widths = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
    inner = x[crop]
    if attributes.mode == "constant":
        shape = tuple(n + b + e for n, (b, e) in zip(inner.shape, widths, strict=True))
        result = np.full(shape, value, x.dtype)
        result[tuple(slice(b, b + n) for n, (b, _) in zip(inner.shape, widths, strict=True))] = (
            inner
        )
        return result
    around: Array = np.pad(inner, widths, mode=_MODES[attributes.mode])
    return around


def _compute_pad(attributes: PadAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    return (_surrounded(attributes, x, np.asarray(attributes.value).astype(x.dtype)),)


def _pad_contract(
    attributes: PadAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    source, result = types[0], results[0]
    if not isinstance(source, QuantType) or not source.params.per_tensor:
        return None
    if not isinstance(result, QuantType) or not result.params.per_tensor:
        return None
    (x,) = present(operands, 1)
    value = quantize(np.asarray(attributes.value, np.float32), result.params)
    return (_surrounded(attributes, converted(x, source.params, result), value),)


def _check_slice(node: Node, attributes: SliceAttrs) -> Iterator[str]:
    counts = {
        len(v) for v in (attributes.starts, attributes.ends, attributes.axes, attributes.steps)
    }
    if len(counts) > 1:
        yield "starts, ends, axes and steps have different lengths"
    if 0 in attributes.steps:
        yield "a step is 0"
    yield from axes_fit(attributes.axes, node.operand(0).rank)


def _check_gather(node: Node, attributes: AxisAttrs) -> Iterator[str]:
    if node.optional(1) is None:
        yield "has no indices"
    yield from axes_fit((attributes.axis,), node.operand(0).rank)


def _check_split(node: Node, attributes: SplitAttrs) -> Iterator[str]:
    x = node.operand(0)
    yield from axes_fit((attributes.axis,), x.rank)
    if any(size < 0 for size in attributes.sizes):
        yield f"sizes {attributes.sizes} has a negative entry"
    if len(attributes.sizes) != len(node.outputs):
        yield f"has {len(attributes.sizes)} sizes and {len(node.outputs)} results"
    extent = known(x, attributes.axis)
    if extent is not None and sum(attributes.sizes) != extent:
        yield f"sizes {attributes.sizes} do not add up to {extent}"


def _check_pad(node: Node, attributes: PadAttrs) -> Iterator[str]:
    x = node.operand(0)
    if attributes.mode not in ("constant", *_MODES):
        yield f"mode {attributes.mode!r} does not exist"
    if x.rank is None:
        return
    if len(attributes.pads) != 2 * x.rank:
        yield f"pads has {len(attributes.pads)} entries for an input of rank {x.rank}"
        return
    for axis in range(x.rank):
        begin, end, size = attributes.pads[axis], attributes.pads[axis + x.rank], known(x, axis)
        if size is None:
            continue
        begin, end = within(begin, end, size)
        left = size + min(begin, 0) + min(end, 0)
        if left < 0:
            yield f"pads crop more than the {size} elements of axis {axis}"
        if attributes.mode == "reflect" and max(begin, end) >= max(left, 1):
            yield f"reflected padding of axis {axis} is wider than its {left} elements allow"


SLICE = data_movement(
    "Slice", SliceAttrs, _slice, _check_slice,
    onnx=(
        OnnxOp(name="Slice", operands=dict.fromkeys(("starts", "ends", "axes", "steps"), 10)),
    ),
)  # fmt: skip
GATHER = data_movement(
    "Gather",
    AxisAttrs,
    _gather,
    _check_gather,
    "Moves stored values; indices stay. Exact.",
    onnx=(OnnxOp(name="Gather", defaults={"axis": 0}),),
)
SPLIT = data_movement(
    "Split", SplitAttrs, _compute_split, _check_split,
    onnx=(OnnxOp(name="Split", operands={"sizes": 13}, defaults={"axis": 0}),),
)  # fmt: skip
PAD = Row(
    name="Pad",
    flow=Flow.MOVE,
    attributes=PadAttrs,
    compute=_compute_pad,
    contract=_pad_contract,
    data=(0,),
    check=_check_pad,
    onnx=(
        OnnxOp(
            name="Pad",
            operands={"pads": 11, "value": 11},
            defaults={"value": 0.0},
            newer={"mode": {"wrap": 19}},
            unsaid=("value",),
        ),
    ),
    numerics="Moves stored values; a constant is quantize(value) of the result's type. Exact.",
)

OPERATORS = (SLICE, GATHER, SPLIT, PAD)
