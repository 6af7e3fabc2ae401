"""Standard streams that may be closed, broken, or of an encoding that lacks most characters."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress


def open_streams() -> None:
    """Opens what the shell closed (``>&-``) on the null device.

    Otherwise a model file would get the number of a standard stream, and messages be written
    into it.
    """
    handle = os.open(os.devnull, os.O_RDWR)
    while handle <= 2:
        handle = os.dup(handle)
    os.close(handle)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def any_text() -> None:
    """Lets standard streams take any text: what their encoding lacks is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence() -> None:
    """Sends what is left of the output to the null device, so that Python's exit can flush it."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
            continue
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(null, stream.fileno())
    os.close(null)
