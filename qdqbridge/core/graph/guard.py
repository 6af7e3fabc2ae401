"""What a node's results may take, and what is said where they cannot be computed."""

from __future__ import annotations

import math
import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.types import static_shape
from qdqbridge.errors import InvalidModelError, UnsupportedModelError

_BYTES_EACH = 8
"""An element is in memory as float32 and as something of at most that size, about."""
_UNKNOWN_MEMORY = 16 << 30


@cache
def most_bytes() -> int:
    """Returns how many bytes of data may be asked for at once: a quarter of the memory."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no POSIX system
        memory = _UNKNOWN_MEMORY
    return memory // 4


def most_elements() -> int:
    """Returns how many elements a value may have: those that a quarter of the memory holds."""
    return most_bytes() // _BYTES_EACH


@contextmanager
def computing(node: Node) -> Generator[None, None, None]:
    """Runs a node's computation, and names the node in what goes wrong.

    Raises:
        InvalidModelError: NumPy cannot bring the operands together.
        UnsupportedModelError: A result is larger than memory, or nothing here computes it.
    """
    for value in node.outputs:
        shape = static_shape(value.type.shape)
        if shape is not None and math.prod(shape) > most_elements():
            raise _too_large(node, f"a result has the shape {list(shape)}")
    try:
        yield
    except MemoryError as error:
        raise _too_large(node, str(error) or "memory is exhausted") from error
    except UnsupportedModelError as error:  # of what computes it, which knows no node
        if node.name not in error.where:
            error.where = f"{node.name}, {error.where}" if error.where else node.name
        raise
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        # NumPy's words for operands that do not fit each other, or the attributes.
        raise InvalidModelError(
            f"{node.op.name} '{node.name}' cannot be computed",
            where=node.name,
            why=" ".join(str(error).split())[:300],
            fix="feed inputs of the extents that the model is made for, or correct the node",
        ) from error


def _too_large(node: Node, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the result of {node.op.name} '{node.name}' does not fit in memory",
        where=node.name,
        why=why,
        fix="feed a smaller batch, or correct the shapes that the model asks for",
    )
