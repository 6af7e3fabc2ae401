"""LSTM and GRU: what onnxruntime makes of each way to store them, and compiled ones beside it.

::

    python scripts/benches/recurrent_kernels.py

Float, what onnxruntime's ``quantize_dynamic`` makes, ``quantize --target dynamic`` and
``--target weight-only``: CPU time of a run of 20 steps on one thread (median of 30, the files by
turns), signal to noise of the results in dB, bytes of the file. With the argument ``compiled`` the
time of compiled float layers of open extents beside onnxruntime's (set ``TVM_NUM_THREADS=1``).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import qdqbridge as qb

STEPS, RUNS, SIZES = 20, 30, (64, 256, 512)
GATES = {"LSTM": 4, "GRU": 3}


def network(kind: str, size: int, batch: int | str = 1) -> onnx.ModelProto:
    """Returns one recurrent operator with random weights."""
    random, gates = np.random.default_rng(size), GATES[kind]
    shapes = {
        "w": (1, gates * size, size),
        "r": (1, gates * size, size),
        "b": (1, 2 * gates * size),
    }
    held = [
        numpy_helper.from_array(
            (random.standard_normal(shape) / np.sqrt(size)).astype(np.float32), name
        )
        for name, shape in shapes.items()
    ]
    node = helper.make_node(kind, ["x", *shapes], ["y"], kind, hidden_size=size)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", batch, size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "recurrent", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> None:
    if sys.argv[1:] == ["compiled"]:
        compiled()
        return
    print("| operator | elements | stored as | ms | dB | bytes |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kind in GATES:
            for size in SIZES:
                show(kind, size, Path(folder))


def compiled() -> None:
    """Prints the time of compiled layers, in ms, and how many times that of onnxruntime's it is."""
    print("| operator | elements | 1 step | 20 steps | 20 steps of 8 |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "layer.onnx"
        for kind in GATES:
            for size in (64, 128, 256, 512):
                onnx.save(network(kind, size, "batch"), file)
                program, theirs, cells = qb.compile(qb.load(file)), session(file), list[str]()
                for steps, batch in ((1, 1), (STEPS, 1), (STEPS, 8)):
                    random = np.random.default_rng(0)
                    x = random.standard_normal((steps, batch, size)).astype(np.float32)
                    times: dict[bool, list[float]] = {True: [], False: []}
                    for _ in range(3 * RUNS):
                        for own, taken in times.items():
                            start = time.process_time()
                            _ = program.run({"x": x}) if own else theirs.run(None, {"x": x})
                            taken.append(time.process_time() - start)
                    ours, other = (1e3 * float(np.median(taken)) for taken in times.values())
                    cells.append(f"{ours:.3f}, {ours / other:.2f}")
                print(f"| {kind} | {size} | {' | '.join(cells)} |", flush=True)


def show(kind: str, size: int, folder: Path) -> None:
    files = {name: folder / f"{name.replace(' ', '_')}.onnx" for name in
             ("float", "onnxruntime's dynamic", "dynamic", "weight-only")}  # fmt: skip
    onnx.save(network(kind, size), files["float"])
    quantize_dynamic(
        files["float"],
        files["onnxruntime's dynamic"],
        per_channel=True,
        weight_type=QuantType.QInt8,
    )
    data = np.random.default_rng(0).standard_normal((8 * STEPS, 1, size)).astype(np.float32)
    for target in ("dynamic", "weight-only"):
        graph = qb.quantize(files["float"], {"x": data}, target=target, repair=())
        qb.save(graph, files[target], overwrite=True)
    sessions = {name: session(path) for name, path in files.items()}
    times: dict[str, list[float]] = {name: [] for name in files}
    results: dict[str, np.ndarray] = {}
    for _ in range(RUNS):
        for name, each in sessions.items():
            start = time.process_time()
            results[name] = np.asarray(each.run(None, {"x": data[:STEPS]})[0])
            times[name].append(time.process_time() - start)
    wanted = results["float"]
    for name, path in files.items():
        noise = float(np.sum((wanted - results[name]) ** 2))
        closeness = f"{10 * np.log10(np.sum(wanted**2) / noise):.1f}" if noise else "exact"
        ms = 1e3 * float(np.median(times[name]))
        print(f"| {kind} | {size} | {name} | {ms:.2f} | {closeness} | {path.stat().st_size:,} |")


if __name__ == "__main__":
    main()
