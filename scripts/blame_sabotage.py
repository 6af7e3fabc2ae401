"""Spoils one tensor of quantized files, and asks ``blame`` which one it is.

Run as ``python -m scripts.blame_sabotage [COUNT [FIRST]]``: files of onnxruntime's quantizer of
four networks, per tensor and per channel, signed and unsigned; nine kinds of sabotage. It prints
what was not found, and in how many files the spoiled tensor is the first that is named, its cause
is right, and the proposed repairs bring the outputs back to within 1 dB of the unspoiled file.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.progress import track

import qdqbridge as qb
from qdqbridge.attribution import Attribution
from qdqbridge.graph.graph import Graph
from tests.attribution.sabotage import Sabotage, named, quantized_by_onnxruntime, spoil

MODELS = Path(__file__).resolve().parents[1] / "models"
NETWORKS = ("cnn", "attention", "mobile", "mlp")
KINDS = 9
Case = tuple[str, bool, bool]


def case(seed: int) -> Case:
    turn = seed // KINDS
    return NETWORKS[turn % 4], bool(turn // 4 % 2), bool(turn // 8 % 2)


def verdict(found: Attribution, made: Sabotage, unspoiled: float) -> tuple[bool, bool, bool]:
    """Returns whether the tensor, its cause and a repair were found."""
    worst = found.tensors[0]
    first = named(worst, made)
    return first, first and worst.cause in made.causes, first and found.repaired_db >= unspoiled - 1


def main(count: int, first: int) -> int:
    logging.disable(logging.WARNING)
    with np.load(MODELS / "digits_test.npz") as arrays:
        images = arrays["x"]
    totals = np.zeros(3, int)
    known: dict[Case, tuple[Graph, Path, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for seed in track(range(first, first + count), disable=not sys.stderr.isatty()):
            key = network, per_channel, signed = case(seed)
            model = MODELS / f"digits_{network}_float.onnx"
            graph = known[key][0] if key in known else qb.load(model)
            port = graph.inputs[0]
            shape = [-1, *(e for e in (port.type.shape or ())[1:] if isinstance(e, int))]
            data = images.reshape(shape)
            seen = {port.name: data[200:264]}
            if key not in known:
                path = Path(name) / f"{network}{per_channel}{signed}.onnx"
                quantized_by_onnxruntime(
                    model, path, port.name, data[:128], per_channel=per_channel, signed=signed
                )
                unspoiled = qb.blame(graph, path, seen, repairs=0).quantized_db
                known[key] = graph, path, unspoiled
            spoiled = Path(name) / "spoiled.onnx"
            made = spoil(known[key][1], spoiled, seed)
            found = qb.blame(graph, spoiled, seen)
            right = verdict(found, made, known[key][2])
            totals += right
            if not all(right):
                worst = found.tensors[0]
                print(seed, *key, made, "->", worst.name, worst.cause, worst.repair, right)
    words = ("first", "cause", "repaired")
    print(f"{count} files:", ", ".join(f"{w} {n}" for w, n in zip(words, totals, strict=True)))
    return 0


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:]]
    sys.exit(main(*(numbers + [108, 0][len(numbers) :])))
