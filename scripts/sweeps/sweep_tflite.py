"""Every TFLite file of a folder, read and run beside LiteRT, into one CSV file.

``python scripts/sweeps/sweep_tflite.py FOLDER -o sweep.csv``. For each file: read and
canonicalize; save as ONNX and load again (is the digest the same?); run the interpreter and
LiteRT on the same random numbers, and compare: the largest difference, in steps for quantized
outputs, relative to the largest magnitude for others, and whether the largest element is the same
one.

LiteRT runs without delegates, so that its own kernels are what is compared.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import qdqbridge as qb

FIELDS = (
    "file", "status", "nodes", "digest", "again", "outputs", "largest", "unit", "argmax", "seconds",
)  # fmt: skip
Array = np.ndarray[Any, Any]


def row(path: Path) -> dict[str, Any]:
    """Returns the CSV row of one file."""
    found: dict[str, Any] = {"file": path.name}
    start = time.perf_counter()
    try:
        graph = qb.load(path)
        found |= {"nodes": len(graph.nodes), "digest": graph.digest[:16]}
        found["again"] = _again(graph)
        found |= _compared(graph, path)
        found["status"] = found.get("status", "ok")
    except qb.QdqBridgeError as error:
        found["status"] = f"{type(error).__name__}: {error.what} ({error.why[:200]})"
    except Exception as error:  # a bug of ours: recorded, and the sweep goes on
        found["status"] = f"CRASH {error!r}"[:300]
    return found | {"seconds": round(time.perf_counter() - start, 1)}


def _again(graph: qb.Graph) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.onnx"
        qb.save(graph, path)
        return qb.load(path).digest == graph.digest


def _compared(graph: qb.Graph, path: Path) -> dict[str, Any]:
    litert: Any = import_module("ai_edge_litert.interpreter")
    rng = np.random.default_rng(0)
    try:
        interpreter = litert.Interpreter(
            str(path), num_threads=1,
            experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )  # fmt: skip
        interpreter.allocate_tensors()
        feeds = _fed(interpreter, rng)
        interpreter.invoke()
    except (RuntimeError, ValueError) as error:  # LiteRT refuses with either
        return {"status": f"read; LiteRT: {str(error).splitlines()[0][:120]}"}
    wanted = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
    for value in graph.inputs:  # variables, which begin as real zeros
        if value.name not in feeds:
            shape = [extent if isinstance(extent, int) else 1 for extent in value.type.shape or ()]
            zero = value.quant.params.zero_point.item() if value.quant else 0
            feeds[value.name] = np.full(shape, zero, value.type.dtype.numpy)
    got = list(qb.evaluate(graph, feeds).values())[: len(wanted)]
    return _differences(got, wanted)


def _fed(interpreter: Any, rng: np.random.Generator) -> dict[str, Array]:
    """Gives LiteRT random inputs, and returns them."""
    feeds: dict[str, Array] = {}
    for details in interpreter.get_input_details():
        dtype, shape = np.dtype(details["dtype"]), details["shape"]
        if dtype.kind == "f":
            array = rng.uniform(-1, 1, shape)
        else:
            info = np.iinfo(np.uint8 if dtype.kind == "b" else dtype)
            array = rng.integers(max(info.min, -100), min(info.max, 100), shape)
        feeds[details["name"]] = array.astype(dtype)
        interpreter.set_tensor(details["index"], feeds[details["name"]])
    return feeds


def _differences(got: list[Array], wanted: list[Array]) -> dict[str, Any]:
    largest, same, unit = 0.0, True, "steps"
    for ours, theirs in zip(got, wanted, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return {"status": f"OTHER {ours.dtype}{ours.shape} {theirs.dtype}{theirs.shape}"}
        if not ours.size:
            continue
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        apart = float(np.abs(a - b).max())
        if ours.dtype.kind == "f":
            unit, apart = "of the largest", apart / max(float(np.abs(b).max()), 1e-30)
        largest = max(largest, apart)
        same = same and bool(a.argmax() == b.argmax())
    return {"outputs": len(wanted), "largest": f"{largest:.3g}", "unit": unit, "argmax": same}


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("sweep_tflite.csv"))
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with arguments.output.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        writer.writeheader()
        for path in sorted(arguments.folder.rglob("*.tflite")):
            rows.append(row(path))
            writer.writerow(rows[-1])
            stream.flush()
            print(*(f"{key}={rows[-1][key]}" for key in FIELDS if key in rows[-1]), flush=True)
    status = Counter(str(each["status"]).split(":")[0] for each in rows)
    kept = sum(each.get("again") is True for each in rows)
    alike = sum(each.get("argmax") is True for each in rows)
    print(f"{len(rows)} files: {dict(status)}; digest kept {kept}, same largest element {alike}")
    return int(any(each["status"].startswith(("CRASH", "OTHER")) for each in rows))


if __name__ == "__main__":
    sys.exit(main())
