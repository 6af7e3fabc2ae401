"""Every model of folders as a TFLite file: written or refused, run in LiteRT, read back.

One CSV row per file; with ``--resume`` files that have a row already are passed over. For each:
whether it is written, or what refuses it; its size against its weights'; the digest of the file
read back against the one that was written; the outputs in LiteRT against the interpreter's, and
the largest difference of any quantized node on LiteRT's own operands, for each set of kernels.

With ``--tosa`` every model as TOSA instead, with 1 for its open extents: written or refused, what
it requires, which operators of TFLite came to compute on floats, and the same of TOSA's reference
model. ``--by-producer TABLE`` prints that by folder, as data of
``tests/targets/engines/models_tosa.csv``, of which the engine's page is made.
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
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.targets.engines.workers.tosa import TosaWorker
from qdqbridge.tflite_io.litert import (
    Kernels,
    LiteRTSession,
    NodeDifference,
    TosaEngine,
    node_differences,
    shapes_of,
)
from qdqbridge.tflite_io.writer import TFLiteModel, converted, write

FIELDS: tuple[str, ...] = (
    "file", "status", "operators", "islands", "requantized", "bytes", "weights", "digest_kept",
    "reference", "builtin", "xnnpack", "reference_lsb", "builtin_lsb", "xnnpack_lsb", "worst",
    "argmax", "requires", "tosa", "tosa_lsb", "tosa_unexplained", "seconds",
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


def tosa_row_of(path: Path, worker: TosaWorker) -> dict[str, Any]:
    """Returns the CSV row of one file as TOSA; Arm's programs run in processes of their own."""
    row: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        graph = qb.load(path)
        if not any(value.quant is not None for value in graph.values()):
            row["status"] = "float"
            return row
        row["status"] = "open" if symbolic_extents(graph) else "fixed"
        graph = with_numbers(graph, dict.fromkeys(symbolic_extents(graph), 1))
        try:
            made = converted(graph, tosa=True)
            data, requires, operators = worker.convert(made.model.tobytes(), ".tosa")
        except (qb.QdqBridgeError, RuntimeError) as error:
            row["status"] += f", refused: {error}"[:400]
            return row
        row["status"] += ", written" if data else ", refused: other dialects"
        row["operators"], row["requires"] = len(operators), " ".join(requires)
        row["islands"] = sum(bool(each[4]) for each in operators)
        row |= _tosa_run(graph, made, worker, path) if data else {}
    except qb.QdqBridgeError as error:
        row["status"] = f"{row.get('status', 'unread')}, then {type(error).__name__}: {error}"[:600]
    except Exception as error:  # a bug of ours: recorded, and the rest goes on
        row["status"] = f"{row.get('status', '')} CRASH {error!r}"[:400]
    finally:
        row["seconds"] = round(time.perf_counter() - start, 2)
    return row


def _tosa_run(graph: Graph, made: TFLiteModel, worker: TosaWorker, path: Path) -> dict[str, Any]:
    """Returns what the reference model makes of a file."""
    engine = TosaEngine(made, lambda data, k, fed, wanted: worker.record(data, k.name, fed, wanted))
    inputs = _first(feeds(made.graph, path), made.graph)
    found = qb.compare(made.graph, engine, inputs, local=True)
    rounded = [value for value in found.values if value.max_lsb is not None]
    worst = max(rounded, key=lambda value: value.max_lsb or 0, default=None)
    row: dict[str, Any] = {"tosa": "ran", "tosa_unexplained": found.unexplained}
    row["tosa_lsb"] = "" if worst is None else worst.max_lsb
    if worst is not None and (worst.max_lsb or 0) > 1:
        row["worst"] = f"{worst.node} {worst.name}: {worst.max_lsb} LSB, {worst.causes}"
    row["argmax"] = _agreement(engine.run(inputs, engine.outputs), qb.evaluate(graph, inputs))
    return row


def _first(inputs: Arrays, graph: Graph) -> dict[str, np.ndarray]:
    """Returns as many samples as the graph takes."""
    found = dict(inputs)
    for value in graph.inputs:
        for extent in (value.type.shape or ())[:1]:
            found[value.name] = found[value.name][:extent]
    return found


def by_producer(table: Path) -> Iterator[list[str]]:
    """Yields a summary of a table by folder, with its head."""
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"].startswith(("fixed", "open"))]
    yield ["producer", "shapes", "files", "whole", "run", "within", "unexplained", "equal"]
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        kind = "open, 1 each" if row["status"].startswith("open") else "fixed"
        groups.setdefault((_producer(row["file"]), kind), []).append(row)
    for (name, kind), each in sorted(groups.items()):
        whole = [row for row in each if ", written" in row["status"] and row["islands"] == "0"]
        ran = [row for row in whole if row["tosa"] == "ran"]
        equal = [float(row["argmax"]) for row in ran if row["argmax"]]
        yield [
            name, kind, str(len(each)), str(len(whole)), str(len(ran)),
            str(sum(int(row["tosa_lsb"] or 0) <= 1 for row in ran)),
            str(sum(int(row["tosa_unexplained"] or 0) for row in ran)),
            f"{100 * sum(equal) / len(equal):.1f} %" if equal else "–",
        ]  # fmt: skip


def _producer(file: str) -> str:
    parts = Path(file).parts
    return next((p for p in parts if p in ("A1", "A2", "A3", "A4") or "__" in p), "models")


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
    inputs = feeds(made.graph, path)
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


def feeds(graph: Graph, path: Path) -> dict[str, np.ndarray]:
    """Returns the file's own inputs where it has some, else random ones."""
    shapes, rng = shapes_of(graph, 2), np.random.default_rng(0)
    beside = path.parent / "inputs.npz"
    stored = dict(np.load(beside)) if beside.exists() else {}
    found: dict[str, np.ndarray] = {}
    for value in graph.inputs:
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
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--tosa", action="store_true", help="as TOSA, in its reference model")
    parser.add_argument("--by-producer", type=Path, help="print a table of --tosa by folder")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there")
    parser.add_argument("--largest", type=float, default=50, help="megabytes of a file at most")
    parser.add_argument("--kernels", default="reference,builtin,xnnpack")
    args = parser.parse_args()
    if args.by_producer is not None:
        csv.writer(sys.stdout, lineterminator="\n").writerows(by_producer(args.by_producer))
        return 0
    if args.csv is None:
        parser.error("--csv is missing")
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
            found = tosa_row_of(path, TosaWorker()) if args.tosa else row_of(path, kinds)
            row = {"file": str(path), **found}
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
