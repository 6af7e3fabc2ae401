"""What quantizing takes: CPU seconds and peak memory, ``scripts/bench cost --folder FOLDER``.

Every network of ``quantization_networks.py`` (and of ``small_language_model.py train``, whose files
may lie in the same folder) is quantized with the defaults by a fresh process that has one core, so
that its CPU seconds are those that a user waits there, whatever else the machine does. What it
imports on the way is counted. ``--beside CHECKOUT`` measures another checkout in turn, and says
whether both quantize to the same digest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_networks import ROOT, Case, cases_in


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Attributes:
        seconds: Of CPU, from the call on.
        megabytes: Peak memory of the process, in MiB.
        digest: Of the quantized graph.
    """

    seconds: float
    megabytes: float
    digest: str

    def least(self, other: Cost) -> Cost:
        """Returns the shorter of two runs; the rest of the machine only ever adds."""
        return self if self.seconds <= other.seconds else other


def measured(case: Case) -> Cost:
    """Quantizes a network in this process, on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import qdqbridge

    start = time.process_time()
    graph = qdqbridge.quantize(case.path, case.calibration)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(seconds, peak, graph.digest)


def cost(case: Case, checkout: Path) -> Cost:
    """Quantizes a network in a process of its own with the code of a checkout."""
    command = [sys.executable, __file__, "--only", case.name, "--folder", str(case.path.parent)]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def show(case: Case, found: Sequence[Cost]) -> None:
    """Prints what a network took, this checkout first."""
    row = "; ".join(f"{each.seconds:6.1f} s {each.megabytes:6.0f} MiB" for each in found)
    same = len({each.digest for each in found}) == 1
    print(f"{case.name:<16}{row}" + ("" if same else "  other digests"), flush=True)


def main(given: Sequence[str]) -> int:
    """Measures networks of a folder, in turn."""
    parser = argparse.ArgumentParser(prog="bench cost", description=__doc__)
    parser.add_argument("networks", nargs="*", help="names; by default all there are")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=2, help="the shortest of so many runs counts")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.only is not None:
        print(json.dumps(vars(measured(next(cases_in(arguments.folder, [arguments.only]))))))
        return 0
    checkouts = [ROOT, *([arguments.beside] if arguments.beside else [])]
    for case in cases_in(arguments.folder, arguments.networks):
        found = [cost(case, checkout) for checkout in checkouts]
        for _ in range(arguments.rounds - 1):
            found = [
                each.least(cost(case, checkout))
                for each, checkout in zip(found, checkouts, strict=True)
            ]
        show(case, found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
