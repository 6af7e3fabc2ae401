"""Shapes that a model computes from the shapes of its tensors, as arithmetic of their extents.

A target of Reshape, an end of Slice, a repeat of Tile are tensors in ONNX. Followed back to the
shapes that they come from they are extents again, so that results have the extents of the inputs
by name, not new ones that nobody can compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tvm import relax, sym, tirx

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    CastAttrs,
    ExpandAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    SliceAttrs,
)
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tvm.qnn.emit.emitter import Expr, unsupported
from qdqbridge.tvm.relax.emit.broadcasting import chosen, equal

if TYPE_CHECKING:
    from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter

Extent = Any
"""A Python int, or a TIR expression."""
Elements = list[Extent]
_MOST = 64
"""Elements of a shape that is followed, and nodes on the way to it."""
_KEEPING = ("Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten")


class Arithmetic:
    """Knows the elements of integer vectors; every value is looked at once."""

    def __init__(self, emitter: RelaxEmitter) -> None:
        self._emitter = emitter
        self._known: dict[Value, Elements | None] = {}

    def elements(self, value: Value | None) -> Elements | None:
        """Returns the elements of a vector or scalar of integers; None where they are unknown."""
        if value is None or (value.rank or 0) > 1 or not value.type.dtype.is_integer:
            return None
        if value.constant is not None:
            small = value.constant.size <= _MOST
            return [int(x) for x in value.constant.numpy().reshape(-1)] if small else None
        if value not in self._known:
            # Before it is computed: a value that depends on itself, through a loop, would never
            # end.
            self._known[value] = None
            self._known[value] = self._computed(value)
        return self._known[value]

    def truth(self, condition: Value) -> bool | None:
        """Returns a condition that extents decide; None where they do not."""
        found = self._computed(condition)
        known = found is not None and len(found) == 1 and isinstance(found[0], int)
        return bool(found[0]) if found and known else None

    def _computed(self, value: Value) -> Elements | None:
        node = value.producer
        if node is None or value.quant is not None:
            return None
        name, attributes = _onnx_op_name(node), node.attributes
        if isinstance(attributes, ShapeAttrs):
            extents = self._extents(node.operand(0))
            return None if extents is None else extents[attributes.start : attributes.end]
        if name == "ConstantOfShape":
            return self._filled(node)
        parts = [self.elements(v) for v in node.inputs if v is not None]
        if not parts or any(part is None for part in parts):
            return None
        found = _moved(name, node, cast("list[Elements]", parts))
        return found if found is None or len(found) <= _MOST else None

    def _filled(self, node: Node) -> Elements | None:
        count, attributes = self.elements(node.operand(0)), node.record(OpaqueAttrs)
        if count is None or len(count) != 1 or not isinstance(count[0], int) or count[0] > _MOST:
            return None
        return [int(attributes.node.number("value") or 0)] * count[0]

    def _extents(self, value: Value) -> Elements | None:
        shape = None if value.constant is None else list(value.constant.shape)
        if shape is None and value in self._emitter.exprs:
            type_ = getattr(self._emitter.exprs[value].ty, "shape", None)
            if getattr(type_, "values", None) is not None:
                shape = self._emitter.extents(self._emitter.exprs[value])
        return shape

    def shape(self, node: Node) -> Elements | None:
        """Returns the extents of the result of a node whose operands give them at run time."""
        find = _SHAPES.get(_onnx_op_name(node))
        if find is None or len(node.outputs) != 1:
            return None
        own = self._extents(node.operand(0)) if node.operand(0).rank is not None else None
        given = [self.elements(value) for value in node.inputs[1:]]
        if _onnx_op_name(node) == "ConstantOfShape":
            own, given = [], [self.elements(node.operand(0))]
        elif _onnx_op_name(node) == "Range":
            own, given = [], [self.elements(value) for value in node.inputs]
        if own is None:
            return None
        found = find(node, own, given)
        return None if found is None else [simple(extent) for extent in found]


def _onnx_op_name(node: Node) -> str:
    """Returns the operator, of an opaque node too."""
    attributes = node.attributes
    if isinstance(attributes, OpaqueAttrs):
        return "" if attributes.domain else attributes.op_type
    return node.op.name


def simple(extent: Extent) -> Extent:
    """Returns an expression in simpler terms, a number where it is one."""
    found = extent if isinstance(extent, int) else sym.Analyzer().simplify(extent)
    return int(found) if isinstance(found, tirx.IntImm) else found


# ---- vectors --------------------------------------------------------------------------------


def _moved(name: str, node: Node, parts: list[Elements]) -> Elements | None:
    attributes = node.attributes
    if name == "Concat":
        return [extent for part in parts for extent in part]
    if isinstance(attributes, CastAttrs) or name == "Cast":
        return parts[0]
    if name in _KEEPING:
        return parts[0]
    if name == "Slice":
        return _sliced(attributes, parts)
    if name == "Gather" and isinstance(attributes, AxisAttrs):
        length = len(parts[0])
        # A pick that only the run knows, or that is out of bounds, names no extent.
        picks = [i for i in parts[1] if isinstance(i, int) and -length <= i < length]
        return [parts[0][i] for i in picks] if len(picks) == len(parts[1]) else None
    if name in ("ReduceProd", "ReduceSum") and len(parts) == 1:
        return [simple(math.prod(parts[0]) if name == "ReduceProd" else sum(parts[0]))]
    if name == "Where" and len(parts) == 3:
        rows = _broadcast_elements(parts) or []
        # Only a condition that is a number here says which extent is taken: a symbolic one is known
        # by the run.
        decided = [a if c else b for c, a, b in rows if isinstance(c, int)]
        return decided if rows and len(decided) == len(rows) else None
    compute = _ARITHMETIC.get(name)
    if compute is None or (rows := _broadcast_elements(parts)) is None:
        return None
    found = [compute(*row) if len(row) > 1 else row[0] for row in rows]
    return None if any(extent is None for extent in found) else [simple(e) for e in found]


def _broadcast_elements(parts: Sequence[Elements]) -> list[list[Extent]] | None:
    """Returns the operands of every element; vectors of one element are repeated."""
    count = max(len(part) for part in parts)
    if any(len(part) not in (1, count) for part in parts):
        return None
    return [[part[i % len(part)] for part in parts] for i in range(count)]


def _sliced(attributes: object, parts: list[Elements]) -> Elements | None:
    if isinstance(attributes, SliceAttrs):
        if attributes.axes != (0,):
            return None
        return parts[0][attributes.starts[0] : attributes.ends[0] : attributes.steps[0]]
    bounds = [part[0] for part in parts[1:] if len(part) == 1 and isinstance(part[0], int)]
    if len(bounds) != len(parts) - 1 or len(bounds) < 2 or any(bounds[2:3]):
        return None
    return parts[0][bounds[0] : bounds[1] : bounds[3] if len(bounds) > 3 else 1]


def _divided(a: Extent, b: Extent) -> Extent | None:
    """The quotient of extents; of numbers it is cut towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    # An expression is floored and ONNX cuts towards zero: the same only of extents, which are not
    # negative.
    return None if isinstance(b, int) and b <= 0 else _expr(a) // _expr(b)


