"""Stages of a TE compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te

BLOCK = "accumulate"
"""Name of the stage that a host takes for the reduction by default."""


def stage(shape: Any, element: Callable[..., Any], name: str) -> te.Tensor:
    """Returns the TE tensor of ``shape`` whose element at ``i…`` is ``element(*i)``."""
    tensor: Any = te.compute(shape, element, name=name)
    return tensor
