"""Products of float32 with weights in blocks: ours beside onnxruntime's MatMulNBits and memory.

``scripts/bench weights``: chains of MatMulNBits with random weights, longer than the caches
are large, run by TVM with our kernels and by onnxruntime in one process, call after call in turn.
``--rows 1`` is decoding a token: what counts are bytes of weights and scales per second, beside
what a loop that only reads as many bytes reaches in the same round. ``--rows 128`` is a prompt.
Printed are medians, and medians of ratios of calls made next to each other; with ``--busy``, for a
machine that others use, the shortest calls and their ratios, of one thread in seconds of the
processor.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from bench_run import RESTS, measure, onnxruntime, ours, table
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.tvm.relax.files import lasting
from qdqbridge.tvm.relax.kernels.codegen.lanes import load, number, store
from qdqbridge.tvm.relax.kernels.codegen.loops import turns
from qdqbridge.tvm.relax.kernels.codegen.processors import host_target
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func
from qdqbridge.tvm.relax.threads import Caller

SIZES = ((4096, 4096), (4096, 14336))
_LANES, _AHEAD = 16, 8
"""Elements that are read at once, and how many such registers."""


def chain(path: Path, size: tuple[int, int], count: int, block: int, bits: int, level: int) -> int:
    """Writes products there and back; returns the bytes of their weights and scales."""
    rng, nodes, arrays = np.random.default_rng(0), list[Any](), dict[str, np.ndarray]()
    for i in range(count):
        k, n = size if i % 2 == 0 else size[::-1]
        codes = rng.integers(0, 256, (n, k // block, block * bits // 8), np.uint8)
        # results are about as large as what they are made of
        spread = (1 << bits) / 12**0.5 * k**0.5
        arrays[f"w{i}"] = codes
        arrays[f"s{i}"] = (rng.uniform(0.5, 1.5, n * k // block) / spread).astype(np.float32)
        last = i == count - 1
        nodes.append(
            helper.make_node(
                "MatMulNBits", [f"h{i}", f"w{i}", f"s{i}"], ["y" if last else f"h{i + 1}"],
                domain="com.microsoft", K=k, N=n, bits=bits, block_size=block,
                accuracy_level=level,
            )
        )  # fmt: skip
    end = size[count % 2]
    graph = helper.make_graph(
        nodes, "chain", [helper.make_tensor_value_info("h0", TensorProto.FLOAT, ["rows", size[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", end])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return sum(array.nbytes for array in arrays.values())


def reading(size: int, threads: int) -> Callable[[], Any]:
    """Returns a call that reads ``size`` bytes, every thread a share of them, and joins them.

    They lie in large pages of memory, as weights do.
    """
    step = _LANES * _AHEAD
    count = size // 4 // (step * threads) * (step * threads)

    def body() -> None:
        x = T.arg("x", T.buffer((count,), "int32"))
        y = T.arg("y", T.buffer((threads * _LANES,), "int32"))
        with T.sblock("root"), turns(threads, parallel=threads > 1) as task:
            sums = [T.alloc_buffer((_LANES,), "int32") for _ in range(_AHEAD)]
            for total in sums:
                store(total, 0, number(0, "int32", _LANES), _LANES)
            with turns(count // threads // step) as i:
                for j, total in enumerate(sums):
                    at = task * (count // threads) + i * step + j * _LANES
                    added = tvm.tirx.bitwise_xor(load(total, 0, _LANES), load(x, at, _LANES))
                    store(total, 0, added, _LANES)
            whole = load(sums[0], 0, _LANES)
            for total in sums[1:]:
                whole = tvm.tirx.bitwise_xor(whole, load(total, 0, _LANES))
            store(y, task * _LANES, whole, _LANES)

    function = prim_func(body).with_attr("global_symbol", "reading")
    library: Any = tvm.compile(tvm.IRModule({"reading": function}), target=host_target())
    read = lasting((count,), np.dtype(np.int32))
    read[:] = np.random.default_rng(0).integers(0, 99, count, np.int32)
    source = tvm.runtime.from_dlpack(read)
    target = tvm.runtime.tensor(np.zeros(threads * _LANES, np.int32))
    caller, run = Caller(threads), library["reading"]
    return lambda: caller.call(run, source, target)


def row(arguments: argparse.Namespace, size: tuple[int, int], block: int, level: int) -> Any:
    """Measures one size, block and accuracy level."""
    threads = arguments.threads
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.onnx"
        each = size[0] * size[1] * arguments.bits // 8
        count = max(2, -(-(arguments.megabytes << 20) // each)) if arguments.rows == 1 else 2
        total = chain(path, size, count, block, arguments.bits, level)
        drawn = np.random.default_rng(1).normal(0, 1, (arguments.rows, size[0]))
        data = {"h0": drawn.astype(np.float32)}
        own, compiled = ours(path, data, threads, "host")
        calls = {"ours": own, "ort": onnxruntime(path, data, threads)}
        if arguments.rows == 1:
            calls["memory"] = reading(total, threads)
        rest = RESTS if threads > 1 else 0.0
        clock = time.process_time if arguments.busy and threads == 1 else time.perf_counter
        times = measure(calls, arguments.seconds, rest, clock)
    if arguments.busy:
        times = {name: [min(values)] for name, values in times.items()}
    middle = {name: float(np.median(values)) for name, values in times.items()}
    found: dict[str, Any] = {
        "size": "x".join(map(str, size)), "block": block, "level": level, "rows": arguments.rows,
        "threads": threads, "compile s": round(compiled, 1),
        **{f"{name} ms": round(value * 1e3 / count, 3) for name, value in middle.items()},
        "ort / ours": round(float(np.median(np.divide(times["ort"], times["ours"]))), 2),
    }  # fmt: skip
    if arguments.rows == 1:
        found["ours GB/s"] = round(total / middle["ours"] / 1e9, 1)
        found["of memory"] = round(float(np.median(np.divide(times["memory"], times["ours"]))), 2)
    return found


def main(argv: Sequence[str]) -> int:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(prog="bench weights", description=(__doc__ or "").strip())
    parser.add_argument("--blocks", nargs="*", type=int, default=[32, 128])
    parser.add_argument("--levels", nargs="*", type=int, default=[0, 4], choices=(0, 1, 4))
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, choices=range(1, 257), metavar="N")
    parser.add_argument("--megabytes", type=int, default=128, help="weights of a chain, one row")
    parser.add_argument("--seconds", type=float, default=5.0, help="per line")
    parser.add_argument("--busy", action="store_true", help="the shortest calls, not the middle")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    rows = [
        row(arguments, size, block, level)
        for size in SIZES
        for block in arguments.blocks
        for level in arguments.levels
    ]
    print(json.dumps(rows, indent=1) if arguments.json else table(rows))
    return 0


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
