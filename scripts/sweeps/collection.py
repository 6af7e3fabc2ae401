"""Every model below a folder, whatever it is, through everything; one CSV row each and a table.

For files without data or reference of their own (:mod:`sweep` is for those that have them). Inputs
are random; the reference is onnxruntime here and now, graph optimizations disabled. For each file:
read and canonicalize, or the refusal; whether onnxruntime runs it; the interpreter's outputs
against onnxruntime's, and node by node the causes of differences; TVM against the interpreter;
the digest of what is exported, and what onnxruntime computes with it.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import qdqbridge as qb
from qdqbridge.app.pipeline import session
from qdqbridge.core.graph.dtypes import DType

FIELDS: tuple[str, ...] = (
    "folder", "file", "status", "onnxruntime", "outputs", "max_lsb", "max_abs", "causes",
    "unexplained", "tvm", "export", "export_equal", "seconds",
)  # fmt: skip
Arrays = Mapping[str, np.ndarray]
SYMBOLIC = 2


def row_of(path: Path) -> dict[str, Any]:
    """Returns the CSV row of one file."""
    row: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        graph = qb.load(path)
        row["status"] = "read"
        inputs = _inputs(graph)
        row |= _reference(graph, path, inputs)
        row |= _tvm(graph, inputs)
        row |= _export(graph, path, inputs)
    except qb.QdqBridgeError as error:
        word = "refused" if "status" not in row else "read, then"
        row["status"] = f"{word}: {type(error).__name__}: {error.what} ({error.why[:160]})"
    except Exception as error:  # a bug of ours: recorded, and the rest goes on
        row["status"] = f"CRASH {error!r}"[:300]
    row["seconds"] = round(time.perf_counter() - start, 1)
    return row


def _inputs(graph: qb.Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for value in graph.inputs:
        shape = [d if isinstance(d, int) else SYMBOLIC for d in value.type.shape or ()]
        dtype = value.type.dtype.numpy
        if value.type.dtype.is_float:
            arrays[value.name] = rng.normal(0, 1, shape).astype(dtype)
        elif value.type.dtype in (DType.INT64, DType.INT32):
            arrays[value.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            arrays[value.name] = rng.integers(-100, 100, shape).astype(dtype)
    return arrays


def _reference(graph: qb.Graph, path: Path, inputs: Arrays) -> dict[str, Any]:
    ours = qb.evaluate(graph, inputs)
    try:
        theirs = session(path).run(inputs, graph.output_names)
    except qb.QdqBridgeError as error:
        return {"onnxruntime": f"no: {error.why[:160]}"}
    found = [_difference(ours[n], theirs[n]) for n in graph.output_names]
    row = {"onnxruntime": "yes", "outputs": "equal" if not any(found) else "differ",
           "max_abs": max(found, default=0)}  # fmt: skip
    local = qb.compare(graph, path, inputs, local=True)
    causes: Counter[str] = Counter()
    for value in local.values:
        causes.update(value.causes)
    counted = sum(value.count for value in local.values)
    listed = " ".join(f"{cause}={count}" for cause, count in sorted(causes.items()))
    row |= {"causes": f"{counted}: {listed}", "unexplained": local.unexplained}
    return row | {"max_lsb": local.max_lsb}


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.dtype == object or np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return 0.0 if np.array_equal(a, b, equal_nan=a.dtype.kind == "f") else float("inf")
    return float(np.nanmax(np.abs(a.astype(np.float64) - b.astype(np.float64))))


def _tvm(graph: qb.Graph, inputs: Arrays) -> dict[str, Any]:
    try:
        executable = qb.compile(graph)
        ours, theirs = executable.run(inputs), qb.evaluate(graph, inputs)
    except qb.QdqBridgeError as error:
        return {"tvm": f"refused: {error.what} ({error.why[:120]})"}
    largest = max((_difference(ours[n], theirs[n]) for n in theirs), default=0.0)
    return {"tvm": "equal" if largest == 0 else f"differs by {largest:.3g}"}


def _export(graph: qb.Graph, path: Path, inputs: Arrays) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "exported.onnx"
        try:
            qb.save(graph, exported)
        except qb.QdqBridgeError as error:
            return {"export": f"refused: {error.what} ({error.why[:120]})"}
        same = qb.load(exported).digest == graph.digest
        row = {"export": "same digest" if same else "ANOTHER DIGEST"}
        try:
            a, b = (session(p).run(inputs, graph.output_names) for p in (exported, path))
        except qb.QdqBridgeError as error:
            return row | {"export_equal": f"no: {error.why[:120]}"}
        worst = max((_difference(a[n], b[n]) for n in graph.output_names), default=0.0)
        return row | {"export_equal": "equal" if worst == 0 else f"differs by {worst:.3g}"}


def _table(rows: Iterable[Mapping[str, Any]]) -> None:
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        count = counts.setdefault(str(row["folder"]), Counter())
        count["files"] += 1
        count["read"] += str(row["status"]).startswith("read")
        count["refused"] += str(row["status"]).startswith("refused")
        count["compared"] += row.get("onnxruntime") == "yes"
        count["equal"] += row.get("outputs") == "equal"
        count["unexplained"] += int(row.get("unexplained") or 0)
        count["tvm runs"] += not str(row.get("tvm", "refused")).startswith("refused")
        count["tvm equal"] += row.get("tvm") == "equal"
        count["same digest"] += row.get("export") == "same digest"
        count["export equal"] += row.get("export_equal") == "equal"
    names = list(next(iter(counts.values()), ()))
    print("| folder | " + " | ".join(names) + " |")
    for folder, count in counts.items():
        print(f"| {folder} | " + " | ".join(str(count[name]) for name in names) + " |")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("collection.csv"))
    parser.add_argument("--only", nargs="*", default=[], help="words that the name must contain")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for path in sorted(arguments.folder.rglob("*.onnx")):
            name = str(path.relative_to(arguments.folder))
            if not all(word in name for word in arguments.only):
                continue
            row = {"folder": name.partition("/")[0], "file": path.name, **row_of(path)}
            writer.writerow(row)
            file.flush()
            rows.append(row)
            print(f"{name}: {row['status']}", file=sys.stderr)
    _table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
