"""Whole models on an engine: as they are, and as the engine's export profile writes them.

``scripts/engines/engine_models.py openvino FOLDER --out TABLE`` takes every ``.onnx`` file of a
folder, gives numbers (1) to its open extents, and adds two rows per file to a table: the
original, and what was exported from it. They say how many layers there are, which are left to
floats or to another processor, in how many partitions, how far operators are off on the engine's
own operands (LSB), in how many samples outputs have the argmax of the interpreter, and which of
the profile's rules the file breaks. Inputs are those of ``inputs.npz`` beside a file, else
random. Files that are in the table are not run again. Those with ``_decomposed`` in their name
are read as ``--decomposed`` reads them.

``scripts/engines/engine_models.py openvino --by-producer TABLE...`` prints the same by producer,
as data of ``tests/targets/engines/models_openvino.csv``, of which the pages are made; ``--worse
TABLE...`` lists the files whose export is worse than the original (it does not run, has fewer
products of integers, more of other argmax, or is further off than ``LIMIT``), and behind these
what is to be looked at: exports with more layers in floats, off by more than ``LIMIT``, or of
another argmax than ours. ``--misjudged TABLE...`` lists the files about which the rules are
wrong: said to be kept, but not taken whole or further off than ``LIMIT``, and alarms about what
is taken and right.

``scripts/engines/engine_models.py onnxruntime-avx2 FOLDER --predicted`` holds what is predicted of
pairs that saturate (:func:`qdqbridge.autoquant.hardware.arithmetic.in_pairs`) against
onnxruntime: each integer operator of each file on its own operands, value by value, in one
process of the engine. It prints the values that nothing explains.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from engine_patterns import Outcome, broken_rules, misjudged, show_misjudged

import qdqbridge
from qdqbridge.app.judging import tell_of_onnxruntime
from qdqbridge.autoquant.hardware.arithmetic import PAIRS, is_paired
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import most_elements
from qdqbridge.errors import InputDataError, QdqBridgeError
from qdqbridge.onnx_io.runtime.products import saturating_products
from qdqbridge.targets.comparison.causes import REWRITTEN, UNEXPLAINED
from qdqbridge.targets.comparison.local import compare_locally
from qdqbridge.targets.engines.kinds import ENGINES
from qdqbridge.targets.engines.process import EngineProcess, ProcessLimits
from qdqbridge.targets.engines.vendor import VendorEngine

LIMITS = ProcessLimits(seconds=120)
LIMIT = 2
"""Steps that an engine may be off: it rounds in ways of its own."""
NO_LAYERS = frozenset({"Const", "Input", "Output", "Reorder"})
"""What runtime models have beside the layers of a file."""
PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
"""OpenVINO's products."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one file.

    Attributes:
        file: Within its folder.
        producer: What made it.
        what: ``original`` or ``exported``; ``source`` where nothing could be read or computed.
        taken: ``whole``, ``part``; ``no`` where it does not load or run, ``refused`` where the
            profile does not write it.
        layers: How many there are.
        left: How many are not taken.
        products: Convolutions and products of matrices, by the engine's names.
        floats: Of these, how many are not taken.
        partitions: In how many pieces it runs.
        lsb: The largest difference on the engine's own operands.
        at: Where that is.
        equal: Samples with an argmax of the interpreter, which may have several.
        samples: Of how many.
        words: Which operators are left, or why nothing runs.
        rules: The profile's rules that the file breaks, as in the tables of patterns.
    """

    file: str
    producer: str
    what: str
    taken: str
    layers: str = ""
    left: str = ""
    products: str = ""
    floats: str = ""
    partitions: str = ""
    lsb: str = ""
    at: str = ""
    equal: str = ""
    samples: str = ""
    words: str = ""
    rules: str = ""

    @property
    def outcome(self) -> Outcome:
        """The same as of a pattern."""
        taken = {"whole": "yes", "refused": "refused"}.get(self.taken, "no")
        return Outcome(taken, self.lsb, rules=self.rules, words=self.words)

    @property
    def ran(self) -> bool:
        """The engine computed it."""
        return self.taken not in ("no", "refused")

    @property
    def others(self) -> int:
        """Samples with another argmax."""
        return int(self.samples or 0) - int(self.equal or 0)


COLUMNS = tuple(field.name for field in fields(Row))


# ---- inputs ----------------------------------------------------------------------------------


def feedings(path: Path, graph: Graph, count: int) -> list[dict[str, Any]]:
    """Returns inputs, one feeding each: those beside the file where they fit, else random."""
    stored = path.parent / "inputs.npz"
    if stored.exists():
        with np.load(stored) as data:
            arrays = {value.name: data[value.name] for value in graph.inputs if value.name in data}
        found = list(_cut(graph, arrays, count))
        if found:
            return found
    chance = np.random.default_rng(3)
    return [{v.name: random_input(v.type, chance) for v in graph.inputs} for _ in range(count)]


def _cut(graph: Graph, arrays: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Yields feedings of the extents that inputs have."""
    sizes: dict[str, int] = {}
    for value in graph.inputs:
        shape, array = value.type.shape, arrays.get(value.name)
        if array is None or not shape or not isinstance(shape[0], int):
            return
        if array.shape[1:] != tuple(shape[1:]) or array.dtype != value.type.dtype.numpy:
            return
        sizes[value.name] = shape[0]
    for number in range(count):
        cut = {name: arrays[name][number * n : (number + 1) * n] for name, n in sizes.items()}
        if any(len(array) < sizes[name] for name, array in cut.items()):
            return
        yield cut


