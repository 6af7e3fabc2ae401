"""Rows that give values another shape or order, as only Relax writes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax, tirx, topi
from tvm.relax.utils import gen_call_tir_inputs

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    CastAttrs,
    DepthSpaceAttrs,
    ExpandAttrs,
    ReshapeAttrs,
    SliceAttrs,
)
from qdqbridge.tvm.qnn.dialect.arithmetic import analyzer
from qdqbridge.tvm.qnn.read import Call, Entry, Reading, Row
from qdqbridge.tvm.qnn.read.gather_concat import moved, per_tensor
from qdqbridge.tvm.qnn.read.reading import flat, tensor
from qdqbridge.tvm.qnn.read.resize import reduced_axes
from qdqbridge.tvm.relax.read.calls import Decoded, plain
from qdqbridge.tvm.relax.read.standard import standard

_END = (1 << 63) - 1


def flatten(reading: Reading, call: Call) -> Value:
    """``flatten(x)``: one axis."""
    return moved(reading, call, "Reshape", ReshapeAttrs((-1,)))


def batch_flatten(reading: Reading, call: Call) -> Value:
    """``nn.batch_flatten(x)``."""
    return moved(reading, call, "Flatten", AxisAttrs(1))


def pixel_shuffle(reading: Reading, call: Call) -> Value:
    """``nn.pixel_shuffle(x, upscale_factor)``: ONNX's DepthToSpace in CRD mode."""
    attributes = DepthSpaceAttrs(call.integer("upscale_factor"), "CRD")
    return moved(reading, call, "DepthToSpace", attributes)


def flip(reading: Reading, call: Call) -> Value:
    """``flip(x, axis)``."""
    axis = call.integer("axis") % max(reading.value(call.args[0]).rank or 0, 1)
    return moved(reading, call, "Slice", SliceAttrs((-1,), (-_END,), (axis,), (-1,)))


def stack(reading: Reading, call: Call) -> Value:
    """``stack((x…), axis)``."""
    rank = len(call.result.shape or ())
    axis = call.integer("axis", 0) % max(rank, 1)
    operands = [reading.plain(entry) for entry in flat([call.args[0]])]
    parts = [_unsqueezed(reading, value, axis) for value in operands]
    stacked = reading.node("Concat", AxisAttrs(axis), parts, tensor(call), call)
    reading.memory["stacked", stacked] = (operands, axis)
    return stacked


def _unsqueezed(reading: Reading, value: Value, axis: int) -> Value:
    shape = list(value.type.shape or ())
    shape.insert(axis, 1)
    type_ = TensorType(value.type.dtype, tuple(shape))
    return reading.node("Unsqueeze", AxesAttrs((axis,)), [value], type_)


def of_stack(row: Row, name: str) -> Row:
    """Returns ``row`` of a reduction that reads one over stacked tensors as their ``name``.

    TVM's ONNX importer writes Min, Max and Sum of several tensors so, each broadcast to the
    result's shape.
    """

    def read(reading: Reading, call: Call) -> Entry:
        data = reading.value(call.args[0])
        operands, axis = reading.memory.get(("stacked", data), ((), 0))
        given = reduced_axes(call, data)
        if not operands or call.provenance is not None or given.axes != (axis,) or given.keepdims:
            return row(reading, call)
        parts = [_unexpanded(value) for value in operands]
        if name != "Add":
            return reading.node(name, NO_ATTRIBUTES, parts, tensor(call), call)
        total = parts[0]
        for part in parts[1:]:
            total = reading.node("Add", NO_ATTRIBUTES, [total, part], tensor(call), call)
        return total

    return read


def _unexpanded(value: Value) -> Value:
    node = value.producer
    expands = node is not None and isinstance(node.attributes, ExpandAttrs)
    return node.operand(0) if node is not None and expands else value


def repeat(row: Row) -> Row:
    """Returns ``row`` of ``repeat`` that also knows what is not constant: Gather of an axis."""

    def read(reading: Reading, call: Call) -> Entry:
        data = per_tensor(reading, call.args[0])
        shape, axis = data.type.shape, call.get("axis")
        if data.constant is not None or shape is None or axis is None:
            return row(reading, call)
        place = int(axis) % max(len(shape), 1)
        extent = shape[place]
        if not isinstance(extent, int):
            raise reading.refused("it repeats elements of an axis of unknown length")
        picks = np.repeat(np.arange(extent, dtype=np.int64), call.integer("repeats"))
        return moved(reading, call, "Gather", AxisAttrs(place), reading.constant(picks))

    return read


