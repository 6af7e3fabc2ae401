"""Models through ``fix``, then through the engine of each target: right, or refused with a reason.

``scripts/sweeps/sweep_fix.py FOLDER... --csv TABLE`` gives every file (of every nth, from another
first one per target) to ``qdqbridge.app.fixing.fix`` and adds a row to a table. What became of it:

- ``right``: every operator on its own operands is at most ``LIMIT`` steps off the interpreter, or
  off for a cause that is known of the engine, and the outputs have the argmax of the model;
- ``told``: it is not, or did not run, and a broken rule, the engine's verdict or ``fix`` says so;
- ``written``: there is no engine, and nothing to compare with beside the rules;
- ``refused``: no file, and a reason;
- ``WORSE``: the file that was read does better on the engine; ``WRONG``: nothing says that it is
  not right; ``CRASH``: another error than ours.

Engines run where they are installed: ``.venv-engines/bin/python``, with onnxruntime-web in
``NODE_PATH``.
"""

from __future__ import annotations

import argparse
import csv
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import numpy as np

import qdqbridge as qb
from qdqbridge.app.fixing import (
    FixedModel,
    engine_of,
    examples,
    fix,
    has_other_classes,
    is_further_off,
)
from qdqbridge.app.sources import is_tosa
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.options import FixTarget
from qdqbridge.targets.profiles import Effect

FIELDS: tuple[str, ...] = (
    "target", "file", "outcome", "kept", "before", "after", "meaning_db", "meaning_top1",
    "there_db", "there_top1", "other_db", "other_top1", "lsb", "unexplained", "at", "words",
    "seconds",
)  # fmt: skip
LIMIT = 2
"""Steps that an engine may be off: it rounds in ways of its own."""
LARGEST = 20_000_000
"""Bytes of a file."""
SECONDS = 300
"""What one file may take."""
Arrays = Mapping[str, np.ndarray]


def row_of(path: Path, target: FixTarget, folder: Path) -> dict[str, Any]:
    """Returns what became of one file for one target."""
    suffix = ".tflite" if target in ("tflite", "ethos-u", "tosa") else ".onnx"
    written = folder / f"fixed{suffix}"
    start = time.perf_counter()
    row: dict[str, Any] = {}
    try:
        made = fix(path, target, written, _stored(path), overwrite=True)
        row |= _told(made)
        row |= _judged(made)
    except qb.QdqBridgeError as error:
        row |= {"outcome": "refused", "words": _flat(f"{error.what} {error.why}")}
        if not error.why and not error.fix:
            row["outcome"] = "refused without a reason"
    except Exception as error:  # a bug of ours: recorded, and the rest goes on
        row |= {"outcome": "CRASH", "words": _flat(repr(error))}
    finally:
        written.unlink(missing_ok=True)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _stored(path: Path) -> Arrays | None:
    """Returns a few samples of those beside a file; None where they are not of its inputs."""
    beside = path.parent / "inputs.npz"
    if not beside.exists():
        return None
    graph = qb.load(path)
    graph = with_numbers(graph, dict.fromkeys(symbolic_extents(graph), 1))
    found: dict[str, np.ndarray] = {}
    with np.load(beside) as arrays:
        for value in graph.inputs:
            shape, array = value.type.shape or (), arrays.get(value.name)
            fits = array is not None and array.dtype == value.type.dtype.numpy
            if array is None or not fits or array.shape[1:] != tuple(shape[1:]):
                return None
            found[value.name] = array[:8]
    return found


def _told(made: FixedModel) -> dict[str, Any]:
    counted = [
        "" if each is None else sum(f.effect is not Effect.PROCESSOR for f in each)
        for each in (made.before, made.after)
    ]
    row: dict[str, Any] = {"kept": made.as_it_was, "before": counted[0], "after": counted[1]}
    other = None if made.other is None else made.other.results
    for name, found in (("meaning", made.meaning), ("there", made.there.results), ("other", other)):
        if found is not None and found.outputs:
            row[f"{name}_db"] = round(min(each.sqnr_db for each in found.outputs), 1)
            row[f"{name}_top1"] = min(
                (o.top1 for o in found.outputs if o.top1 is not None), default=""
            )
    return row


def _judged(made: FixedModel) -> dict[str, Any]:
    rules = " ".join(sorted({f.rule for f in made.after or () if f.effect is not Effect.PROCESSOR}))
    there, other = made.there.results, None if made.other is None else made.other.results
    if there is None:
        told = made.there.without
        return {"outcome": "told" if made.engine else "written", "words": _flat(f"{told} {rules}")}
    row: dict[str, Any] = {"words": rules, "outcome": "right"}
    if not is_tosa(made.path):
        row |= _locally(made)
    off = (row.get("lsb") or 0) > LIMIT and row.get("unexplained")
    if off or any(each.top1 is not None and each.top1 < 1 for each in there.outputs):
        row["outcome"] = "told" if rules else "WRONG"
    if other is not None and (
        has_other_classes(there, other) or (off and is_further_off(there, other))
    ):
        row["outcome"] = "WORSE"
    return row


def _locally(made: FixedModel) -> dict[str, Any]:
    """Returns how far operators of the written file are off on the engine."""
    kind = engine_of(made.target)
    assert kind is not None
    with qb.open_engine(kind, made.path) as judge:
        found = qb.compare(judge.graph, judge, examples(judge.graph), local=True)
    worst = found.worst
    at = "" if worst is None or not worst.max_lsb else f"{worst.node} {dict(worst.causes)}"
    return {"lsb": found.max_lsb, "unexplained": found.unexplained, "at": _flat(at)}


def _flat(text: str) -> str:
    return " ".join(text.split())[:300]


def files_of(folders: Iterable[Path], every: int, first: int) -> list[Path]:
    """Returns every nth model of folders."""
    found = sorted({p for f in folders for s in ("*.onnx", "*.tflite") for p in f.rglob(s)})
    return [path for path in found if path.stat().st_size < LARGEST][first::every]


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--for", dest="targets", nargs="+", default=get_args(FixTarget))
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with given.csv.open("w", newline="") as table, tempfile.TemporaryDirectory() as folder:
        writer = csv.DictWriter(table, FIELDS)
        writer.writeheader()
        for index, target in enumerate(given.targets):
            first = index * given.every // len(given.targets)
            for path in files_of(given.folders, given.every, first):
                signal.alarm(SECONDS)
                row = row_of(path, target, Path(folder))
                signal.alarm(0)
                writer.writerow({"target": target, "file": path, **row})
                table.flush()
                counts[target][row["outcome"]] += 1
            print(target, dict(counts[target]), flush=True)
    return 0


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {SECONDS} seconds")


if __name__ == "__main__":
    sys.exit(main())
