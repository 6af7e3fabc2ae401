"""Pools: padding that does not exist is not counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qdqbridge.graph.graph import Graph
from qdqbridge.ops.attributes import PoolAttrs
from tests.canonical.at_work import settled
from tests.graph.graphs import OUT, U8, apply, dq, graph, q, stored, typed

COUNTED = PoolAttrs((2, 2), (1, 1), (1, 1), (0, 0, 0, 0), count_include_pad=True)


def pooled(attributes: PoolAttrs, extent: int) -> Graph:
    """Returns an average pool of an image of 3 by 3, which leaves ``extent`` by ``extent``."""
    x = stored("x", U8, (1, 2, 3, 3))
    y = apply(
        "AveragePool", dq(x), type_=typed((1, 2, extent, extent)), attributes=attributes
    )  # fmt: skip
    return settled(graph([x], q(y, OUT)))


def test_without_padding_both_spellings_are_one() -> None:
    plain = replace(COUNTED, count_include_pad=False)
    assert pooled(COUNTED, 2).nodes[0].attributes == plain
    assert pooled(COUNTED, 2).digest == pooled(plain, 2).digest


@pytest.mark.parametrize(
    ("change", "extent"),
    [({"pads": (1, 1, 1, 1)}, 4), ({"ceil_mode": True, "strides": (2, 2)}, 2)],
    ids=["padding", "ceil_mode"],
)
def test_what_may_count_stays(change: dict[str, object], extent: int) -> None:
    attributes = replace(COUNTED, **change)  # pyright: ignore[reportArgumentType]
    assert pooled(attributes, extent).nodes[0].attributes == attributes
