"""What profiling and searching for ranges cost: ``scripts/bench profile``.

A network like ResNet-18 with random weights, 224 x 224, one thread. Times are CPU seconds, and only
those measured in turn in one process are compared; peak memory is that of a process of its own.
"""

from __future__ import annotations

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

LIMITS = {"extremes": 1.25, "everything": 1.6}
"""Largest medians over the plain forward pass."""
SEARCH = 10.0
"""Largest mean of milliseconds per tensor of a chooser."""
SIZE, ROUNDS = 224, 24
CALIBRATORS = ("MinMax", "Entropy", "Percentile")


class _Network:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def add(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def conv(self, x: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        inside, outside = channels
        spread = np.sqrt(1 / (inside * kernel * kernel))
        weight = self.rng.standard_normal((outside, inside, kernel, kernel)) * spread
        name = f"w{len(self.nodes)}"
        operands = [x, self.constant(name, weight)]
        operands.append(self.constant(f"{name}_b", self.rng.standard_normal(outside) * 0.1))
        return self.add("Conv", operands, kernel_shape=[kernel] * 2, strides=[stride] * 2,
                        pads=[kernel // 2] * 4)  # fmt: skip


def write_resnet(path: Path) -> None:
    """Writes ResNet-18 as an exporter does: batch normalizations in the convolutions."""
    net = _Network()
    x = net.add("Relu", [net.conv("x", (3, 64), 7, 2)])
    x = net.add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inside = 64
    for outside in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if inside != outside and block == 0 else 1
            y = net.add("Relu", [net.conv(x, (inside, outside), 3, stride)])
            y = net.conv(y, (outside, outside), 3)
            short = x if inside == outside else net.conv(x, (inside, outside), 1, stride)
            x = net.add("Relu", [net.add("Add", [y, short])])
            inside = outside
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])])
    operands = [x, net.constant("fc", net.rng.standard_normal((1000, 512)) * 0.05)]
    x = net.add("Gemm", [*operands, net.constant("fc_b", np.zeros(1000))], transB=1)
    graph = helper.make_graph(
        net.nodes,
        "resnet18",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n", 1000])],
        net.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


def write_images(path: Path, count: int) -> None:
    """Writes ``count`` random images."""
    images = np.random.default_rng(1).standard_normal((count, 3, SIZE, SIZE), np.float32)
    np.savez(path, x=images)


# ---- time --------------------------------------------------------------------------------------


def measure_time(model: str) -> dict[str, float]:
    """Returns median CPU milliseconds per sample, engines in turn in one process."""
    import qdqbridge
    from qdqbridge.autoquant.profiling.collect import onnxruntime_observer
    from qdqbridge.autoquant.profiling.profile import sample_hash
    from qdqbridge.targets.running import Runner

    graph = qdqbridge.load(model)
    plain = Runner(graph, threads=1)
    rng = np.random.default_rng(0)

    def observed(histograms: bool) -> Callable[[dict[str, Any]], object]:
        observer = onnxruntime_observer(graph, histograms=histograms, threads=1)
        return lambda sample: (sample_hash(sample), observer.observe(sample))

    jobs = {"forward": plain.run, "extremes": observed(False), "everything": observed(True)}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS + 2):
        sample = {"x": rng.standard_normal((1, 3, SIZE, SIZE), np.float32)}
        for name, job in jobs.items():
            start = time.process_time()
            job(sample)
            times[name].append(time.process_time() - start)
    return {name: float(np.median(each[2:])) * 1e3 for name, each in times.items()}


# ---- searching ---------------------------------------------------------------------------------


def measure_search(model: str) -> dict[str, float]:
    """Returns CPU milliseconds per tensor: of every chooser of ours, and of onnxruntime's search.

    Both see the same four samples; onnxruntime's histograms have 2048 bins and 128 levels, for with
    its own 128 bins there is nothing to search.
    """
    import qdqbridge
    from qdqbridge.autoquant.choosers import CHOOSERS, Context
    from qdqbridge.autoquant.planning.targets import S8, U8

    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((4, 3, SIZE, SIZE), np.float32)}
    seen = [e.stats for e in qdqbridge.profile(model, data, threads=1).tensors.values()]
    found: dict[str, float] = {}
    for name, chooser in CHOOSERS.items():
        start = time.process_time()
        for stats in seen:
            for format in (U8, S8):
                chooser(stats, format, Context())
        found[name] = (time.process_time() - start) / (2 * len(seen)) * 1e3
    return {**found, **_search_of_onnxruntime(model, data["x"])}


