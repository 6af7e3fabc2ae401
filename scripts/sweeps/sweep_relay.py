"""Every model of a folder through Relay, into one CSV file: ``scripts/sweeps/sweep_relay FOLDER``.

The folder is as for ``scripts/sweeps/sweep``. Each graph is emitted, built (halves to even) and
run in the canonical variant, channels-first and channels-last, and in the tflite variant; every
quantized value and every output is compared with the interpreter. Every module is read back, and
its digest compared. Beside it: what TVM's own importer and FakeQuantizationToInteger make of the
same file, the outputs of that compared with the interpreter's.

A model whose digest was seen before is not built again: its graph is the same. ``--others 4``
builds every form but the first, and TVM's own route, for every fourth graph only; all are read
back. ``--target 'llvm -opt-level=0'`` halves the time; bits are the same.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from fq2i_route import fq2i
from fq2i_route import run as run_module

import qdqbridge as qb
from qdqbridge.core.graph.batches import batches
from qdqbridge.core.graph.copying import with_outputs
from qdqbridge.tvm.relay.build import build
from qdqbridge.tvm.relay.emit import emit
from qdqbridge.tvm.relay.read import from_relay

FORMS = (("nchw", "canonical", "NCHW"), ("nhwc", "canonical", "NHWC"), ("tflite", "tflite", None))
FIELDS = (
    "file", "status", "digest", "nodes", "values", "elements",
    *(f"{form}_{what}" for form, _, _ in FORMS
      for what in ("status", "mismatches", "max_lsb", "floats", "read")),
    "fq2i_status", "fq2i_mismatches", "fq2i_count", "fq2i_max_lsb", "seconds",
)  # fmt: skip
Arrays = Mapping[str, np.ndarray]
Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What is run of every model."""

    samples: int
    others: int
    target: str
    forms: tuple[str, ...]


def row_of(path: Path, settings: Settings, seen: frozenset[str]) -> Row:
    """Returns the CSV row of one model."""
    row: Row = {}
    start = time.perf_counter()
    try:
        graph = qb.load(path)
        digest = graph.digest[:16]
        row |= {"nodes": len(graph.nodes), "digest": digest}
        if digest in seen:
            row["status"] = "seen"
        else:
            others = len(seen) % settings.others == 0
            row |= _compared(graph, path, settings, others=others) | {"status": "ok"}
    except qb.QdqBridgeError as error:
        row["status"] = _words(error)
    except Exception as error:  # a bug of ours: recorded, and the sweep goes on
        row["status"] = f"CRASH {error!r}"[:300]
    row["seconds"] = round(time.perf_counter() - start, 1)
    return row


def _compared(graph: qb.Graph, path: Path, settings: Settings, *, others: bool) -> Row:
    stored = np.load(path.with_name("inputs.npz"))
    inputs = {value.name: stored[value.name][: settings.samples] for value in graph.inputs}
    parts = [batch.inputs for batch in batches(graph.inputs, inputs)]
    values = [v for v in graph.values() if v.quant and not v.is_constant and v.producer]
    exposed = with_outputs(graph, values)
    wanted = [qb.evaluate(exposed, part) for part in parts]
    row: Row = {
        "values": len(exposed.outputs),
        "elements": sum(array.size for part in wanted for array in part.values()),
    }
    extents = _extents(graph, parts[0])
    for form, variant, layout in (f for f in FORMS if f[0] in settings.forms):
        found = {"read": _read(graph, variant, layout, extents)}
        if others or form == settings.forms[0]:
            modules = emit(exposed, variant, layout, extents=extents)
            found |= _written(exposed, modules[0], parts, wanted, settings.target)
        row |= {f"{form}_{key}": value for key, value in found.items()}
    if others and "fq2i" in settings.forms:
        row |= _fq2i(graph, path, parts, wanted, settings.target)
    return row


def _read(graph: qb.Graph, variant: str, layout: str | None, extents: Mapping[str, int]) -> str:
    """Returns whether a module reads back to the same digest."""
    try:
        again = from_relay(emit(graph, variant, layout, extents=extents)[0])
    except qb.QdqBridgeError as error:
        return _words(error)
    if again.digest == graph.digest:
        return "same"
    return "extents are numbers" if extents else "differs"


