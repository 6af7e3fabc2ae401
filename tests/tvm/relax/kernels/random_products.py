"""Random products of every shape: operands, parameters and attributes, from one generator."""

from __future__ import annotations

from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs, GemmAttrs
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import Operand

Product = tuple[str, Attributes, "list[Operand | None]", QuantParams | None]
"""Operator, attributes, operands, and the parameters of the result; None for floats."""
_ZEROS = {"uint8": (0, 1, 127, 128, 255, 77), "int8": (0, -128, 127, -1, 5)}


def pick(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def activation(rng: np.random.Generator, shape: tuple[int, ...]) -> Operand:
    dtype = pick(rng, "uint8", "uint8", "int8")
    zero_point = pick(rng, *_ZEROS[dtype])
    return Operand(every_code(rng, dtype, shape), params(dtype, 0.02, zero_point))


def weight(rng: np.random.Generator, shape: tuple[int, ...], axis: int | None) -> Operand:
    """Weights with and without zero points, per tensor or along ``axis``, 4 or 8 bits."""
    dtype = pick(rng, "int8", "int8", "int8", "uint8")
    codes = every_code(rng, dtype, shape)
    entries = () if axis is None or rng.random() < 0.3 else (shape[axis],)
    scale = rng.uniform(0.001, 0.01, entries)
    zero_point: Any = 128 if dtype == "uint8" else 0
    if rng.random() < 0.2:
        zero_point = pick(rng, 0, 3, 255) if dtype == "uint8" else pick(rng, -128, 7, 127)
        if entries and rng.random() < 0.5:
            zero_point = rng.integers(0, 100, entries)
    if rng.random() < 0.1:
        codes = (codes // 16).astype(codes.dtype)
    along = axis if entries else None
    return Operand(codes, params(dtype, scale, zero_point, along), fixed=True)


def bias(
    rng: np.random.Generator, x: Operand, w: Operand, out: QuantParams | None, channels: int
) -> Operand | None:
    """A bias in units of the sums, or none; some of float results are floats."""
    if rng.random() < 0.3:
        return None
    if out is None and rng.random() < 0.5:
        return Operand(rng.normal(0, 3, channels).astype(np.float32), fixed=True)
    assert x.params is not None and w.params is not None
    scale = x.params.scale.astype(np.float32) * w.params.scale.astype(np.float32)
    codes = rng.integers(-20000, 20000, channels).astype(np.int32)
    axis = 0 if np.ndim(scale) else None
    return Operand(codes, params("int32", scale, 0, axis), fixed=True)


def result(rng: np.random.Generator, products: int) -> QuantParams | None:
    """Parameters under which most results stay within 8 bits, ranges may be narrower; or floats."""
    if rng.random() < 0.15:
        return None
    dtype = pick(rng, "uint8", "uint8", "int8")
    scale = 0.02 * 0.005 * np.sqrt(products) * 74 * 60 / rng.choice([15, 60, 120])
    found = params(dtype, scale, pick(rng, *_ZEROS[dtype]))
    if rng.random() < 0.2:
        low = int(found.zero_point) if rng.random() < 0.5 else found.qmin
        found = found.with_range(low, max(low, found.qmax - int(rng.integers(100))))
    return found


def convolution(rng: np.random.Generator) -> Product:
    """A Conv of one or two spatial axes."""
    rank = pick(rng, 1, 2, 2, 2)
    kernel = [pick(rng, 1, 1, 2, 3, 3, 5) for _ in range(rank)]
    strides = [pick(rng, 1, 1, 2, 3) for _ in range(rank)]
    dilations = [pick(rng, 1, 1, 1, 2, 3) for _ in range(rank)]
    pads = [int(rng.integers(0, 1 + d * (k - 1))) for k, d in zip(kernel, dilations, strict=True)]
    pads += [int(rng.integers(0, 1 + d * (k - 1))) for k, d in zip(kernel, dilations, strict=True)]
    if rng.random() < 0.4:
        pads = [0] * (2 * rank)
    group = pick(rng, 1, 1, 1, 2, 3, 5)
    inputs, outputs = (group * pick(rng, 1, 2, 3, 4, 7, 8, 16, 20, 33) for _ in range(2))
    extents = [
        int(rng.integers(1, 18)) + (k - 1) * d for k, d in zip(kernel, dilations, strict=True)
    ]
    x = activation(rng, (pick(rng, 1, 1, 2), inputs, *extents))
    w = weight(rng, (outputs, inputs // group, *kernel), 0)
    attributes = ConvAttrs(tuple(strides), tuple(dilations), tuple(pads), group)
    products = int(np.prod(kernel)) * inputs // group
    out = result(rng, products)
    return "Conv", attributes, [x, w, bias(rng, x, w, out, outputs)], out


def transposed(rng: np.random.Generator) -> Product:
    """A ConvTranspose of one or two spatial axes."""
    rank = pick(rng, 1, 2, 2)
    strides = [pick(rng, 1, 2, 2, 3) for _ in range(rank)]
    kernel = [max(s, pick(rng, 1, 2, 3, 4)) for s in strides]
    dilations = [pick(rng, 1, 1, 1, 2) for _ in range(rank)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [int(rng.integers(0, 1 + n // 2)) for n in (*spans, *spans)]
    extra = [int(rng.integers(0, s)) for s in strides]
    group = pick(rng, 1, 1, 2, 3)
    inputs, outputs = (group * pick(rng, 1, 4, 5, 8, 16, 18) for _ in range(2))
    x = activation(rng, (pick(rng, 1, 2), inputs, *(int(rng.integers(3, 10)) for _ in kernel)))
    w = weight(rng, (inputs, outputs // group, *kernel), 1)
    attributes = ConvTransposeAttrs(
        tuple(strides), tuple(dilations), tuple(pads), tuple(extra), group
    )
    return "ConvTranspose", attributes, [x, w], result(rng, int(np.prod(kernel)) * inputs // group)


def matrix(rng: np.random.Generator) -> Product:
    """A Dense, Gemm or MatMul with a constant matrix."""
    inner, units = (pick(rng, 1, 3, 4, 10, 16, 31, 64, 130) for _ in range(2))
    op = pick(rng, "Dense", "Gemm", "MatMul")
    lead = [int(rng.integers(1, 40))]
    if op != "Gemm":
        lead = [pick(rng, 1, 2, 3) for _ in range(int(rng.integers(3)))] + lead
    x = activation(rng, (*lead, inner))
    if op == "Gemm":
        attributes: Attributes = GemmAttrs(
            alpha=pick(rng, 1.0, 0.5, 0.3), trans_b=bool(rng.integers(2))
        )
    else:
        attributes = NO_ATTRIBUTES
    rows = op == "Dense" or (isinstance(attributes, GemmAttrs) and attributes.trans_b)
    w = weight(rng, (units, inner) if rows else (inner, units), 0 if rows else 1)
    operands: list[Operand | None] = [x, w]
    out = result(rng, inner)
    if op != "MatMul":
        plain = isinstance(attributes, GemmAttrs) and attributes.alpha != 1.0
        operands.append(None if plain else bias(rng, x, w, out, units))
    return op, attributes, operands, out


def wide(rng: np.random.Generator) -> Product:
    """A Dense, MatMul or Conv of uint16 activations; units often are whole registers."""
    units, inner = pick(rng, 16, 16, 32, 48, 64, 96, 10), pick(rng, 1, 3, 8, 16, 33, 200)
    zero_point = pick(rng, 0, 1, 255, 32768, 40000, 65535)
    if rng.random() < 0.5:
        shape: tuple[int, ...] = (pick(rng, 1, 2), int(rng.integers(1, 40)), inner)
        rows = bool(rng.integers(2))
        name, axis = ("Dense", 0) if rows else ("MatMul", 1)
        w = weight(rng, (units, inner) if rows else (inner, units), axis)
        attributes: Attributes = NO_ATTRIBUTES
        products = inner
    else:
        group = pick(rng, 1, 1, 2)
        rank = pick(rng, 1, 2)
        kernel = [pick(rng, 1, 3, 2) for _ in range(rank)]
        strides = [pick(rng, 1, 1, 2) for _ in range(rank)]
        dilations = [pick(rng, 1, 1, 2) for _ in range(rank)]
        pads = [int(rng.integers(0, k)) for k in (*kernel, *kernel)]
        shape = (pick(rng, 1, 2), group * inner, *(int(rng.integers(5, 15)) for _ in kernel))
        w = weight(rng, (units, inner, *kernel), 0)
        name, products = "Conv", inner * int(np.prod(kernel))
        attributes = ConvAttrs(tuple(strides), tuple(dilations), tuple(pads), group)
    x = Operand(every_code(rng, "uint16", shape), params("uint16", 1e-4, zero_point))
    dtype = pick(rng, "uint16", "uint16", "uint8", "int16")
    scale = 1e-4 * 0.005 * np.sqrt(products) * 74 * 2e4 / (3e4 if "16" in dtype else 100)
    out = params(dtype, scale, pick(rng, *((0, 3) if dtype == "int16" else (0, 128, 3))))
    if rng.random() < 0.2:
        out = out.with_range(5, 100)
    operands: list[Operand | None] = [x, w]
    if name != "MatMul":
        operands.append(bias(rng, x, w, out, units))
    return name, attributes, operands, out


def uint4(shape: tuple[int, ...], rng: np.random.Generator) -> Operand:
    """Activations of four bits, a byte each."""
    own = QuantParams(DType.UINT4, np.asarray(0.1, np.float32), np.asarray(7, np.int32))
    return Operand(rng.integers(0, 16, shape).astype(DType.UINT4.numpy), own)


def activations(rng: np.random.Generator) -> Product:
    """A MatMul or Gemm of two activations, broadcasting."""
    rows, inner, columns = (pick(rng, 1, 2, 5, 8, 16, 17, 33, 64) for _ in range(3))
    lead = [pick(rng, 1, 2, 3) for _ in range(int(rng.integers(3)))]
    other = [pick(rng, n, n, 1) for n in lead][int(rng.integers(len(lead) + 1)) :]
    if rng.random() < 0.2:
        own = GemmAttrs(trans_a=bool(rng.integers(2)), trans_b=bool(rng.integers(2)))
        a = (inner, rows) if own.trans_a else (rows, inner)
        b = (columns, inner) if own.trans_b else (inner, columns)
        return "Gemm", own, [activation(rng, a), activation(rng, b)], result(rng, inner)
    x, y = activation(rng, (*lead, rows, inner)), activation(rng, (*other, inner, columns))
    return "MatMul", NO_ATTRIBUTES, [x, y], result(rng, inner)
