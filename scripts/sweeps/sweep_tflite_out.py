"""Every model of folders as a TFLite file: written or refused, run in LiteRT, read back.

One CSV row per file; with ``--resume`` files that have a row already are passed over. For each:
whether it is written, or what refuses it; its size against its weights'; the digest of the file
read back against the one that was written; the outputs in LiteRT against the interpreter's, and
the largest difference of any quantized node on LiteRT's own operands, for each set of kernels.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.tflite_io.litert import (
    Kernels,
    LiteRTSession,
    NodeDifference,
    node_differences,
    shapes_of,
)
from qdqbridge.tflite_io.writer import TFLiteModel, write

FIELDS: tuple[str, ...] = (
    "file", "status", "operators", "islands", "requantized", "bytes", "weights", "digest_kept",
    "reference", "builtin", "xnnpack", "reference_lsb", "builtin_lsb", "xnnpack_lsb", "worst",
    "argmax", "seconds",
)  # fmt: skip
Arrays = Mapping[str, np.ndarray]


def row_of(path: Path, kinds: tuple[Kernels, ...]) -> dict[str, Any]:
    """Returns the CSV row of one file."""
    row: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        graph = qb.load(path)
        if not any(value.quant is not None for value in graph.values()):
            row["status"] = "float"
            return row
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "model.tflite"
            try:
                made = write(graph, out)
            except qb.QdqBridgeError as error:
                row["status"] = f"refused: {error.what}: {error.why[:300]}"
                return row
            row["status"] = "written"
            row["operators"] = len(made.model.operators)
            row["islands"] = sum(note.rule == "float-region" for note in made.notes)
            row["requantized"] = len(made.notes) - row["islands"]
            row["bytes"], row["weights"] = out.stat().st_size, weights_of(made)
            row["digest_kept"] = int(qb.load(out).digest == made.digest)
        row |= run(graph, made, path, kinds)
    except qb.QdqBridgeError as error:
        row["status"] = f"{row.get('status', 'unread')}, then {type(error).__name__}: {error}"[:400]
    except Exception as error:  # a bug of ours: recorded, and the rest goes on
        row["status"] = f"{row.get('status', '')} CRASH {error!r}"[:400]
    finally:
        row["seconds"] = round(time.perf_counter() - start, 2)
    return row


def weights_of(made: TFLiteModel) -> int:
    """Returns the bytes of the constants that the graph itself has."""
    seen: dict[object, int] = {}
    for node in made.graph.nodes:
        for value in node.inputs:
            if value is not None and value.constant is not None:
                constant = value.constant
                seen[id(constant)] = (constant.size * constant.dtype.bits + 7) // 8
    return sum(seen.values())


def run(graph: Graph, made: TFLiteModel, path: Path, kinds: tuple[Kernels, ...]) -> dict[str, Any]:
    """Returns what LiteRT makes of a file with each set of kernels."""
    row: dict[str, Any] = {}
    inputs = feeds(made, path)
    original = qb.evaluate(graph, inputs)
    for kernels in kinds:
        name = kernels.name.lower()
        try:
            found = node_differences(made, inputs, kernels)
        except qb.QdqBridgeError as error:
            row[name] = f"refused: {error.why[:200]}"
            continue
        row[name] = "ran"
        rounded = [d for d in found if d.value.quant is not None]
        worst = max(rounded, key=lambda d: d.largest, default=None)
        row[f"{name}_lsb"] = "" if worst is None else int(worst.largest)
        if worst is not None and worst.largest > 1 and not row.get("worst"):
            row["worst"] = _words(worst)
    if any(row.get(kernels.name.lower()) == "ran" for kernels in kinds):
        row["argmax"] = _agreement(outputs(made, inputs), original)
    return row


def _words(found: NodeDifference) -> str:
    part = found.different / max(found.count, 1)
    return f"{found.node.op.name} {found.node.name}: {found.largest:g} LSB, {part:.2%} differ"


def outputs(made: TFLiteModel, inputs: Arrays) -> dict[str, np.ndarray]:
    """Returns what LiteRT computes as it is installed, with XNNPACK."""
    model = made.model
    fed = dict(zip(model.inputs, (inputs[name] for name in model.input_names), strict=True))
    found = LiteRTSession(model.tobytes()).run(fed, model.outputs)
    return dict(zip(model.output_names, (found[i] for i in model.outputs), strict=True))


def feeds(made: TFLiteModel, path: Path) -> dict[str, np.ndarray]:
    """Returns the file's own inputs where it has some, else random ones."""
    shapes, rng = shapes_of(made, 2), np.random.default_rng(0)
    beside = path.parent / "inputs.npz"
    stored = dict(np.load(beside)) if beside.exists() else {}
    found: dict[str, np.ndarray] = {}
    for value in made.graph.inputs:
        shape, dtype = shapes[value.name], value.type.dtype.numpy
        array = stored.get(value.name)
        if array is not None and array.shape[1:] == shape[1:] and array.dtype == dtype:
            whole = isinstance((value.type.shape or (0,))[0], str)
            found[value.name] = array if whole else array[: shape[0]]
        else:
            found[value.name] = _random(rng, shape, dtype)
    return found


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if np.issubdtype(dtype, np.floating):
        return rng.normal(size=shape).astype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    return rng.integers(max(info.min, -128), min(info.max, 255) + 1, shape).astype(dtype)


def _agreement(ours: Arrays, original: Arrays) -> str:
    """Returns the share of equal argmax along the last axis, of results with more than one."""
    same = count = 0
    for name, array in ours.items():
        if name not in original or array.ndim < 2 or array.shape[-1] < 2:
            continue
        if array.shape != original[name].shape or array.dtype == np.bool_:
            continue
        equal = array.argmax(-1) == original[name].argmax(-1)
        same, count = same + int(equal.sum()), count + equal.size
    return f"{same / count:.4f}" if count else ""


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there")
    parser.add_argument("--largest", type=float, default=50, help="megabytes of a file at most")
    parser.add_argument("--kernels", default="reference,builtin,xnnpack")
    args = parser.parse_args()
    kinds = tuple(Kernels[name.upper()] for name in args.kernels.split(","))
    done: set[str] = set()
    if args.resume and args.csv.exists():
        with args.csv.open(newline="") as file:
            done = {row["file"] for row in csv.DictReader(file)}
    fresh = not done
    counts: Counter[str] = Counter()
    with args.csv.open("w" if fresh else "a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore")
        if fresh:
            writer.writeheader()
        for path in models(args.folders, args.largest):
            if str(path) in done:
                continue
            row = {"file": str(path), **row_of(path, kinds)}
            writer.writerow(row)
            file.flush()
            counts[row["status"].split(":")[0].split(",")[0]] += 1
    print(dict(counts), file=sys.stderr)
    return 0


def models(folders: list[Path], megabytes: float) -> Iterator[Path]:
    """Yields the ONNX files of folders, sorted."""
    for folder in folders:
        for path in sorted(folder.rglob("*.onnx")) if folder.is_dir() else [folder]:
            if path.stat().st_size <= megabytes * (1 << 20):
                yield path


if __name__ == "__main__":
    sys.exit(main())
