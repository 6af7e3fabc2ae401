"""One thread at a time where TVM keeps something for all of them.

TVM 0.27 has one list of the block builders that are open, and a function that ends has to be the
last one's (``BlockBuilder._stack``): two threads that build functions at once end in an assertion.
"""

from __future__ import annotations

import os
from threading import RLock

BUILDING = RLock()
"""Held by whoever builds functions of Relax, or has TVM legalize them."""

if hasattr(os, "register_at_fork"):  # a child finds it free, and TVM's list as it was before
    os.register_at_fork(
        before=BUILDING.acquire, after_in_parent=BUILDING.release, after_in_child=BUILDING.release
    )
