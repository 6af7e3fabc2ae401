"""A float graph on data, with some of its tensors rounded: only what changes is computed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.graph import Graph, Value
from qdqbridge.graph.interpreter import check_inputs, computed
from qdqbridge.graph.numerics import dequantize, quantize
from qdqbridge.graph.quantization import QuantParams

Array = NDArray[Any]
Change = Callable[[Array], Array]
"""What is done to a tensor: an activation is rounded, a constant is another one."""


def rounding(*params: QuantParams) -> Change:
    """Returns what rounds a tensor to stored numbers and back, one quantization after another."""

    def change(real: Array) -> Array:
        for each in params:
            real = dequantize(quantize(real.astype(np.float32), each), each)
        return real

    return change


class FloatRuns:
    """Runs of one float graph on the same data.

    Args:
        graph: The float graph.
        data: One array per graph input.
    """

    def __init__(self, graph: Graph, data: Mapping[str, Array]) -> None:
        self.graph = graph
        self.clean: dict[Value, Array] = dict(
            zip(graph.inputs, check_inputs(graph.inputs, data), strict=True)
        )
        for node in graph.nodes:
            operands = [None if v is None else self.stored(v) for v in node.inputs]
            self.clean.update(zip(node.outputs, computed(node, operands), strict=False))

    def stored(self, value: Value) -> Array:
        """Returns what a value holds without any change."""
        return self.clean[value] if value.constant is None else value.constant.numpy()

    def outputs(self, changes: Mapping[Value, Change]) -> list[Array]:
        """Returns the outputs where some tensors are changed.

        Args:
            changes: What is done to which value.
        """
        moved = {
            value: change(self.stored(value))
            for value, change in changes.items()
            if value.producer is None
        }
        for node in self.graph.nodes:
            touched = any(value in moved for value in node.inputs if value is not None)
            asked = any(value in changes for value in node.outputs)
            if not touched and not asked:
                continue
            if touched:
                operands = [
                    None if v is None else moved.get(v, self.stored(v) if v not in moved else None)
                    for v in node.inputs
                ]
                results = computed(node, operands)
            else:
                results = [self.clean[value] for value in node.outputs]
            for value, result in zip(node.outputs, results, strict=False):
                moved[value] = changes[value](result) if value in changes else result
        return [moved.get(value, self.stored(value)) for value in self.graph.outputs]

    def noise(self, outputs: list[Array]) -> float:
        """Returns noise over signal, the mean over the outputs."""
        return noise([self.stored(value) for value in self.graph.outputs], outputs)


def noise(clean: list[Array], moved: list[Array]) -> float:
    """Returns the power of the difference over that of the clean outputs, the mean over them."""
    ratios: list[float] = []
    for a, b in zip(clean, moved, strict=True):
        if a.dtype.kind != "f":
            continue
        wide = a.astype(np.float64)
        signal = float(np.square(wide).sum())
        gap = float(np.square(np.nan_to_num(b.astype(np.float64) - wide, nan=np.inf)).sum())
        ratios.append(gap / signal if signal else float(gap > 0))
    return float(np.mean(ratios)) if ratios else 0.0