def _fold_extent_equality(a: Extent, b: Extent) -> int | None:
    """1 or 0 where it is known whether two elements are the same; extents are not negative."""
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    negative = [e for e in (a, b) if isinstance(e, int) and e < 0]
    return 0 if negative else 1 if equal(_expr(a), _expr(b)) else None


def _expr(extent: Extent) -> Any:
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def _either(a: Extent, b: Extent, *, least: bool) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if least else max(a, b)
    return (tirx.min if least else tirx.max)(_expr(a), _expr(b))


_ARITHMETIC: Mapping[str, Callable[..., Extent]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _divided,
    "Min": lambda a, b: _either(a, b, least=True),
    "Max": lambda a, b: _either(a, b, least=False),
    "Equal": _fold_extent_equality,
}


# ---- shapes ---------------------------------------------------------------------------------


def _reshaped(node: Node, own: Elements, given: Sequence[Elements | None]) -> Elements | None:
    attributes, target = node.record(ReshapeAttrs), given[0] if given else None
    if attributes.shape is not None:
        target = list(attributes.shape)
    return None if target is None else reshaped(own, target, allow_zero=attributes.allow_zero)


def reshaped(own: Elements, target: Elements, *, allow_zero: bool) -> Elements | None:
    """Returns the extents that a Reshape gives: 0 copies one, -1 is what is left.

    Factors that extents of both sides share cancel, also where they could be 0.
    """
    if not allow_zero:
        if any(_constant_extent(e) == 0 and i >= len(own) for i, e in enumerate(target)):
            return None
        target = [own[i] if _constant_extent(e) == 0 else e for i, e in enumerate(target)]
    # Without a -1 nothing is left to compute; more than one of them ONNX forbids.
    if sum(_constant_extent(e) == -1 for e in target) != 1:
        return list(target)
    above = [factor for extent in own for factor in _factors(extent)]
    below = [f for extent in target if _constant_extent(extent) != -1 for f in _factors(extent)]
    for factor in list(below):
        match = next((i for i, f in enumerate(above) if equal(_expr(f), _expr(factor))), None)
        if match is not None:
            del above[match]
            below.remove(factor)
    rest, divisor = math.prod(above), math.prod(below)
    left = rest if _constant_extent(divisor) == 1 else _divided(rest, divisor)
    return None if left is None else [left if _constant_extent(e) == -1 else e for e in target]


