"""Products of two float32 activations of whatever extents: rows of tiles over columns side by side.

What fixed extents decide in advance (how high tiles are, where matrices begin) is computed while it
runs; sums are added in the same order, so that results have the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qdqbridge.graph.graph import Node
from qdqbridge.graph.types import Dim
from qdqbridge.ops.matmul import MATMUL
from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.relax.kernels.cpu import Cpu
from qdqbridge.relax.kernels.kernel import Kernel, KernelPlace
from qdqbridge.relax.kernels.lanes import (
    Buffer,
    Prim,
    bound,
    flat,
    fused,
    load,
    number,
    splat,
    store,
)
from qdqbridge.relax.kernels.loops import turns
from qdqbridge.relax.kernels.reals import is_real
from qdqbridge.relax.kernels.script import T, prim_func

_HEIGHT, _WIDTH = 4, 4
"""Rows of a tile, and registers of columns: so many sums, and as many columns, are registers."""


@dataclass(frozen=True, slots=True)
class OpenProduct:
    """A product of as many matrices as the leading axes have.

    Attributes:
        cpu: The CPU.
        first: Extents of the first operand; open ones by name.
        second: Those of the second operand.
        parallel: True to spread the matrices over threads.
    """

    cpu: Cpu
    first: tuple[Dim, ...]
    second: tuple[Dim, ...]
    parallel: bool


def match(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a MatMul of floats with an extent that only the run knows."""
    values = (*(node.operand(i) for i in (0, 1)), node.output)
    if node.op is not MATMUL or place.channels_last or not all(map(is_real, values)):
        return None
    a, b, y = (value.type.shape for value in values)
    if a is None or b is None or y is None or min(len(a), len(b)) < 2 or len(a) != len(b):
        return None
    same = a[:-2] == b[:-2] == y[:-2] and a[-1] == b[-2] and y[-2:] == (a[-2], b[-1])
    if not same or any(value.is_constant for value in values):
        return None
    names: dict[Dim, Dim] = {}
    shapes = [
        tuple(e if isinstance(e, int) else names.setdefault(e, f"n{len(names)}") for e in shape)
        for shape in (a, b)
    ]
    description = OpenProduct(place.cpu, shapes[0], shapes[1], place.threads > 1)
    work = 2 * math.prod(e for e in (*a, b[-1]) if isinstance(e, int))
    return Kernel("float_matmul_open", description, build, values[:2], (), (node.output,), work)


def build(description: OpenProduct) -> Any:
    """Returns the PrimFunc ``(a, b, y)``."""
    d = description

    def body() -> None:
        names: dict[Dim, Prim] = {}

        def extents(shape: Sequence[Dim]) -> list[Any]:
            for e in shape:
                if isinstance(e, str) and e not in names:
                    names[e] = tirx.Var(e, "int64")
            return [names.get(e, e) for e in shape]

        first, second = extents(d.first), extents(d.second)
        a, b = T.arg("a", T.buffer(first, "float32")), T.arg("b", T.buffer(second, "float32"))
        y = T.arg("y", T.buffer([*first[:-1], second[-1]], "float32"))
        matrices: Prim = 1
        for extent in first[:-2]:
            matrices = extent * matrices
        sizes = first[-2], first[-1], second[-1]
        with T.sblock("root"):
            _OpenProduct(d, [flat(a), flat(b), flat(y)], sizes).write(matrices)

    return prim_func(body)


class _OpenProduct:
    def __init__(self, d: OpenProduct, tensors: Sequence[Buffer], sizes: tuple[Any, ...]) -> None:
        self.d = d
        self.a, self.b, self.y = tensors
        self.rows, self.inner, self.columns = sizes

    def write(self, matrices: Prim) -> None:
        """Writes the loops over matrices and tiles of rows."""
        with turns(matrices, parallel=self.d.parallel) as matrix:
            row, column = bound(matrix * self.rows), bound(matrix * self.inner * self.columns)
            high = self.rows // _HEIGHT
            with turns(high) as i:
                self._row(bound(row + i * _HEIGHT), column, _HEIGHT)
            with turns(self.rows % _HEIGHT, high * _HEIGHT) as i:
                self._row(bound(row + i), column, 1)

    def _row(self, row: Prim, second: Prim, height: int) -> None:
        """Writes the tiles of some rows: wide ones, registers, and single columns."""
        done: Prim = 0
        for width, lanes in ((_WIDTH, self.d.cpu.lanes), (1, self.d.cpu.lanes), (1, 1)):
            step = width * lanes
            count = (self.columns - done) // step
            with turns(count) as j:
                self._tile(row, second, bound(done + j * step), height, width, lanes)
            done = done + count * step

    def _tile(
        self, row: Prim, second: Prim, column: Prim, height: int, width: int, lanes: int
    ) -> None:
        shape: Any = (lanes,)
        sums = [[T.alloc_buffer(shape, "float32") for _ in range(width)] for _ in range(height)]
        for total in (each for line in sums for each in line):
            store(total, 0, number(0.0, "float32", lanes), lanes)
        with turns(self.inner) as k:
            start = second + k * self.columns + column
            vectors = [bound(load(self.b, start + i * lanes, lanes)) for i in range(width)]
            for p, line in enumerate(sums):
                factor = splat(bound(load(self.a, (row + p) * self.inner + k, 1)), lanes)
                for vector, total in zip(vectors, line, strict=True):
                    before = load(total, 0, lanes)
                    fuses = self.d.cpu.fuses
                    after = fused(factor, vector, before) if fuses else before + factor * vector
                    store(total, 0, after, lanes)
        for p, line in enumerate(sums):
            for i, total in enumerate(line):
                at = (row + p) * self.columns + column + i * lanes
                store(self.y, at, load(total, 0, lanes), lanes)
