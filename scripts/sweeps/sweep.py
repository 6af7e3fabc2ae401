"""Every model of a folder, through everything, into one CSV file.

The folder holds a ``manifest.csv`` with a column ``file``; beside each model lie ``inputs.npz`` and
``reference.npz`` (onnxruntime, graph optimizations disabled). For each model: read, canonicalize,
verify; compile with TVM; compare TVM with the interpreter on every quantized value and with the
reference on the outputs; compare the interpreter node by node with onnxruntime on the operands that
onnxruntime recorded, and name the cause of every difference; export, re-read (digest), and run the
exported file in onnxruntime (outputs against the original's, bit for bit).

A model whose digest was seen before is not compiled again: its graph is the same. ``--every 9``
takes every ninth file of the manifest, ``--first 4`` begins with the fifth one.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import qdqbridge as qb
from qdqbridge.app.pipeline import session
from qdqbridge.core.graph.batches import batches

FIELDS = (
    "file", "status", "nodes", "islands", "digest", "tvm_values", "tvm_mismatches",
    "reference_count", "reference_mismatches", "reference_max_lsb", "top1",
    "local_count", "local_causes", "export_digest", "export_equal", "seconds",
)  # fmt: skip
Arrays = Mapping[str, np.ndarray]


class Sweep:
    """Runs models and remembers what it compiled."""

    def __init__(self, *, local: bool) -> None:
        self.compiled: dict[str, Any] = {}
        self.local = local

    def row(self, path: Path) -> dict[str, Any]:
        """Returns the CSV row of one model."""
        row: dict[str, Any] = {}
        start = time.perf_counter()
        try:
            graph = qb.load(path)
            row |= {"nodes": len(graph.nodes), "digest": graph.digest[:16]}
            row["islands"] = sum(n.rule == "float-region" for n in qb.explain(graph))
            inputs = _arrays(path.with_name("inputs.npz"), graph)
            row |= self._tvm(graph, inputs, path)
            if self.local:
                row |= _local(graph, path, inputs)
            row |= _export(graph, path, inputs)
            row["status"] = "ok"
        except qb.QdqBridgeError as error:
            row["status"] = f"{type(error).__name__}: {error.what} ({error.why[:120]})"
        except Exception as error:  # a bug of ours: recorded, and the sweep goes on
            row["status"] = f"CRASH {error!r}"[:300]
        row["seconds"] = round(time.perf_counter() - start, 1)
        return row

    def _tvm(self, graph: qb.Graph, inputs: Arrays, path: Path) -> dict[str, Any]:
        row: dict[str, Any] = {}
        if graph.digest not in self.compiled:
            values = [v for v in graph.values() if v.quant and not v.is_constant and v.producer]
            executable = qb.compile(graph, expose=values)
            found = qb.compare(executable, graph, inputs).values
            quantized = [d for d in found if d.max_lsb is not None]
            row["tvm_values"] = sum(d.count for d in quantized)
            row["tvm_mismatches"] = sum(d.mismatches for d in quantized)
            self.compiled[graph.digest] = executable
        executable = self.compiled[graph.digest]
        renamed = dict(zip(executable.input_names, inputs.values(), strict=True))
        ours = _run(executable, executable.graph, renamed)
        reference = np.load(path.with_name("reference.npz"))
        for name, array in zip(graph.output_names, ours.values(), strict=False):
            row |= _against(array, reference[name], _output_scale(graph, name))
        return row


def _run(executable: Any, graph: qb.Graph, inputs: Arrays) -> dict[str, np.ndarray]:
    parts: list[dict[str, np.ndarray]] = []
    for batch in batches(graph.inputs, inputs):
        result = executable.run(batch.inputs)
        parts.append({k: v[: batch.rows] if v.ndim else v for k, v in result.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _arrays(path: Path, graph: qb.Graph) -> dict[str, np.ndarray]:
    stored = np.load(path)
    return {value.name: stored[value.name] for value in graph.inputs}


def _output_scale(graph: qb.Graph, name: str) -> float | None:
    value = graph.outputs[graph.output_names.index(name)]
    if value.quant is not None:
        return 1.0
    producer = value.producer
    if producer is None or producer.op.name != "dequantize":
        return None
    quant = producer.operand(0).quant
    return float(quant.params.scale) if quant is not None and quant.params.per_tensor else None


def _against(ours: np.ndarray, theirs: np.ndarray, scale: float | None) -> dict[str, Any]:
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    row: dict[str, Any] = {"reference_count": a.size, "reference_mismatches": int((a != b).sum())}
    if scale is not None:
        row["reference_max_lsb"] = int(np.rint(np.abs(a - b) / scale).max(initial=0))
    else:
        row["reference_max_lsb"] = f"abs {np.abs(a - b).max(initial=0):.2g}"
    if a.ndim == 2:
        row["top1"] = round(float((a.argmax(1) == b.argmax(1)).mean()), 4)
    return row


def _local(graph: qb.Graph, path: Path, inputs: Arrays) -> dict[str, Any]:
    found = qb.compare(graph, path, inputs, local=True).values
    causes: Counter[str] = Counter()
    for difference in (d for d in found if d.max_lsb is not None):
        for cause, count in difference.causes.items():
            causes[f"{difference.operator}/{cause}"] += count
    listed = " ".join(f"{cause}={count}" for cause, count in sorted(causes.items()))
    counted = sum(d.count for d in found if d.max_lsb is not None)
    return {"local_count": counted, "local_causes": listed}


def _export(graph: qb.Graph, path: Path, inputs: Arrays) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "exported.onnx"
        qb.save(graph, exported)
        again = qb.load(exported)
        ours, theirs = session(exported), session(path)
        equal = True
        for batch in batches(graph.inputs, inputs):
            names = graph.output_names
            a, b = ours.run(batch.inputs, names), theirs.run(batch.inputs, names)
            equal = equal and all(
                np.array_equal(a[n], b[n], equal_nan=a[n].dtype.kind == "f") for n in names
            )
    return {"export_digest": again.digest == graph.digest, "export_equal": equal}


def _selected(folder: Path, words: list[str]) -> Iterator[str]:
    with (folder / "manifest.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if all(word in row["file"] for word in words):
                yield row["file"]


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("sweep.csv"))
    parser.add_argument("--only", nargs="*", default=[], help="words that the name must contain")
    parser.add_argument("--every", type=int, default=1, help="take only every n-th file")
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--no-local", action="store_true", help="leave out the node-wise proof")
    arguments = parser.parse_args()
    sweep = Sweep(local=not arguments.no_local)
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        names = _selected(arguments.folder, arguments.only)
        for name in islice(names, arguments.first, None, arguments.every):
            row = {"file": name} | sweep.row(arguments.folder / name)
            writer.writerow(row)
            file.flush()
            print(f"{name}: {row['status']}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
