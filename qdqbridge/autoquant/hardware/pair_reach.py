"""How far two channels reach at once that kernels add as a pair.

The largest numbers of two neighbours seldom come together, above all behind a Relu. How far both
reach in a few directions bounds every sum ``a x + b y`` of them, whatever the weights are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.onnx_io.runtime.products import Order

Real = NDArray[np.float64]
Place = tuple[str, int, bool]
"""What is paired how: a value's name, groups of channels, and whether they are those of images."""
Look = Callable[[Sequence[Value]], Iterable[Mapping[Value, NDArray[np.float32]]]]
"""Returns what values hold in samples, one batch after the other."""
PAIRED_PRODUCTS = (CONV, GEMM, MATMUL, DENSE)
_ANGLES = np.arange(5) * (math.pi / 8)
"""Between two of these directions a bound is 2 % too large at most."""


def place_of(node: Node, order: Order) -> Place | None:
    """Returns how the operand of a product is paired; None where not by channels alone."""
    if node.op not in PAIRED_PRODUCTS:
        return None
    geometry, weight = geometry_of(node), node.operand(1).constant
    if geometry is None or weight is None:
        return None
    if not geometry.image:
        return (node.operand(0).name, 1, False) if len(weight.shape) == 2 else None
    inside, *window = weight.shape[1:]
    if math.prod(window) > 1 and (inside % 2 or order != "channels-last"):
        return None  # neighbours are of two pixels
    return None if inside < 2 else (node.operand(0).name, geometry.groups, True)


def reached(graph: Graph, look: Look, order: Order) -> dict[Place, Real]:
    """Returns how far the operands of products reach, ``[directions, groups, pairs]``.

    Args:
        graph: A float graph.
        look: Runs it.
        order: In which order pairs are added.
    """
    places: dict[Place, Value] = {}
    for node in graph.nodes:
        place = place_of(node, order)
        if place is not None and not node.operand(0).is_constant:
            places[place] = node.operand(0)
    found: dict[Place, Real] = {}
    for values in look(list(dict.fromkeys(places.values()))) if places else ():
        for place, value in places.items():
            far = _of_array(values[value], *place[1:])
            found[place] = np.maximum(found.get(place, 0.0), far)  # borders are zeros
    return {place: far for place, far in found.items() if np.isfinite(far).all()}


def _of_array(array: NDArray[np.float32], groups: int, image: bool) -> Real:
    rows = array.reshape(len(array), groups, array.shape[1] // groups, -1) if image else (
        array.reshape(1, 1, -1, array.shape[-1]).swapaxes(2, 3)
    )  # fmt: skip
    even = rows.shape[2] // 2 * 2
    x, y = rows[:, :, :even:2], rows[:, :, 1:even:2]
    ways = [x * np.float32(math.cos(a)) + y * np.float32(math.sin(a)) for a in _ANGLES[1:-1]]
    ends = [x, *ways, y]
    return np.stack([each.max(axis=(0, 3), initial=0.0) for each in ends]).astype(np.float64)


def corners(far: Real, unit: float, zero: float, high: Real) -> tuple[Real, Real]:
    """Returns a polygon around what the unsigned codes of each pair hold.

    Args:
        far: What :func:`reached` says, further data included.
        unit: What a code stands for.
        zero: The unsigned code of zero.
        high: The largest codes, ``[groups, pairs, 2]``.

    Returns:
        Its corners that lie furthest from zero, ``[corners, groups, pairs]`` of either code.
    """
    x, y = np.cos(_ANGLES)[:, None, None], np.sin(_ANGLES)[:, None, None]
    most = high[..., 0] * x + high[..., 1] * y
    codes = np.minimum(far / unit + (zero + 0.5) * (x + y), most)
    codes[[0, -1]] = most[[0, -1]]
    (x0, x1), (y0, y1) = (x[:-1], x[1:]), (y[:-1], y[1:])
    sine = math.sin(_ANGLES[1])
    first = (codes[:-1] * y1 - codes[1:] * y0) / sine
    second = (codes[1:] * x0 - codes[:-1] * x1) / sine
    return first, second
