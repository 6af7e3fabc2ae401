"""Latency of whole networks: ours, onnxruntime on floats and on QDQ, and TVM's default.

``scripts/bench run [NETWORK ...]``: networks with random weights (see run_networks.py) are
quantized by onnxruntime's own tool (static, per channel, one sample), with uint8 (u8s8) or int8
(s8s8) activations, or by its ``quantize_dynamic`` (dynamic), and run by every engine in one
process, call after call in turn; what is printed are medians, and medians of the ratios of calls
made next to each other; with ``--busy``, for a machine that others use, the shortest calls and
their ratios, of one thread in seconds of the processor. ``--threads 2`` gives both engines two
threads. ``--openvino`` adds OpenVINO on the same QDQ file (in the environment of the engines, which
has TVM as well), ``--tvm`` TVM's own pipeline (for this machine's CPU), ``--fixed`` ours with open
extents fixed to those of the data, ``--target haswell`` compiles ours for a lesser CPU,
``--memory`` adds the peak memory of compiling, in a process of its own (see compile_memory.py),
``--recenter`` onnxruntime on the file that ``save(recenter=True)`` writes, ``--model`` files of
one's own, run as they are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from bench_target import target_of
from numpy.typing import NDArray
from run_networks import NETWORKS

Array = NDArray[Any]
Feeds = dict[str, Array]
Call = Callable[[], Any]
KINDS = ("u8s8", "s8s8")
DYNAMIC = "dynamic"
EXTENTS = {"sequence": 128}
"""What open extents of these names are while files run."""
RESTS = 0.2
"""Seconds after which TVM's and onnxruntime's threads have given up waiting for more work."""


# ---- models -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A network in float (None where there is no float file) and quantized."""

    name: str
    real: Path | None
    quantized: Path


def subjects(arguments: argparse.Namespace, folder: Path) -> Iterator[Subject]:
    """Yields what is to be measured; files are made where the folder does not have them."""
    for name in arguments.networks or ([] if arguments.model else NETWORKS):
        real = folder / f"{name}.onnx"
        if not real.exists():
            onnx.save(NETWORKS[name](), real)
        for kind in arguments.kinds:
            quantized = folder / f"{name}_{kind}.onnx"
            if not quantized.exists():
                quantize(real, quantized, kind)
            yield Subject(f"{name} {kind}", real, quantized)
    for file in arguments.model:
        name = f"{file.parent.name}/{file.stem}" if file.stem == "model" else file.stem
        yield Subject(name, None, file)


def quantize(source: Path, target: Path, kind: str) -> None:
    """Writes a network as onnxruntime quantizes it: every operator, per channel."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    if kind == DYNAMIC:
        quantize_dynamic(source, target, weight_type=QuantType.QInt8)
        return

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.samples = iter([feeds(source)])

        def get_next(self) -> Feeds | None:
            return next(self.samples, None)

    operators = sorted({node.op_type for node in onnx.load(source).graph.node})
    signed = kind == "s8s8"
    quantize_static(
        str(source),
        str(target),
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        op_types_to_quantize=operators,
        weight_type=QuantType.QInt8,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
        extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
    )


def open_extents(path: Path, data: Feeds) -> dict[str, int]:
    """Returns what the open extents of a file's inputs are in some data, by name."""
    model = onnx.load(path, load_external_data=False)
    return {
        d.dim_param: size
        for value in model.graph.input
        if value.name in data
        for d, size in zip(value.type.tensor_type.shape.dim, data[value.name].shape, strict=True)
        if d.dim_param
    }


def feeds(path: Path) -> Feeds:
    """Returns a seeded input of every float input of a file; 1 for open extents but EXTENTS."""
    rng = np.random.default_rng(1)
    model = onnx.load(path, load_external_data=False)
    made: Feeds = {}
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in constants:
            continue
        type_ = value.type.tensor_type
        shape = [d.dim_value or EXTENTS.get(d.dim_param, 1) for d in type_.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type)
        if dtype.kind == "f":
            made[value.name] = rng.standard_normal(shape).astype(dtype)
        else:
            made[value.name] = rng.integers(0, 100, shape).astype(dtype)
    return made


# ---- engines ----------------------------------------------------------------------------------


def onnxruntime(path: Path, data: Feeds, threads: int, *, optimized: bool = True) -> Call:
    """Returns a call of onnxruntime, with all its optimizations or with none."""
    import onnxruntime as ort

    levels = ort.GraphOptimizationLevel

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.graph_optimization_level = level
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, data)


def ours(
    path: Path, data: Feeds, threads: int, cpu: str, extents: Mapping[str, int] | None = None
) -> tuple[Call, float]:
    """Returns a call of our executable, and the seconds that compiling took.

    Args:
        path: A quantized file.
        data: What it is run on.
        threads: How many threads it has.
        cpu: Its CPU.
        extents: What open extents are fixed to.
    """
    import qdqbridge as qb

    graph = qb.load(path)
    start = time.perf_counter()
    executable = qb.compile(graph, target_of(cpu), threads=threads, extents=extents)
    seconds = time.perf_counter() - start
    held = executable.buffers()
    for name, buffer in held.items():
        buffer[...] = data[name]
    return lambda: executable.run({**data, **held}), seconds


def openvino(path: Path, data: Feeds, threads: int) -> Call:
    """Returns a call of OpenVINO, tuned for latency, in the precision that the file says."""
    import openvino as ov

    settings = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }  # fmt: skip
    request = ov.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    return lambda: request.infer(data, share_inputs=True, share_outputs=True)


