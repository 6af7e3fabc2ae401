"""Functions of each element that TVM's importer has not, or not wholly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.broadcasting import repeated
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite


def _is_inf(site: CompositionSite) -> Sequence[Expr]:
    x = site.arg(0)
    above = site("equal", x, site.number(np.inf, x))
    below = site("equal", x, site.number(-np.inf, x))
    positive = site.onnx.flag("detect_positive", default=True)
    negative = site.onnx.flag("detect_negative", default=True)
    if positive and negative:
        return [site("logical_or", above, below)]
    if positive or negative:
        return [above if positive else below]
    return [site("logical_and", above, below)]


def _bit_shift(site: CompositionSite) -> Sequence[Expr]:
    """Arithmetic shifts; counts below 0 or of all bits leave 0, or the sign of a right shift."""
    x, count = site.scope.aligned([site.arg(0), site.arg(1)])
    kind, left = site.dtype(x), site.onnx.string("direction", "") == "LEFT"
    bits, zero = np.iinfo(kind).bits, site.number(0, kind)
    inside = site("less", count, site.number(bits, kind))
    if kind.startswith("int"):
        inside = site("logical_and", inside, site("greater_equal", count, zero))
    shifted = site("left_shift" if left else "right_shift", x, site("where", inside, count, zero))
    beyond = zero
    if kind.startswith("int") and not left:
        beyond = site("where", site("less", x, zero), site.number(-1, kind), zero)
    return [site("where", inside, shifted, beyond)]


def _mod(site: CompositionSite) -> Sequence[Expr]:
    """``fmod=0`` of floats: the remainder has the divisor's sign, as Python's ``%`` has it."""
    kind = site.dtype(site.arg(0))
    if "float" not in kind or site.onnx.flag("fmod"):
        return [site("mod" if site.onnx.flag("fmod") else "floor_mod", *repeated(site))]
    x, y = site.scope.aligned([site.arg(0), site.arg(1)])

    def floor_mod(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        wide = "float64" if kind == "float64" else "float32"

        def element(*i: Expr) -> Expr:
            p, q = _at(a, i).astype(wide), _at(b, i).astype(wide)
            zero = tirx.const(0.0, wide)
            rest = tirx.call_pure_extern(wide, "fmod" if wide == "float64" else "fmodf", p, q)
            signs = tirx.any(tirx.all(rest < zero, q > zero), tirx.all(rest > zero, q < zero))
            moved = tirx.Select(signs, rest + q, rest)
            return moved.astype(kind)

        return stage(_joint(a, b), element, name="floor_mod")

    return [site.scope.emit(site.scope.builder.call_te(floor_mod, x, y))]


def _at(tensor: te.Tensor, indices: Sequence[Expr]) -> Expr:
    """Returns an element of a tensor that broadcasts to the axes of ``indices``."""
    own = indices[len(indices) - len(tensor.shape) :]
    picked = [
        tirx.const(0, "int64") if isinstance(e, tirx.IntImm) and int(e) == 1 else i
        for e, i in zip(tensor.shape, own, strict=True)
    ]
    return tensor(*picked)


def _joint(a: te.Tensor, b: te.Tensor) -> list[Expr]:
    long, short = (a, b) if len(a.shape) >= len(b.shape) else (b, a)
    extents = list(long.shape)
    for index, extent in enumerate(short.shape, len(long.shape) - len(short.shape)):
        own = extents[index]
        if isinstance(own, tirx.IntImm) and int(own) == 1:
            extents[index] = extent
    return extents


def _bit_cast(site: CompositionSite) -> Sequence[Expr]:
    """The same bits as another type."""
    x, target = site.arg(0), site.result_dtype()
    source = site.onnx.operand(0).type.dtype
    if target.bits != source.bits or target.bits % 8:
        raise NoRow(f"{source} and {target} differ in what an element takes")
    if site.dtype(x) == str(target):
        return [x]
    if "bool" in (site.dtype(x), str(target)):
        return [site.cast(x, str(target))]
    kind = str(target) if not target.is_small_float else "uint8"

    def bit_cast(a: te.Tensor) -> te.Tensor:
        return stage(a.shape, lambda *i: tirx.reinterpret(kind, a(*i)), name="bit_cast")

    return [site.scope.emit(site.scope.builder.call_te(bit_cast, x))]


def _shrink(site: CompositionSite) -> Sequence[Expr]:
    """The first of ONNX's cases that holds: below 0, ``lambd`` lets both hold of one number.

    Both attributes are float32 numbers, which other types do not hold.
    """
    own, dtype = site.arg(0), site.dtype(site.arg(0))
    x = site.cast(own, "float32" if np.dtype(dtype).itemsize < 4 else dtype)
    if "float" not in site.dtype(x):
        x = site.cast(x, "float64")
    least, bias = (site.onnx.float_(name, given) for name, given in (("lambd", 0.5), ("bias", 0.0)))
    above = site("greater", x, site.number(least, x))
    moved = site("where", above, site("subtract", x, site.number(bias, x)), site.number(0, x))
    below = site("less", x, site.number(-least, x))
    return [site.cast(site("where", below, site("add", x, site.number(bias, x)), moved), dtype)]


ELEMENTWISE: Mapping[str, Composition] = {
    "IsInf": _is_inf,
    "BitShift": _bit_shift,
    "BitCast": _bit_cast,
    "Mod": _mod,
    "Shrink": _shrink,
}
