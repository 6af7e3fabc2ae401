"""Random graphs on fast kernels, against the interpreter, bit for bit.

``scripts/sweeps/sweep_graphs --graphs 500``: graphs of about eight quantized operators with
values that are read twice, diamonds, residuals and outputs in the middle
(``tests/tvm/relax/kernels/ random_graphs.py``), with the batch open in every other one (1, 3 and
7 are run); on each class of CPUs whose code runs here and with one thread and two, by turns.
``scripts/sweeps/sweep_kernels`` looks at single kernels; this looks at the plan of layouts and
fusions and at buffers that are shared. Every difference or refusal is printed with its seed;
``--seed`` begins there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from qdqbridge.errors import UnsupportedTargetError
from tests.tvm.relax.kernels.random_graphs import differences


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--nodes", type=int, default=8, help="of a graph, about")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    wrong, refused, start = 0, 0, time.perf_counter()
    for seed in range(arguments.seed, arguments.seed + arguments.graphs):
        try:
            found = differences(seed, arguments.nodes, counts)
        except UnsupportedTargetError as error:
            refused += 1
            print(f"seed {seed}: {error}".replace("\n", "; "), flush=True)
            continue
        wrong += bool(found)
        if seed % 20 == 19:
            print(f"seed {seed}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        for line in found:
            print(f"seed {seed}: {line}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in counts.most_common()))
    seconds = time.perf_counter() - start
    print(f"{arguments.graphs} graphs, {wrong} wrong, {refused} refused, {seconds:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
