"""Nodes that only move codes, as copies between strided views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import Operator, typed
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    DepthSpaceAttrs,
    ExpandAttrs,
    PadAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.data_movement import DEPTH_TO_SPACE, EXPAND, SPACE_TO_DEPTH, TILE, TRANSPOSE
from qdqbridge.core.ops.depth_space import STEPS
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.selection import PAD, SLICE, SPLIT
from qdqbridge.core.ops.shapes import sliced
from qdqbridge.tvm.relax.kernels.codegen.broadcasting import Open, strides_over
from qdqbridge.tvm.relax.kernels.codegen.codes import CODES, bytes_of, extents, one_batch
from qdqbridge.tvm.relax.kernels.data_movement.strided_copies import (
    CopiedBox,
    Move,
    build_strided_copies,
)
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.views import strides_of

Table = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Box:
    """What a node copies.

    Attributes:
        parts: The boxes.
        fill: The code that is everywhere else; None where nothing is.
        tables: What codes go through.
    """

    parts: Sequence[CopiedBox]
    fill: int | None = None
    tables: Sequence[Table] = field(default_factory=list[Table])


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Shapes of operands and results, as they are carried."""

    operands: tuple[Open, ...]
    results: tuple[Open, ...]
    last: bool

    @property
    def taken(self) -> Open:
        """Shape of the first operand."""
        return self.operands[0]

    @property
    def result_shape(self) -> Open:
        """Shape of the first result."""
        return self.results[0]


