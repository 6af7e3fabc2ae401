"""One process of fuzzing: ``python -m tests.fuzzing.worker SEED FIRST COUNT SECONDS [FOLDER …]``.

Prints a JSON line per finding and per hundred cases. A case is found where anything but a
``QdqBridgeError`` comes out, where it takes more than :data:`CPU_SECONDS`, or more memory than
four times the file and 200 MB.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzzing.mutations import mutated
from tests.fuzzing.target import put_through, seeds
from tests.onnx_models import conv_model

CPU_SECONDS = 5.0
ALLOWED_BYTES = 200 << 20
ADDRESS_SPACE = 8 << 30


def case(models: list[bytes], seed: int, number: int) -> bytes:
    """Returns the damaged model of one case."""
    rng = Random(f"{seed}/{number}")
    return mutated(rng.choice(models), rng)


def run(data: bytes, folder: Path) -> dict[str, Any]:
    """Runs one case; ``finding`` is what is wrong, empty for nothing."""
    before, start = _reset_peak(), time.process_time()
    result, finding = "", ""
    try:
        result = put_through(data, folder)
    except BaseException:  # a finding, whatever it is
        finding = traceback.format_exc(limit=-6)
        if "KeyboardInterrupt" in finding:
            raise
    seconds, used = time.process_time() - start, _status("VmHWM") - before
    if seconds > CPU_SECONDS:
        finding += f"\nit took {seconds:.1f} s"
    if used > 4 * len(data) + ALLOWED_BYTES:
        finding += f"\nit took {used >> 20} MB"
    return {"result": result, "finding": finding, "seconds": seconds, "bytes": used}


def _reset_peak() -> int:
    """Makes the process's peak its present memory, and returns that."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    return 0


def main() -> None:
    """Runs the command line."""
    seed, first, count = (int(text) for text in sys.argv[1:4])
    until = time.monotonic() + float(sys.argv[4])
    models = seeds([Path(text) for text in sys.argv[5:]])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    results: Counter[str] = Counter()
    worst = {"seconds": 0.0, "bytes": 0}
    with tempfile.TemporaryDirectory() as folder:
        run(conv_model().SerializeToString(), Path(folder))  # imports are not the case's memory
        for number in range(first, first + count):
            print(json.dumps({"case": number}), flush=True)
            found = run(case(models, seed, number), Path(folder))
            results[found["result"] or "FINDING"] += 1
            worst = {key: max(worst[key], found[key]) for key in worst}
            if found["finding"]:
                print(json.dumps({"case": number, "finding": found["finding"]}), flush=True)
            if time.monotonic() > until:
                break
    print(json.dumps({"results": dict(results), **worst}), flush=True)


if __name__ == "__main__":
    main()
