"""Times of nodes in OpenVINO, and bits per layer by them; engines that tell none say so."""

from __future__ import annotations

import math

import pytest

from qdqbridge.app.judging import node_times
from qdqbridge.core.graph.copying import with_numbers
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.targets.engines.kinds import NodeTime
from tests.autoquant.float_models import images, slow_layer

LAYER = "node_conv_5"


def _seconds(times: list[NodeTime]) -> float:
    """What the engine's node takes that computes the large layer."""
    return next(each.seconds for each in times if LAYER in each.names)


def test_openvino_gets_fewer_bits_where_a_node_is_too_slow() -> None:
    """The limit lies halfway between what the layer takes in 16 bits and in 8, on this machine."""
    made, sample = slow_layer(), {"x": images(1)}
    before = node_times("openvino", made.graph, sample, threads=1)
    assert LAYER in max(before, key=lambda each: each.seconds).names
    narrow = node_times("openvino", slow_layer("qnn").graph, sample, threads=1)
    assert _seconds(narrow) < _seconds(before), "8 bits are no faster here: there is no such choice"
    limit = math.sqrt(_seconds(before) * _seconds(narrow))
    found = made.within(max_node_seconds=limit, engine="openvino", threads=1)
    after = node_times("openvino", found.graph, sample, threads=1)
    assert max(each.seconds for each in after) <= limit
    large = next(each for each in after if LAYER in each.names)
    assert large.operator.endswith("I8")
    assert found.fallback is not None
    changed = {each.layer.name: each.to for each in found.fallback.reverted}
    assert changed[LAYER] == "uint8"


@pytest.mark.parametrize("engine", ["qnn-htp", "litert"])
def test_engines_without_times_say_so(engine: str) -> None:
    with pytest.raises(UnsupportedTargetError, match="cannot time nodes"):
        node_times(engine, with_numbers(slow_layer().graph, {"n": 1}), {"x": images(1)})