def match_data_movement(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a node that lays out codes anew."""
    joins = node.op is CONCAT
    inputs = node.inputs if joins else node.inputs[:1]
    values = [value for value in inputs if value is not None]
    found = [extents(value.type.shape) for value in (*values, *node.outputs)]
    known = tuple(shape for shape in found if shape)
    kinds = {value.type.dtype for value in (*values, *node.outputs)}
    if len(known) < len(found) or len(kinds) > 1 or not kinds <= set(CODES):
        return None
    if any(value.is_constant for value in values) or not one_batch(*values, *node.outputs):
        return None
    shapes = _Shapes(known[: len(values)], known[len(values) :], place.channels_last)
    box = _BOXES[node.op](node, shapes)
    if box is None:
        return None
    dtype = CODES[node.output.type.dtype]
    move = Move(
        shapes.operands, shapes.results, dtype, tuple(box.parts), box.fill is not None,
        len(box.tables), place.cpu.permutes, place.threads,
    )  # fmt: skip
    fill = [] if box.fill is None else [np.asarray([box.fill], dtype)]
    constants = (*fill, *box.tables)
    return Kernel(
        node.op.name.lower(),
        move,
        build_strided_copies,
        tuple(values),
        constants,
        tuple(node.outputs),
    )


def _transpose(node: Node, attributes: TransposeAttrs, shapes: _Shapes) -> _Box | None:
    del node
    own = strides_of(shapes.taken)
    taken = tuple(own[axis] for axis in attributes.perm)
    if None in shapes.result_shape and attributes.perm[0] != 0:
        return None
    return _Box([CopiedBox(0, shapes.result_shape, taken, strides_of(shapes.result_shape))])


def _slice(node: Node, attributes: SliceAttrs, shapes: _Shapes) -> _Box | None:
    del node
    taken, origin = list(strides_of(shapes.taken)), 0
    for start, end, axis, step in zip(
        attributes.starts, attributes.ends, attributes.axes, attributes.steps, strict=True
    ):
        extent = shapes.taken[axis]
        if extent is None:
            return None
        origin += sliced(extent, start, end, step).start * taken[axis]
        taken[axis] *= step
    return _Box(
        [CopiedBox(0, shapes.result_shape, tuple(taken), strides_of(shapes.result_shape), origin)]
    )


def _split_copy_boxes(node: Node, attributes: SplitAttrs, shapes: _Shapes) -> _Box | None:
    del node
    taken, parts, origin = strides_of(shapes.taken), list[CopiedBox](), 0
    for i, (shape, size) in enumerate(zip(shapes.results, attributes.sizes, strict=True)):
        parts.append(CopiedBox(0, shape, taken, strides_of(shape), origin, target=i))
        origin += size * taken[attributes.axis]
    return None if shapes.taken[attributes.axis] is None else _Box(parts)


def _concat_boxes(node: Node, attributes: AxisAttrs, shapes: _Shapes) -> _Box | None:
    """Operands with other parameters than the result go through a table."""
    axis, result = attributes.axis, node.output.quant
    given, parts, tables, place = (
        strides_of(shapes.result_shape),
        list[CopiedBox](),
        list[Table](),
        0,
    )
    for i, shape in enumerate(shapes.operands):
        extent, value = shape[axis], node.operand(i)
        if extent is None or result is None or value.quant is None:
            return None
        part = CopiedBox(i, shape, strides_of(shape), given, 0, place)
        place += extent * given[axis]
        if not _kept(value.quant.params, result.params):
            source, target = bytes_of(value), bytes_of(node.output)
            if source is None or target is None:
                return None
            part = replace(part, mapped=len(tables))
            tables.append(quantize(dequantize(codes(source), source), target))
        parts.append(part)
    return _Box(parts, None, tables)


def _kept(source: QuantParams, result: QuantParams) -> bool:
    """True where codes stay what they are."""
    inside = source.qmin >= result.qmin and source.qmax <= result.qmax
    return source.same_mapping(result) and inside


def _pad_boxes(node: Node, attributes: PadAttrs, shapes: _Shapes) -> _Box | None:
    """Negative pads cut elements off."""
    quant = node.output.quant  # a clamp before it does not reach what is put around
    rank = len(shapes.taken)
    before, after = attributes.pads[:rank], attributes.pads[rank:]
    if attributes.mode != "constant" or quant is None or not quant.params.per_tensor:
        return None
    if None in shapes.taken and (before[0] or after[0]):
        return None
    taken, given = strides_of(shapes.taken), strides_of(shapes.result_shape)
    box = tuple(
        None if extent is None else extent + min(first, 0) + min(last, 0)
        for extent, first, last in zip(shapes.taken, before, after, strict=True)
    )
    if any(extent is not None and extent < 1 for extent in box):
        return None
    origin = sum(max(-pad, 0) * stride for pad, stride in zip(before, taken, strict=True))
    place = sum(max(pad, 0) * stride for pad, stride in zip(before, given, strict=True))
    code = quantize(np.asarray(attributes.value, np.float32), quant.params)
    return _Box([CopiedBox(0, box, taken, given, origin, place)], int(code))


def _expand(node: Node, attributes: ExpandAttrs, shapes: _Shapes) -> _Box | None:
    """The run alone tells whether an open extent that becomes a known one is repeated."""
    del node, attributes
    own = shapes.result_shape[len(shapes.result_shape) - len(shapes.taken) :]
    if any(a is None and b is not None for a, b in zip(shapes.taken, own, strict=True)):
        return None
    taken = tuple(strides_over(shapes.result_shape, shapes.taken))
    return _Box([CopiedBox(0, shapes.result_shape, taken, strides_of(shapes.result_shape))])


def _tile(node: Node, attributes: TileAttrs, shapes: _Shapes) -> _Box | None:
    """Every axis is two: the repetitions, and the elements of one."""
    del node
    repeats = attributes.repeats
    if None in shapes.taken and repeats[0] != 1:
        return None
    axes: list[tuple[int | None, int, int]] = []
    own, result = strides_of(shapes.taken), strides_of(shapes.result_shape)
    for extent, repeat, taken, given in zip(shapes.taken, repeats, own, result, strict=True):
        axes += [(repeat, 0, given * (extent or 1)), (extent, taken, given)]
    return _Box([_part(axes)])


def _part(axes: Sequence[tuple[int | None, int, int]]) -> CopiedBox:
    """Returns a box of axes with their extent and strides; an open extent comes first."""
    ordered = sorted(axes, key=lambda axis: axis[0] is not None)
    extents_, taken, given = zip(*ordered, strict=True)
    return CopiedBox(0, extents_, taken, given)


def _block_boxes(node: Node, attributes: DepthSpaceAttrs, shapes: _Shapes) -> _Box | None:
    steps, size = STEPS[node.op.name, attributes.mode], attributes.block_size
    steps = steps.channels_last() if shapes.last else steps
    extents = steps.extents(shapes.taken, size)
    taken = _strides_by_letter(steps.split, strides_of(shapes.taken), extents)
    given = _strides_by_letter(steps.joined, strides_of(shapes.result_shape), extents)
    return _Box([_part([(extents[each], taken[each], given[each]) for each in "ndhywx"])])


def _strides_by_letter(
    groups: Sequence[str], strides: Sequence[int], extents: Mapping[str, int | None]
) -> dict[str, int]:
    """Returns the stride of each axis that an axis of a tensor is split into."""
    found: dict[str, int] = {}
    for group, last in zip(groups, strides, strict=True):
        step = last
        for letter in reversed(group):
            found[letter] = step
            step *= extents[letter] or 1
    return found


_BOXES: Mapping[Operator, Callable[[Node, _Shapes], _Box | None]] = dict((
    typed(TRANSPOSE, _transpose), typed(SLICE, _slice), typed(SPLIT, _split_copy_boxes),
    typed(CONCAT, _concat_boxes), typed(PAD, _pad_boxes), typed(EXPAND, _expand), typed(TILE,
        _tile),
    typed(DEPTH_TO_SPACE, _block_boxes), typed(SPACE_TO_DEPTH, _block_boxes),
))  # fmt: skip
OPERATORS = tuple(row.name for row in _BOXES)
"""Operators that :func:`match_data_movement` knows."""
