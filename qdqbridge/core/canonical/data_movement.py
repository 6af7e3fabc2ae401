"""Rules for data movement, which works on stored integers: conversions pass through it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.clamps import clamped_pad
from qdqbridge.core.canonical.folding import extents_of
from qdqbridge.core.canonical.identities import has_equal
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow
from qdqbridge.core.graph.types import Dim, QuantParams, QuantType, Shape, TensorType, static_shape
from qdqbridge.core.ops import resize
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    PadAttrs,
    ReshapeAttrs,
    ResizeAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.build import (
    constant,
    dequantized,
    evaluated,
    permuted_params,
    quantized,
    requantized,
    result,
)
from qdqbridge.core.ops.conversion import QUANTIZE, REINTERPRET, REQUANTIZE
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE, SQUEEZE, UNSQUEEZE
from qdqbridge.core.ops.elementwise import ADD, MUL, WHERE
from qdqbridge.core.ops.folding import proportionate
from qdqbridge.core.ops.selection import GATHER, PAD
from qdqbridge.core.ops.shapes import result_shape
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.core.rewrite import (
    Proposal,
    Reject,
    Replace,
    RuleContext,
    made_by,
    replaced,
    rule,
    stored_behind,
)

DATA_MOVEMENT = tuple(
    row.name for row in OPERATORS if row.flow is Flow.MOVE or row is resize.RESIZE
)
"""The operators that move values, some of them only with some attributes."""


def moves(node: Node) -> bool:
    """True where the node only moves values (nearest Resize included)."""
    if isinstance(node.attributes, ResizeAttrs):
        return resize.moves(node.attributes)
    return node.op.flow is Flow.MOVE


def moved_axis(node: Node, params: QuantParams, shape: Shape, to: Shape) -> int | None:
    """Returns where data movement puts the quantization axis; None where it is lost."""
    axis = params.axis
    if axis is None or shape is None:
        return None
    attributes = node.attributes
    if node.op is SQUEEZE and isinstance(attributes, AxesAttrs):
        kept = [i for i in range(len(shape)) if i not in attributes.axes]
        return kept.index(axis) if axis in kept else None
    if node.op is UNSQUEEZE and isinstance(attributes, AxesAttrs):
        rank = len(shape) + len(attributes.axes)
        return [i for i in range(rank) if i not in attributes.axes][axis]
    if node.op in (RESHAPE, FLATTEN):
        return _reshaped_axis(axis, static_shape(shape), static_shape(to))
    return None


def _reshaped_axis(
    axis: int, shape: tuple[int, ...] | None, to: tuple[int, ...] | None
) -> int | None:
    if shape is None or to is None:
        return None
    before = math.prod(shape[:axis])
    for index, extent in enumerate(to):
        # As many elements before it: then it is that axis, whatever the others became.
        if extent == shape[axis] and math.prod(to[:index]) == before:
            return index
    return None


def moved_params(node: Node, params: QuantParams) -> QuantParams | None:
    """Returns the parameters of what is moved; None where they is not known."""
    if params.per_tensor:
        return params
    if node.op in (RESHAPE, FLATTEN):
        blocks = _rows_as_blocks(node, params)
        if blocks is not None:
            return blocks
    if isinstance(node.attributes, TransposeAttrs):
        return permuted_params(params, node.attributes.perm)
    if params.blocked:
        return None
    axis = moved_axis(node, params, node.operand(0).type.shape, node.output.type.shape)
    return None if axis is None else params.with_axis(axis)


def _rows_as_blocks(node: Node, params: QuantParams) -> QuantParams | None:
    """Returns the parameters of rows of a block each that are joined to longer rows (idiom B5)."""
    shape, to = (static_shape(v.type.shape) for v in (node.operand(0), node.output))
    if shape is None or to is None:
        return None
    if params.blocked:
        block = shape[-1]
        if params.axis != len(shape) - 1 or params.block_size != block:
            return None
    else:
        block = math.prod(shape[1:])
        if params.axis != 0 or shape[0] == to[0]:
            return None
    if len(to) < 2 or block < 2 or to[-1] % block or to[-1] == block:
        return None
    extents = (*to[:-1], to[-1] // block)
    scale, zero_point = params.scale.reshape(extents), params.zero_point.reshape(extents)
    axis = len(to) - 1
    return replace(params, scale=scale, zero_point=zero_point, axis=axis, block_size=block)


@rule("dequantize-through-data-movement", *DATA_MOVEMENT)
def dequantize_through_data_movement(node: Node, context: RuleContext) -> Proposal:
    """``move(dequantize(q)) -> dequantize(move(q))``; so data movement of q with a float result."""
    del context
    if not moves(node) or not node.inputs:
        return None
    real = all(v.quant is None and v.type.dtype.is_float for v in node.outputs)
    stored = stored_behind(node.operand(0)) or (node.operand(0) if real else None)
    if stored is None or stored.quant is None:
        return None
    params = moved_params(node, stored.quant.params)
    mixed = f"{node.op.name} mixes the channels of a per-channel quantized tensor"
    attributes = Reject(mixed) if params is None else _pad_attributes(node, params)
    if isinstance(attributes, Reject):
        return attributes if stored is not node.operand(0) else _on_real_values(node, stored)
    assert params is not None
    operands = [stored, *node.inputs[1:]]
    outputs = [Value(QuantType(params, v.type.shape)) for v in node.outputs]
    Node(node.op, attributes, operands, outputs, node.origin)
    return Replace(
        {
            old: dequantized(new, old.type.dtype, node.origin, old.name)
            for old, new in zip(node.outputs, outputs, strict=True)
        }
    )


def _on_real_values(node: Node, stored: Value) -> Replace:
    """``movement(q) -> movement(dequantize(q))``."""
    real = dequantized(stored, node.output.type.dtype, node.origin)
    outputs = [Value(v.type, v.name) for v in node.outputs]
    Node(node.op, node.attributes, [real, *node.inputs[1:]], outputs, node.origin)
    return Replace(dict(zip(node.outputs, outputs, strict=True)))


def _pad_attributes(node: Node, params: QuantParams) -> Attributes | Reject:
    """Pad values must be representable, or the padded result has another type."""
    attributes = node.attributes
    if not isinstance(attributes, PadAttrs) or attributes.mode != "constant":
        return attributes
    value = np.array([attributes.value], np.float32)
    rounded = dequantize(quantize(value, params), params)
    if rounded.tobytes() != value.tobytes():  # -0.0 is no stored value either
        return Reject(
            f"the pad value {attributes.value!r} is not representable in the input's quantization"
        )
    return replace(attributes, value=float(rounded[0]))


@rule("reinterpret-through-data-movement", *DATA_MOVEMENT)
def reinterpret_through_data_movement(node: Node, context: RuleContext) -> Proposal:
    """``movement(reinterpret(q)) -> reinterpret(movement(q))`` where q's scales lie along an axis.

    Integers that move as plain numbers between quantized ones keep their meaning on the way; it is
    left to their readers where one movement of them is not told, and where none says the same.
    Where they get another meaning, whatever the scales, they get it behind what moves them.
    """
    if not moves(node) or not node.inputs or isinstance(node.attributes, PadAttrs):
        return None
    change = made_by(node.inputs[0], REINTERPRET)
    quant = None if change is None else change.operand(0).quant
    if change is None or quant is None:
        return None
    params = moved_params(node, quant.params)
    if params is None:
        return None
    if change.output.quant is None and (
        quant.params.per_tensor
        or not any(_means(reader, params) for v in node.outputs for reader in context.readers(v))
    ):
        return None
    outputs = [Value(QuantType(params, v.type.shape)) for v in node.outputs]
    Node(node.op, node.attributes, [change.operand(0), *node.inputs[1:]], outputs, node.origin)
    return Replace(
        {
            old: result(REINTERPRET, NO_ATTRIBUTES, [new], old.type, name=old.name)
            for old, new in zip(node.outputs, outputs, strict=True)
        }
    )


def _means(reader: Node, params: QuantParams) -> bool:
    """True for a node that takes moved integers for those parameters, or moves them on."""
    quant = reader.output.quant
    if reader.op is REINTERPRET:
        return quant is not None and quant.params.same_mapping(params)
    return moves(reader) and quant is None


@rule("quantize-through-data-movement", QUANTIZE)
def quantize_through_data_movement(node: Node, context: RuleContext) -> Proposal:
    """``quantize(movement(x)) -> movement(quantize(x))`` where only quantizes read it.

    Of one result each has a movement of its own parameters.
    """
    source, target = node.operand(0), node.output.quant
    movement = source.producer
    if movement is None or target is None or not moves(movement) or not target.params.per_tensor:
        return None
    if not isinstance(movement.operand(0).type, TensorType) or has_equal(movement):
        return None  # what becomes one has the readers of both
    readers = [reader for value in movement.outputs for reader in context.readers(value)]
    alike = [r for r in readers if r.output.quant and r.output.quant.params == target.params]
    leaves = any(context.is_output(value) for value in movement.outputs)
    if leaves or any(r.op is not QUANTIZE for r in readers):
        reason = f"the result of {movement.op.name} is also read as float"
        return Reject(reason, (source.name,))
    if len(movement.outputs) > 1 and len(alike) < len(readers):
        reason = f"the results of {movement.op.name} are read with several parameters"
        return Reject(reason, (source.name,))
    first = movement.operand(0)
    stored = quantized(first, target.params, node.origin)
    attributes = _rounded_pad(movement, target.params)
    names = {reader.operand(0): reader.output.name for reader in reversed(alike)}
    outputs = [
        Value(QuantType(target.params, v.type.shape), names.get(v, "")) for v in movement.outputs
    ]
    Node(movement.op, attributes, [stored, *movement.inputs[1:]], outputs, movement.origin)
    moved = dict(zip(movement.outputs, outputs, strict=True))
    return Replace({reader.output: moved[reader.operand(0)] for reader in alike})


@rule("data-movement-keeps-range", *DATA_MOVEMENT)
def data_movement_keeps_range(node: Node, context: RuleContext) -> Proposal:
    """``movement(q) ->`` a result of q's range; a constant's is that of its type.

    What a clamp has left of a constant is in its elements, and no file says it of them again.
    """
    del context
    first = node.inputs[0] if node.inputs else None
    if first is None or not moves(node) or first.quant is None:
        return None
    held = first.quant.params if first.constant is None else first.quant.params.widened()
    stored = first
    if first.constant is not None and held != first.quant.params:
        stored = constant(first.constant, held, first.name)
    params = None if _pads_outside(node, first.quant) else moved_params(node, held)
    if params is None or any(
        v.quant is None or not v.quant.params.same_mapping(params) for v in node.outputs
    ):
        return None
    if stored is first and all(v.quant and v.quant.params == params for v in node.outputs):
        return None
    outputs = [Value(QuantType(params, v.type.shape), v.name) for v in node.outputs]
    Node(node.op, node.attributes, [stored, *node.inputs[1:]], outputs, node.origin)
    return Replace(dict(zip(node.outputs, outputs, strict=True)))


def _pads_outside(node: Node, source: QuantType) -> bool:
    attributes = node.attributes
    if not isinstance(attributes, PadAttrs) or attributes.mode != "constant":
        return False
    value = np.array([attributes.value], np.float32)
    # What is put around is not what was clamped: it may lie outside of the range.
    clamped = quantize(value, source.params)
    return bool(clamped[0] != quantize(value, source.params.widened())[0])


@rule("pad-value-as-stored", PAD)
def pad_value_as_stored(node: Node, context: RuleContext) -> Proposal:
    """``Pad(q; v) -> Pad(q; v')`` of the number that the result has for v: it may clamp it."""
    del context
    quants = (node.operand(0).quant, node.output.quant)
    if any(quant is None or not quant.params.per_tensor for quant in quants) or quants[1] is None:
        return None
    attributes = clamped_pad(node.attributes, quants[1].params)
    if attributes == node.attributes:
        return None
    output = node.output
    moved = result(node.op, attributes, node.inputs, output.type, node.origin, output.name)
    return Replace({output: moved})


@rule("requantize-after-data-movement", *DATA_MOVEMENT)
def requantize_after_data_movement(node: Node, context: RuleContext) -> Proposal:
    """``movement(requantize(q)) -> requantize(movement(q))`` where the parameters change.

    One place for a change of parameters, whichever of its neighbours the file writes it next to.
    """
    del context
    if not moves(node) or not node.inputs or len(node.outputs) != 1:
        return None
    change = made_by(node.inputs[0], REQUANTIZE)
    if change is None or change.operand(0).quant is None or node.output.quant is None:
        return None
    stored, source, target = change.operand(0), change.operand(0).quant, change.output.quant
    if source is None or target is None or source.params.same_mapping(target.params):
        return None
    params = moved_params(node, source.params)
    if params is None:
        return None
    attributes = _pad_attributes(node, params)
    if isinstance(attributes, Reject):
        return None
    type_ = QuantType(params, node.output.type.shape)
    moved = result(node.op, attributes, [stored, *node.inputs[1:]], type_, node.origin)
    value = requantized(moved, node.output.quant.params, change.origin, node.output.name)
    return Replace({node.output: value})


def _rounded_pad(movement: Node, params: QuantParams) -> Attributes:
    """``quantize(pad(x, v)) == pad(quantize(x), quantize(v))``: v rounds like any other value."""
    attributes = movement.attributes
    if not isinstance(attributes, PadAttrs) or attributes.mode != "constant":
        return attributes
    rounded = dequantize(quantize(np.array([attributes.value], np.float32), params), params)
    return replace(attributes, value=float(rounded[0]))


_LOOKED_AT = 1 << 20
_GROWTH = 4
"""A constant that a Tile, an Expand or a Pad makes larger than this stays a node."""


@rule("moved-constant", *DATA_MOVEMENT)
def moved_constant(node: Node, context: RuleContext) -> Proposal:
    """``movement(const) -> const``, moved when first looked at (a transposition stays a view)."""
    if not moves(node) or len(node.outputs) != 1 or not node.inputs:
        return None
    if any(v is not None and v.constant is None for v in node.inputs):
        return None
    source = node.operand(0)
    assert source.constant is not None
    folded = _permuted(node, source.constant)
    shape = static_shape(node.output.type.shape)
    if shape is None:  # what is constant by now was open while the file was read
        shape = folded.shape if folded is not None else _moved_shape(node)
    if shape is None:
        return None
    type_ = node.output.type.with_shape(shape)
    if folded is None or folded.shape != shape:
        folded = Constant(type_.dtype, shape, lambda: evaluated(node))
    # A file of few bytes may ask for a constant that fills memory.
    if folded.size > max(_LOOKED_AT, _GROWTH * source.constant.size):
        return None
    if not proportionate(node, [v and v.constant for v in node.inputs]):
        return None
    if not context.budget.affords(max(folded.size - source.constant.size, 0)):
        return None
    if folded.size <= _LOOKED_AT:
        folded.numpy()  # a file that declares another shape is found out while it is read
    value = Value(type_, node.output.name or source.name, constant=folded)
    return Replace({node.output: value})


def _moved_shape(node: Node) -> tuple[int, ...] | None:
    shapes = [None if value is None else value.type.shape for value in node.inputs]
    extents = result_shape(node.op.name, node.attributes, shapes, None)
    if extents is None or None in extents:
        return None
    return static_shape(tuple(dim for dim in extents if dim is not None))


def _permuted(node: Node, data: Constant) -> Constant | None:
    """Returns a transposed constant as a view that knows what it is a view of."""
    attributes = node.attributes
    if not isinstance(attributes, TransposeAttrs) or len(attributes.perm) != len(data.shape):
        return None
    return data.permuted(attributes.perm)


# ---- Rules for the indices of a Gather: those that count from the end, and those that only count


@rule("negative-indices", GATHER)
def negative_indices(node: Node, context: RuleContext) -> Proposal:
    """``Gather(x, Where(Less(i, 0), i + extent, i)) -> Gather(x, i)``: ONNX counts so itself.

    Constant indices of a known extent count from the front.
    """
    del context
    if node.operand(1).constant is not None:
        return _from_the_front(node)
    choice = made_by(node.operand(1), WHERE)
    test = None if choice is None else made_by(choice.operand(0), "Less")
    if choice is None or test is None:
        return None
    wrapped, index = choice.operand(1), choice.operand(2)
    if test.operand(0) is not index or not _is_zero(test.operand(1)):
        return None
    if not _is_wrapped(node, wrapped, index):
        return Reject("its negative indices are not counted from the end", (wrapped.name,))
    return _gathered(node, index)


_AXES_OPERAND = {"CumSum": 1, "CumProd": 1, "DFT": 2, "Slice": 3, "Pad": 3}
"""Operators without a row whose axes are an operand, by its place."""


@rule("axes-from-the-front", "CumSum", "CumProd", "DFT", "ai.onnx::Slice", "ai.onnx::Pad")
def axes_from_the_front(node: Node, context: RuleContext) -> Proposal:
    """``CumSum(x, -1) -> CumSum(x, 2)`` of three axes: constant axes count from the front."""
    del context
    place, rank = _AXES_OPERAND[node.op.name.rpartition("::")[2]], node.operand(0).rank
    axes = node.inputs[place] if place < len(node.inputs) else None
    if axes is None or axes.constant is None or rank is None or len(node.outputs) != 1:
        return None
    found: NDArray[Any] = axes.constant.numpy()
    if not (found < 0).any() or (found < -rank).any():
        return None
    data = constant(np.where(found < 0, found + rank, found).astype(found.dtype), None, axes.name)
    operands = [*node.inputs[:place], data, *node.inputs[place + 1 :]]
    return replaced(node, node.op, node.attributes, operands)


def _gathered(node: Node, index: Value) -> Replace:
    operands, output = [node.operand(0), index], node.output
    value = result(node.op, node.attributes, operands, output.type, node.origin, output.name)
    return Replace({output: value})


def _from_the_front(node: Node) -> Proposal:
    index, extent = node.operand(1), _extent(node)
    if index.constant is None or not isinstance(extent, int):
        return None
    found: NDArray[Any] = index.constant.numpy()
    # One that is out of range stays as it is: it is an error when it runs, not another element.
    if found.dtype.kind != "i" or not (found < 0).any() or (found < -extent).any():
        return None
    moved = np.where(found < 0, found + found.dtype.type(extent), found).astype(found.dtype)
    return _gathered(node, constant(Constant.of(moved), None, index.name))


def _extent(node: Node) -> int | str | None:
    """Returns the extent of the axis that is gathered from."""
    shape, attributes = node.operand(0).type.shape, node.attributes
    known = shape is not None and isinstance(attributes, AxisAttrs)
    return shape[attributes.axis] if known else None  # type: ignore[union-attr, index] # known


def _is_zero(value: Value) -> bool:
    return value.constant is not None and not value.constant.numpy().any()


def _is_wrapped(node: Node, wrapped: Value, index: Value) -> bool:
    """True where ``wrapped`` is ``index`` plus the extent of the axis that is gathered from."""
    extent, total = _extent(node), made_by(wrapped, ADD)
    if extent is None or total is None or index not in total.inputs:
        return False
    others = [v for v in total.inputs if v is not index and v is not None]
    return len(others) == 1 and extents_of(others[0]) == [extent]


_DEPTH = 32
"""How many additions and the like are followed to what indices are."""


@rule("gather-of-all-in-order", GATHER)
def gather_of_all_in_order(node: Node, context: RuleContext) -> Proposal:
    """``Gather(x, [0, 1, 2, …]) -> Reshape(x)`` for a vector x: a view by strides, written out.

    PyTorch's exporter gives ``as_strided`` such indices: constants, or sums of a Range per axis.
    """
    del context
    x, index, attributes = node.operand(0), node.operand(1), node.attributes
    shape = index.type.shape
    if x.rank != 1 or not isinstance(attributes, AxisAttrs) or not shape or 0 in shape:
        return None
    if (x.quant is not None and not x.quant.params.per_tensor) or _symbolic_element_count(
        shape
    ) != _held(x):
        return None
    steps = _index_start_and_strides(index, _DEPTH)
    if steps is None or steps[0] != 0:
        return None
    left = [(e, s) for e, s in zip(shape, steps[1], strict=True) if e != 1]
    for place, (_, step) in enumerate(left, 1):
        known, names = _symbolic_element_count(tuple(extent for extent, _ in left[place:]))
        if names or step != known:  # only the first extent may be one that is not known
            return None
    target = tuple(extent if isinstance(extent, int) else -1 for extent in shape)
    if target.count(-1) > 1:
        return None
    output = node.output
    made = ReshapeAttrs(target)
    return Replace({output: result(RESHAPE, made, [x], output.type, node.origin, output.name)})


def _symbolic_element_count(shape: tuple[Dim, ...]) -> tuple[int, list[str]]:
    """Returns a number of elements: that of the known extents, and the names of the others."""
    known = math.prod(extent for extent in shape if isinstance(extent, int))
    return known, sorted(extent for extent in shape if isinstance(extent, str))


def _held(x: Value) -> tuple[int, list[str]] | None:
    """Returns the number of elements of a vector; of one that is reshaped, as its source has it."""
    reshape = made_by(x, RESHAPE)
    shape = x.type.shape if reshape is None else reshape.operand(0).type.shape
    return None if shape is None else _symbolic_element_count(shape)


def _index_start_and_strides(index: Value, depth: int) -> tuple[int, list[int]] | None:
    """Returns the first of integers that grow evenly along each axis, and by how much they grow.

    Along an axis of extent 1 they grow by anything.
    """
    shape, node = index.type.shape, index.producer
    if shape is None or depth == 0:
        return None
    if index.constant is not None:
        return _steps_of(index.constant)
    if node is None:
        return None
    if node.op.name == "Range":
        start, step = node.operand(0).constant, node.operand(2).constant
        return None if start is None or step is None else (int(start.numpy()), [int(step.numpy())])
    if node.op in (ADD, MUL):
        a, b = (
            _index_start_and_strides(value, depth - 1) for value in node.inputs if value is not None
        )
        if a is None or b is None:
            return None
        if node.op is MUL:
            # Only a factor that is one number keeps the steps even; the one that grows would make
            # squares.
            factor = b[0] if not any(b[1]) else 0
            same = node.operand(0).type.shape == shape
            return (a[0] * factor, [step * factor for step in a[1]]) if factor and same else None
        steps = [0] * len(shape)
        for value, (_, own) in zip(node.inputs, (a, b), strict=True):
            extents = () if value is None else value.type.shape or ()
            for axis, (extent, step) in enumerate(zip(extents, own, strict=True), -len(own)):
                # An extent of 1 is broadcast: along it every index is the same, whatever step it
                # was said to have.
                steps[axis] += 0 if extent == 1 else step
        return a[0] + b[0], steps
    if node.op in (UNSQUEEZE, RESHAPE) and node.operand(0).rank is not None:
        own = _index_start_and_strides(node.operand(0), depth - 1)
        before = node.operand(0).type.shape or ()
        kept = [axis for axis, extent in enumerate(shape) if extent != 1]
        left = [axis for axis, extent in enumerate(before) if extent != 1]
        # A reshape that splits or joins axes makes the steps along the new axes uneven.
        if own is None or [shape[axis] for axis in kept] != [before[axis] for axis in left]:
            return None
        found = dict(zip(kept, (own[1][axis] for axis in left), strict=True))
        return own[0], [found.get(axis, 0) for axis in range(len(shape))]
    return None


def _steps_of(constant: Constant) -> tuple[int, list[int]] | None:
    array: NDArray[Any] = constant.numpy()
    if not array.size or array.dtype.kind != "i":
        return None
    first, steps = int(array.flat[0]), list[int]()
    found: NDArray[Any] = np.full((1,) * array.ndim, first, np.int64)
    for axis, extent in enumerate(array.shape):
        origin = [0] * array.ndim
        origin[axis] = min(1, extent - 1)
        steps.append(int(array[tuple(origin)]) - first)
        places: NDArray[Any] = np.asarray(range(extent), np.int64) * steps[-1]
        found = found + np.expand_dims(places, [a for a in range(array.ndim) if a != axis])
    return (first, steps) if np.array_equal(found, array) else None
