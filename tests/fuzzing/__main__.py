"""``python -m tests.fuzzing --count 20000 --seconds 3600 -o findings FOLDER …``.

Runs :mod:`tests.fuzzing.worker` processes one after another, each a block of cases; a worker that
says nothing for a minute is ended, and the case it was at is a finding.
"""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzzing.target import seeds
from tests.fuzzing.worker import case

SILENCE = 60.0
BLOCK = 1000


class Tally:
    """Counts of all workers."""

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.worst = {"seconds": 0.0, "bytes": 0}
        self.findings: dict[int, str] = {}

    def block(self, command: list[str]) -> int:
        """Runs one worker; returns the last case that it was at."""
        last = -1
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while True:
                if not select.select([process.stdout], [], [], SILENCE)[0]:
                    process.kill()
                    self.findings[last] = f"nothing for {SILENCE} s"
                    break
                line = process.stdout.readline()
                if not line:
                    break
                last = self._take(json.loads(line), last)
        if process.returncode and last not in self.findings:
            self.findings[last] = f"the process ended with {process.returncode}"
        return last

    def _take(self, message: dict[str, Any], last: int) -> int:
        if "results" in message:
            self.results += Counter(message["results"])
            self.worst = {key: max(self.worst[key], message[key]) for key in self.worst}
            return last
        if "finding" in message:
            self.findings[message["case"]] = message["finding"]
        return int(message["case"])


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("findings"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    models = seeds(arguments.folders)
    tally, start = Tally(), time.monotonic()
    number, end = arguments.first, arguments.first + arguments.count
    while number < end and (left := arguments.seconds - (time.monotonic() - start)) > 0:
        block = [str(arguments.seed), str(number), str(min(BLOCK, end - number)), str(left)]
        command = [sys.executable, "-m", "tests.fuzzing.worker", *block]
        number = tally.block([*command, *map(str, arguments.folders)]) + 1
        for found, text in tally.findings.items():
            name = arguments.output / f"{arguments.seed}_{found}"
            name.with_suffix(".onnx").write_bytes(case(models, arguments.seed, found))
            name.with_suffix(".txt").write_text(text)
        seconds = time.monotonic() - start
        print(f"{number} cases, {seconds:.0f} s: {len(tally.findings)} findings; worst "
              f"{tally.worst['seconds']:.2f} s, {int(tally.worst['bytes']) >> 20} MB; "
              f"{dict(tally.results.most_common())}", flush=True)  # fmt: skip
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
