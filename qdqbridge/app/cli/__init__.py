"""The command line: arguments and rendering only, over :mod:`qdqbridge.app.pipeline`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs ``qdqbridge`` with the arguments of the process and exits with its code."""
    try:
        from qdqbridge.app.cli.failures import run
        from qdqbridge.app.cli.output import any_text, open_streams

        open_streams()
        any_text()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while Python reads our modules, or we say goodbye
        code = 130
    sys.exit(code)
