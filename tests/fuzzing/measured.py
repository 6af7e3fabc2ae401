"""One case, measured: what came out, how long it took, how much memory.

A case is a finding where anything but a ``QdqBridgeError`` comes out, or where it takes more than
:data:`CPU_SECONDS` or more memory than the file and :data:`ALLOWED_BYTES`.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzzing.target import put_through

CPU_SECONDS = 10.0
ALLOWED_BYTES = 300 << 20


def run(
    data: bytes, folder: Path, target: Callable[[bytes, Path], str] = put_through
) -> dict[str, Any]:
    """Runs one case; ``finding`` is what is wrong, empty for nothing."""
    before, start = _reset_peak(), time.process_time()
    result, finding = "", ""
    try:
        result = target(data, folder)
    except BaseException:  # a finding, whatever it is
        finding = traceback.format_exc(limit=-6)
        if "KeyboardInterrupt" in finding:
            raise
    seconds, used = time.process_time() - start, _status("VmHWM") - before
    if seconds > CPU_SECONDS:
        finding += f"\nit took {seconds:.1f} s"
    if used > len(data) + ALLOWED_BYTES:
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
