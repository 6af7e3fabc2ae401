"""Situations of QuantizeLinear, DynamicQuantizeLinear and DequantizeLinear, and of small types."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from onnx import TensorProto

from qdqbridge.targets.conformance.case import (
    CaseBody,
    ConformanceSituation,
    Node,
    body,
    const,
    element,
    op,
)
from qdqbridge.targets.conformance.exact import TYPES, Array, dequantized, ends, nearest, quantized

# ---- Situations of QuantizeLinear and DynamicQuantizeLinear --------------------------------------


INTEGERS = ("uint8", "int8", "uint16", "int16", "uint4", "int4", "uint2", "int2")
SHORT = ("uint8", "int8", "uint4", "int4")


def opset_of(to: str, least: int = 19) -> int:
    """Returns the first version of Q and DQ that has a type."""
    return max(least, 25 if to.endswith("t2") else least if to in ("uint8", "int8") else 21)


def middle(to: str) -> int:
    """Returns a zero point with room on both sides."""
    return (sum(ends(to)) + 1) // 2


def _shown(to: str, found: Array) -> tuple[list[Node], dict[str, Array], dict[str, Array]]:
    """Returns what brings ``q`` to the outside: runners have no arrays of less than a byte."""
    if np.dtype(found.dtype).itemsize > 1 or to in ("uint8", "int8"):
        return [op("Identity", "q", "y")], {}, {"y": found}
    return (
        [op("DequantizeLinear", "q one", "y")],
        {"one": const(1, "float32")},
        {"y": found.astype(np.float32)},
    )


def quantizing(
    name: str,
    x: Array,
    scale: Array,
    zero: Array | None,
    to: str,
    *,
    opset: int = 0,
    axis: int | None = None,
    block: int = 0,
    precision: str = "",
    output_dtype: bool = False,
) -> CaseBody:
    """Returns a case of one QuantizeLinear."""
    attributes: dict[str, int] = {}
    if axis is not None:
        attributes["axis"] = axis
    if block:
        attributes["block_size"] = block
    if precision:
        attributes["precision"] = getattr(
            TensorProto, {"float32": "FLOAT"}.get(precision, precision.upper())
        )
    if output_dtype:
        attributes["output_dtype"] = element(const(0, to))
    at = 1 if axis is None else axis % max(x.ndim, 1)
    found = quantized(
        x, scale, 0 if zero is None else zero, to, axis=at, block=block, precision=precision
    )
    constants = {"scale": scale} | ({} if zero is None else {"zero": zero})
    node = op("QuantizeLinear", "x scale" + ("" if zero is None else " zero"), "q", **attributes)
    nodes, more, outputs = _shown(to, found)
    # An Identity behind a Q is no more than its result.
    if not nodes[0].op_type.startswith("D"):
        node.output[0], nodes = "y", []
    wanted = opset or opset_of(to)
    return body(name, [node, *nodes], {"x": x}, constants | more, outputs, opset=wanted)


def _near(to: str, scale: float, zero: int, *, extra: tuple[float, ...] = ()) -> Array:
    """Returns halves around zero and around both ends of a type."""
    low, high = ends(to)
    steps = [k + h for k in (-4, -3, -2, -1, 0, 1, 2, 3) for h in (0.25, 0.5, 0.75)]
    steps += [e - zero + h for e in (low, high) for h in (-1.5, -1, -0.5, 0, 0.5, 1, 1.5)]
    return const([step * scale for step in (*steps, *extra)], "float32")


def _rounding() -> Iterator[CaseBody]:
    for to in INTEGERS:
        for scale in (1.0, 0.25, 8.0):
            zero, size = middle(to), str(scale).replace(".", "_")
            x = _near(to, scale, zero)
            yield quantizing(f"{to}_{size}", x, const(scale, "float32"), const(zero, to), to)


def _rounding_first() -> Iterator[CaseBody]:
    for to in INTEGERS:
        low, high = ends(to)
        for label, zero in (("low", low + 1), ("high", high)):
            # Only an odd one tells both orders apart: it moves a half to one whose even neighbour
            # is the other.
            if zero % 2:
                x = _near(to, 0.5, zero)
                yield quantizing(f"{to}_{label}", x, const(0.5, "float32"), const(zero, to), to)


def _saturating_last() -> Iterator[CaseBody]:
    for to in INTEGERS:
        low, high = ends(to)
        for label, zero in (("low", low), ("high", high)):
            steps = [e - zero + k for e in (low, high) for k in (-2, -1, 0, 1, 2)]
            x = const([0, *steps, *(2 * s for s in steps)], "float32")
            yield quantizing(label + "_" + to, x, const(1, "float32"), const(zero, to), to)


def _far() -> Iterator[CaseBody]:
    # Beyond what the integers between have that runtimes convert to: 16, 32 and 64 bits.
    far_off = [40000, 70000, 2**24 + 2, 2**31, 3e9, 2**32, 2.0**63, 1e20, 3e38]
    for to in INTEGERS:
        x = const([s * v for v in far_off for s in (1, -1)], "float32")
        zero = const(middle(to), to)
        yield quantizing(to, x, const(0.5, "float32"), zero, to)


def _infinite() -> Iterator[CaseBody]:
    for to in SHORT:
        x = const([np.inf, -np.inf, 0], "float32")
        yield quantizing(to, x, const(0.5, "float32"), const(middle(to), to), to)


def _axis_scales(count: int, to: str) -> tuple[Array, Array]:
    low, high = ends(to)
    scales = [2.0 ** (k % 4 - 2) * (1 + k % 2 * 2) for k in range(count)]
    # Every channel another: one that is read along the wrong axis shows.
    zeros = [(low, high, middle(to), low + 1, high - 1)[k % 5] for k in range(count)]
    return const(scales, "float32"), const(zeros, to)


def _grid(shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    return const([(k * 37 % 101 - 50) * 0.375 for k in range(count)], "float32").reshape(shape)


SHAPES = ((3, 4), (2, 3, 4), (2, 3, 2, 3))


def _per_axis() -> Iterator[CaseBody]:
    for shape in SHAPES:
        for axis in range(len(shape)):
            for to, at in (("int8", axis), ("uint8", axis - len(shape))):
                scale, zero = _axis_scales(shape[axis], to)
                name = f"{to}_rank{len(shape)}_axis{axis}" + ("_from_the_end" if at < 0 else "")
                yield quantizing(name, _grid(shape), scale, zero, to, axis=at)
    scale, zero = _axis_scales(3, "int8")
    yield quantizing("int8_default_axis", _grid((2, 3, 2)), scale, zero, "int8")
    for to in ("int16", "int4", "uint4", "int2"):
        scale, zero = _axis_scales(3, to)
        yield quantizing(f"{to}_default_axis", _grid((2, 3, 2)), scale, zero, to)


BLOCKS = (((2, 6), 1, 3), ((6, 2), 0, 2), ((2, 5), 1, 2), ((2, 4, 3), 1, 2))


def _blocked() -> Iterator[CaseBody]:
    for to in SHORT:
        for shape, axis, block in BLOCKS:
            sizes = list(shape)
            sizes[axis] = -(-shape[axis] // block)
            scale, zero = (v.reshape(sizes) for v in _axis_scales(int(np.prod(sizes)), to))
            name = f"{to}_{'x'.join(map(str, shape))}_axis{axis}_by{block}"
            yield quantizing(
                name, _grid(shape), scale, zero, to, opset=opset_of(to, 21), axis=axis, block=block
            )


def _without_zero_point() -> Iterator[CaseBody]:
    x = _near("uint8", 0.5, 0)
    half = const(0.5, "float32")
    yield quantizing("uint8", x, half, None, "uint8", opset=13)
    scale, _ = _axis_scales(3, "uint8")
    yield quantizing("uint8_per_axis", _grid((2, 3)), scale, None, "uint8", opset=13, axis=1)


def _output_dtype() -> Iterator[CaseBody]:
    for to in INTEGERS:
        opset = opset_of(to, 21)
        x, half = _near(to, 0.5, 0), const(0.5, "float32")
        yield quantizing(to, x, half, None, to, opset=opset, output_dtype=True)
        zero = const(middle(to), to)
        yield quantizing(f"{to}_and_zero_point", x, half, zero, to, opset=opset, output_dtype=True)


def _shapes() -> Iterator[CaseBody]:
    for to in ("uint8", "int8"):
        half, zero = const(0.5, "float32"), const(3, to)
        yield quantizing(f"{to}_scalar", const(1.25, "float32"), half, zero, to, opset=13)
        yield quantizing(
            f"{to}_empty", const(np.zeros((0, 3)), "float32"), half, zero, to, opset=13
        )
        yield quantizing(f"{to}_one_value", const([[[-0.75]]], "float32"), half, zero, to, opset=13)
        yield quantizing(f"{to}_rank_one", _grid((5,)), half, zero, to, opset=13, axis=0)


def _of_int32() -> Iterator[CaseBody]:
    for to in ("uint8", "int8", "int16", "uint16"):
        steps = [*range(-9, 10), 255, 256, -256, 65536, -65536, 2**24, -(2**24)]
        x, zero = const(steps, "int32"), const(middle(to), to)
        opset = 13 if to in ("uint8", "int8") else 23  # before, x and its scale have one type
        for scale in (2.0, 0.5, 2.25):
            name = f"{to}_{str(scale).replace('.', '_')}"
            yield quantizing(name, x, const(scale, "float32"), zero, to, opset=opset)


def _divisions(scale: float, floats: str, *, count: int = 12) -> list[float]:
    """Returns numbers whose quotient another way of dividing puts on the other side of a half."""
    kind = TYPES[floats]
    divisor = Fraction(float(kind(scale)))
    inverse = nearest(1 / divisor, floats)
    found: list[float] = []
    for k in range(1, 120):
        # Neighbours of the half: a product with the rounded reciprocal is off by a last bit or two.
        for move in (0, 1, -1, 2, -2):
            x = kind((k + 0.5) * float(divisor))
            for _ in range(abs(move)):
                x = np.nextafter(x, kind(np.inf if move > 0 else 0))
            value = Fraction(float(x))
            divided = round(nearest(value / divisor, floats))
            # Numbers on which both ways agree would tell nothing.
            if divided != round(nearest(value * inverse, floats)) or divided != round(
                value / divisor
            ):
                found += [float(x), -float(x)]
    return found[:: max(1, len(found) // count)][:count]


def _division() -> Iterator[CaseBody]:
    for to in ("uint8", "int8", "uint16", "int16"):
        for scale in (0.1, 0.7, 0.0123):
            x = const(_divisions(scale, "float32"), "float32")
            name = f"{to}_{str(scale).replace('.', '_')}"
            yield quantizing(name, x, const(scale, "float32"), const(middle(to), to), to, opset=23)
    for axis in (0, 1):
        rows = [_divisions(s, "float32", count=8) for s in (0.1, 0.7, 0.0123)]
        x = const(rows, "float32")
        scale, zero = const([0.1, 0.7, 0.0123], "float32"), const([1, 0, -3], "int8")
        x = x.T.copy() if axis else x
        yield quantizing(f"int8_axis{axis}", x, scale, zero, "int8", opset=23, axis=axis)


def _half_scales() -> Iterator[CaseBody]:
    for to in ("uint8", "int8", "int16", "uint4", "int4"):
        x = const(_divisions(0.1, "float16", count=24), "float16")
        scale = const(0.1, "float16")
        yield quantizing(to, x, scale, const(middle(to), to), to, opset=opset_of(to, 23))
    x = const([0.5, 0.25, 1.5, -2.5, 7.75, 300, -300], "float16")
    yield quantizing("int8_opset19", x, const(0.5, "float16"), const(3, "int8"), "int8", opset=19)
    yield quantizing(
        "uint8_opset19", x, const(0.5, "float16"), const(3, "uint8"), "uint8", opset=19
    )
    scale, zero = const([0.5, 2, 0.25], "float16"), const([3, -7, 0], "int8")
    x = _grid((2, 3)).astype(np.float16)
    yield quantizing("int8_axis1", x, scale, zero, "int8", opset=21, axis=1)


def _mixed_precision() -> Iterator[CaseBody]:
    for to in ("uint8", "int8", "int16", "int4"):
        x, zero, opset = (
            _divisions(0.1, "float16", count=24),
            const(middle(to), to),
            opset_of(to, 23),
        )
        wide, short = const(x, "float32"), const(0.1, "float16")
        yield quantizing(f"{to}_float32_by_float16", wide, short, zero, to, opset=opset)
        yield quantizing(
            f"{to}_float16_by_float32", const(x, "float16"), short.astype(np.float32), zero, to,
            opset=opset,
        )  # fmt: skip


def _precision() -> Iterator[CaseBody]:
    for to in ("uint8", "int8", "int16", "int4"):
        x, zero, opset = (
            _divisions(0.1, "float16", count=24),
            const(middle(to), to),
            opset_of(to, 23),
        )
        short = const(0.1, "float16")
        for given in ("float16", "float32"):
            yield quantizing(
                f"{to}_float32_in_{given}_float16_scale", const(x, given), short, zero, to,
                opset=opset, precision="float32",
            )  # fmt: skip
        yield quantizing(
            f"{to}_float16_in_float32_scale", const(x, "float32"), short.astype(np.float32), zero,
            to, opset=opset, precision="float16",
        )  # fmt: skip


def _brain_scales() -> Iterator[CaseBody]:
    for to in ("uint8", "int8", "int16"):
        x = const([0.5, 0.75, 1.25, -2.5, 7.75, 300, -300, 0.1875], "bfloat16")
        scale, zero = const(0.3, "bfloat16"), const(middle(to), to)
        found = quantized(x, scale, zero, to)
        nodes = [
            op("Cast", "x", "b", to=TensorProto.BFLOAT16),
            op("QuantizeLinear", "b scale zero", "y"),
        ]
        yield body(
            to, nodes, {"x": x.astype(np.float32)}, {"scale": scale, "zero": zero}, {"y": found},
            opset=23,
        )  # fmt: skip


def _run_time_parameters() -> Iterator[CaseBody]:
    for to in ("uint8", "int8"):
        for axis in (None, 1):
            x = _grid((2, 3))
            scale, zero = _axis_scales(3, to)
            if axis is None:
                scale, zero = scale[0], zero[1]
            scale, zero = np.asarray(scale), np.asarray(zero)
            found = quantized(x, scale, zero, to)
            inputs = {"x": x, "scale": scale, "zero": zero}
            nodes = [op("QuantizeLinear", "x scale zero", "y")]
            yield body(
                f"{to}_{'tensor' if axis is None else 'axis'}", nodes, inputs, {}, {"y": found}
            )


def _dynamic() -> Iterator[CaseBody]:
    rows = {
        "whole_range": [-128, 127, 0, 0.5, 1.5, -2.5, 3],
        "adjusted_to_zero_below": [10, 255, 20.5, 21.5, 100],
        "adjusted_to_zero_above": [-255, -10, -20.5, -21.5],
        "halves_scale": [-63.75, 63.75, 0.25, 0.75, 5],
        "small_scale": [-0.25, 255 / 1024 - 0.25, 0, 1 / 2048, 3 / 2048],
        "zero_point_tie": [-1.5, 253.5, 0.5, 1, 2.5],
        "zero_point_tie_odd": [-2.5, 252.5, 0.5, 1, 1.5],
        "one_value": [255],
        "one_negative_value": [-510],
    }
    for name, values in rows.items():
        x = const(values, "float32")
        # The range has to contain 0, says the text, so that it has a code.
        exact = [Fraction(0), *map(Fraction, values)]
        low, high = min(exact), max(exact)
        scale = nearest((high - low) / 255, "float32")
        zero = min(max(round(-low / scale), 0), 255)
        y = quantized(x, const(float(scale), "float32"), zero, "uint8")
        yield body(
            name, [op("DynamicQuantizeLinear", "x", "y scale zero")], {"x": x}, {},
            {"y": y, "scale": const(float(scale), "float32"), "zero": const(zero, "uint8")},
        )  # fmt: skip


FORMULA = "The quantization formula is y = saturate((x / y_scale) + y_zero_point)."
HALVES = "For (x / y_scale), it rounds to the nearest even."
Q = "QuantizeLinear"
ROWS = (
    ConformanceSituation("quantize_halves", f"{Q}-19", HALVES, _rounding),
    ConformanceSituation(
        "quantize_rounds_before_zero_point", f"{Q}-19",
        f"{HALVES} The zero point is added to what was rounded.", _rounding_first,
    ),
    ConformanceSituation(
        "quantize_saturates_after_zero_point", f"{Q}-19", FORMULA, _saturating_last
    ),
    ConformanceSituation(
        "quantize_far", f"{Q}-19", "Saturation is done according to the type's range.", _far
    ),
    ConformanceSituation(
        "quantize_infinity", f"{Q}-19", "Saturation is done according to the type's range.",
        _infinite,
    ),
    ConformanceSituation(
        "quantize_per_axis", f"{Q}-19",
        "The scale must be a 1-D tensor, with the length of the quantization axis.", _per_axis,
    ),
    ConformanceSituation(
        "quantize_blocked", f"{Q}-21",
        "Given x shape (D0, ..., Di, ..., Dn), axis=i, and block size B: y_scale shape is "
        "(D0, ..., ceil(Di/B), ..., Dn).", _blocked,
    ),
    ConformanceSituation(
        "quantize_without_zero_point", f"{Q}-13",
        "Default is uint8 with zero point of 0 if it's not specified.", _without_zero_point,
    ),
    ConformanceSituation(
        "quantize_output_dtype", f"{Q}-21",
        "If not supplied, the output data type is inferred from y_zero_point data type.",
        _output_dtype,
    ),
    ConformanceSituation("quantize_shapes", f"{Q}-13", "It has same shape as input x.", _shapes),
    ConformanceSituation("quantize_int32", f"{Q}-13", FORMULA, _of_int32),
    ConformanceSituation(
        "quantize_division", f"{Q}-23",
        "The type of y_scale determines the precision of the division operation.", _division,
    ),
    ConformanceSituation(
        "quantize_float16_scale", f"{Q}-23",
        "The type of y_scale determines the precision of the division operation.", _half_scales,
    ),
    ConformanceSituation(
        "quantize_mixed_types", f"{Q}-23",
        "x and y_scale are allowed to have different types. The type of y_scale determines the "
        "precision of the division operation.", _mixed_precision,
    ),
    ConformanceSituation(
        "quantize_precision", f"{Q}-23",
        "The precision of the division operation between x and y_scale.", _precision,
    ),
    ConformanceSituation(
        "quantize_bfloat16_scale", f"{Q}-23",
        "The type of y_scale determines the precision of the division operation.", _brain_scales,
    ),
    ConformanceSituation(
        "quantize_run_time_parameters", f"{Q}-19",
        "y_scale and y_zero_point are inputs; no sentence wants constants.", _run_time_parameters,
    ),
    ConformanceSituation(
        "dynamic_quantize", "DynamicQuantizeLinear-11",
        "y_scale = (maximum(0, max(x)) - minimum(0, min(x))) / (qmax - qmin), "
        "rounding to nearest ties to even.", _dynamic,
    ),
)  # fmt: skip
"""The situations."""


# ---- Situations of DequantizeLinear, and of tensors of less than a byte --------------------------


OUTSIDE = ("uint8", "int8", "uint16", "int16", "int32")
"""Types of which every runner has arrays; tensors of the others are initializers."""


def dequantizing(
    name: str,
    x: Array,
    scale: Array,
    zero: Array | None,
    *,
    opset: int = 0,
    axis: int | None = None,
    block: int = 0,
    to: str = "",
) -> CaseBody:
    """Returns a case of one DequantizeLinear, ``to`` being its ``output_dtype``."""
    kind = x.dtype.name
    attributes: dict[str, int] = {}
    if axis is not None:
        attributes["axis"] = axis
    if block:
        attributes["block_size"] = block
    if to:
        attributes["output_dtype"] = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16,
                                      "bfloat16": TensorProto.BFLOAT16}[to]  # fmt: skip
    at = 1 if axis is None else axis % max(x.ndim, 1)
    found = dequantized(x, scale, 0 if zero is None else zero, to, axis=at, block=block)
    constants = {"scale": scale} | ({} if zero is None else {"zero": zero})
    inputs = {"x": x} if kind in OUTSIDE else {"nothing": const([0], "float32")}
    if kind not in OUTSIDE:
        constants["x"] = x
    names = "x scale" + ("" if zero is None else " zero")
    short = found.dtype.name == "bfloat16"
    nodes = [op("DequantizeLinear", names, "d" if short else "y", **attributes)]
    if short:
        nodes.append(op("Cast", "d", "y", to=TensorProto.FLOAT))
        found = found.astype(np.float32)
    if (
        kind not in OUTSIDE
    ):  # runners feed something, and a graph without inputs is a case of its own
        nodes += [op("Identity", "nothing", "same")]
        outputs = {"y": found, "same": inputs["nothing"]}
    else:
        outputs = {"y": found}
    return body(name, nodes, inputs, constants, outputs, opset=opset or opset_of(kind))


def _values(kind: str, shape: tuple[int, ...] | None = None) -> Array:
    low, high = ends(kind)
    if shape is not None:
        count = int(np.prod(shape))
        return const([low + k * 7 % (high - low + 1) for k in range(count)], kind).reshape(shape)
    if high - low < 256:
        return const(range(low, high + 1), kind)
    return const([low, low + 1, -1 if low else 1, 0, 1, 255, 256, high - 1, high], kind)


def _dequantized_axis_scales(count: int, kind: str) -> tuple[Array, Array]:
    low, high = ends(kind)
    scales = [0.1, 0.25, 0.7, 3.0, 0.0123, 1.5]
    zeros = [low, high, (low + high + 1) // 2, low + 1, high - 1]
    return (
        const([scales[k % 6] for k in range(count)], "float32"),
        const([zeros[k % 5] for k in range(count)], kind),
    )


def _everything() -> Iterator[CaseBody]:
    for kind in INTEGERS:
        low, high = ends(kind)
        for label, zero in (("none", None), ("low", low), ("high", high), ("odd", low + 1)):
            scale = const({"none": 0.1, "low": 0.7, "high": 0.0123, "odd": 0.25}[label], "float32")
            given = None if zero is None else const(zero, kind)
            yield dequantizing(f"{kind}_{label}", _values(kind), scale, given)


def _dequantized_per_axis() -> Iterator[CaseBody]:
    for shape in SHAPES:
        for axis in range(len(shape)):
            for kind, at in (("int8", axis), ("uint8", axis - len(shape))):
                scale, zero = _dequantized_axis_scales(shape[axis], kind)
                name = f"{kind}_rank{len(shape)}_axis{axis}" + ("_from_the_end" if at < 0 else "")
                yield dequantizing(name, _values(kind, shape), scale, zero, axis=at)
    for kind in ("int8", "int16", "int4", "uint4", "int2", "int32"):
        scale, zero = _dequantized_axis_scales(3, kind)
        x = (
            const(range(-9, 9), kind).reshape(3, 3, 2)
            if kind == "int32"
            else _values(kind, (3, 3, 2))
        )
        yield dequantizing(f"{kind}_default_axis", x, scale, None if kind == "int32" else zero)


def _dequantized_blocked() -> Iterator[CaseBody]:
    for kind in SHORT:
        for shape, axis, block in BLOCKS:
            sizes = list(shape)
            sizes[axis] = -(-shape[axis] // block)
            scale, zero = (
                v.reshape(sizes) for v in _dequantized_axis_scales(int(np.prod(sizes)), kind)
            )
            name = f"{kind}_{'x'.join(map(str, shape))}_axis{axis}_by{block}"
            yield dequantizing(
                name, _values(kind, shape), scale, zero, opset=opset_of(kind, 21), axis=axis,
                block=block,
            )  # fmt: skip


def _packed() -> Iterator[CaseBody]:
    for kind in ("uint4", "int4", "uint2", "int2"):
        for shape in ((1,), (3,), (5,), (2, 3), (3, 1, 3)):
            x, scale = _values(kind, shape), const(0.25, "float32")
            yield dequantizing(f"{kind}_{'x'.join(map(str, shape))}", x, scale, const(1, kind))


def _dequantized_of_int32() -> Iterator[CaseBody]:
    steps = [*range(-5, 6), 2**24, -(2**24), 2**24 + 2, 2**31 - 1, -(2**31), 2**30 + 1]
    exact = const(2**-10, "float32")
    small = const(range(-9, 10), "int32")
    yield dequantizing("without_zero_point", const(steps, "int32"), exact, None)
    yield dequantizing("with_zero_point_zero", const(steps, "int32"), exact, const(0, "int32"))
    yield dequantizing("rounded_products", small, const(0.1, "float32"), None)
    yield dequantizing("scalar", const(7, "int32"), const(0.1, "float32"), None)
    scale = const([0.5, 0.1], "float32")
    yield dequantizing("axis0", const([[3, 7], [5, -9]], "int32"), scale, None, axis=0)
    zero = const([0, 0], "int32")
    yield dequantizing(
        "axis0_with_zero_points", const([[3, 7], [5, -9]], "int32"), scale, zero, axis=0
    )


def _dequantized_shapes() -> Iterator[CaseBody]:
    for kind in ("uint8", "int8"):
        scale, zero = const(0.1, "float32"), const(3, kind)
        yield dequantizing(f"{kind}_scalar", const(7, kind), scale, zero, opset=13)
        yield dequantizing(f"{kind}_empty", const(np.zeros((0, 3)), kind), scale, zero, opset=13)
        yield dequantizing(f"{kind}_one_value", const([[[9]]], kind), scale, zero, opset=13)


def _float_types() -> Iterator[CaseBody]:
    for kind in ("uint8", "int8", "uint4", "int4"):
        x, zero = _values(kind), const(1, kind)
        for floats in ("float16", "bfloat16"):
            scale = const(0.1, floats)
            yield dequantizing(f"{kind}_{floats}", x, scale, zero, opset=opset_of(kind, 21))
            yield dequantizing(
                f"{kind}_{floats}_scale_to_float32", x, scale, zero, opset=opset_of(kind, 23),
                to="float32",
            )  # fmt: skip
            short = const(0.1, floats).astype(TYPES["float32"])
            yield dequantizing(
                f"{kind}_float32_scale_to_{floats}", x, short, zero, opset=opset_of(kind, 23),
                to=floats,
            )  # fmt: skip


def _dequantized_run_time_parameters() -> Iterator[CaseBody]:
    for kind in ("uint8", "int8"):
        for label in ("tensor", "axis"):
            x = _values(kind, (2, 3))
            scale, zero = _dequantized_axis_scales(3, kind)
            if label == "tensor":
                scale, zero = np.asarray(scale[0]), np.asarray(zero[1])
            inputs = {"x": x, "scale": scale, "zero": zero}
            nodes = [op("DequantizeLinear", "x scale zero", "y")]
            yield body(f"{kind}_{label}", nodes, inputs, {}, {"y": dequantized(x, scale, zero)})


DEQUANTIZED_FORMULA = "The dequantization formula is y = (x - x_zero_point) * x_scale."
DQ = "DequantizeLinear"
DEQUANTIZED_ROWS = (
    ConformanceSituation("dequantize_every_value", f"{DQ}-19", DEQUANTIZED_FORMULA, _everything),
    ConformanceSituation(
        "dequantize_per_axis", f"{DQ}-19",
        "For per-axis dequantization it is a 1-D Tensor; the axis of the dequantizing dimension.",
        _dequantized_per_axis,
    ),
    ConformanceSituation(
        "dequantize_blocked", f"{DQ}-21",
        "For blocked dequantization it has the same shape as the input, except for one dimension.",
        _dequantized_blocked,
    ),
    ConformanceSituation(
        "packed_initializer", "TensorProto.int32_data and raw_data (onnx.proto)",
        "4-bit and 2-bit values are packed from the least significant bits up, across rows.",
        _packed,
    ),
    ConformanceSituation(
        "dequantize_int32", f"{DQ}-19",
        "In the case of dequantizing int32, there's no zero point (zero point is supposed to "
        "be 0).",
        _dequantized_of_int32,
    ),
    ConformanceSituation(
        "dequantize_shapes", f"{DQ}-13", "x and y must have the same shape.", _dequantized_shapes
    ),
    ConformanceSituation(
        "dequantize_float_types", f"{DQ}-23",
        "The output type also determines the precision of the multiplication operation.",
        _float_types,
    ),
    ConformanceSituation(
        "dequantize_run_time_parameters", f"{DQ}-19",
        "x_scale and x_zero_point are inputs; no sentence wants constants.",
        _dequantized_run_time_parameters,
    ),
)  # fmt: skip
"""The situations."""