def sort(reading: Reading, call: Call) -> Value:
    """``sort(x, axis, descending)``."""
    return _ordered(reading, call)[0]


def argsort(reading: Reading, call: Call) -> Value:
    """``argsort(x, axis, descending)``."""
    index = _ordered(reading, call)[1]
    if index.type.dtype is call.dtype:
        return index
    return reading.node("Cast", CastAttrs(call.dtype), [index], tensor(call), call)


def _ordered(reading: Reading, call: Call) -> list[Value]:
    x = reading.plain(call.args[0])
    shape = x.type.shape or ()
    axis = call.integer("axis", -1) % max(len(shape), 1)
    extent = shape[axis] if shape else None
    if not isinstance(extent, int):
        raise reading.refused("it sorts an axis of unknown length")
    count = reading.constant(np.asarray([extent], np.int64))
    types = [TensorType(x.type.dtype, shape), TensorType(DType.INT64, shape)]
    big = int(bool(call.get("descending", False)))
    return standard(reading, "TopK", [x, count], types, call, axis=axis, largest=big)


def rows(shared: Mapping[str, Row]) -> dict[str, Row]:
    """Returns the rows by Relax's name; some fall back to those of ``shared``."""
    return {
        "flatten": flatten,
        "nn.batch_flatten": batch_flatten,
        "nn.pixel_shuffle": pixel_shuffle,
        "flip": flip,
        "stack": stack,
        "repeat": repeat(shared["repeat"]),
        "sort": sort,
        "argsort": argsort,
        "max": of_stack(shared["max"], "Max"),
        "min": of_stack(shared["min"], "Min"),
        "sum": of_stack(shared["sum"], "Add"),
    }


# ---- generated -----------------------------------------------------------------------------------
# Kernels that TVM's frontends generate where Relax has no operator: which operator they are.
#
# ``BlockBuilder.emit_te`` leaves a ``call_tir`` of a loop nest. Such a function is the operator
# whose own loop nest, generated anew for the same types, is structurally equal to it; nothing else
# is guessed from its name.


_MOST = 600
"""How many sets of attributes are tried for one function."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A loop nest and the types with which it is called."""

    function: tirx.PrimFunc
    args: tuple[Any, ...]
    result: Any

    @property
    def shape(self) -> list[Any]:
        """Extents of the first operand."""
        return list(self.args[0].ty.shape.values)

    @property
    def target(self) -> list[Any]:
        """Extents of the result."""
        return list(self.result.shape.values)

    def is_made_by(self, generate: Callable[..., Any], *more: Any) -> bool:
        """True where ``generate`` makes this loop nest of the operands and ``more``."""
        operands = [relax.Var(f"a{i}", arg.ty) for i, arg in enumerate(self.args)]
        try:
            made = gen_call_tir_inputs(generate, *operands, *more)[0]
        except (ValueError, TypeError, IndexError, AssertionError, RuntimeError):
            # Generators check what they take with whatever was at hand: then it is not theirs.
            return False  # TVM's many words for attributes that do not fit the operands
        return bool(tvm_ffi.structural_equal(made, self.function, map_free_vars=True))


def generated(function: Any, args: Sequence[Any], result: Any) -> Decoded | None:
    """Returns the operator that a generated function computes, None where it is not known.

    Args:
        function: What a ``call_tir`` calls.
        args: Its tensor arguments.
        result: The type of its result.
    """
    tensors = [arg.ty for arg in args]
    types = [*tensors, result]
    if not isinstance(function, tirx.PrimFunc) or not args:
        return None
    if any(not isinstance(t, relax.TensorType) or t.shape is None for t in types):
        return None
    kernel = _Kernel(function, tuple(args), result)
    for candidates in _CANDIDATES.get(len(args), ()):
        for name, attrs, generate, more in itertools.islice(candidates(kernel), _MOST):
            if kernel.is_made_by(generate, *more):
                return name, list(args), attrs
    return None


_Candidate = tuple[str, dict[str, Any], Callable[..., Any], tuple[Any, ...]]


def _extremes(kernel: _Kernel) -> Iterator[_Candidate]:
    del kernel
    yield "maximum", {}, topi.maximum, ()
    yield "minimum", {}, topi.minimum, ()


def _bounded(kernel: _Kernel) -> Iterator[_Candidate]:
    """A maximum or minimum with a number."""
    for number in dict.fromkeys(_numbers(kernel.function)):
        yield "clip", {"a_min": number, "a_max": None}, topi.maximum, (number,)
        yield "clip", {"a_min": None, "a_max": number}, topi.minimum, (number,)


