"""One thread at a time where TVM keeps something for all of them.

TVM 0.27 has one list of the block builders that are open, and a function that ends has to be the
last one's (``BlockBuilder._stack``): two threads that build functions at once end in an assertion.
"""

from __future__ import annotations

import os
from threading import RLock

# ---- ctrl-C during TVM's work --------------------------------------------------------------------


def raise_interrupt(error: Exception) -> None:
    """Raises KeyboardInterrupt where ``error`` is what TVM makes of one.

    One that comes up in a pass written in Python leaves TVM as a RuntimeError without a word
    (measured, apache-tvm-ffi 0.1.14); errors of TVM's own say something.
    """
    if type(error) is RuntimeError and not str(error):
        raise KeyboardInterrupt from error


# --------------------------------------------------------------------------------------------------

BUILDING = RLock()
"""Held by whoever builds functions of Relax, or has TVM legalize them."""

if hasattr(os, "register_at_fork"):  # a child finds it free, and TVM's list as it was before
    os.register_at_fork(
        before=BUILDING.acquire, after_in_parent=BUILDING.release, after_in_child=BUILDING.release
    )
