"""What products of bytes of a CPU can do: the tile alone, on data in the first cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tvm

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import load, number, store
from qdqbridge.tvm.relax.kernels.codegen.loops import turns
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.tiles.register_tile import (
    LANES,
    ROWS,
    STEPS,
    AmxShape,
    AmxTile,
    Tile,
    configure,
    elements_of,
    most_pixels,
    release,
)
from qdqbridge.tvm.relax.kernels.tiles.register_tile import room as sums_of

_STEPS, _ROUNDS, _REPEATS = 128, 400, 7


@lru_cache
def limit(cpu: Cpu, target: Any) -> float:
    """Returns the operations per second of one thread, two per multiplication and addition.

    It is measured, which takes some milliseconds; the best of a few runs counts.

    Args:
        cpu: The class of CPUs whose tile is used.
        target: A TVM target of this machine.
    """
    if cpu.amx:
        return _limit_of_amx(target)
    pixels, blocks = most_pixels(cpu, 2), 2
    kinds = elements_of(cpu, floats=False)
    room = (_STEPS + pixels) * kinds.depth
    weights = _STEPS * blocks * cpu.lanes * kinds.depth

    def body() -> None:
        x = T.arg("x", T.buffer((room,), kinds.source))
        w = T.arg("w", T.buffer((weights,), kinds.weight))
        y = T.arg("y", T.buffer((pixels * blocks * cpu.lanes,), "int32"))
        with root():
            tile = Tile(cpu, pixels, blocks)
            zeros = T.alloc_buffer((blocks * cpu.lanes,), "int32")
            for block in range(blocks):
                store(zeros, block * cpu.lanes, number(0, "int32", cpu.lanes), cpu.lanes)
            tile.begin(zeros, 0)
            size = cpu.lanes * kinds.depth
            with turns(_ROUNDS), turns(_STEPS) as step:
                own = [load(w, (step * blocks + b) * size, size) for b in range(blocks)]
                tile.step(x, [(step + p) * kinds.depth for p in range(pixels)], [own])
            for p in range(pixels):
                for b in range(blocks):
                    at = (p * blocks + b) * cpu.lanes
                    store(y, at, tile.sums(p, b), cpu.lanes)

    sizes = ((room, kinds.source), (weights, kinds.weight), (pixels * blocks * cpu.lanes, "int32"))
    work = 2 * _ROUNDS * _STEPS * pixels * blocks * cpu.lanes * kinds.depth
    return work / _seconds(body, sizes, target)


def _limit_of_amx(target: Any) -> float:
    """Returns the operations per second of tiles whose operands lie in the first cache."""
    shape = AmxShape((ROWS, ROWS), 2, STEPS)
    size = ROWS * STEPS * 4  # bytes of a register

    def body() -> None:
        x = T.arg("x", T.buffer((2 * size,), "uint8"))
        w = T.arg("w", T.buffer((2 * size,), "int8"))
        y = T.arg("y", T.buffer((ROWS,), "int32"))
        with root():
            zeros = T.alloc_buffer((2 * LANES,), "int32")
            store(zeros, 0, number(0, "int32", 2 * LANES), 2 * LANES)
            configure(shape.registers)
            tile = AmxTile(shape, 2, sums_of(shape))
            tile.begin(zeros, tirx.const(0, "int32"))
            with turns(_ROUNDS * _STEPS):
                tile.step(x, [0, size], 4 * STEPS, w, [0, size])
            tile.finish()
            release()
            store(y, 0, tile.sums(0, 0), LANES)

    sizes = ((2 * size, "uint8"), (2 * size, "int8"), (ROWS, "int32"))
    work = 2 * _ROUNDS * _STEPS * (2 * ROWS) * (2 * LANES) * (4 * STEPS)
    return work / _seconds(body, sizes, target)


def _seconds(body: Callable[[], None], sizes: Sequence[tuple[int, str]], target: Any) -> float:
    """Returns the shortest time of a function of vectors of ones."""
    function = prim_func(body).with_attr("global_symbol", "limit")
    library: Any = tvm.compile(tvm.IRModule({"limit": function}), target=target)
    tensors = [tvm.runtime.tensor(np.ones(size, dtype)) for size, dtype in sizes]
    timer = library.mod.time_evaluator("limit", tvm.cpu(), number=3, repeat=_REPEATS)
    return timer(*tensors).min
