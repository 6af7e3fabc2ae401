"""Files that we write beside those of onnx2tf: what is integer, how far results are, how long.

``python scripts/beside_onnx2tf.py --onnx2tf VENV/bin/onnx2tf FILES``: each model is written by us,
and converted by onnx2tf as it is and with ``-oiqt`` (full integer, calibrated on the same inputs);
all of them run in LiteRT on ``inputs.npz`` beside the file (or random numbers). Results are
compared with the interpreter's, which are onnxruntime's: the largest difference, in steps of the
output's scale where it has one (else in parts of the largest number), and the share of equal
argmax.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.rewrite.rule import stored_behind
from qdqbridge.tflite_io.schema import parsed
from qdqbridge.tflite_io.writer import write

Array = np.ndarray[Any, Any]
_FLOATS = ("QUANTIZE", "DEQUANTIZE")
_SAMPLES = 48
HEAD = "| file | by | converted | integer operators | bytes | difference | argmax | seconds |"


def rows(path: Path, program: Path, folder: Path) -> Iterator[str]:
    """Yields the rows of one file: ours, onnx2tf's, and that with full integers."""
    graph = qb.load(path)
    (value,) = graph.inputs
    inputs = _inputs(path, graph)
    meant = _samples(graph, value.name, inputs)
    name = path.parent.name if path.stem == "model" else path.stem
    start = time.perf_counter()
    try:
        write(graph, folder / "ours.tflite", overwrite=True)
        ours = _row(folder / "ours.tflite", graph, inputs, meant)
    except qb.QdqBridgeError as error:
        ours = f"refused: {error.why[:80]} | | | | "
    yield f"| {name} | qdqbridge | {ours} | {time.perf_counter() - start:.1f} |"
    np.save(folder / "data.npy", _last(inputs, True))
    shape = [1] * (inputs.ndim - 1) + [inputs.shape[1] if inputs.ndim == 4 else inputs.shape[-1]]
    zeros, ones = (str(np.full(shape, n).tolist()).replace(" ", "") for n in (0.0, 1.0))
    calibrated = ["-oiqt", "-cind", value.name, str(folder / "data.npy"), zeros, ones]
    for label, more, suffix in (
        ("onnx2tf", [], "_float32"),
        ("onnx2tf -oiqt", calibrated, "_full_integer_quant"),
    ):
        start = time.perf_counter()
        out = folder / label.replace(" ", "")
        try:
            done = subprocess.run(
                [str(program), "-i", str(path), "-o", str(out), "-n", *more],
                capture_output=True, text=True, timeout=600, check=False, cwd=folder,
            )  # fmt: skip
            made = next(iter(out.glob(f"*{suffix}.tflite")), None) if out.exists() else None
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            found = (
                f"ends with {done.returncode}: {' '.join(words)[:70].replace('|', '/')} | | | | "
                if made is None
                else _row(made, graph, inputs, meant)
            )
        except subprocess.TimeoutExpired:
            found = "not in 600 s | | | | "
        yield f"| {name} | {label} | {found} | {time.perf_counter() - start:.1f} |"


def _inputs(path: Path, graph: Graph) -> Array:
    (value,) = graph.inputs
    beside = path.parent / "inputs.npz"
    if beside.exists():
        return np.load(beside)[value.name][:_SAMPLES]
    shape = [e if isinstance(e, int) else 1 for e in (value.type.shape or ())]
    rng = np.random.default_rng(0)
    return rng.uniform(0, 1, (_SAMPLES, *shape[1:])).astype(np.float32)


def _samples(graph: Graph, name: str, inputs: Array) -> Array:
    first = (graph.inputs[0].type.shape or (1,))[0]
    step = first if isinstance(first, int) else len(inputs)
    found = [
        qb.evaluate(graph, {name: inputs[at : at + step]})[graph.output_names[0]]
        for at in range(0, len(inputs) - step + 1, step)
    ]
    return np.concatenate(found)


def _row(path: Path, graph: Graph, inputs: Array, meant: Array) -> str:
    """Returns the cells of one file: converted, integers, bytes, difference, argmax."""
    data = path.read_bytes()
    (main, *_) = parsed(data, str(path)).subgraphs
    kinds = Counter(main.tensors[op.outputs[0]].type for op in main.ops if op.name not in _FLOATS)
    whole = sum(kinds.values())
    size = f"{whole - kinds['FLOAT32']} of {whole} | {len(data):,}"
    try:
        got = _run(data, inputs, meant)
    except (ValueError, RuntimeError) as error:
        return f"yes | {size} | does not run: {str(error)[:60]} | "
    stored = stored_behind(graph.outputs[0])
    far = float(np.abs(got.astype(np.float64) - meant).max())
    if stored is not None and stored.quant is not None:
        told = f"{far / float(stored.quant.params.scale):.2f} steps"
    else:
        told = f"{far / float(np.abs(meant).max()):.2e}"
    return f"yes | {size} | {told} | {(got.argmax(-1) == meant.argmax(-1)).mean():.1%}"


def _run(data: bytes, inputs: Array, meant: Array) -> Array:
    from ai_edge_litert.interpreter import Interpreter

    interpreter: Any = Interpreter(model_content=data)
    (entry,), (result, *_) = interpreter.get_input_details(), interpreter.get_output_details()
    last = tuple(entry["shape"][1:]) != inputs.shape[1:]
    step = int(entry["shape"][0])
    interpreter.allocate_tensors()
    found: list[Array] = []
    for at in range(0, len(meant) - step + 1, step):
        batch = _last(inputs[at : at + step], last)
        interpreter.set_tensor(entry["index"], _stored(batch, entry))
        interpreter.invoke()
        found.append(_real(interpreter.get_tensor(result["index"]), result))
    return np.concatenate(found).reshape(meant.shape)


def _stored(array: Array, entry: Any) -> Array:
    if np.issubdtype(entry["dtype"], np.floating):
        return array
    scale, zero = entry["quantization"]
    info = np.iinfo(entry["dtype"])
    return np.clip(np.rint(array / scale) + zero, info.min, info.max).astype(entry["dtype"])


def _real(array: Array, entry: Any) -> Array:
    if np.issubdtype(entry["dtype"], np.floating):
        return array
    scale, zero = entry["quantization"]
    return (array.astype(np.float32) - zero) * np.float32(scale)


def _last(array: Array, wanted: bool) -> Array:
    return array.transpose(0, 2, 3, 1) if wanted and array.ndim == 4 else array


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--onnx2tf", type=Path, required=True, help="its program")
    arguments = parser.parse_args()
    print(f"{HEAD}\n|{'---|' * 8}", flush=True)
    for path in arguments.files:
        with tempfile.TemporaryDirectory() as folder:
            for row in rows(path.resolve(), arguments.onnx2tf.absolute(), Path(folder)):
                print(row, flush=True)


if __name__ == "__main__":
    main()
