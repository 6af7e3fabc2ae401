"""MelWeightMatrix: triangles over the bins of a spectrum, as wide as the mel scale says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite

_STEEP, _CORNER = 2595 / np.log(10), 700.0
"""Of the mel scale: ``steep * log(1 + frequency / corner)``."""


def _mel_weight_matrix(site: CompositionSite) -> Sequence[Expr]:
    """Edges of triangles lie at whole bins. Source: ONNX MelWeightMatrix-17, in float64."""
    columns, length, rate, low, high = (
        site("reshape", site.cast(site.arg(index), "float64"), (1,)) for index in range(5)
    )
    one, two = (site.number(value, "float64") for value in (1, 2))
    half = site("floor", site("divide", length, two))
    sizes = site("concat", [site("add", half, one), columns], axis=0)
    rows, count = site.bound(site.cast(sizes, "int64"), "bins")
    first, last = _mel(site, low), _mel(site, high)
    points = site.cast(site.counted(count + 2), "float64")
    step = site("divide", site("subtract", last, first), site("add", columns, two))
    frequency = _hertz(site, site("add", site("multiply", points, step), first))
    places = site("divide", site("multiply", site("add", length, one), frequency), rate)
    edges = site("floor", places)
    left, middle, right = (
        site("strided_slice", edges, axes=[0], begin=[begin], end=[count + begin])
        for begin in range(3)
    )
    at = site("expand_dims", site.cast(site.counted(rows), "float64"), 1)
    return [site.cast(_triangle(site, at, left, middle, right), str(site.result_dtype()))]


def _mel(site: CompositionSite, frequency: Expr) -> Expr:
    part = site("divide", frequency, site.number(_CORNER, frequency))
    logarithm = site("log", site("add", part, site.number(1, part)))
    return site("multiply", logarithm, site.number(_STEEP, part))


def _hertz(site: CompositionSite, mel: Expr) -> Expr:
    power = site("exp", site("divide", mel, site.number(_STEEP, mel)))
    return site("multiply", site("subtract", power, site.number(1, mel)),
                site.number(_CORNER, mel))  # fmt: skip


def _triangle(site: CompositionSite, at: Expr, left: Expr, middle: Expr, right: Expr) -> Expr:
    """Returns what rises from ``left`` to 1 in the ``middle`` and falls to ``right``."""
    zero, one = (site.number(value, at) for value in (0, 1))

    def ratio(part: Expr, whole: Expr) -> Expr:
        return site("divide", part, site("maximum", whole, one))  # widths are whole numbers

    rising = ratio(site("subtract", at, left), site("subtract", middle, left))
    rising = site("where", site("equal", at, middle), one, rising)
    before = site("logical_and", site("greater_equal", at, left), site("less_equal", at, middle))
    falling = ratio(site("subtract", right, at), site("subtract", right, middle))
    behind = site("logical_and", site("greater_equal", at, middle), site("less", at, right))
    return site("where", behind, falling, site("where", before, rising, zero))


FILTER_BANKS: Mapping[str, Composition] = {"MelWeightMatrix": _mel_weight_matrix}
"""By the operator's name in ONNX's own domain."""
