"""Limits on time inside bodies, by a clock whose times depend on the stored bits alone."""

from functools import cache
from typing import Any

import pytest

from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.inside import bodies_within_time
from qdqbridge.autoquant.search.time_limit import TimeLimit, within_time
from qdqbridge.core.graph.operator import Flow
from qdqbridge.errors import InputDataError
from qdqbridge.onnx_io.control_flow.bodies import is_control
from qdqbridge.targets.engines.kinds import NodeTime
from tests.control_flow_models import digits, loop_network, nested_network
from tests.onnx_models import canonical

NETWORKS = {"loop": loop_network, "nested": nested_network}
LIMIT = TimeLimit(1e-3, "onnxruntime")


@cache
def made(name, exclude=()):
    images, _ = digits(24)
    plain: dict[str, Any] = {"repair": (), "tune": False, "target": "a16w8", "exclude": exclude}
    return quantization(canonical(NETWORKS[name]()), {"x": images}, **plain)


def by_bits(graph, sample):
    """Returns times: products of 16-bit activations take 2 ms, and a loop as long as it likes."""
    assert set(sample) == {value.name for value in graph.inputs}
    times = []
    for node in graph.nodes:
        wide = node.op.flow is Flow.ACCUMULATE and _bits(node) == 16
        seconds = 2e-3 if wide else 5e-3 if is_control(node) else 1e-6
        times.append(NodeTime(node.name, node.op.name, seconds, (node.name,)))
    return times


def _bits(node):
    quant = node.operand(0).quant
    return 32 if quant is None else quant.params.storage_dtype.bits


def products(made):
    """Returns the bits that the products of a model's bodies read."""
    found = []
    for body in made.inside:
        if body.made is not None:
            graph = body.made.graph
            found += [_bits(n) for n in graph.nodes if n.op.flow is Flow.ACCUMULATE]
            found += products(body.made)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_in_bodies_get_fewer_bits(name):
    before = made(name)
    assert 16 in products(before.made)
    assert before.samples is not None
    found, reverted = bodies_within_time(before.made, LIMIT, before.samples, by_bits)
    bits = products(found)
    assert len(bits) == len(products(before.made))
    assert 16 not in bits
    assert reverted
    fallen = within_time(found, LIMIT, before.samples, by_bits)
    assert fallen.decision.bodies
    assert fallen.metrics.sqnr > 15
    assert fallen.graph.digest != before.graph.digest


def test_what_is_fast_stays(tmp_path):
    before = made("loop")
    assert before.samples is not None
    slow, state = TimeLimit(1.0, "onnxruntime"), tmp_path / "trials.json"
    found, reverted = bodies_within_time(before.made, slow, before.samples, by_bits, state)
    assert not reverted
    assert found.graph.digest == before.made.graph.digest
    assert [path.name for path in tmp_path.iterdir()] == ["trials.json.recurrence.body"]


def test_nodes_in_bodies_that_nothing_makes_fast_enough_are_told():
    before = made("loop")
    assert before.samples is not None
    none = TimeLimit(1e-9, "onnxruntime")
    with pytest.raises(InputDataError, match="whatever their layers are stored as"):
        bodies_within_time(before.made, none, before.samples, by_bits)


def test_slow_nodes_of_a_float_body_are_told():
    before = made("loop", exclude=("recurrence",))
    assert before.samples is not None
    none = TimeLimit(1e-9, "onnxruntime")
    with pytest.raises(InputDataError, match="in a body that stays float") as raised:
        bodies_within_time(before.made, none, before.samples, by_bits)
    assert "recurrence/body" in raised.value.where
    kept, _ = bodies_within_time(before.made, LIMIT, before.samples, by_bits)
    assert kept.graph.digest == before.made.graph.digest


def test_a_real_engine_times_bodies_by_themselves():
    found = made("nested").within(max_node_seconds=10.0, engine="onnxruntime", threads=1)
    assert found.graph.digest == made("nested").graph.digest
    assert found.fallback is not None
    assert all((point.slowest_milliseconds or 0) < 1e4 for point in found.fallback.pareto)