def _constant_extent(extent: Extent) -> int | None:
    return extent if isinstance(extent, int) else None


def _factors(extent: Extent) -> list[Extent]:
    """Returns what an extent is a product of; numbers as their prime factors."""
    if isinstance(extent, tirx.Mul):
        return [*_factors(simple(extent.a)), *_factors(simple(extent.b))]
    if not isinstance(extent, int) or extent < 2:
        return [extent]
    factors, divisor = list[Extent](), 2
    while divisor * divisor <= extent:
        while extent % divisor == 0:
            factors.append(divisor)
            extent //= divisor
        divisor += 1
    return [*factors, extent] if extent > 1 else factors


def _expanded(node: Node, own: Elements, given: Sequence[Elements | None]) -> Elements | None:
    attributes, target = node.record(ExpandAttrs), given[0] if given else None
    if attributes.shape is not None or target is None:
        return None
    rank = max(len(own), len(target))
    pairs = zip([1] * (rank - len(own)) + own, [1] * (rank - len(target)) + target, strict=True)
    return [
        a if b == 1 else b if _constant_extent(b) is not None else chosen(a, b) for a, b in pairs
    ]


def _cut(node: Node, own: Elements, given: Sequence[Elements | None]) -> Elements | None:
    """Slice: steps of 1, from numbers or extents on."""
    del node
    starts, ends, axes, steps = [*given, None, None][:4] if len(given) >= 2 else [None] * 4
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None and len(given) < 3 else axes
    steps = [1] * len(starts) if steps is None and len(given) < 4 else steps
    if axes is None or steps is None or any(_constant_extent(step) != 1 for step in steps):
        return None
    result = list(own)
    for start, end, axis in zip(starts, ends, axes, strict=True):
        if _constant_extent(axis) is None:
            return None
        first, last = _bound(start, own[axis]), _bound(end, own[axis])
        result[axis] = (
            last if _constant_extent(first) == 0 else _either(last - first, 0, least=False)
        )
    return result


def _bound(place: Extent, length: Extent) -> Extent:
    """Returns an end of a slice, counted from the front and within the axis."""
    if isinstance(place, int):
        # Exporters write the largest int32 or int64 for "to the end".
        if place == 0 or place >= 1 << 31:
            return length if place else 0
        if place < 0:
            return _either(length + place, 0, least=False)
    return _either(place, length, least=True)


def _repeated(node: Node, own: Elements, given: Sequence[Elements | None]) -> Elements | None:
    del node
    counts = given[0] if given else None
    if counts is None or len(counts) != len(own):
        return None
    return [extent * count for extent, count in zip(own, counts, strict=True)]


def _filled(node: Node, own: Elements, given: Sequence[Elements | None]) -> Elements | None:
    del node, own
    return given[0] if given else None


def _ranged(node: Node, own: Elements, given: Sequence[Elements | None]) -> Elements | None:
    del node, own
    numbers = [part[0] for part in given if part is not None and len(part) == 1]
    if len(numbers) != 3 or _constant_extent(numbers[2]) != 1:
        return None
    start, limit, _ = numbers
    return [limit if _constant_extent(start) == 0 else _either(limit - start, 0, least=False)]


def _resized(node: Node, own: Elements, given: Sequence[Elements | None]) -> Elements | None:
    """Resize to sizes; by scales only where the row of the table has them."""
    del node
    sizes = given[2] if len(given) == 3 else None
    return sizes if sizes is not None and len(sizes) == len(own) else None


_SHAPES: Mapping[str, Callable[[Node, Elements, Sequence[Elements | None]], Elements | None]] = {
    "Reshape": _reshaped,
    "Expand": _expanded,
    "Slice": _cut,
    "Tile": _repeated,
    "ConstantOfShape": _filled,
    "Range": _ranged,
    "Resize": _resized,
}
"""What gives the extents of the result, where operands or a -1 do."""


