"""What the dot product of a CPU can do: the register tile alone, on data in the first cache."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import tvm

from qdqbridge.relax.kernels.cpu import Cpu
from qdqbridge.relax.kernels.lanes import load, number, store
from qdqbridge.relax.kernels.loops import turns
from qdqbridge.relax.kernels.micro import Tile, elements_of, most_pixels
from qdqbridge.relax.kernels.script import T, prim_func

_STEPS, _ROUNDS, _REPEATS = 128, 400, 7


@lru_cache
def limit(cpu: Cpu, target: Any) -> float:
    """Returns the operations per second of one thread, two per multiplication and addition.

    It is measured, which takes some milliseconds; the best of a few runs counts.

    Args:
        cpu: The class of CPUs whose tile is used.
        target: A TVM target of this machine.
    """
    pixels, blocks = most_pixels(cpu, 2), 2
    kinds = elements_of(cpu, floats=False)
    room = (_STEPS + pixels) * kinds.depth
    weights = _STEPS * blocks * cpu.lanes * kinds.depth

    def body() -> None:
        x = T.arg("x", T.buffer((room,), kinds.source))
        w = T.arg("w", T.buffer((weights,), kinds.weight))
        y = T.arg("y", T.buffer((pixels * blocks * cpu.lanes,), "int32"))
        with T.sblock("root"):
            tile = Tile(cpu, pixels, blocks)
            zeros = T.alloc_buffer((blocks * cpu.lanes,), "int32")
            for block in range(blocks):
                store(zeros, block * cpu.lanes, number(0, "int32", cpu.lanes), cpu.lanes)
            tile.begin(zeros, 0)
            size = cpu.lanes * kinds.depth
            with turns(_ROUNDS), turns(_STEPS) as step:
                own = [load(w, (step * blocks + b) * size, size) for b in range(blocks)]
                tile.step(x, [(step + p) * kinds.depth for p in range(pixels)], own)
            for p in range(pixels):
                for b in range(blocks):
                    at = (p * blocks + b) * cpu.lanes
                    store(y, at, tile.sums(p, b), cpu.lanes)

    function = prim_func(body).with_attr("global_symbol", "limit")
    library: Any = tvm.compile(tvm.IRModule({"limit": function}), target=target)
    sizes = ((room, kinds.source), (weights, kinds.weight), (pixels * blocks * cpu.lanes, "int32"))
    tensors = [tvm.runtime.tensor(np.ones(size, dtype)) for size, dtype in sizes]
    timer = library.mod.time_evaluator("limit", tvm.cpu(), number=3, repeat=_REPEATS)
    work = 2 * _ROUNDS * _STEPS * pixels * blocks * cpu.lanes * kinds.depth
    return work / timer(*tensors).min
