"""Times of nodes in OpenVINO, and bits per layer by them; engines that tell none say so."""

from __future__ import annotations

import pytest

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.copying import with_numbers
from qdqbridge.judging import node_times
from tests.autoquant.float_models import images, slow_layer


def test_openvino_gets_fewer_bits_where_a_node_is_too_slow() -> None:
    made, sample = slow_layer(), {"x": images(1)}
    before = max(node_times("openvino", made.graph, sample), key=lambda each: each.seconds)
    assert "node_conv_5" in before.names
    found = made.within(max_node_seconds=before.seconds / 2, engine="openvino")
    after = node_times("openvino", found.graph, sample)
    assert max(each.seconds for each in after) <= before.seconds / 2
    large = next(each for each in after if "node_conv_5" in each.names)
    assert large.operator.endswith("I8")
    assert found.fallback is not None
    changed = {each.layer.name: each.to for each in found.fallback.reverted}
    assert changed["node_conv_5"] == "uint8"


@pytest.mark.parametrize("engine", ["qnn-htp", "litert"])
def test_engines_without_times_say_so(engine: str) -> None:
    with pytest.raises(UnsupportedTargetError, match="cannot time nodes"):
        node_times(engine, with_numbers(slow_layer().graph, {"n": 1}), {"x": images(1)})
