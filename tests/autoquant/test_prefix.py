"""What a chooser sees when it looks: the tensor behind what is quantized already."""

from __future__ import annotations

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.autoquant.choosers import MinMax
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.autoquant.simulation.graph import QuantizedPrefix
from tests.autoquant.float_models import data, network, quantize_plainly
from tests.targets.engines.target_networks import NETWORKS, samples

OUTLIER = 40.0


class Looking:
    """MinMax of what it sees, which it keeps; with ``late`` it looks at every second tensor."""

    def __init__(self, *, late: bool = False) -> None:
        self.seen: dict[str, np.ndarray] = {}
        self._late, self._count = late, 0

    def __call__(self, stats, format, context):
        self._count += 1
        assert context.samples is not None
        if self._late and self._count % 2:
            return MinMax()(stats, format, context)
        arrays = context.samples()
        self.seen[context.name] = np.concatenate(arrays)
        low, high = (float(f(self.seen[context.name])) for f in (np.min, np.max))
        return format.per_tensor().params(low, high)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["cnn", "transformer", "unet", "small"])
def test_it_sees_what_the_whole_decision_computes(name: str, late: bool) -> None:
    """The simulation of everything that was decided gives the same, in pieces of its own."""
    graph = network() if name == "small" else NETWORKS[name]()
    arrays = {"x": data()} if name == "small" else samples(name, graph)
    chooser = Looking(late=late)
    decision = quantize_plainly(graph, arrays, "ort", chooser=chooser).decision
    assert len(chooser.seen) >= 3
    plan = decision.plan
    values = [value for value in plan.specs if value.name in chooser.seen]
    simulation = Simulation(plan, Samples.of(plan.graph.inputs, arrays), values=values)
    found = [np.concatenate(each) for each in zip(*simulation.run(decision), strict=True)]
    floats = [np.concatenate(each) for each in zip(*simulation.run(), strict=True)]
    moved = 0
    for value, array, real in zip(values, found, floats, strict=True):
        seen, step = chooser.seen[value.name], float(decision.values[value].scale)
        assert np.mean(np.abs(seen - array) < 1e-3 * step) > 0.99, value.name
        moved += bool(np.mean(np.abs(seen - real) > 0.1 * step) > 0.1)
    assert moved >= 2  # what it saw is not what the float model computes


def test_it_sees_that_a_tensor_before_was_clipped() -> None:
    """Statistics are of the float model; behind a narrow input nothing is as large any more."""
    graph = qb.load(_model())
    arrays = samples("cnn", graph)
    arrays["input"] = arrays["input"].copy()
    arrays["input"][0] = OUTLIER
    ranges: dict[str, tuple[float, float]] = {}

    def narrow(stats, format, context):
        seen = max(float(np.abs(array).max()) for array in context.samples())
        ranges[context.name] = stats.magnitude, seen
        high = 1.0 if context.name == "input" else seen
        return format.per_tensor().params(-high if stats.minimum < 0 else 0.0, high)

    quantize_plainly(graph, arrays, "ort", chooser=narrow)
    assert ranges["input"] == (OUTLIER, OUTLIER)
    behind = [pair for name, pair in ranges.items() if name != "input"]
    assert all(seen < known / 2 for known, seen in behind[:1])


def _model():
    from tests.targets.engines.target_networks import MODELS

    return MODELS / "digits_cnn_float.onnx"


def test_nothing_is_run_twice_however_many_look(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    advance = QuantizedPrefix._advance

    def counted(self, end, value, chosen):
        ran.append(end - self._done)
        advance(self, end, value, chosen)

    monkeypatch.setattr(QuantizedPrefix, "_advance", counted)
    graph = qb.load(_model())
    quantize_plainly(graph, samples("cnn", graph), "ort", chooser=Looking())
    assert sum(ran) < 4 * len(graph.nodes)


def test_a_profile_alone_shows_nothing() -> None:
    graph = qb.load(_model())
    found: list[object] = []

    def asking(stats, format, context):
        found.append(context.samples)
        return MinMax()(stats, format, context)

    profile = qb.profile(graph, samples("cnn", graph))
    quantize_plainly(graph, None, "ort", chooser=asking, profile=profile)
    assert found and set(found) == {None}


def test_what_is_looked_at_cannot_be_changed() -> None:
    def emptying(stats, format, context):
        for array in context.samples():
            array.fill(0)
        return MinMax()(stats, format, context)

    with pytest.raises(ValueError, match="read-only"):
        quantize_plainly(network(), {"x": data()}, "ort", chooser=emptying)
