"""LayerNormalization of rows of float32, of any number: two passes for the moments, a third one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import NormAttrs
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.broadcasting import Open, worth_sharing
from qdqbridge.tvm.relax.kernels.codegen.codes import alike
from qdqbridge.tvm.relax.kernels.codegen.cpu import Cpu
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    fence,
    flat,
    load,
    splat,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import turns
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.operands import known_extent, leading
from qdqbridge.tvm.relax.kernels.products.float_products import is_real, real_constant
from qdqbridge.tvm.relax.kernels.rows.float_rows import LaneValues, open_pieces


@dataclass(frozen=True, slots=True)
class RealNorm:
    """Rows of float32 that are normalized.

    Attributes:
        cpu: The CPU.
        shape: Extents of operand and result; None for open ones, but for the last.
        tasks: How many threads the work is to be spread over.
    """

    cpu: Cpu
    shape: Open
    tasks: int


def match_float_layer_norm(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a LayerNormalization of float32 over the last axis."""
    x, y, attributes = node.operand(0), node.output, node.attributes
    shape = leading(x.type.shape)
    if node.op is not LAYER_NORMALIZATION or shape is None or not isinstance(attributes, NormAttrs):
        return None
    if attributes.axis % len(shape) != len(shape) - 1 or x.is_constant or len(node.outputs) != 1:
        return None
    if not (is_real(x) and is_real(y) and alike(x, y)):
        return None
    count = known_extent(shape[-1])
    factors, offsets = _norm_row_param(node, 1, count, 1.0), _norm_row_param(node, 2, count, 0.0)
    if factors is None or offsets is None:
        return None
    epsilon = np.asarray([attributes.epsilon], np.float32)
    description = RealNorm(place.cpu, shape, place.threads)
    return Kernel(
        "float_layer_norm", description, build_float_norm, (x,), (factors, offsets, epsilon), (y,)
    )


def _norm_row_param(node: Node, index: int, count: int, default: float) -> Array | None:
    """Returns an operand as one number per element of a row; None where it is no such constant."""
    value = node.optional(index)
    if value is None:
        return np.full(count, default, np.float32)
    array = real_constant(value)
    if array is None or array.size != count or array.shape[-1:] != (count,):
        return None
    return np.ascontiguousarray(array.reshape(-1), np.float32)


def build_float_norm(d: RealNorm) -> Any:
    """Returns the PrimFunc ``(x, factors, offsets, epsilon, y)``."""

    def body() -> None:
        names = [tirx.Var(f"n{axis}", "int64") for axis in range(len(d.shape))]
        shape = [name if e is None else e for name, e in zip(names, d.shape, strict=True)]
        count, rows = known_extent(d.shape[-1]), 1
        for extent in shape[:-1]:
            rows = extent * rows
        x = T.arg("x", T.buffer(shape, "float32"))
        factors, offsets = (T.arg(n, T.buffer((count,), "float32")) for n in ("factors", "offsets"))
        epsilon = T.arg("epsilon", T.buffer((1,), "float32"))
        y = T.arg("y", T.buffer(shape, "float32"))
        shared = worth_sharing(d.tasks, d.shape, 4)
        with root():
            source, result = flat(x), flat(y)
            with turns(rows, parallel=shared) as row:
                _normalize_float_row(
                    d, (source, factors, offsets, epsilon, result), bound(row * count), count
                )

    return prim_func(body)


def _normalize_float_row(d: RealNorm, tensors: tuple[Buffer, ...], start: Prim, count: int) -> None:
    x, factors, offsets, epsilon, y = tensors
    lanes, zero = 2 * d.cpu.lanes, tirx.const(0.0, "float32")
    number_of = tirx.const(float(count), "float32")

    def mean_of(value: Any) -> Prim:
        sums = LaneValues(lanes, zero)

        def piece(at: Prim, size: int) -> None:
            sums.update(size, lambda total: total + value(at, size))

        open_pieces(count, lanes, piece)
        return bound(sums.reduced("", lambda a, b: a + b) / number_of)

    mean = mean_of(lambda at, size: load(x, start + at, size))

    def square(at: Prim, size: int) -> Prim:
        difference = load(x, start + at, size) - splat(mean, size)
        return fence(difference * difference)

    variance = mean_of(square)
    root = tirx.sqrt(variance + load(epsilon, 0, 1))
    inverse = bound(tirx.const(1.0, "float32") / root)

    def piece(at: Prim, size: int) -> None:
        normal = (load(x, start + at, size) - splat(mean, size)) * splat(inverse, size)
        value = fence(normal * load(factors, at, size)) + load(offsets, at, size)
        store(y, start + at, value, size)

    open_pieces(count, lanes, piece)
