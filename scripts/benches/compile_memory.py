"""Peak memory of ``qdqbridge.compile``: ``compile_memory.py MODEL [TARGET]`` prints JSON.

``peak`` is what a fresh process holds at most while it reads and compiles the model, above what
it held before, TVM and LLVM themselves included; ``weights`` are the model's constants as they are
stored; both in MB (2**20 bytes). ``bound`` is the largest ``peak`` there should be. Linux only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench_target import target_of

import qdqbridge as qb

TIMES, ROOM = 3, 300
"""The bound: so many times the weights, and so many MB for TVM, LLVM and the code."""


def memory(field: str) -> float:
    """Returns a line of the process's status (``VmRSS``, ``VmHWM``) in MB."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def main(model: str, target: str = "host") -> None:
    """Compiles a model; prints what it took."""
    before = memory("VmRSS")
    graph = qb.load(model)
    qb.compile(graph, target_of(target), threads=1)
    held = {id(v.constant): v.constant.nbytes for v in graph.values() if v.constant is not None}
    weights = sum(held.values()) / 2**20
    peak = memory("VmHWM") - before
    print(json.dumps({"weights": weights, "peak": peak, "bound": TIMES * weights + ROOM}))


if __name__ == "__main__":
    main(*sys.argv[1:])
