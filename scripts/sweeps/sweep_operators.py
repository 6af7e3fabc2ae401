"""Random graphs of ONNX's operators through everything, against what they mean.

``scripts/sweeps/sweep_operators --graphs 1000 --tvm 0.3``: graphs of 2 to 12 (``--nodes``) nodes of
``tests/fuzzing/operator_nodes.py`` (every kind of element-wise operator, movement, reduction,
product, window and norm, Q and DQ between, opsets 7 to 26, open extents, empty ones, NaN and ends
of types), each node of which onnxruntime or ONNX's reference has run by itself, go through stages

    whole      onnxruntime on the whole model: that the judge agrees with itself
    load       ``qdqbridge.load``
    raw        the interpreter on the graph as it is read
    canonical  the interpreter on the canonical graph
    text       canonicalizing again changes nothing
    saved      the written file in onnxruntime, and its digest after reading it
    relax      the digest of what is read back from Relax, in both forms (of the same share)
    tvm        ``qdqbridge.compile`` (of a share of the graphs), run on each set of inputs

in forked children; one that dies or hangs is charged to the stage it was in. What is wrong, ends
in an error of Python's or is refused is printed with its seed; ``--shrink`` prints the smallest
part of the graph that does the same.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import qdqbridge as qb
from tests.fuzzing.operator_shrinking import shrunk, words
from tests.fuzzing.operator_stages import STAGES, case_of, outcomes

SECONDS = 120.0
"""Of CPU, that a graph may take; SIGPROF ends a child that takes more."""
BLOCK = 100
ADDRESS_SPACE = 8 << 30


def told(seeds: range, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields what becomes of graphs, by stage."""
    for seed in seeds:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        yield {"seed": seed, "stage": "grow"}
        case = case_of(seed, arguments.nodes)
        hosted = Random(f"tvm/{seed}").random() < arguments.tvm
        stages = [s for s in STAGES if hosted or s not in ("relax", "tvm")]
        found: dict[str, Any] = {}
        yield {"seed": seed, "stage": "run"}
        for stage, outcome in outcomes(case, stages).items():
            found[stage] = [*outcome]
            finding = outcome.outcome in ("wrong", "error") or (stage, outcome.outcome) == (
                "load",
                "refused",
            )
            if finding and arguments.shrink and stage != "whole":
                found[stage].append(words(shrunk(case, stage, outcome)))
        yield {"seed": seed, "found": found, "nodes": len(case.model.graph.node),
               "sets": len(case.sets)}  # fmt: skip


def child(seeds: range, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Runs graphs in a process of their own, up to the one that ends it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with os.fdopen(writing, "w") as stream:
            for row in told(seeds, arguments):
                print(json.dumps(row), file=stream, flush=True)
        os._exit(0)
    os.close(writing)
    data = b""
    last: dict[str, Any] = {"seed": seeds.start, "stage": "grow"}
    while read := os.read(reading, 1 << 16):
        *lines, data = (data + read).split(b"\n")
        for line in lines:
            last = json.loads(line)
            if "found" in last:
                yield last
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if status and "found" not in last:
        yield {"seed": last["seed"], "found": {last["stage"]: ["ended", f"status {status}"]}}
    elif status:
        yield {"seed": last["seed"] + 1, "found": {"grow": ["ended", f"status {status}"]}}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--nodes", type=int, default=12, help="of a graph, at most")
    parser.add_argument("--tvm", type=float, default=0.2, help="share that TVM compiles")
    parser.add_argument("--shrink", action="store_true", help="tell the smallest part that differs")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    assert qb.__version__
    if arguments.tvm:
        import qdqbridge.tvm.relax.executable  # once, before children are forked

        assert qdqbridge.tvm.relax.executable
    counts: dict[str, Counter[str]] = {stage: Counter() for stage in ("grow", "run", *STAGES)}
    seed, end, start = arguments.seed, arguments.seed + arguments.graphs, time.perf_counter()
    while seed < end:
        for row in child(range(seed, min(seed + BLOCK, end)), arguments):
            for stage, (outcome, reason, *shown) in row["found"].items():
                counts[stage][outcome] += 1
                if outcome != "pass":
                    print(f"seed {row['seed']}: {stage} {outcome}: {reason}", flush=True)
                    for text in shown:
                        print(text, flush=True)
            seed = row["seed"] + 1
        print(f"seed {seed}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    for stage, found in counts.items():
        print(f"{stage:<10}", ", ".join(f"{n} {name}" for name, n in found.most_common()))
    return int(
        any(c["wrong"] or c["error"] or c["ended"] for s, c in counts.items() if s in STAGES)
    )


if __name__ == "__main__":
    raise SystemExit(main())
