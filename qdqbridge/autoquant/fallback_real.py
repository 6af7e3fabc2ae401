"""The outputs of a really quantized graph, in real numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.interpreter import evaluate
from qdqbridge.graph.numerics import dequantize

Array = NDArray[Any]


def outputs_of(graph: Graph, batches: Sequence[Mapping[str, Array]]) -> Iterator[list[Array]]:
    """Yields the outputs of ``graph`` for each batch.

    Args:
        graph: A canonical graph; onnxruntime runs it as it is written, the interpreter what
            onnxruntime cannot.
        batches: Inputs by name.
    """
    from qdqbridge.onnx_io.running import Runner

    try:
        runner = Runner(graph, optimized=False, spinning=False)
    except UnsupportedTargetError:
        runner = None
    for batch in batches:
        found = runner.run(batch) if runner else list(evaluate(graph, batch)[0].values())
        yield [
            array if value.quant is None else dequantize(array, value.quant.params)
            for value, array in zip(graph.outputs, found, strict=True)
        ]
