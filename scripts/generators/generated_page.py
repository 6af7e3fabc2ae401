"""The command line of a script that makes a page of the documentation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def main(path: Path, page: Callable[[], str], about: str | None) -> int:
    """Writes a page, or with ``--check`` only says whether it is current.

    Args:
        path: The page.
        page: Returns it as it should be.
        about: What the script says of itself.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="only say whether it is current")
    check, wanted = parser.parse_args().check, page()
    if path.exists() and path.read_text("utf-8") == wanted:
        return 0
    if check:
        print(f"{path.name} is not current: run python {sys.argv[0]}", file=sys.stderr)
        return 1
    path.write_text(wanted, "utf-8")
    return 0
