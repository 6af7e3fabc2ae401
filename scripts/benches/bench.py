"""Measurements that are too slow or too large for the tests.

``bench.py import`` generates a 24-layer MLP with 0.8 GB of int8 weights in external data and chains
of 2,500, 5,000 and 10,000 nodes in a temporary folder, and measures reading them. Every measurement
runs in a process of its own, so that peak memory is its own.

``bench.py byoc [MODEL ...]`` builds models with all they have in onnxruntime inside TVM's virtual
machine, and compares results and latency with onnxruntime on the file: one thread, calls in turn.
Inputs are those of an ``inputs.npz`` beside the model, else seeded random numbers.

``bench.py profile`` measures what profiling costs, ``bench.py quantize`` and ``bench.py sabotage``
what quantizing does to networks, beside other tools: see bench_profile.py, bench_quantize.py and
bench_sabotage.py; ``bench.py cost`` what it takes in seconds and memory: see bench_cost.py.
``bench.py run [NETWORK ...]`` measures latency of whole networks, ours beside onnxruntime's and
TVM's: see bench_run.py, which has its own options. ``bench.py weights`` measures products with
weights of 4 or 8 bits in blocks: see bench_weights.py. ``bench.py microcontroller`` measures
networks as C on boards that QEMU has: see bench_microcontroller.py. ``bench.py instructions``
counts what runs execute on 64-bit Arm and on x86 without VNNI: see bench_instructions.py.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, HIDDEN = 24, 2048
CHAINS = (2_500, 5_000, 10_000)
LIMITS = {
    "load seconds": 1.0,
    "load MB": 150.0,
    "load + to_relax / onnx.load": 3.0,
    "10,000 nodes seconds": 2.0,
}
TOOLS = ("onnxruntime", "nncf", "aimet", "quark", "modelopt")
"""Quantizers that may have Pythons of their own."""
BYOC_RATIO = 1.3
"""Largest median of latency in TVM's virtual machine over onnxruntime's."""


# ---- models -----------------------------------------------------------------------------------


def write_mlp(path: Path) -> None:
    """Writes MatMul -> Q/DQ layers of HIDDEN x 4 HIDDEN x HIDDEN int8 weights, data outside."""
    rng = np.random.default_rng(0)
    nodes, initializers = [], [_scalar("s", 0.02, np.float32), _scalar("z", 128, np.uint8)]
    data = path.with_suffix(".data")
    current, offset = "x", 0
    with data.open("wb") as file:
        for layer in range(LAYERS):
            for part, (rows, columns) in enumerate(((HIDDEN, 4 * HIDDEN), (4 * HIDDEN, HIDDEN))):
                name = f"w{layer}_{part}"
                array = rng.integers(-127, 128, (rows, columns), dtype=np.int8)
                file.write(array.tobytes())
                initializers.append(_external(name, array, data.name, offset))
                offset += array.nbytes
                scale = rng.uniform(1e-4, 1e-3, columns).astype(np.float32)
                initializers.append(numpy_helper.from_array(scale, f"{name}_s"))
                zeros = np.zeros(columns, np.int8)
                initializers.append(numpy_helper.from_array(zeros, f"{name}_z"))
                nodes += _layer(current, name)
                current = f"{name}_y"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", HIDDEN])],
        [helper.make_tensor_value_info(current, TensorProto.FLOAT, ["batch", HIDDEN])],
        initializers,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def _layer(x: str, w: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [x, "s", "z"], [f"{w}_q"]),
        helper.make_node("DequantizeLinear", [f"{w}_q", "s", "z"], [f"{w}_x"]),
        helper.make_node("DequantizeLinear", [w, f"{w}_s", f"{w}_z"], [f"{w}_d"], axis=1),
        helper.make_node("MatMul", [f"{w}_x", f"{w}_d"], [f"{w}_m"]),
        helper.make_node("QuantizeLinear", [f"{w}_m", "s", "z"], [f"{w}_r"]),
        helper.make_node("DequantizeLinear", [f"{w}_r", "s", "z"], [f"{w}_y"]),
    ]


def _scalar(name: str, value: float, dtype: type) -> TensorProto:
    return numpy_helper.from_array(np.array(value, dtype), name)


def _external(name: str, array: np.ndarray, location: str, offset: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.INT8, dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset), "length": str(array.nbytes)}
    for key, value in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def write_chain(path: Path, count: int) -> None:
    """Writes about ``count`` nodes: residual blocks of Conv, Relu and Add with their Q/DQ."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (8, 8, 1, 1), dtype=np.int8)
    initializers = [
        _scalar("s", 0.02, np.float32), _scalar("z", 128, np.uint8),
        _scalar("ws", 0.01, np.float32), _scalar("wz", 0, np.int8),
        numpy_helper.from_array(weight, "w"),
    ]  # fmt: skip
    nodes = _q_dq("x", "x0")
    current = "x0"
    block = 0
    while len(nodes) < count:
        b = f"b{block}"
        nodes.append(helper.make_node("DequantizeLinear", ["w", "ws", "wz"], [f"{b}_w"]))
        nodes.append(helper.make_node("Conv", [current, f"{b}_w"], [f"{b}_c"]))
        nodes.append(helper.make_node("Relu", [f"{b}_c"], [f"{b}_r"]))
        nodes += _q_dq(f"{b}_r", f"{b}_d")
        nodes.append(helper.make_node("Add", [current, f"{b}_d"], [f"{b}_a"]))
        nodes += _q_dq(f"{b}_a", f"{b}_y")
        current, block = f"{b}_y", block + 1
    shape = ["batch", 8, 4, 4]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(current, TensorProto.FLOAT, shape)],
        initializers,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def _q_dq(x: str, y: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [x, "s", "z"], [f"{y}_q"]),
        helper.make_node("DequantizeLinear", [f"{y}_q", "s", "z"], [y]),
    ]


