"""What processors without VNNI do to engines, which is nothing of a model's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.runtime.products import saturates
from qdqbridge.options import EngineName

PAIRS_SATURATE = saturates()
"""Whether kernels of bytes add two products in 16 bits here, onnxruntime's and OpenVINO's."""


def crashes_in_floats(
    engine: EngineName, network: Graph, feed: Mapping[str, NDArray[Any]], folder: Path
) -> bool:
    """Returns whether an engine's process ends on the float network already.

    OpenVINO (2026.4) does with AVX2 at a LayerNormalization of 64 elements, 8 by 8.
    """
    graph = with_numbers(network, dict.fromkeys(symbolic_extents(network), 1))
    qb.save(graph, path := folder / "float.onnx")
    try:
        with qb.open_engine(engine, path) as judge:
            judge.run(feed, judge.outputs)
    except UnsupportedTargetError as error:
        return "crashed" in error.why
    return False