def _written(
    exposed: qb.Graph, module: Any, parts: list[Any], wanted: list[Any], target: str
) -> Row:
    """Returns how a module compares with the interpreter."""
    tally = _Tally()
    try:
        executable = build(module, target=target)
        for inputs, expected in zip(parts, wanted, strict=True):
            found = executable.run(inputs)
            for value, name in zip(exposed.outputs, exposed.output_names, strict=True):
                tally.add(found[name], expected[name], quantized=value.quant is not None)
    except qb.QdqBridgeError as error:
        return {"status": _words(error)}
    numbers = {"mismatches": tally.mismatches, "max_lsb": tally.largest, "floats": tally.floats}
    return {"status": "ok", **numbers}


class _Tally:
    def __init__(self) -> None:
        self.mismatches = self.largest = self.floats = 0

    def add(self, ours: np.ndarray, wanted: np.ndarray, *, quantized: bool) -> None:
        """Counts the elements that differ; float ones apart."""
        if wanted.dtype.kind == "V":  # fp8 and friends
            ours, wanted = ours.view(np.uint8), wanted.view(np.uint8)
        if not quantized:
            same = np.isclose(ours, wanted, rtol=0, atol=0, equal_nan=wanted.dtype.kind == "f")
            self.floats += int((~same).sum())
            return
        apart = np.abs(ours.astype(np.float64) - wanted.astype(np.float64))
        self.mismatches += int((apart != 0).sum())
        self.largest = max(self.largest, int(apart.max(initial=0)))


def _fq2i(graph: qb.Graph, path: Path, parts: list[Any], wanted: list[Any], target: str) -> Row:
    """Returns how far the outputs of TVM's own route are from the interpreter's, in LSB."""
    row: Row = {"fq2i_mismatches": 0, "fq2i_count": 0, "fq2i_max_lsb": 0}
    try:
        module = fq2i(path, _extents(graph, parts[0]))
        for inputs, expected in zip(parts[:1], wanted, strict=False):
            found = run_module(module, inputs, target)
            for ours, value, name in zip(found, graph.outputs, graph.output_names, strict=False):
                apart = np.abs(ours.astype(np.float64) - expected[name].astype(np.float64))
                scale = _output_scale(value)
                lsb = np.rint(apart / scale) if scale else apart
                row["fq2i_mismatches"] += int((lsb != 0).sum())
                row["fq2i_count"] += lsb.size
                row["fq2i_max_lsb"] = max(row["fq2i_max_lsb"], float(lsb.max(initial=0)))
        row["fq2i_status"] = "ok"
    except Exception as error:  # whatever the importer, the pass or the build raises
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = lines[-1] if lines else ""
        row = {"fq2i_status": f"{type(error).__name__}: {text}"[:200]}
    return row


def _output_scale(value: Any) -> float | None:
    if value.quant is not None:
        return 1.0
    producer = value.producer
    if producer is None or producer.op.name != "dequantize":
        return None
    quant = producer.operand(0).quant
    return float(quant.params.scale) if quant is not None and quant.params.per_tensor else None


def _extents(graph: qb.Graph, inputs: Arrays) -> dict[str, int]:
    return {
        dim: size
        for value in graph.inputs
        for dim, size in zip(value.type.shape or (), inputs[value.name].shape, strict=True)
        if isinstance(dim, str)
    }


def _words(error: qb.QdqBridgeError) -> str:
    return f"{type(error).__name__}: {error.what} ({error.why[:120]})"


