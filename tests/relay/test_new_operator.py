"""Operators that a copy of the package has a row more of, on Relay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.ops.new_rows import with_new_rows

ROOT = Path(__file__).parents[2]


def test_a_new_operator_is_one_row(tmp_path: Path) -> None:
    environment = with_new_rows(tmp_path)
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    command = [sys.executable, "-m", "tests.relay.new_operator", str(tmp_path)]
    run = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
