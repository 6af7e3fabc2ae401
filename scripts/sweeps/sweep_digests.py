"""Random models out and back: the digest after save and load, and through Relax, must stay.

``scripts/sweeps/sweep_digests --models 500``: models of ``tests/onnx_io/random_models.py``, each
saved and loaded, and emitted to Relax in both forms and read back. What is refused is counted by
its reason; every digest that moves is printed with its seed, ``--text`` adds the difference of the
texts.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import qdqbridge as qb
from tests.onnx_io.digest_trips import loaded, trips
from tests.onnx_io.random_models import random_model


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first model")
    parser.add_argument("--text", action="store_true", help="show what differs")
    parser.add_argument("--no-relax", action="store_true", help="only save and load")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    counts, reasons, start = Counter[str](), Counter[str](), time.perf_counter()
    for seed in range(arguments.seed, arguments.seed + arguments.models):
        try:
            graph = loaded(random_model(seed))
        except qb.QdqBridgeError as error:
            reasons[f"load: {str(error).splitlines()[0]}"] += 1
            continue
        counts["models"] += 1
        for name, back in trips(graph, relax=not arguments.no_relax):
            if isinstance(back, qb.QdqBridgeError):
                reasons[f"{name}: {str(back).splitlines()[0]}"] += 1
                continue
            counts[name] += 1
            if back.digest == graph.digest:
                continue
            counts[f"{name} moved"] += 1
            print(f"seed {seed}: {name}", flush=True)
            if arguments.text:
                before, after = (g.text().splitlines() for g in (graph, back))
                print("\n".join(difflib.unified_diff(before, after, lineterm="", n=0)), flush=True)
    for reason, count in reasons.most_common():
        print(f"refused {count} times: {reason}")
    seconds = time.perf_counter() - start
    print(", ".join(f"{name} {count}" for name, count in counts.items()), f"in {seconds:.0f} s")
    return int(any(name.endswith("moved") for name in counts))


if __name__ == "__main__":
    raise SystemExit(main())