def random_input(type_: Any, chance: np.random.Generator) -> Any:
    """Returns numbers for an input, 1 for each open extent.

    Raises:
        InputDataError: They do not fit in memory.
    """
    dtype = type_.dtype.numpy
    shape = [dim if isinstance(dim, int) else 1 for dim in type_.shape or ()]
    if math.prod(shape) > most_elements():
        raise InputDataError(
            "there is no input for this file",
            why=f"one has the shape {shape}, {math.prod(shape)} elements, which no memory holds",
            fix="correct the extents that the file states",
        )
    if dtype.kind == "f":
        return chance.normal(size=shape).astype(dtype)
    high = 2 if dtype.kind == "b" else min(100, np.iinfo(dtype).max)
    return chance.integers(0, high, shape).astype(dtype)


# ---- one model -------------------------------------------------------------------------------


def same_classes(meant: Any, found: Any) -> Any:
    """Returns for each sample whether the argmax is one that was meant: of equal numbers, any."""
    rows, other = (
        array.reshape(array.shape[0], -1) if array.ndim > 1 else array.reshape(1, -1)
        for array in (meant, found)
    )
    chosen = np.take_along_axis(rows, np.argmax(other, axis=1)[:, None], axis=1)[:, 0]
    return (chosen == rows.max(axis=1)) | (np.argmax(rows, axis=1) == np.argmax(other, axis=1))


def judged(
    engine: str, source: Path, graph: Graph, feeds: Sequence[dict[str, Any]]
) -> dict[str, str]:
    """Returns the columns that say what an engine makes of a file."""
    from qdqbridge.app.judging import opened

    with opened(engine, source, graph, LIMITS) as judge:
        layers = [p for p in judge.taken().placements if p.operator not in NO_LAYERS]
        partitions = judge.taken().partitions
        equal = total = 0
        for feed in feeds:
            ours, theirs = qdqbridge.evaluate(graph, feed), judge.run(feed, judge.outputs)
            for name, want in ours.items():
                if want.ndim and want.dtype.kind in "fiu" and want.size:
                    same = same_classes(want, theirs[name])
                    total, equal = total + same.size, equal + int(same.sum())
        local = qdqbridge.compare(graph, judge, feeds[0], local=True)
    left = Counter(placement.operator for placement in layers if not placement.taken)
    products = [p for p in layers if p.operator in PRODUCTS]
    worst = local.worst
    return {
        "taken": "part" if left or partitions > 1 else "whole",
        "layers": str(len(layers)),
        "left": str(left.total()),
        "products": str(len(products)),
        "floats": str(sum(not p.taken for p in products)),
        "partitions": str(partitions),
        "lsb": str(local.max_lsb),
        "at": worst.node[:60] if worst is not None and local.max_lsb > 1 else "",
        "equal": str(equal),
        "samples": str(total),
        "words": " ".join(f"{operator}:{number}" for operator, number in left.most_common(8)),
    }


def both(engine: str, path: Path, name: str, producer: str, count: int) -> list[Row]:
    """Returns the rows of a model: the original, and the exported one."""
    try:
        graph = qdqbridge.load(path, decomposed="_decomposed" in name)
        graph = with_numbers(graph, dict.fromkeys(symbolic_extents(graph), 1))
        feeds = feedings(path, graph, count)
        qdqbridge.evaluate(graph, feeds[0])
    except QdqBridgeError as error:
        return [Row(name, producer, "source", "unread", words=_flat(error.what))]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / f"written{ENGINES[engine].suffix}"
        for what in ("original", "exported"):
            rules, taken = "", "no"
            try:
                file, shown = path, graph
                if what == "exported":
                    taken = "refused"
                    qdqbridge.save(graph, written, ENGINES[engine].profile)
                    file, shown, taken = written, qdqbridge.load(written), "no"
                rules = _rules(file, shown, engine, Path(folder))
                found = judged(engine, file, shown, feeds)
                rows.append(Row(name, producer, what, **found, rules=rules))
            except QdqBridgeError as error:
                words = _flat(f"{error.what} {error.why}")
                rows.append(Row(name, producer, what, taken, words=words, rules=rules))
    return rows


