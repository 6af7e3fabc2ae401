"""Rules that make a graph's operators of the calls that a host needs for them.

A module is read one call after the other; what an emitter wrote as several calls, or a frontend
has taken apart, becomes one operator here: the last call of a chain is looked at, and what stands
behind it. Where spans say which operator a call belongs to, only that one is looked for; without
spans, only chains that nobody writes for anything else. A host adds rules of its own.
"""

from __future__ import annotations

from qdqbridge.core.rewrite import Rule
from qdqbridge.tvm.qnn.read.rules import activations, products, recorded

RECORDED: tuple[Rule, ...] = (
    *recorded.RULES,
    *activations.RULES,
    *products.RULES,
    *activations.NORMS_RULES,
)
"""What spans name."""
FROM_RELAX: tuple[Rule, ...] = (
    *RECORDED,
    *activations.UNMISTAKABLE,
    *products.UNMISTAKABLE,
    *activations.RELAX,
)
"""The rules of a Relax module, in the order in which they look at a node."""
FROM_RELAY: tuple[Rule, ...] = (
    *RECORDED,
    *activations.UNMISTAKABLE,
    *products.UNMISTAKABLE,
    *activations.RELAY,
)
"""Those of a Relay module."""
WHOLE: tuple[Rule, ...] = products.STEP_RULES
"""Those behind all others: operators of steps that are operators themselves."""
