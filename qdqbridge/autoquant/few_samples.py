"""Ranges from very few samples: others will reach further, so there is room for them.

The extremes of one sample are those of a class or a scene, not of the tensor. How much further
others reach falls with the number of samples; a range that is half as wide again costs less than
one bit, and clipping what was not seen costs far more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from qdqbridge.autoquant.choosers import MinMax
from qdqbridge.autoquant.samples import Sample
from qdqbridge.autoquant.targets import Target

ENOUGH = 8
"""Different samples from which ranges are chosen by what was seen alone."""


def different(samples: Iterable[Sample], most: int = ENOUGH) -> int:
    """Returns how many different samples there are; looks no further than at ``most``."""
    seen: set[bytes] = set()
    for sample in samples:
        digest = hashlib.sha256()
        for name in sorted(sample):
            digest.update(np.ascontiguousarray(sample[name]).tobytes())
        seen.add(digest.digest())
        if len(seen) >= most:
            break
    return len(seen)


def with_room(target: Target, count: int) -> Target:
    """Returns a target whose ranges reach further than so few samples: twice as far as one does.

    Args:
        target: Its choosers are replaced where it lets others be tried.
        count: How many different samples there are.
    """
    if count >= ENOUGH or not target.candidates or count < 1:
        return target
    return replace(target, chooser=MinMax(1 + count**-0.5), candidates=())
