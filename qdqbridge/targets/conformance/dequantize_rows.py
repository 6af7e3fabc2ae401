"""Situations of DequantizeLinear, and of tensors of less than a byte."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from qdqbridge.targets.conformance.case import CaseBody, ConformanceSituation, body, const, op
from qdqbridge.targets.conformance.exact import TYPES, Array, dequantized, ends
from qdqbridge.targets.conformance.quantize_rows import BLOCKS, INTEGERS, SHAPES, SHORT, opset_of

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


def _axis_scales(count: int, kind: str) -> tuple[Array, Array]:
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


def _per_axis() -> Iterator[CaseBody]:
    for shape in SHAPES:
        for axis in range(len(shape)):
            for kind, at in (("int8", axis), ("uint8", axis - len(shape))):
                scale, zero = _axis_scales(shape[axis], kind)
                name = f"{kind}_rank{len(shape)}_axis{axis}" + ("_from_the_end" if at < 0 else "")
                yield dequantizing(name, _values(kind, shape), scale, zero, axis=at)
    for kind in ("int8", "int16", "int4", "uint4", "int2", "int32"):
        scale, zero = _axis_scales(3, kind)
        x = (
            const(range(-9, 9), kind).reshape(3, 3, 2)
            if kind == "int32"
            else _values(kind, (3, 3, 2))
        )
        yield dequantizing(f"{kind}_default_axis", x, scale, None if kind == "int32" else zero)


def _blocked() -> Iterator[CaseBody]:
    for kind in SHORT:
        for shape, axis, block in BLOCKS:
            sizes = list(shape)
            sizes[axis] = -(-shape[axis] // block)
            scale, zero = (v.reshape(sizes) for v in _axis_scales(int(np.prod(sizes)), kind))
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


def _of_int32() -> Iterator[CaseBody]:
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


def _shapes() -> Iterator[CaseBody]:
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


def _run_time_parameters() -> Iterator[CaseBody]:
    for kind in ("uint8", "int8"):
        for label in ("tensor", "axis"):
            x = _values(kind, (2, 3))
            scale, zero = _axis_scales(3, kind)
            if label == "tensor":
                scale, zero = np.asarray(scale[0]), np.asarray(zero[1])
            inputs = {"x": x, "scale": scale, "zero": zero}
            nodes = [op("DequantizeLinear", "x scale zero", "y")]
            yield body(f"{kind}_{label}", nodes, inputs, {}, {"y": dequantized(x, scale, zero)})


FORMULA = "The dequantization formula is y = (x - x_zero_point) * x_scale."
DQ = "DequantizeLinear"
ROWS = (
    ConformanceSituation("dequantize_every_value", f"{DQ}-19", FORMULA, _everything),
    ConformanceSituation(
        "dequantize_per_axis", f"{DQ}-19",
        "For per-axis dequantization it is a 1-D Tensor; the axis of the dequantizing dimension.",
        _per_axis,
    ),
    ConformanceSituation(
        "dequantize_blocked", f"{DQ}-21",
        "For blocked dequantization it has the same shape as the input, except for one dimension.",
        _blocked,
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
        _of_int32,
    ),
    ConformanceSituation(
        "dequantize_shapes", f"{DQ}-13", "x and y must have the same shape.", _shapes
    ),
    ConformanceSituation(
        "dequantize_float_types", f"{DQ}-23",
        "The output type also determines the precision of the multiplication operation.",
        _float_types,
    ),
    ConformanceSituation(
        "dequantize_run_time_parameters", f"{DQ}-19",
        "x_scale and x_zero_point are inputs; no sentence wants constants.", _run_time_parameters,
    ),
)  # fmt: skip
"""The situations."""
