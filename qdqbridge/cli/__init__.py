"""The command line: arguments and rendering only; the work is done by :mod:`qdqbridge.pipeline`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs ``qdqbridge`` with the arguments of the process and exits with its code."""
    from qdqbridge.cli.failures import run

    sys.exit(run(sys.argv[1:]))
