"""Scales of weights for which the pairs that data makes do not saturate, and room to learn in.

Some processors that an engine runs on add pairs of products in 16 bits
(:mod:`qdqbridge.onnx_io.runtime.products`), others exactly: onnxruntime on AVX2, and on VNNI. One
file is for both. So a row of weights gets a larger scale where two neighbours saturate with what
was seen of their own two channels, and only as large as these need: few channels reach the end of a
range that all of them share, and fewer at once.

Where rows of a product need much larger scales, and it has few of the model's multiplications, it
is computed in two parts instead, of which each has zeros for every other term: a byte times a byte
never saturates beside a zero. Nothing is lost by that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.onnx_io.runtime.products import Order

# ---- How far two channels reach at once that kernels add as a pair -------------------------------
# The largest numbers of two neighbours seldom come together, above all behind a Relu. How far both
# reach in a few directions bounds every sum ``a x + b y`` of them, whatever the weights are.


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


# ---- Scales of weights for which the pairs that data makes do not saturate, and room to learn in -


_MOST = 32767.0
"""The largest sum of a pair."""
_MIDDLE = 128
_TOGETHER = 4.0
"""How many times as much further pairs of other data may reach as single channels: so many of them
are of few samples."""
_MUCH, _FEW = 1.25, 0.01
"""How many times as large scales are much larger, in the mean; which part of a model's operations
may be done twice."""


@dataclass(slots=True, eq=False)
class PairRoom:
    """What was seen of the operands of products whose pairs may saturate.

    Attributes:
        order: In which order pairs are added.
        stats: What was seen, by the operand's name; what is not known of may hold any code.
        samples: Of so many samples: other data may reach further, by one part in so many.
        graph: The float graph.
        look: Runs it, to see what pairs of channels hold at once; None where nobody can.
        shares: Which part of the model's operations each product has that may be computed in two
            parts, by name.
        running: The names of products whose operand is quantized while the model runs, by its own
            extremes: any two neighbours may hold the ends of uint8 there.
        saturating: The names of products whose scales stay as they are.
        parted: The names of those that are.
    """

    order: Order
    stats: Mapping[str, TensorStats]
    samples: int
    graph: Graph | None = None
    look: Look | None = None
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    running: frozenset[str] = frozenset()
    saturating: frozenset[str] = frozenset()
    parted: set[str] = field(init=False)
    _reached: dict[Place, Real] | None = field(init=False, repr=False)
    _raised: dict[tuple[str, int, int], tuple[QuantParams, QuantParams | None, QuantParams]] = (
        field(init=False, repr=False)
    )
    _own: dict[int, tuple[QuantParams, QuantParams]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._raised, self._own, self._reached, self.parted = {}, {}, None, set()

    @property
    def used(self) -> bool:
        """True where a scale was raised, or a product is computed in two parts."""
        return bool(self._own or self.parted)

    @property
    def raised_by(self) -> dict[str, float]:
        """How many times as large the rounding errors are of products whose scales were raised."""
        rows = self._raised.items()
        return {
            name: float(np.mean((new.scale.astype(np.float64) / own.scale.astype(np.float64)) ** 2))
            for (name, *_), (own, _, new) in rows
            if new is not own
        }

    def raised(self, node: Node, params: QuantParams, x: QuantParams | None) -> QuantParams:
        """Returns parameters of a product's weight with which no pair of what was seen saturates.

        Scales that were raised for other parameters of the operand are forgotten.

        Args:
            node: The product.
            params: Of its weight.
            x: Of its operand; None where that is quantized while the model runs, or not at all.
        """
        if x is None and node.name not in self.running:
            return params
        base = self._own.get(id(params), (params, params))[1]
        if node.name in self.parted or node.name in self.saturating:
            return base
        key = node.name, id(base), id(x)
        if key not in self._raised:
            found = self._suited(node, base, x)
            self._raised[key] = base, x, found  # held: no other gets their ids
            if found is not base:
                self._own[id(found)] = found, base
        return self._raised[key][2]

    def is_parted(self, node: Node, params: QuantParams, x: QuantParams | None) -> bool:
        """Returns whether a product is computed in two parts: as it is stored, pairs saturate.

        Args:
            node: The product.
            params: Of its weight.
            x: Of its operand, as for :meth:`raised`.
        """
        return node.name in self.parted and self._rows(node, params, x) is not None

    def limits(
        self, node: Node, stored: NDArray[Any], params: QuantParams, x: QuantParams | None
    ) -> tuple[Real, Real] | None:
        """Returns how small and how large each integer may become: each of a pair by half the room.

        Args:
            node: The product.
            stored: Its weight as it is stored, a pair of which saturates nowhere.
            params: Of its weight.
            x: Of its operand, as for :meth:`raised`.
        """
        rows = self._rows(node, params, x)
        if rows is None or node.name in self.parted or node.name in self.saturating:
            return None
        places = rows.places(np.arange(stored.size).reshape(stored.shape))
        own = stored.astype(np.float64).reshape(-1)
        low, high = (np.full(stored.size, float(end)) for end in (params.qmin, params.qmax))
        even = rows.even
        pairs = places[:, :even]
        largest = np.maximum(rows.high[:, :even], 1.0)
        for sign, limit, nearer in ((1.0, high, np.minimum), (-1.0, low, np.maximum)):
            sizes = np.maximum(sign * own[pairs], 0.0)
            left = np.maximum(_MOST - rows.sums(sizes)[0], 0.0)
            left = np.repeat(left, 2, axis=1) / 2
            limit[pairs] = nearer(limit[pairs], sign * (sizes + np.floor(left / largest)))
        return low.reshape(stored.shape), high.reshape(stored.shape)

    def _suited(self, node: Node, params: QuantParams, x: QuantParams | None) -> QuantParams:
        rows = self._rows(node, params, x)
        if rows is None:
            return params
        weight = node.operand(1).constant
        assert weight is not None
        real = rows.places(weight.numpy().astype(np.float64))
        scale = params.scale.astype(np.float64).reshape(-1)
        wide = np.tile(scale, len(real) // scale.size)
        up, down = (sums.max(axis=1, initial=0.0) for sums in rows.sums(real / wide[:, None]))
        # What rounding adds to a pair at most.
        half = (rows.high[:, : rows.even : 2] + rows.high[:, 1 : rows.even : 2]) / 2
        factor = np.maximum(up, down) / (_MOST - half.max(axis=1, initial=0.0))
        close = factor > 1
        if close.any():  # what rounds to less than that needs nothing
            stored = np.clip(np.rint(real / wide[:, None]), params.qmin, params.qmax)
            worst = np.maximum(*(s.max(axis=1, initial=0.0) for s in rows.sums(stored)))
            factor[worst <= _MOST] = 1.0
        factor = np.maximum(factor, 1.0).reshape(-1, scale.size).max(axis=0)
        if (factor == 1).all():
            return params
        if np.mean(factor**2) > _MUCH**2 and self.shares.get(node.name, 1.0) <= _FEW:
            self.parted.add(node.name)
            return params
        found = np.asarray(scale * factor, np.float32).reshape(params.scale.shape)
        return replace(params, scale=found)

    def _rows(self, node: Node, params: QuantParams, x: QuantParams | None) -> _PairedRows | None:
        """Returns how the rows of a weight are paired; None where nothing of it can saturate."""
        geometry, weight = geometry_of(node), node.operand(1).constant
        if geometry is None or weight is None or node.op not in PAIRED_PRODUCTS or params.blocked:
            return None
        if x is None and node.name not in self.running:
            return None
        kinds = (params.storage_dtype, *(() if x is None else (x.storage_dtype,)))
        if any(not k.is_integer or k.bits != 8 for k in kinds) or not kinds[0].is_signed:
            return None
        shape = weight.shape
        if not params.symmetric or not (x is None or x.per_tensor) or geometry.alone(shape):
            return None
        if not (geometry.image or len(shape) == 2):
            return None
        low, high = self._codes(node, x)
        groups = geometry.groups if geometry.image else 1
        taps = int(np.prod(shape[2:], dtype=np.int64)) if geometry.image else 1
        count, terms = geometry.channels(shape), geometry.terms(shape)
        wanted = terms // taps * groups
        if low.size != wanted:
            # Extremes are of one number per channel or of the whole tensor; a tensor's hold for
            # each channel.
            low, high = (np.full(wanted, end) for end in (low.min(), high.max()))
        # Neighbours are taps of one channel where channels come first, channels of one tap where
        # they come last.
        along = np.repeat if self.order == "channels-first" else np.tile
        low, high = (along(each.reshape(groups, -1), (1, taps)) for each in (low, high))
        polygon = [np.tile(each, taps) for each in self._corners(node, x, high)]
        if groups > 1:
            low, high = (np.repeat(each, count // groups, axis=0) for each in (low, high))
            polygon = [np.repeat(each, count // groups, axis=1) for each in polygon]
        return _PairedRows(node, taps if along is np.tile else 1, low, high, polygon)

    def _corners(self, node: Node, x: QuantParams | None, high: Real) -> tuple[Real, ...]:
        """Returns what the codes of pairs hold at once at most; nothing where nobody looked."""
        place = place_of(node, self.order)
        if x is None or place is None or self.graph is None or self.look is None:
            return ()
        if self._reached is None:
            self._reached = reached(self.graph, self.look, self.order)
        far = self._reached.get(place)
        if far is None:
            return ()
        zero = float(x.zero_point) + (_MIDDLE if x.storage_dtype.is_signed else 0)
        most = high[:, : far.shape[2] * 2].reshape(*far.shape[1:], 2)
        return corners(far * (1 + _TOGETHER / max(self.samples, 1)), float(x.scale), zero, most)

    @property
    def _further(self) -> float:
        """How many times as far other data may reach."""
        return 1 + 1 / max(self.samples, 1)

    def _codes(self, node: Node, x: QuantParams | None) -> tuple[Real, Real]:
        """Returns the smallest and largest unsigned code, of each channel where that is known."""
        if x is None:
            return np.zeros(1), np.full(1, 255.0)
        value, shift = node.operand(0), 128.0 if x.storage_dtype.is_signed else 0.0
        seen = self.stats.get(value.name)
        if seen is None or seen.minimum > seen.maximum:
            return np.array([x.qmin + shift]), np.array([x.qmax + shift])
        image = node.op is CONV
        channels = seen.channels
        low, high = np.array([seen.minimum]), np.array([seen.maximum])
        if channels is not None and channels.axis == (1 if image else (value.rank or 0) - 1):
            low, high = channels.minimum, channels.maximum
        further = self._further
        low, high = (np.where(np.isfinite(end), end, 0.0) * further for end in (low, high))
        ends = np.minimum(low, 0.0), np.maximum(high, 0.0)  # borders are zeros
        low, high = (quantize(e.astype(np.float32), x).astype(np.float64) + shift for e in ends)
        return low, high


@dataclass(frozen=True, slots=True, eq=False)
class _PairedRows:
    """Rows of a weight, and the codes that meet each of its terms.

    Attributes:
        node: The product.
        taps: Taps that channels are regrouped by; 1 to leave terms where they are.
        low: Smallest unsigned codes, ``[channels, terms]``, or one row for all.
        high: The largest.
        corners: What both codes of a pair hold at once at most, ``[corners, channels, pairs]``,
            the first of them and the second; nothing where that is not known.
    """

    node: Node
    taps: int
    low: Real
    high: Real
    corners: Sequence[Real] = ()

    @property
    def even(self) -> int:
        """How many terms have a neighbour."""
        return self.low.shape[1] // 2 * 2

    def places(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Returns a weight as rows of terms, in the order in which they are added."""
        geometry = geometry_of(self.node)
        assert geometry is not None
        rows = geometry.rows(weight)
        if self.taps == 1:
            return rows
        split = rows.reshape(len(rows), -1, self.taps)
        return np.swapaxes(split, 1, 2).reshape(rows.shape)

    def sums(self, rows: Real) -> tuple[Real, Real]:
        """Returns how large each pair can become, and how far below zero."""
        even = self.even
        rows, low, high = rows[:, :even], self.low[:, :even], self.high[:, :even]
        a, b = rows * low, rows * high
        up, down = np.maximum(a, b), -np.minimum(a, b)
        up, down = (each[:, ::2] + each[:, 1::2] for each in (up, down))
        if not self.corners:
            return up, down
        first, second = np.abs(rows[:, ::2]), np.abs(rows[:, 1::2])
        most = np.zeros_like(up)
        for x, y in zip(*self.corners, strict=True):
            most = np.maximum(most, first * x + second * y)
        return np.minimum(up, most), np.minimum(down, most)