def _rules(file: Path, graph: Graph, engine: str, folder: Path) -> str:
    """Returns the rules that a file breaks with the extents that the engine gets."""
    if file.suffix != ".onnx":
        return ""
    from qdqbridge.onnx_io.runtime.session import PreparedModel

    shapes = {value.name: value.type.shape or () for value in graph.inputs}
    fixed = folder / "fixed.onnx"
    fixed.write_bytes(PreparedModel(file, shapes).showing(()))
    return broken_rules(fixed, ENGINES[engine].profile)


def _flat(text: str) -> str:
    return " ".join(text.split())[:200]


# ---- the table -------------------------------------------------------------------------------


def read(paths: Iterable[Path]) -> list[Row]:
    """Returns the rows of tables."""
    found: list[Row] = []
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            found += [Row(**row) for row in csv.DictReader(file)]
    return found


def producers(folder: Path) -> dict[str, str]:
    """Returns what made the files of a collection, as its manifest says."""
    manifest = folder / "manifest.csv"
    if not manifest.exists():
        return {}
    with manifest.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["file"]: row.get("repo") or row["producer"] for row in rows}


def complete(engine: str, folder: Path, table: Path, every: int, count: int, largest: int) -> None:
    """Adds the rows of files that are not in the table."""
    known = {row.file for row in read([table])} if table.exists() else set[str]()
    made_by, files = producers(folder), sorted(folder.rglob("*.onnx"))[::every]
    with table.open("a", encoding="utf-8", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        if not known:
            rows.writerow(COLUMNS)
        for path in files:
            name = str(path.relative_to(folder))
            if name not in known and path.stat().st_size <= largest:
                producer = made_by.get(name, folder.name)
                found = both(engine, path, name, producer, count)
                rows.writerows([astuple(row) for row in found])
                out.flush()


BY_PRODUCER = (
    "producer", "what", "files", "run", "whole", "products", "floats", "equal", "samples",
    "within", "lsb",
)  # fmt: skip


def by_producer(rows: Iterable[Row]) -> Iterator[tuple[str, ...]]:
    """Yields one row per producer: originals, and exports.

    ``whole`` are files of which nothing is left, ``within`` those with no operator more than
    ``LIMIT`` steps off, ``lsb`` the largest difference.
    """
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.what != "source":
            name = " ".join(row.producer.split()[:2]).partition(" export")[0]
            groups[name, row.what].append(row)
    for (producer, what), each in sorted(groups.items(), key=lambda g: (g[0][0], g[0][1] < "o")):
        ran = [row for row in each if row.ran]

        def total(name: str, of: Sequence[Row] = ran) -> str:
            return str(sum(int(getattr(row, name) or 0) for row in of))

        yield (
            producer, what, str(len(each)), str(len(ran)),
            str(sum(row.taken == "whole" for row in ran)),
            total("products"), total("floats"), total("equal"), total("samples"),
            str(sum(int(row.lsb) <= LIMIT for row in ran)),
            str(max((int(row.lsb) for row in ran), default="")),
        )  # fmt: skip


def worse(rows: Iterable[Row]) -> Iterator[str]:
    """Yields what is worse than the original, then what falls short of the interpreter."""
    pairs: defaultdict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        pairs[row.file][row.what] = row
    both_of = {file: pair for file, pair in pairs.items() if "exported" in pair}
    for file, pair in both_of.items():
        for reason in _worse(pair["original"], pair["exported"]):
            yield f"worse: {file}: {reason}"
    for file, pair in both_of.items():
        for reason in _short(pair["original"], pair["exported"]):
            yield f"see: {file}: {reason}"


def _worse(own: Row, new: Row) -> Iterator[str]:
    if not own.ran:
        return
    if not new.ran:
        yield f"not run, but it is: {new.words}"
        return
    # an engine that computes attention as one layer counts no products there
    integers, kept = (int(row.products) - int(row.floats) for row in (own, new))
    if kept < integers:
        yield f"{kept} products of integers, not {integers}"
    if new.others > own.others:
        yield f"argmax {new.equal}/{new.samples}, not {own.equal}"
    if int(new.lsb) > max(LIMIT, int(own.lsb)):
        yield f"{new.lsb} LSB at {new.at}, not {own.lsb}"


def _short(own: Row, new: Row) -> Iterator[str]:
    if not new.ran:
        yield f"not run: {new.words}"
        return
    if int(new.lsb) > LIMIT:
        yield f"{new.lsb} LSB at {new.at}"
    if new.others:
        yield f"argmax {new.equal}/{new.samples}"
    if own.ran and int(new.left) > int(own.left):
        yield f"{new.left} layers in floats, not {own.left}: {new.words} / {own.words}"


# ---- pairs that saturate ---------------------------------------------------------------------


class _OneProcess(VendorEngine):
    """An engine whose process outlives it: under an emulator it takes seconds to start."""

    process: EngineProcess | None = None

    def _started(self) -> EngineProcess:
        if _OneProcess.process is None or not _OneProcess.process.alive:
            _OneProcess.process = super()._started()
        return _OneProcess.process

    def close(self) -> None:
        self._folder.cleanup()


class _Predicted:
    """Counts values that are predicted to be others than the contract's, and are the contract's."""

    def __init__(self, engine: VendorEngine) -> None:
        self.missing, self._told, self._own = Counter[str](), dict[str, Any](), engine.own
        engine.own = self._remembered

    def _remembered(self, node: Any, operands: Any) -> Any:
        assert self._own is not None
        found = self._own(node, operands)
        results = () if found is None or found[0] != PAIRS else found[1]
        self._told = dict(zip((value.name for value in node.outputs), results, strict=False))
        return found

    def witness(self, _: Any, value: Any, ours: Any, theirs: Any) -> None:
        meant = self._told.get(value.name)
        if meant is not None and meant.dtype == ours.dtype:
            self.missing[value.name] += int(((meant != ours) & (theirs == ours)).sum())


def predicted(engine: str, folder: Path, every: int, largest: int) -> None:
    """Prints what engine and prediction differ in, file by file, and the counts of all files."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.onnx"))[::every]:
        saturating = saturating_products(path) if path.stat().st_size <= largest else ()
        if not saturating:
            counts["files without such products"] += 1
            continue
        try:
            graph = qdqbridge.load(path, decomposed="_decomposed" in path.name)
            graph = with_numbers(graph, dict.fromkeys(symbolic_extents(graph), 1))
            with _OneProcess(ENGINES[engine], path, graph, LIMITS) as opened:
                tell_of_onnxruntime(opened)
                watch = _Predicted(opened)
                feeding = feedings(path, graph, 1)[0]
                found = compare_locally(graph, opened, feeding, witness=watch.witness)
        except QdqBridgeError as error:
            counts["files not run"] += 1
            print(f"{path.name}: {_flat(f'{error.what} {error.why}')}", flush=True)
            continue
        nodes = {value.name: node for node in graph.nodes for value in node.outputs}
        counts["files"] += 1
        counts["values predicted to saturate that do not"] += watch.missing.total()
        for name, missing in (+watch.missing).items():
            print(f"{path}: {name}: {nodes[name]}: {missing} do not saturate", flush=True)
        for value in found.values:
            node, left = nodes.get(value.name), value.causes.get(UNEXPLAINED, 0)
            if left:
                about = f"{left} of {value.count}, {dict(value.causes)}"
                print(f"{path}: {value.name}: {node}: {about}", flush=True)
            if node is None or not is_paired(node):
                counts["values of other operators, unexplained"] += left
                continue
            if node.operand(0).producer is not None and node.operand(0).name not in opened.names:
                counts["operators whose operands the engine does not show"] += 1
                continue
            kind = "integers" if value.max_lsb is not None else "floats"
            paired, rewritten = (value.causes.get(cause, 0) for cause in (PAIRS, REWRITTEN))
            counts[f"{node.op.name}, operators"] += 1
            counts[f"values, {kind}"] += value.count
            counts[f"values that saturate, {kind}"] += paired
            counts[f"values rewritten by the engine, {kind}"] += rewritten
            others = value.mismatches - paired - rewritten - left
            counts[f"values off by rounding, {kind}"] += others
            counts[f"values not predicted, {kind}"] += left
    print("\n".join(f"{count:>10,} {what}" for what, count in sorted(counts.items())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=[*ENGINES])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--predicted", action="store_true", help="hold predictions against it")
    parser.add_argument("--by-producer", type=Path, nargs="+", metavar="TABLE")
    parser.add_argument("--worse", type=Path, nargs="+", metavar="TABLE")
    parser.add_argument("--misjudged", type=Path, nargs="+", metavar="TABLE")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--largest", type=int, default=20_000_000, help="bytes of a file")
    given = parser.parse_args()
    if given.by_producer:
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(BY_PRODUCER)
        table.writerows(by_producer(read(given.by_producer)))
    elif given.worse:
        print("\n".join(worse(read(given.worse))))
    elif given.misjudged:
        rows = [row for row in read(given.misjudged) if row.what != "source"]
        files = [(f"{row.file} {row.what}", row.outcome) for row in rows]
        show_misjudged(*misjudged(files), len(files))
    elif given.folder and given.predicted:
        predicted(given.engine, given.folder, given.every, given.largest)
    elif given.folder and given.out:
        each = (given.folder, given.out, given.every, given.samples, given.largest)
        complete(given.engine, *each)
    else:
        parser.error("give a folder and --out, or a table")


if __name__ == "__main__":
    main()