# ---- Shapes that are computed at run time: targets of Reshape and Expand, lengths of axes

op: Any = relax.op


def run_time_extent(emitter: RelaxEmitter, x: Expr, axis: int, dtype: str) -> Expr:
    """Returns the length of an axis as a scalar; a constant where it is known."""
    extent = x.ty.shape.values[axis]
    if isinstance(extent, int | tirx.IntImm):
        return emitter.number(np.asarray(int(extent), dtype))
    picked = op.take(shape_vector(emitter, x), emitter.number(np.asarray([axis], np.int64)), axis=0)
    return emitter.cast(emitter.emit(op.squeeze(emitter.emit(picked), [0])), dtype)


def run_time_reshape(emitter: RelaxEmitter, node: Node, x: Expr, *, allow_zero: bool) -> list[Any]:
    """Returns the extents that operand 1 of a Reshape asks for: 0 copies one, -1 is what is left.

    Raises:
        UnsupportedTargetError: The rank of the result is not known.
    """
    target, rank = _shape_operand_and_rank(emitter, node)
    if not allow_zero:
        own = shape_vector(emitter, x, rank)
        zero = emitter.emit(op.equal(target, _int64_scalar(emitter, 0)))
        target = emitter.emit(op.where(zero, own, target))
    left = emitter.emit(op.equal(target, _int64_scalar(emitter, -1)))
    stated = emitter.emit(op.prod(emitter.emit(op.where(left, _int64_scalar(emitter, 1), target))))
    total = emitter.emit(op.prod(shape_vector(emitter, x)))
    some = emitter.emit(
        op.maximum(stated, _int64_scalar(emitter, 1))
    )  # a division by 0 ends the process
    rest = emitter.emit(op.floor_divide(total, some))
    return _matched(emitter, node, emitter.emit(op.where(left, rest, target)))


def run_time_broadcast(emitter: RelaxEmitter, node: Node, x: Expr) -> list[Any]:
    """Returns the extents to which operand 1 of an Expand broadcasts ``x``.

    Raises:
        UnsupportedTargetError: The rank of the result is not known.
    """
    target, rank = _shape_operand_and_rank(emitter, node)
    have = len(x.ty.shape.values)
    own = shape_vector(emitter, x)
    if have < rank:
        own = emitter.emit(op.concat([emitter.number(np.ones(rank - have, np.int64)), own], axis=0))
    if rank < have:
        target = emitter.emit(
            op.concat([emitter.number(np.ones(have - rank, np.int64)), target], axis=0)
        )
    single = emitter.emit(op.equal(target, _int64_scalar(emitter, 1)))
    return _matched(emitter, node, emitter.emit(op.where(single, own, target)))


def _int64_scalar(emitter: RelaxEmitter, value: int) -> Expr:
    return emitter.number(np.asarray(value, np.int64))


def _shape_operand_and_rank(emitter: RelaxEmitter, node: Node) -> tuple[Expr, int]:
    """Returns operand 1 and the number of its elements."""
    target = emitter.value(node.operand(1))
    shape = target.ty.shape
    if shape is None or not shape.values or not isinstance(shape.values[0], int | tirx.IntImm):
        raise unsupported(node, "the rank of its result is known at run time only")
    return target, int(shape.values[0])


def shape_vector(emitter: RelaxEmitter, x: Expr, count: int | None = None) -> Expr:
    """Returns the extents of ``x`` as an int64 vector: the first ``count``, or 1 beyond them."""
    rank = len(emitter.extents(x))
    whole = emitter.emit(op.shape_to_tensor(emitter.emit(op.shape_of(x))))
    if count is None or count == rank:
        return whole
    if count < rank:
        return emitter.emit(op.strided_slice(whole, axes=[0], begin=[0], end=[count]))
    return emitter.emit(op.concat([whole, emitter.number(np.ones(count - rank, np.int64))], axis=0))


def _matched(emitter: RelaxEmitter, node: Node, target: Expr) -> list[Any]:
    """Returns the elements of an int64 vector as extents, bound to variables of the function."""
    count, shape = int(target.ty.shape.values[0]), node.output.type.shape
    names = shape or tuple(f"{node.output.name or 'extent'}_{i}" for i in range(count))
    extents: list[Any] = [name if isinstance(name, int) else emitter.extent(name) for name in names]
    found = emitter.emit(op.tensor_to_shape(target))
    emitter.builder.match_cast(found, relax.ShapeType(extents))
    return extents
