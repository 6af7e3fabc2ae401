"""Spoils one tensor of quantized files, and asks ``blame`` which one it is.

Run as ``python -m scripts.checks.blame_sabotage [--collection FOLDER [--elsewhere FOLDER]]
[--count N] [--first N]``: files of onnxruntime's quantizer of three networks, per tensor and per
channel, signed and unsigned, also of graphs that it has optimized; with suite A's folder, files
that other tools made of three further networks, all their names replaced; or only what
``scripts/checks/quantize_elsewhere.py`` wrote, all names replaced likewise. It prints what was
not found, and in how many files the spoiled tensor is the first that is named, its cause is
right, and the proposed repairs bring the outputs back to within 1 dB of the unspoiled file.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

import qdqbridge as qb
from qdqbridge.autoquant.attribution import Attribution
from qdqbridge.core.graph.graph import Graph
from tests.autoquant.attribution.sabotage import (
    KINDS,
    Sabotage,
    named,
    quantized_by_onnxruntime,
    renamed,
    spoil,
)

MODELS = Path(__file__).resolve().parents[2] / "models"
OWN = (
    ("cnn", False, False, False), ("attention", True, True, False), ("mobile", True, False, False),
    ("cnn", True, True, True), ("attention", False, False, True), ("mobile", False, True, False),
)  # fmt: skip
"""Network, per channel, signed, of the graph that onnxruntime has optimized."""
OTHERS = (
    "A1/modelopt_int8_fp32", "A3/modelopt_int8_fp32", "A1/onnxslim_pt2e_x86_op18_noopt",
    "A3/onnxslim_pt2e_x86_op18_noopt", "A4/onnxslim_pt2e_x86_op18_noopt",
    "A1/onnxscript_opt_modelopt_int8_fp32",
)  # fmt: skip
_SAMPLES = 48
_FEW = 16
"""Samples of networks that take one at a time."""
_DAMAGE = 3.0
"""Decibels that a sabotage has to cost the outputs: else there is nothing to be found."""
_TURNS = 6


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized file and what it was made from.

    Attributes:
        label: What it is called.
        original: The float graph.
        path: The quantized file.
        data: Samples for the float graph.
        fed: The same for the file.
        unspoiled: The outputs' signal to noise, in dB.
    """

    label: str
    original: Graph
    path: Path
    data: dict[str, NDArray[Any]]
    fed: dict[str, NDArray[Any]]
    unspoiled: float


def own(folder: Path, network: str, per_channel: bool, signed: bool, optimized: bool) -> Quantized:
    model = MODELS / f"digits_{network}_float.onnx"
    graph = qb.load(model)
    port = graph.inputs[0]
    shape = [-1, *(e for e in (port.type.shape or ())[1:] if isinstance(e, int))]
    with np.load(MODELS / "digits_test.npz") as arrays:
        images = arrays["x"].reshape(shape)
    label = f"{network}{'_pc' * per_channel}{'_s8' * signed}{'_optimized' * optimized}"
    path = folder / f"{label}.onnx"
    quantized_by_onnxruntime(
        model, path, port.name, images[:128],
        per_channel=per_channel, signed=signed, optimized=optimized,
    )  # fmt: skip
    seen = {port.name: images[200 : 200 + _SAMPLES]}
    return _judged(label, graph, path, seen)


def other(folder: Path, collection: Path, name: str) -> Quantized:
    network = name.partition("/")[0]
    path = renamed(collection / name / "model.onnx", folder / f"{name.replace('/', '_')}.onnx")
    return _judged(name, *_original(collection, network, path))


def elsewhere(folder: Path, collection: Path, file: Path) -> Quantized:
    network = file.stem.rpartition("_")[0]
    return _judged(file.stem, *_original(collection, network, renamed(file, folder / file.name)))