def tvm_default(path: Path, data: Feeds) -> Call:
    """Returns a call of what TVM makes of the file by its own importer and pipeline."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(onnx.load(path), keep_params_in_input=False)
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    tensors = [tvm.runtime.tensor(array) for array in data.values()]
    return lambda: machine["main"](*tensors)


def recentred(path: Path, data: Feeds, threads: int) -> tuple[Call, dict[str, str]]:
    """Returns a call of onnxruntime on the re-centred file, and how its outputs compare."""
    import qdqbridge as qb

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        qb.save(qb.load(path), made, recenter=True)
        compared = {
            f"outputs, {what}": difference(
                onnxruntime(path, data, 1, optimized=optimized)(),
                onnxruntime(made, data, 1, optimized=optimized)(),
            )
            for what, optimized in (("optimized", True), ("as written", False))
        }
        return onnxruntime(made, data, threads), compared


def difference(first: Sequence[Array], second: Sequence[Array]) -> str:
    """Returns how many elements of two lists of arrays are not the same bits."""
    count = sum(
        int((a.reshape(-1) != b.reshape(-1)).sum()) for a, b in zip(first, second, strict=True)
    )
    return "equal" if count == 0 else f"{count} of {sum(a.size for a in first)} differ"


def memory(path: Path, cpu: str) -> dict[str, int]:
    """Returns the peak memory of compiling a file in a fresh process, and the bound of it."""
    script = Path(__file__).with_name("compile_memory.py")
    run = subprocess.run(
        [sys.executable, str(script), str(path), cpu], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(run.stdout)
    return {f"{name} MB": round(value) for name, value in found.items()}


# ---- measuring --------------------------------------------------------------------------------


def measure(
    calls: Mapping[str, Call],
    seconds: float,
    rest: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Runs calls in turn for some seconds; returns the time of each, round by round, by a clock.

    Before each call it rests: threads that wait for more work keep their cores busy for a while.
    Then it calls once without a clock: cores have fallen asleep meanwhile, and the next token or
    image would find them awake.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, call in calls.items():
            if rest:
                time.sleep(rest)
                call()
            start = clock()
            call()
            times[name].append(clock() - start)
    return times


def row(subject: Subject, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures one network."""
    data, threads = feeds(subject.quantized), arguments.threads
    own, compiled = ours(subject.quantized, data, threads, arguments.target)
    found: dict[str, Any] = {"network": subject.name, "compile s": round(compiled, 1)}
    calls = {"ours": own, "ort qdq": onnxruntime(subject.quantized, data, threads)}
    if arguments.fixed:
        extents = open_extents(subject.quantized, data)
        calls["fixed"], _ = ours(subject.quantized, data, threads, arguments.target, extents)
    if arguments.openvino:
        calls["openvino"] = openvino(subject.quantized, data, threads)
    if subject.real is not None:
        calls["ort float"] = onnxruntime(subject.real, data, threads)
    if arguments.recenter:
        calls["ort recentred"], compared = recentred(subject.quantized, data, threads)
        found |= compared
    if arguments.memory:
        found |= memory(subject.quantized, arguments.target)
    clock = time.process_time if arguments.busy and threads == 1 else time.perf_counter
    times = measure(calls, arguments.seconds, RESTS if threads > 1 else 0.0, clock)
    if arguments.busy:
        times = {name: [min(values)] for name, values in times.items()}
    if arguments.tvm:
        times |= measure({"tvm": tvm_default(subject.quantized, data)}, 0.0)
    for name, values in times.items():
        found[f"{name} ms"] = round(float(np.median(values)) * 1e3, 3)
    for name in ("ort qdq", "openvino", "ort float", "fixed"):
        if name in times:
            ratios = np.divide(times["ours"], times[name])
            found[f"ours / {name}"] = round(float(np.median(ratios)), 3)
    if "ort recentred" in times:
        ratios = np.divide(times["ort qdq"], times["ort recentred"])
        found["ort qdq / recentred"] = round(float(np.median(ratios)), 2)
    if "tvm" in times:
        found["tvm / ours"] = round(float(np.median(times["tvm"]) / np.median(times["ours"])), 1)
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows as a table."""
    heads = list(dict.fromkeys(key for entry in rows for key in entry))
    lines = [[str(entry.get(head, "")) for head in heads] for entry in rows]
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in [heads, *lines]
    )


def main(argv: Sequence[str]) -> int:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(prog="bench run", description=(__doc__ or "").strip())
    parser.add_argument(
        "networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK",
        help=f"of {', '.join(NETWORKS)}; by default all, or none beside --model",
    )  # fmt: skip
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=(*KINDS, DYNAMIC))
    parser.add_argument("--threads", type=int, default=1, choices=range(1, 257), metavar="N")
    parser.add_argument("--seconds", type=float, default=10.0, help="per network")
    parser.add_argument("--model", nargs="*", type=Path, default=[], help="quantized files")
    parser.add_argument("--folder", type=Path, help="where networks are kept between runs")
    parser.add_argument("--busy", action="store_true", help="the shortest calls, not the middle")
    parser.add_argument("--tvm", action="store_true", help="add TVM's default, which is slow")
    parser.add_argument("--target", default="host", help="CPU of ours, as LLVM names it")
    parser.add_argument("--memory", action="store_true", help="add peak memory of compiling")
    parser.add_argument("--fixed", action="store_true", help="add ours with its extents fixed")
    parser.add_argument("--openvino", action="store_true", help="add OpenVINO on the file")
    parser.add_argument("--recenter", action="store_true", help="add the re-centred file")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows: list[dict[str, Any]] = []
        for subject in subjects(arguments, folder):
            rows.append(row(subject, arguments))
            print(rows[-1]["network"], file=sys.stderr)
    print(json.dumps(rows, indent=1) if arguments.json else table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