def _search_of_onnxruntime(model: str, images: np.ndarray) -> dict[str, float]:
    from onnxruntime.quantization.calibrate import HistogramCollector

    import qdqbridge
    from qdqbridge.autoquant.profiling.collect import observable
    from qdqbridge.targets.running import Runner

    graph = qdqbridge.load(model)
    values = observable(graph)
    runner = Runner(graph, values, threads=1)
    arrays = [runner.run({"x": image[None]}) for image in images]
    found: dict[str, float] = {}
    for method in ("entropy", "percentile"):
        collector = HistogramCollector(method, False, 2048, 128, 99.999, None)
        collector.collect({v.name: [a[i] for a in arrays] for i, v in enumerate(values)})
        start = time.process_time()
        collector.compute_collection_result()
        spent = time.process_time() - start
        found[f"onnxruntime's {method}"] = spent / len(values) * 1e3
    return found


# ---- memory ------------------------------------------------------------------------------------


def measure_memory(what: str, model: str, data: str) -> dict[str, float]:
    """Runs one profile or calibration; returns its CPU seconds and the peak of memory in MB."""
    start = time.process_time()
    if what in CALIBRATORS:
        _calibrate(what, model, data)
    else:
        import qdqbridge

        qdqbridge.profile(model, data, histograms=what == "everything", threads=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": time.process_time() - start, "MB": peak}


def _calibrate(what: str, model: str, data: str) -> None:
    import onnxruntime
    from onnxruntime.quantization import CalibrationMethod, create_calibrator
    from onnxruntime.quantization.calibrate import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            with np.load(data) as arrays:
                self.samples: Iterator[Any] = iter(arrays["x"])

        def get_next(self) -> Any:
            sample = next(self.samples, None)
            return None if sample is None else {"x": sample[None]}

    with tempfile.TemporaryDirectory() as folder:
        calibrator = create_calibrator(
            Path(model), None, str(Path(folder) / "augmented.onnx"), CalibrationMethod[what]
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        calibrator.infer_session = onnxruntime.InferenceSession(
            calibrator.augmented_model_path, options, providers=["CPUExecutionProvider"]
        )
        calibrator.collect_data(Reader())
        calibrator.compute_data()


# ---- the report --------------------------------------------------------------------------------


def _own_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def bench_profile(counts: list[int], calibrated: int) -> int:
    """Prints what profiling costs; returns 1 where a limit is exceeded.

    Args:
        counts: Numbers of samples whose peaks of memory are compared.
        calibrated: Samples up to which onnxruntime's calibrators are run beside.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "resnet18.onnx"
        write_resnet(model)
        times = _own_process("time", str(model))
        plain = times.pop("forward")
        print(f"forward pass {plain:.1f} ms")
        missed = 0
        for name, each in times.items():
            ratio = each / plain
            missed += ratio > LIMITS[name]
            print(f"{name} {each:.1f} ms, {ratio:.2f} times (at most {LIMITS[name]})")
        for name, each in _own_process("search", str(model)).items():
            ours = not name.startswith("onnxruntime")
            missed += ours and each > SEARCH
            limit = f" (at most {SEARCH:g})" if ours else ""
            print(f"search by {name}: {each:.2f} ms per tensor{limit}")
        for count in counts:
            data = Path(folder) / f"{count}.npz"
            write_images(data, count)
            for what in ("extremes", "everything", *CALIBRATORS):
                if what in CALIBRATORS and count > calibrated:
                    continue
                found = _own_process("memory", what, str(model), str(data))
                each = found["seconds"] / count * 1e3
                print(f"{what}, {count} samples: {found['MB']:.0f} MB, {each:.0f} ms per sample")
            data.unlink()
    return 1 if missed else 0


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    jobs = {"time": measure_time, "search": measure_search, "memory": measure_memory}
    print(json.dumps(jobs[kind](*rest)))
