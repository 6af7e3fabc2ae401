"""Kernels that TVM's frontends generate where Relax has no operator: which operator they are.

``BlockBuilder.emit_te`` leaves a ``call_tir`` of a loop nest. Such a function is the operator whose
own loop nest, generated anew for the same types, is structurally equal to it; nothing else is
guessed from its name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import relax, tirx, topi
from tvm.relax.utils import gen_call_tir_inputs

from qdqbridge.tvm.qnn.dialect.arithmetic import analyzer
from qdqbridge.tvm.relax.read.calls import Decoded, plain

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
