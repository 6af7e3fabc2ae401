"""Programs of other projects, which may be in an environment of their own."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def installed_program(name: str) -> str | None:
    """Returns where a program is: on the PATH, or beside this Python."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if beside.exists() else None)