def _original(
    collection: Path, network: str, path: Path
) -> tuple[Graph, Path, dict[str, NDArray[Any]]]:
    """Returns the float graph of a network, a quantized file of it, and samples."""
    if (MODELS / f"{network}.onnx").exists():
        graph = qb.load(MODELS / f"{network}.onnx")
        shape = [-1, *(e for e in (graph.inputs[0].type.shape or ())[1:] if isinstance(e, int))]
        with np.load(MODELS / "digits_test.npz") as arrays:
            data = arrays["x"].reshape(shape)[200:]
    else:
        graph = qb.load(collection / network / "float_op17" / "model.onnx")
        with np.load(collection / network / "float_op17" / "inputs.npz") as arrays:
            data = arrays[graph.inputs[0].name]
    port = graph.inputs[0]
    one_by_one = isinstance((port.type.shape or ("",))[0], int)
    return graph, path, {port.name: data[: _FEW if one_by_one else _SAMPLES]}


def _judged(label: str, graph: Graph, path: Path, data: dict[str, NDArray[Any]]) -> Quantized:
    fed = {qb.load(path).inputs[0].name: next(iter(data.values()))}
    unspoiled = qb.blame(graph, path, data, repairs=0, nodes=False).quantized_db
    return Quantized(label, graph, path, data, fed, unspoiled)


def verdict(found: Attribution, made: Sabotage, unspoiled: float) -> tuple[bool, bool, bool]:
    """Returns whether the tensor, its cause and a repair were found."""
    worst = found.tensors[0]
    first = named(worst, made)
    return first, first and worst.cause in made.causes, first and found.repaired_db >= unspoiled - 1


def damaged(file: Quantized, spoiled: Path, seed: int) -> tuple[Sabotage, Attribution]:
    """Spoils a file until it does any damage, in one way, and returns what ``blame`` says."""
    for turn in range(_TURNS):
        made = spoil(file.path, spoiled, seed + turn * KINDS * 100, file.fed)
        found = qb.blame(file.original, spoiled, file.data, nodes=False)
        if turn == _TURNS - 1 or found.quantized_db < file.unspoiled - _DAMAGE:
            return made, found
    raise AssertionError


def main(arguments: list[str]) -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("--collection", type=Path)
    asked.add_argument("--elsewhere", type=Path)
    asked.add_argument("--count", type=int)
    asked.add_argument("--first", type=int, default=0)
    given = asked.parse_args(arguments)
    logging.disable(logging.WARNING)
    totals, harmless = np.zeros(3, int), 0
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [] if given.elsewhere else [own(folder, *each) for each in OWN]
        if given.elsewhere is not None:
            found = sorted(given.elsewhere.glob("*.onnx"))
            files = [elsewhere(folder, given.collection, each) for each in found]
        elif given.collection is not None:
            files += [other(folder, given.collection, each) for each in OTHERS]
        count = given.count or len(files) * KINDS
        seeds = range(given.first, given.first + count)
        for seed in track(seeds, disable=not sys.stderr.isatty()):
            file = files[seed // KINDS % len(files)]
            spoiled = folder / "spoiled.onnx"
            made, found = damaged(file, spoiled, seed)
            if found.quantized_db >= file.unspoiled - _DAMAGE:
                print(seed, file.label, made.kind, "does no damage")
                harmless += 1
                continue
            right = verdict(found, made, file.unspoiled)
            totals += right
            kinds[made.kind] += right[0]
            if not all(right):
                worst = found.tensors[0]
                print(seed, file.label, made.kind, made.tensors[:3], "->", worst.name, worst.node,
                      worst.cause, worst.repair, f"{found.quantized_db:.1f} dB,",
                      f"repaired {found.repaired_db:.1f} of {file.unspoiled:.1f}", right,
                      flush=True)  # fmt: skip
    words = ("first", "cause", "repaired")
    print(
        f"{count - harmless} files:",
        ", ".join(f"{w} {n}" for w, n in zip(words, totals, strict=True)),
    )
    print(dict(kinds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
