"""Runs models between marks for QEMU's plugin ``count_instructions.c``: ``marked_runs.py FILE...``.

Each file (``.onnx`` in onnxruntime, ``openvino=FILE.onnx`` in OpenVINO, ``.tflite`` in LiteRT with
XNNPACK, one thread) runs once, and
then two times between calls of ``getppid``, at which the plugin prints what was executed. It takes
numpy and the engines only, since it runs in a Python of another processor's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np


def data(shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns seeded numbers of a type."""
    rng = np.random.default_rng(1)
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 100, shape).astype(dtype)


def of_onnxruntime(path: str) -> Callable[[], Any]:
    """Returns what runs a file in a default session of one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds: dict[str, Any] = {
        given.name: data(tuple(given.shape), np.float32) for given in session.get_inputs()
    }
    return lambda: session.run(None, feeds)


def of_litert(path: str) -> Callable[[], Any]:
    """Returns what runs a file in LiteRT, with XNNPACK."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path, num_threads=1)
    interpreter.allocate_tensors()
    for given in interpreter.get_input_details():
        interpreter.set_tensor(given["index"], data(tuple(given["shape"]), given["dtype"]))
    return interpreter.invoke


def of_openvino(path: str) -> Callable[[], Any]:
    """Returns what runs a file in OpenVINO, on one thread and in one stream."""
    openvino: Any = import_module("openvino")
    core, one = openvino.Core(), {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    compiled = core.compile_model(core.read_model(path), "CPU", one)
    feeds = [data(tuple(given.shape), np.float32) for given in compiled.inputs]
    run: Callable[[Any], Any] = compiled.create_infer_request().infer
    return lambda: run(feeds)


def main() -> None:
    """Runs the files."""
    for path in sys.argv[1:]:
        engine, _, file = path.rpartition("=")
        of_onnx = of_openvino if engine else of_onnxruntime
        run = of_onnx(file) if path.endswith(".onnx") else of_litert(path)
        run()
        print(f"file: {path}", file=sys.stderr, flush=True)
        for _ in range(2):
            os.getppid()
            run()
            os.getppid()


if __name__ == "__main__":
    main()
