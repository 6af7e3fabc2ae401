"""Every model of a folder to Relay and back: ``scripts/sweeps/roundtrip_relay FOLDER``.

The folder is as for ``scripts/sweeps/sweep``. Each graph is emitted in every variant and both
layouts, read back, and its digest compared; where it differs, the first difference is the reason.
Relay needs numbers for extents, so what is compared is the file with 1 for each symbolic one. A
model whose digest was seen before is not tried again: its graph is the same.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx

import qdqbridge as qb
from qdqbridge.core.graph.diff import diff
from qdqbridge.tvm.relay import emit, from_relay

FORMS = tuple(
    (f"{variant}_{layout}", variant, layout)
    for variant in ("canonical", "tflite", "dnnl", "fq2i")
    for layout in ("NCHW", "NHWC")
)
FIELDS = ("file", "status", "digest", "nodes", *(name for name, _, _ in FORMS), "seconds")
Row = dict[str, object]


def row_of(path: Path, seen: set[str]) -> Row:
    """Returns the CSV row of one model."""
    row: Row = {}
    start = time.perf_counter()
    try:
        graph = _loaded(path)
        row |= {"nodes": len(graph.nodes), "digest": graph.digest[:16]}
        row["status"] = "seen" if graph.digest in seen else "ok"
        if graph.digest not in seen:
            seen.add(graph.digest)
            row |= {name: _returned(graph, *form) for name, *form in FORMS}
    except qb.QdqBridgeError as error:
        row["status"] = _words(error)
    except Exception as error:  # a bug of ours: recorded, and the sweep goes on
        row["status"] = f"CRASH {error!r}"[:300]
    row["seconds"] = round(time.perf_counter() - start, 1)
    return row


def _loaded(path: Path) -> qb.Graph:
    """Returns the graph of a file with 1 for every symbolic extent."""
    graph = qb.load(path)
    shapes = [value.type.shape for value in graph.inputs]
    if all(shape is not None and all(isinstance(e, int) for e in shape) for shape in shapes):
        return graph
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        for extent in value.type.tensor_type.shape.dim:
            if extent.dim_param:
                extent.dim_value = 1
    del model.graph.value_info[:]
    with tempfile.TemporaryDirectory() as folder:
        fixed = Path(folder) / "fixed.onnx"
        onnx.save(model, fixed)
        return qb.load(fixed)


def _returned(graph: qb.Graph, variant: str, layout: str) -> str:
    """Returns ``same`` or why the digest is another one."""
    try:
        again = from_relay(*emit(graph, variant, layout))
    except qb.QdqBridgeError as error:
        return _words(error)
    except Exception as error:  # a bug of ours
        return f"CRASH {error!r}"[:300]
    if again.digest == graph.digest:
        return "same"
    found = diff(again, graph)
    return f"{len(found)} differ: {found[0]}"[:300] if found else "differs"


def _words(error: qb.QdqBridgeError) -> str:
    return f"{type(error).__name__}: {error.what} ({error.why[:120]})"


def _selected(folder: Path, words: list[str]) -> Iterator[str]:
    with (folder / "manifest.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if not words or any(word in row["file"] for word in words):
                yield row["file"]


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("roundtrip_relay.csv"))
    parser.add_argument("--only", nargs="*", default=[], help="words, one of them in the name")
    parser.add_argument("--count", type=int, default=None, help="stop after so many files")
    arguments = parser.parse_args()
    names = sorted(_selected(arguments.folder, arguments.only))
    random.Random(4).shuffle(names)  # what is done when it is stopped is a sample
    seen: set[str] = set()
    kept: Counter[str] = Counter()
    tried = 0
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for name in names[: arguments.count]:
            row = {"file": name} | row_of(arguments.folder / name, seen)
            writer.writerow(row)
            file.flush()
            tried += row["status"] == "ok"
            kept.update(form for form, _, _ in FORMS if row.get(form) == "same")
    for form, _, _ in FORMS:
        print(f"{form}: {kept[form]} of {tried} digests kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