def _selected(folder: Path, words: list[str]) -> Iterator[str]:
    with (folder / "manifest.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if not words or any(word in row["file"] for word in words):
                yield row["file"]


def _rows(path: Path) -> list[Row]:
    """Returns the whole rows of a file of rows."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["seconds"]]


def _summary(rows: Sequence[Row]) -> str:
    """Returns the figures of all rows, and what is not as it should be, file by file."""
    first = [row for row in rows if row["status"] == "ok"]
    lines = [f"{len(rows)} files, {len(first)} distinct graphs compared"]
    others = Counter(row["status"] for row in rows if row["status"] not in ("ok", "seen"))
    lines += [f"  {count} not compared: {status}" for status, count in others.most_common()]
    for form, _, _ in FORMS:
        built = [row for row in first if row[f"{form}_status"] == "ok"]
        failed = [r for r in first if r[f"{form}_status"] not in ("", "ok")]
        wrong = [row for row in built if int(row[f"{form}_mismatches"])]
        values = sum(int(row["elements"]) for row in built)
        apart = sum(int(row[f"{form}_mismatches"]) for row in built)
        lsb = max((int(row[f"{form}_max_lsb"]) for row in built), default=0)
        read = Counter(row[f"{form}_read"] for row in first)
        lines.append(
            f"{form}: {len(built)} built, {values:,} values, {apart:,} differ in {len(wrong)} "
            f"graphs, at most {lsb} LSB; {sum(int(r[f'{form}_floats']) for r in built)} floats; "
            f"{len(failed)} not built; read back: {dict(read.most_common(3))}"
        )
        lines += [
            f"    {row['file']}: {row[f'{form}_mismatches']} differ, {row[f'{form}_max_lsb']} LSB"
            for row in (wrong if form != "tflite" else ())
        ]
        lines += [f"    {row['file']}: {row[f'{form}_status']}" for row in failed]
    tried = [row for row in first if row["fq2i_status"]]
    ran = [row for row in tried if row["fq2i_status"] == "ok"]
    lines.append(
        f"importer, FakeQuantizationToInteger: {len(ran)} of {len(tried)} run, "
        f"{sum(int(r['fq2i_mismatches']) for r in ran):,} of "
        f"{sum(int(r['fq2i_count']) for r in ran):,} outputs differ"
    )
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("sweep_relay.csv"))
    parser.add_argument("--only", nargs="*", default=[], help="words, one of them in the name")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--others", type=int, default=1, help="other forms of every n-th graph")
    known = [*(form for form, _, _ in FORMS), "fq2i"]
    parser.add_argument("--forms", nargs="*", default=known, choices=known, help="what is run")
    parser.add_argument("--target", default="llvm", help="the TVM target")
    parser.add_argument("--seed", type=int, default=4, help="of the order of the models")
    parser.add_argument("--resume", action="store_true", help="go on behind the output's rows")
    parser.add_argument("--summary", action="store_true", help="the output's figures, and no run")
    return parser.parse_args()


def _run(names: Sequence[str], folder: Path, settings: Settings, done: list[Row]) -> Iterator[Row]:
    """Yields the rows of models, each made in another process than this."""
    context = get_context("spawn")
    seen = {str(row["digest"]) for row in done if row["digest"]}
    pool = ProcessPoolExecutor(1, mp_context=context)
    for name in names:
        try:
            row = pool.submit(row_of, folder / name, settings, frozenset(seen)).result()
        except BrokenProcessPool:
            row = {"status": "TVM ended the process", "seconds": 0}
            pool = ProcessPoolExecutor(1, mp_context=context)
        if row.get("digest"):
            seen.add(row["digest"])
        yield {"file": name} | row
    pool.shutdown()


def main() -> int:
    """Runs the command line."""
    arguments = _arguments()
    done = _rows(arguments.output) if arguments.resume or arguments.summary else []
    if not arguments.summary:
        settings = Settings(
            arguments.samples, arguments.others, arguments.target, tuple(arguments.forms)
        )
        names = sorted(_selected(arguments.folder, arguments.only))
        random.Random(arguments.seed).shuffle(names)  # what is done when it is stopped is a sample
        have = {row["file"] for row in done}
        left = [name for name in names if name not in have]
        with arguments.output.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(done)
            for row in _run(left, arguments.folder, settings, done):
                writer.writerow(row)
                file.flush()
                print(row["file"], file=sys.stderr)
    print(_summary(_rows(arguments.output)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
