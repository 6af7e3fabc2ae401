"""Random inputs of a graph that is written as a TFLite file."""

from __future__ import annotations

from typing import Any

import numpy as np

from qdqbridge.tflite_io.litert import shapes_of
from qdqbridge.tflite_io.writer import TFLiteModel


def drawn_inputs(made: TFLiteModel, seed: int, extent: int) -> dict[str, np.ndarray[Any, Any]]:
    """Returns arrays by name: normal floats, and integers over the whole of their type.

    Args:
        made: The model.
        seed: What they are drawn from.
        extent: The size of open extents.
    """
    rng = np.random.default_rng(seed)
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for value in made.graph.inputs:
        shape, dtype = shapes_of(made.graph, extent)[value.name], value.type.dtype.numpy
        if np.issubdtype(dtype, np.floating):
            inputs[value.name] = rng.normal(size=shape).astype(dtype)
        else:
            info = np.iinfo(dtype)
            inputs[value.name] = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    return inputs
