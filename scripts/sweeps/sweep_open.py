"""Random models with open extents on TVM, against the interpreter, bit for bit.

``scripts/sweeps/sweep_open --models 240``: broadcasting, products, computed shapes, reductions,
norms, softmaxes, resizes, pads, windows and data movement over extents that the inputs leave open
(``tests/tvm/relax/open_models.py``), with fast kernels and with plain loops, each fed with
several extents, 1 and unfit ones among them. Every difference or refusal is printed with its seed;
``--seed`` begins there.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from qdqbridge.errors import UnsupportedTargetError
from tests.tvm.relax.open_models import case
from tests.tvm.relax.test_open_extents import problems


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first model")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.models):
        model = case(seed)
        for kernels in ("fast", "reference"):
            try:
                found = problems(model, kernels)
            except UnsupportedTargetError as error:
                counts["refused"] += 1
                print(f"{model.name}, {kernels}: refused: {error.why}")
                continue
            counts["differ" if found else "agree"] += 1
            for problem in found:
                print(f"{model.name}, {kernels}: {problem}")
    print(dict(counts))
    return 1 if counts["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
