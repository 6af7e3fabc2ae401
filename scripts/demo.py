"""The whole way of one quantized model: read, canonicalize, build, run, export, read again.

Every line of the printed table is measured in this run. Exits with 1 if an equality that qdqbridge
promises does not hold.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import qdqbridge as qb

MODELS = Path(__file__).resolve().parent.parent / "models"
MODEL = MODELS / "digits_cnn_u8s8_per_channel.onnx"
Floats = NDArray[np.float32]


def main() -> int:
    with np.load(MODELS / "digits_test.npz") as data:
        images, labels = data["x"], data["labels"]
    table = Table("step", title=MODEL.name)
    table.add_column("result", overflow="fold")

    graph = qb.load(MODEL)
    table.add_row("nodes in the file", str(len(onnx.load(MODEL).graph.node)))
    table.add_row("nodes as read", str(len(qb.load(MODEL, canonical=False).nodes)))
    table.add_row("nodes, canonical", str(len(graph.nodes)))
    table.add_row("operators", ", ".join(node.op.name for node in graph.nodes))
    table.add_row("digest", graph.digest)

    start = time.perf_counter()
    executable = qb.compile(graph)
    table.add_row("TVM build", f"{time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    on_tvm = executable.run({"input": images})["logits"]
    seconds = time.perf_counter() - start
    table.add_row(f"TVM, {len(images)} images", f"{seconds:.2f} s, {accuracy(on_tvm, labels)}")
    original = run_onnxruntime(MODEL, images)
    table.add_row("onnxruntime", accuracy(original, labels))
    table.add_row("equal outputs", share(on_tvm == original))
    table.add_row("equal predictions", share(on_tvm.argmax(axis=1) == original.argmax(axis=1)))

    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "exported.onnx"
        qb.save(graph, exported, profile="ort")
        promises = {
            "the exported file gives the original's outputs": np.array_equal(
                run_onnxruntime(exported, images), original
            ),
            "the exported file has the original's digest": qb.load(exported).digest == graph.digest,
        }
    for promise, kept in promises.items():
        table.add_row(promise, "yes" if kept else "[bold red]NO")

    Console().print(table)
    return 0 if all(promises.values()) else 1


def run_onnxruntime(path: Path, images: Floats) -> Floats:
    """The reference: onnxruntime on the CPU, node by node, without graph optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3  # the file has unused constants, each worth a warning
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], {"input": images})[0])


def accuracy(logits: Floats, labels: NDArray[np.int64]) -> str:
    return f"{(logits.argmax(axis=1) == labels).mean():.2%} right"


def share(equal: NDArray[np.bool_]) -> str:
    return f"{equal.sum()} of {equal.size}"


if __name__ == "__main__":
    sys.exit(main())
