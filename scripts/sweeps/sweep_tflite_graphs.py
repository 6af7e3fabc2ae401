"""Random graphs written as TFLite files: read back (the same digest?) and run in LiteRT.

``python scripts/sweeps/sweep_tflite_graphs.py --graphs 500``: graphs of about eight operators
with values that are read twice, residuals, open batches and outputs in the middle, quantized ones
and ONNX files by turns. Every difference is printed with its seed; ``--seed`` begins there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.tflite_io.random_graphs import differences


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--no-run", action="store_true", help="do not ask LiteRT")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.graphs):
            try:
                found = differences(seed, Path(folder), counts, run=not arguments.no_run)
            except Exception:  # a bug of ours: told, and the sweep goes on
                found = [traceback.format_exc(limit=-4)]
            wrong += bool(found)
            for line in found:
                print(f"seed {seed}: {line}", flush=True)
    for name, count in counts.most_common():
        print(f"{count:5} {name}")
    print(f"{arguments.graphs} graphs, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
