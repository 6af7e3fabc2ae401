"""Ctrl-C during TVM's work."""

from __future__ import annotations


def raise_interrupt(error: Exception) -> None:
    """Raises KeyboardInterrupt where ``error`` is what TVM makes of one.

    One that comes up in a pass written in Python leaves TVM as a RuntimeError without a word
    (measured, apache-tvm-ffi 0.1.14); errors of TVM's own say something.
    """
    if type(error) is RuntimeError and not str(error):
        raise KeyboardInterrupt from error
