"""The text form out and back: the digest of every model below some folders, and damaged text.

``python scripts/sweeps/sweep_text.py models FOLDER… --damage 2000``: each file that can be read
is written as complete text, with its weights inline and beside it, and read back; digest and text
must stay. ``--damage N`` then reads N damaged texts: what is raised must be an error of ours.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

import qdqbridge as qb
from tests.core.text.test_parser import damaged

_SLOW = 20.0  # seconds per 100 MB of text


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--every", type=int, default=1, help="take only every n-th file")
    parser.add_argument("--damage", type=int, default=0, help="how many damaged texts to read")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = (path for folder in arguments.folders for path in folder.rglob("*"))
    files = sorted(path for path in found if path.suffix in (".onnx", ".tflite"))
    counts, texts, start = Counter[str](), [], time.perf_counter()
    for path in files[:: arguments.every]:
        try:
            graph = qb.load(path)
        except qb.QdqBridgeError:
            counts["not read"] += 1
            continue
        outcome, text = _there_and_back(graph)
        counts[outcome] += 1
        if outcome != "same":
            print(f"{outcome}: {path}", flush=True)
        if len(text) < 1 << 16:
            texts.append(text)
    counts.update(_damage(texts, arguments.damage, random.Random(arguments.seed)))
    seconds = time.perf_counter() - start
    print(", ".join(f"{name} {count}" for name, count in counts.items()), f"in {seconds:.0f} s")
    return int(any(name in counts for name in ("moved", "slow", "crashed")))


def _there_and_back(graph: qb.Graph) -> tuple[str, str]:
    start = time.perf_counter()
    text = graph.text("inline")
    back = qb.parse(text)
    seconds = time.perf_counter() - start
    weights: dict[str, np.ndarray[Any, Any]] = {}
    beside = qb.parse(graph.text(weights), weights)
    same = back.digest == beside.digest == graph.digest and back.text("inline") == text
    slow = seconds > 1 + _SLOW * len(text) / 1e8
    return ("moved" if not same else "slow" if slow else "same"), text


def _damage(texts: list[str], count: int, rng: random.Random) -> Counter[str]:
    counts = Counter[str]()
    for index in range(count if texts else 0):
        text = damaged(texts[index % len(texts)], rng)
        try:
            qb.parse(text).text()
            counts["damaged and read"] += 1
        except qb.QdqBridgeError:
            counts["damaged and refused"] += 1
        except Exception as error:  # a bug of ours: shown, and the rest goes on
            counts["crashed"] += 1
            print(f"{error!r}\n{text[:2000]}", flush=True)
    return counts


if __name__ == "__main__":
    raise SystemExit(main())
