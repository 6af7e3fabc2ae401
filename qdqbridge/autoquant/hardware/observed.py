"""What data does to the products of a quantized graph: the codes that come in, the sums they make.

The interpreter runs the graph, so that the sums are those of every path that keeps the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.products import Product, products
from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import evaluate

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What came in and out of one product.

    Attributes:
        low: The smallest stored code of the activation.
        high: The largest.
        smallest: The smallest sum of each output channel, int64, the bias included.
        largest: The largest.
    """

    low: int
    high: int
    smallest: NDArray[np.int64]
    largest: NDArray[np.int64]

    def merged(self, other: Seen) -> Seen:
        """Returns what both saw."""
        return Seen(
            min(self.low, other.low),
            max(self.high, other.high),
            np.minimum(self.smallest, other.smallest),
            np.maximum(self.largest, other.largest),
        )


def observe(
    graph: Graph, samples: Samples | Sequence[Sample], *, progress: Progress | None = None
) -> dict[Node, Seen]:
    """Returns what samples do to every product of integers.

    Args:
        graph: A canonical quantized graph.
        samples: Its inputs; or feedings, each as the graph takes it.
        progress: Called with the batches done and their number.

    Raises:
        InputDataError: The samples do not fit the graph.
    """
    found: dict[Node, Seen] = {}
    known = products(graph)
    wanted = list(dict.fromkeys(v for p in known for v in (p.x, p.other) if not v.is_constant))
    pieces = samples.batches(graph.inputs) if isinstance(samples, Samples) else samples
    for done, piece in enumerate(pieces, 1):
        _, values = evaluate(graph, piece, wanted=wanted)
        for product in known:
            seen = _seen(product, values)
            before = found.get(product.node)
            found[product.node] = seen if before is None else before.merged(seen)
        if progress is not None:
            progress(done, len(pieces))
    return found


def _seen(product: Product, values: dict[Value, NDArray[Any]]) -> Seen:
    x = values[product.x]
    constant = product.other.constant
    sums = product.accumulators(x, values[product.other] if constant is None else constant.numpy())
    others = None
    if product.axis is not None:
        axis = product.axis % sums.ndim
        others = tuple(i for i in range(sums.ndim) if i != axis)
    smallest, largest = sums.min(axis=others), sums.max(axis=others)
    return Seen(int(x.min()), int(x.max()), np.atleast_1d(smallest), np.atleast_1d(largest))