# ---- measurements, each in a process of its own -------------------------------------------------


def peak_mb() -> float:
    """Returns the largest resident memory of this process so far, in MB (mapped pages count)."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would start at the parent's
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(job: str, path: str) -> dict[str, float]:
    """Runs one job and returns its seconds and the growth of peak memory."""
    jobs: dict[str, Callable[[str], object]] = {
        "onnx.load": onnx.load, "load": _load, "to_relax": _to_relax,
    }  # fmt: skip
    import qdqbridge  # noqa: F401  its start-up is not the file's cost

    if job == "to_relax":
        import tvm  # noqa: F401
    start_mb, start = peak_mb(), time.perf_counter()
    kept = jobs[job](path)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "mb": peak_mb() - start_mb, "kept": float(kept is not None)}


def _load(path: str) -> object:
    import qdqbridge

    return qdqbridge.load(path)


def _to_relax(path: str) -> object:
    import qdqbridge

    graph = qdqbridge.load(path)
    return graph, qdqbridge.to_relax(graph)


def measured(job: str, path: Path, repeats: int = 3) -> dict[str, float]:
    """Returns the fastest of ``repeats`` runs of a job, each in a fresh process."""
    runs = []
    for _ in range(repeats):
        command = [sys.executable, __file__, "measure", job, str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout))
    return min(runs, key=lambda run: run["seconds"])


def bench_import() -> int:
    """Measures reading, prints a table, returns 1 where a limit is missed."""
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        mlp = Path(folder) / "mlp.onnx"
        write_mlp(mlp)
        rows = {job: measured(job, mlp) for job in ("onnx.load", "load", "to_relax")}
        for job, row in rows.items():
            print(f"mlp 0.8 GB  {job:<10} {row['seconds']:6.2f} s  {row['mb']:8.0f} MB above start")
        results["load seconds"] = rows["load"]["seconds"]
        results["load MB"] = rows["load"]["mb"]
        ratio = rows["to_relax"]["seconds"] / rows["onnx.load"]["seconds"]
        results["load + to_relax / onnx.load"] = ratio
        for count in CHAINS:
            chain = Path(folder) / f"chain{count}.onnx"
            write_chain(chain, count)
            row = measured("load", chain)
            print(f"chain {count:>6} nodes load {row['seconds']:6.2f} s  {row['mb']:8.0f} MB")
            results[f"{count:,} nodes seconds"] = row["seconds"]
    missed = [f"{k}: {results[k]:.2f} > {v}" for k, v in LIMITS.items() if results[k] > v]
    print("limits: " + ("; ".join(missed) if missed else "all met"))
    return 1 if missed else 0


# ---- onnxruntime inside TVM, against onnxruntime -----------------------------------------------


def bench_byoc(paths: list[str], calls: int) -> int:
    """Measures models, prints a table, returns 1 where a limit is missed."""
    files = [Path(path) for path in paths] or sorted(
        path for path in (Path(__file__).parents[2] / "models").glob("*s8*.onnx")
    )
    missed, exact = [], 0
    print(f"{'model':<44} {'regions':>7} {'left':>4} {'differ':>9} {'us':>6} {'VM':>5} {'run':>5}")
    for file in files:
        name = str(Path(*file.parts[-3:-1])) if file.name == "model.onnx" else file.stem
        try:
            row = _byoc_row(file, calls)
        except Exception as error:  # whatever onnxruntime, TVM or we refuse
            print(f"{name:<44} {' '.join(str(error).split())[:100]}")
            continue
        exact += row["differ"] == 0
        if row["VM"] > BYOC_RATIO or row["export"]:
            missed.append(name)
        print(
            f"{name:<44} {row['regions']:7} {row['left']:4} {row['differ']:4}/{row['of']:<4} "
            f"{row['us']:6.0f} {row['VM']:5.2f} {row['run']:5.2f}"
            + (f"  {row['export']} differ from the exported file" if row["export"] else ""),
            flush=True,
        )
    print(f"{exact} equal onnxruntime on the file bit for bit")
    print("limits: " + ("; ".join(missed) if missed else "all met"))
    return 1 if missed else 0


def _byoc_row(file: Path, calls: int) -> dict[str, Any]:
    """Returns regions, operators left, differing results, and medians of latency and ratios."""
    import onnxruntime as ort
    import tvm

    import qdqbridge as qb
    from qdqbridge.targets.profiles.export import exported_proto
    from qdqbridge.tvm.byoc import onnxruntime_backend as backend

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    graph = qb.load(file)
    data = exported_proto(graph).SerializeToString()
    exported = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    executable, coverage = backend.compile(graph, threads=1)
    batches = list(_feeds(file, graph))
    row: dict[str, Any] = {"differ": 0, "of": 0, "export": 0}
    for feeds in batches:
        got = list(executable.run(feeds).values())
        for key, reference in (("differ", session), ("export", exported)):
            results = zip(got, reference.run(None, feeds), strict=True)
            row[key] += sum(int((a != b).sum()) for a, b in results)
        row["of"] += sum(a.size for a in got)
    machine = tvm.relax.VirtualMachine(executable.library, tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(batches[0][value.name]) for value in graph.inputs]
    ways = [
        lambda: session.run(None, batches[0]),
        lambda: machine(*tensors),
        lambda: executable.run(batches[0]),
    ]
    times = np.array([[_seconds(way) for way in ways] for _ in range(calls)])
    ratios = np.median(times / times[:, :1], axis=0)
    row |= {"us": float(np.median(times[:, 0])) * 1e6, "VM": ratios[1], "run": ratios[2]}
    return row | {"regions": len(coverage.regions), "left": len(coverage.left)}


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _feeds(file: Path, graph: Any) -> Iterator[dict[str, np.ndarray]]:
    """Yields inputs of the model's batch size, one sample where that is symbolic."""
    samples, stored = file.with_name("inputs.npz"), {}
    if samples.exists():
        stored = {k: v for k, v in np.load(samples).items() if k != "labels"}
    rng = np.random.default_rng(0)
    shapes = {
        v.name: [d if isinstance(d, int) else 1 for d in v.type.shape or ()] for v in graph.inputs
    }
    count = min((len(v) // (shapes[k] or [1])[0] for k, v in stored.items()), default=8)
    for index in range(count):
        feeds = {}
        for value in graph.inputs:
            shape, dtype = shapes[value.name], value.type.dtype.numpy
            part = slice(index * (shape or [1])[0], (index + 1) * (shape or [1])[0])
            drawn = rng.normal(size=shape) * (1 if np.dtype(dtype).kind == "f" else 40)
            array = stored[value.name][part] if value.name in stored else drawn
            feeds[value.name] = np.ascontiguousarray(array.astype(dtype))
        yield feeds


def pythons_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Returns the Pythons that are given of other tools."""
    given = {tool: getattr(arguments, tool, None) for tool in TOOLS}
    return {tool: python for tool, python in given.items() if python}


def quantize_options(quantize: argparse.ArgumentParser) -> None:
    """Adds the options of ``bench quantize``."""
    quantize.add_argument("networks", nargs="*", help="names; by default all there are")
    quantize.add_argument("--target", default="ort")
    quantize.add_argument("--choosers", nargs="+", default=["default"], help="ours to try")
    quantize.add_argument("--ours", action="store_true", help="leave the other tools out")
    for tool in TOOLS:
        quantize.add_argument(f"--{tool}", help="a Python that has it")
    quantize.add_argument("--folder", type=Path, help="networks of quantization_networks.py")
    quantize.add_argument(
        "--weights", help="int4; int4/channel or int4/32: weights alone, per channel or in blocks"
    )
    quantize.add_argument("--activations", choices=["uint16"], help="by default 8 bits")
    quantize.add_argument("--without", nargs="+", default=(), help="parts of methods' names")
    quantize.add_argument("--samples", type=int, help="so many to calibrate with, not all")
    quantize.add_argument("--repeat", type=int, default=1, help="give each of them so often")
    quantize.add_argument("--seed", type=int, default=0, help="of the drawn pictures")
    quantize.add_argument("--json", type=Path, help="a file for the figures")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("import", help="cost of reading models")
    byoc = commands.add_parser("byoc", help="onnxruntime inside TVM against onnxruntime")
    byoc.add_argument("models", nargs="*", help="by default the quantized ones of models/")
    byoc.add_argument("--calls", type=int, default=300, help="calls per measurement")
    profile = commands.add_parser("profile", help="statistics of tensors beside the forward pass")
    profile.add_argument("--samples", type=int, nargs="*", default=[10, 40, 160])
    profile.add_argument("--calibrated", type=int, default=40, help="most for onnxruntime's own")
    sabotage = commands.add_parser("sabotage", help="scaled channels, quantized by us and others")
    sabotage.add_argument("--seeds", type=int, default=8, help="random scalings of each width")
    sabotage.add_argument("--folder", type=Path, help="networks of quantization_networks.py")
    sabotage.add_argument("--networks", nargs="*", help="of these; by default all")
    for tool in TOOLS[1:]:
        sabotage.add_argument(f"--{tool}", help="a Python that has it, for networks of a folder")
    quantize_options(commands.add_parser("quantize", help="networks quantized by us and others"))
    commands.add_parser("cost", help="what quantizing takes; see bench cost --help")
    commands.add_parser("run", help="latency of whole networks; see bench run --help")
    commands.add_parser("weights", help="weights in blocks; see bench weights --help")
    commands.add_parser("microcontroller", help="C; see bench microcontroller --help")
    commands.add_parser("instructions", help="under qemu; see bench instructions --help")
    commands.add_parser("export", help="onnxruntime on what we export; see bench export --help")
    worker = commands.add_parser("measure", help="one measurement (used by the others)")
    worker.add_argument("job")
    worker.add_argument("path")
    if sys.argv[1:2] == ["weights"]:  # its options are its own
        from bench_weights import main as bench_weights

        return bench_weights(sys.argv[2:])
    if sys.argv[1:2] == ["run"]:
        from bench_run import main as bench_run

        return bench_run(sys.argv[2:])
    if sys.argv[1:2] == ["cost"]:
        from bench_cost import main as bench_cost

        return bench_cost(sys.argv[2:])
    if sys.argv[1:2] == ["export"]:
        from bench_export import main as bench_export

        return bench_export(sys.argv[2:])
    if sys.argv[1:2] == ["instructions"]:
        from bench_instructions import main as bench_instructions

        return bench_instructions(sys.argv[2:])
    if sys.argv[1:2] == ["microcontroller"]:
        from bench_microcontroller import main as bench_microcontroller

        return bench_microcontroller(sys.argv[2:])
    arguments = parser.parse_args()
    if arguments.command == "measure":
        print(json.dumps(measure(arguments.job, arguments.path)))
        return 0
    if arguments.command == "profile":
        from bench_profile import bench_profile

        return bench_profile(arguments.samples, arguments.calibrated)
    if arguments.command == "byoc":
        return bench_byoc(arguments.models, arguments.calls)
    if arguments.command == "sabotage":
        from bench_sabotage import bench as bench_sabotage

        return bench_sabotage(
            arguments.seeds, arguments.folder, arguments.networks, pythons_of(arguments)
        )
    if arguments.command == "quantize":
        from bench_quantize import Calibration
        from bench_quantize import bench as bench_quantize
        from bench_quantize_tools import methods

        ways = methods(
            arguments.target, arguments.choosers, pythons_of(arguments), arguments.weights,
            others=not arguments.ours, activations=arguments.activations,
            without=arguments.without,
        )  # fmt: skip
        return bench_quantize(
            arguments.networks, arguments.seed, ways, arguments.json, arguments.folder,
            arguments.weights, Calibration(arguments.samples, arguments.repeat),
        )  # fmt: skip
    return bench_import()


if __name__ == "__main__":
    sys.exit(main())
