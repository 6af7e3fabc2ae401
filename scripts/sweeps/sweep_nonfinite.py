"""Random float operators on NaN, infinities and the ends of float32: TVM against the interpreter.

``scripts/sweeps/sweep_nonfinite --models 10``: models of 56 branches (clamps, Max and Min,
reductions, pools, ArgMax, Softmax, activations, products by 0, chains that become one
Composition), half of them quantized, one model on fast kernels and on the reference ones
(``tests/tvm/relax/nonfinite_models.py``). A NaN or an infinity that the interpreter has not, or
another number by more than rounding, is printed with its seed; ``--seed`` begins there.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.tvm.relax.nonfinite_models import differences, nonfinite_model

BRANCHES = 56


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first model")
    arguments = parser.parse_args()
    wrong, start = 0, time.perf_counter()
    for seed in range(arguments.seed, arguments.seed + arguments.models):
        made = nonfinite_model(seed, BRANCHES)
        for kernels in ("fast", "reference"):
            for line in differences(made, kernels):
                wrong += 1
                print(f"seed {seed}, {kernels}: {line}", flush=True)
        print(f"seed {seed}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"{arguments.models * BRANCHES} branches, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