def _pads(kernel: _Kernel) -> Iterator[_Candidate]:
    fills = list(dict.fromkeys([0.0, *_numbers(kernel.function)]))
    for before, after in _widths(kernel):
        attrs = {"pad_width": tuple(w for pair in zip(before, after, strict=True) for w in pair)}
        for fill in fills:
            more = {"pad_mode": "constant", "pad_value": fill}
            yield "nn.pad", attrs | more, topi.nn.pad, (before, after, fill)
        for mode, generate, rest in _MODES:
            yield "nn.pad", attrs | {"pad_mode": mode}, generate, (before, after, *rest)


_MODES: tuple[tuple[str, Callable[..., Any], tuple[str, ...]], ...] = (
    ("reflect", topi.nn.mirror_pad, ("REFLECT",)),
    ("edge", topi.nn.replicate_pad, ()),
    ("circular", topi.nn.circular_pad, ()),
)


def _widths(kernel: _Kernel) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the widths before and after every axis; equal ones first."""
    if len(kernel.shape) != len(kernel.target):
        return
    simplify = analyzer().simplify
    grown = [plain(simplify(b - a)) for a, b in zip(kernel.shape, kernel.target, strict=True)]
    if any(not isinstance(total, int) or total < 0 for total in grown):
        return
    ways = [sorted(range(total + 1), key=lambda w, t=total: abs(2 * w - t)) for total in grown]
    for before in itertools.product(*ways):
        yield list(before), [t - b for t, b in zip(grown, before, strict=True)]


def _tiles(kernel: _Kernel) -> Iterator[_Candidate]:
    before, after = plain(tuple(kernel.shape)), plain(tuple(kernel.target))
    before = (1,) * (len(after) - len(before)) + before
    if len(before) > len(after):
        return
    if not all(isinstance(e, int) and e > 0 for e in (*before, *after)):
        return
    repeats = [b // a for a, b in zip(before, after, strict=True)]
    yield "tile", {"reps": tuple(repeats)}, topi.tile, (repeats,)


def _flips(kernel: _Kernel) -> Iterator[_Candidate]:
    for axis in range(len(kernel.shape)):
        yield "flip", {"axis": axis}, topi.flip, (axis,)


def _resizes(kernel: _Kernel) -> Iterator[_Candidate]:
    """A resize of sequences, which Relax has no operator for."""
    if len(kernel.shape) != 3:
        return
    size = [plain(kernel.target[2])]
    for method, coordinates, rounding in itertools.product(_METHODS, _COORDINATES, _ROUNDINGS):
        attrs = {
            "size": tuple(size), "roi": (0.0, 0.0), "layout": "NCW", "method": method,
            "coordinate_transformation_mode": coordinates, "rounding_method": rounding,
            "cubic_alpha": -0.75, "cubic_exclude": 0, "extrapolation_value": 0.0,
        }  # fmt: skip
        more = ([0.0, 0.0], size, "NCW", method, coordinates, rounding, -0.75, 0, 0.0)
        yield "image.resize1d", attrs, topi.image.resize1d, more


_METHODS = ("nearest_neighbor", "linear", "cubic")
_COORDINATES = (
    "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_half_pixel_for_nn",
)  # fmt: skip
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

_CANDIDATES: dict[int, tuple[Callable[[_Kernel], Iterator[_Candidate]], ...]] = {
    1: (_bounded, _tiles, _pads, _flips, _resizes),
    2: (_extremes,),
}
"""What a function may be, by its number of tensor arguments."""


def _numbers(function: tirx.PrimFunc) -> list[float]:
    """Returns the numbers of the result's element type in a loop nest's one assignment."""
    stored: Any = function.body
    while stored is not None and not isinstance(stored, tirx.BufferStore):
        stored = getattr(stored, "body", None) or getattr(stored, "block", None)
    return [] if stored is None else list(_immediates(stored.value, str(stored.buffer.dtype)))


def _immediates(expr: Any, dtype: str) -> Iterator[float]:
    if isinstance(expr, tirx.FloatImm | tirx.IntImm):
        if str(expr.ty) == dtype:
            yield expr.value
        return
    for name in ("args", "indices"):
        for part in getattr(expr, name, None) or ():
            yield from _immediates(part, dtype)
    for name in ("a", "b", "condition", "true_value", "false_value", "value"):
        part = getattr(expr, name, None)
        if part is not None:
            yield from _immediates(part, dtype)
