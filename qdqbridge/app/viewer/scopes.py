"""The name scope of a node: the modules of the network that it was written in."""

from __future__ import annotations

import re

from qdqbridge.core.graph.graph import Node

_EXPORTED = "namespace"
"""The property in which PyTorch's exporter says the modules around a node."""
_SEPARATORS = re.compile(r"/+")


def scope(node: Node) -> tuple[str, ...]:
    """Returns the scopes around a node, the outermost first.

    They are those of PyTorch's ``namespace`` property (``b.0: nets.Block/…``) where a file has it,
    else the parts of the node's name before the last ``/``, as most producers write it.

    Args:
        node: Any node.
    """
    exported = dict(node.origin.metadata).get(_EXPORTED)
    if exported is not None:
        names = [part.partition(":")[0].strip() for part in _SEPARATORS.split(exported)]
    else:
        names = _SEPARATORS.split(node.name)
    return _relative([name for name in names[:-1] if name])


def _relative(names: list[str]) -> tuple[str, ...]:
    """Leaves out of each name what the one around it says: ``layer1/layer1.0`` is ``layer1/0``."""
    return tuple(
        name.removeprefix(f"{outer}.") if name != outer else name
        for outer, name in zip(["", *names], names, strict=False)
    )
