"""Random nodes through the kernels, against the operator table, bit for bit.

``scripts/sweeps/sweep_kernels --cases 5000``: convolutions, transposed convolutions, products
with a constant matrix, and products of two activations, of 8 bits and some of 16; shapes,
strides, dilations, paddings, groups, zero points (0, 1, 127, 128, 255 and odd ones, of
activations and of weights), parameters per tensor and per channel, ranges, uint8 and int8,
results of floats, remainders of every kind; on each class of CPUs whose code runs here, by turns.
The first difference ends it, with its seed.

``--of others``: everything that is not a product (elementwise operators, tables, choices, depthwise
convolutions, pools, reductions, softmax, normalizations, data movement, resizing, quantization).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from qdqbridge.tvm.relax.kernels.plan import kernel_of
from tests.tvm.relax.kernels import random_others, random_products
from tests.tvm.relax.kernels.kernel_cases import CPUS, DOT_CPUS, Cases

MODULE = 60
"""Cases that are compiled together."""
KINDS: dict[str, tuple[Callable[[np.random.Generator], random_products.Product], float]] = {
    "convolution": (random_products.convolution, 0.5),
    "transposed": (random_products.transposed, 0.1),
    "matrix": (random_products.matrix, 0.2),
    "activations": (random_products.activations, 0.1),
    "16 bits": (random_products.wide, 0.1),
}


def module(seed: int, counts: Counter[str]) -> tuple[int, int]:
    """Runs one module of cases; returns how many had a kernel, and how many had none."""
    rng = np.random.default_rng(seed)
    cases = Cases(kernel_of, DOT_CPUS[seed % len(DOT_CPUS)])
    for _ in range(MODULE):
        kind = str(rng.choice(list(KINDS), p=[share for _, share in KINDS.values()]))
        name, attributes, operands, result = KINDS[kind][0](rng)
        last = name in ("Conv", "ConvTranspose")
        made = cases.add(name, attributes, operands, result, last=last, needed=False)
        counts[f"{kind}, {cases.cpu.name}" + ("" if made else ", no kernel")] += 1
    return cases.check(), cases.refused


def others(seed: int, counts: Counter[str]) -> tuple[int, int]:
    """As :func:`module`, of nodes that are no products; with one thread and two by turns."""
    rng = np.random.default_rng(seed)
    cases = Cases(kernel_of, CPUS[seed % len(CPUS)], threads=1 + seed // len(CPUS) % 2)
    for _ in range(MODULE):
        make = random_others.KINDS[int(rng.integers(len(random_others.KINDS)))]
        case = make(rng)
        made = cases.add(
            case.name, case.attributes, case.operands, case.result, last=case.last, needed=False
        )
        counts[f"{make.__name__}, {cases.cpu.name}" + ("" if made else ", no kernel")] += 1
    return cases.check(), cases.refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=5000, help="how many with a kernel at least")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first module")
    parser.add_argument("--of", choices=("products", "others"), default="products")
    arguments = parser.parse_args()
    run = module if arguments.of == "products" else others
    counts: Counter[str] = Counter()
    done, seed, start = 0, arguments.seed, time.perf_counter()
    while done < arguments.cases:
        try:
            checked, _ = run(seed, counts)
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return 1
        done, seed = done + checked, seed + 1
        if seed % 10 == 0:
            print(f"{done} cases, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    for kind, count in sorted(counts.items()):
        print(f"{count:6} {kind}")
    print(f"{done} cases, 0 differences, {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
