"""Models of one operator, however it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Graph
from tests.core.canonical.at_work import settled
from tests.onnx_models import Builder, load

Make = Callable[[Builder, str], str]
Ints = list[int]


def vector(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def halves(*shape: int) -> Any:
    """Numbers that float32 multiplies and adds without rounding."""
    rng = np.random.default_rng(len(shape))
    return (rng.integers(-8, 9, shape) / 4).astype(np.float32)


def made(make: Make, shape: list[Any], opset: int = 13) -> Graph:
    b = Builder(opset)
    b.output(make(b, b.input("x", shape)), None)
    return settled(load(b.model()))


def reshaped(*target: int) -> Make:
    return lambda b, x: b.op("Reshape", x, b.init(vector(*target)))
