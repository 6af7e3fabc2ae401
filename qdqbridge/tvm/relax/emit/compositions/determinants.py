"""Det, by elimination with row exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext, wide
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root


def _det(context: CompositionContext) -> Sequence[Expr]:
    """Of each matrix the product of the pivots, each the largest one left in its column.

    Source: ONNX Det-22.
    """
    x, kind = wide(context, context.arg(0)), context.dtype(context.arg(0))
    *batch, size, width = context.extents(x)
    context.emitter.need_same(size, width)
    count = math.prod(batch)
    rows = context("reshape", x, [count, size, size])
    function = _determinant_primfunc(count, size, context.dtype(x))
    variable = context.emitter.builder.add_func(function, "determinants")
    operands: Any = [rows]
    extent: Any = [count]
    called = relax.call_tir(variable, operands, relax.TensorType(extent, context.dtype(x)))
    found = context.emitter.emit(called)
    return [context.cast(context("reshape", found, batch), kind)]


def _determinant_primfunc(count: Any, extent: Any, kind: str) -> Any:
    """Returns the PrimFunc ``(matrices, determinants)``."""
    matrices = count if isinstance(count, int) else tirx.Var("n", "int64")
    size = extent if isinstance(extent, int) else tirx.Var("k", "int64")

    def body() -> None:
        x = T.arg("x", T.buffer((matrices, size, size), kind))
        y = T.arg("y", T.buffer((matrices,), kind))
        with root():
            left, line = (T.alloc_buffer(shape, kind) for shape in ((size, size), (1,)))
            pivot = T.alloc_buffer((1,), "int64")
            with T.serial(matrices) as matrix:
                with T.serial(size) as i, T.serial(size) as j:
                    T.buffer_store(left, x[matrix, i, j], [i, j])
                T.buffer_store(y, tirx.const(1.0, kind), [matrix])
                with T.serial(size) as column:
                    _exchange(left, line, pivot, (y, matrix), (column, size))
                    _eliminate(left, (column, size))

    return prim_func(body)


def _exchange(
    left: Any, line: Any, pivot: Any, result: tuple[Any, Any], place: tuple[Any, Any]
) -> None:
    """Puts the row with the largest element of a column first; multiplies the result by it."""
    (y, matrix), (column, size) = result, place
    T.buffer_store(pivot, tirx.Cast("int64", column), [0])
    with T.serial(column + 1, size) as i:
        larger = tirx.abs(left[i, column]) > tirx.abs(left[pivot[0], column])
        with T.If(larger), T.Then():
            T.buffer_store(pivot, tirx.Cast("int64", i), [0])
    with T.If(pivot[0] != column), T.Then():
        with T.serial(size) as j:
            T.buffer_store(line, left[column, j], [0])
            T.buffer_store(left, left[pivot[0], j], [column, j])
            T.buffer_store(left, line[0], [pivot[0], j])
        T.buffer_store(y, tirx.const(0.0, y.dtype) - y[matrix], [matrix])
    T.buffer_store(y, y[matrix] * left[column, column], [matrix])


def _eliminate(left: Any, place: tuple[Any, Any]) -> None:
    """Subtracts multiples of a row from those below it, unless all of the column is 0."""
    column, size = place
    rows = columns = (column + 1, size)
    some = left[column, column] != tirx.const(0.0, left.dtype)
    with T.If(some), T.Then(), T.serial(*rows) as i, T.serial(*columns) as j:
        factor = left[i, column] / left[column, column]
        T.buffer_store(left, left[i, j] - factor * left[column, j], [i, j])


DETERMINANTS: Mapping[str, Composition] = {"Det": _det}
"""By the operator's name in ONNX's own domain."""
