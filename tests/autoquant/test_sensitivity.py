"""The ranking is that of quantizing each layer really; falling back meets what was asked for."""

import numpy as np
import pytest

from qdqbridge.autoquant.planning.decide import apply
from qdqbridge.autoquant.planning.plan import plan
from qdqbridge.autoquant.planning.targets import A16W8, ORT, ORT_S8, TENSORRT
from qdqbridge.autoquant.search.fallback import fall_back, meet_goal
from qdqbridge.autoquant.search.search import Goal
from qdqbridge.autoquant.search.sensitivity import (
    LayerChange,
    layers_of,
    only,
    sensitivity,
    widened,
)
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.errors import InputDataError
from tests.autoquant.float_models import decided, network

GRAPH = network()
FLOAT = LayerChange(None)


def brute(simulation, variants, changes):
    """The metrics of the graph that is quantized with ``changes``, interpreted exactly."""
    real = apply(variants.decision(changes))
    outputs = (list(evaluate(real, b, exact=True)[0].values()) for b in simulation.batches)
    return simulation.compared(outputs, simulation.reference)


def test_layers_are_what_computes_between_two_roundings():
    _, variants = decided(GRAPH, ORT, count=2)
    found = [[node.op.name for node in layer.nodes] for layer in layers_of(variants.base.plan)]
    assert found == [
        ["Conv", "Relu"], ["Conv", "Relu"], ["Conv"], ["Add"], ["Conv"], ["Sigmoid"],
        ["GlobalAveragePool"], ["Gemm"],
    ]  # fmt: skip
    assert [layer.kind for layer in layers_of(variants.base.plan)][:2] == ["Conv", "Conv"]


@pytest.mark.parametrize("target", [ORT, TENSORRT], ids=lambda target: target.name)
def test_the_ranking_is_that_of_brute_force(target):
    samples, variants = decided(GRAPH, target, count=8)
    simulation = Simulation(variants.base.plan, samples, engine="exact")
    told = []
    ranking = sensitivity(variants, simulation, progress=lambda *done: told.append(done))
    layers = layers_of(variants.base.plan)
    assert told[-1] == (2 * len(layers), 2 * len(layers))
    assert simulation.compiled <= 2
    alone = {e: brute(simulation, variants, only(layers, [e])) for e in layers}
    without = {e: brute(simulation, variants, {e: FLOAT}) for e in layers}
    assert [entry.layer for entry in ranking.layers] == sorted(
        layers, key=lambda layer: -alone[layer].nmse
    )
    for entry in ranking.layers:
        # The simulation rounds float64 results, the graph exact sums: squares are a little apart.
        np.testing.assert_allclose(entry.alone.nmse, alone[entry.layer].nmse, rtol=1e-4)
        assert entry.without is not None
        # A layer between two that are quantized gains nothing when its tensors stay rounded.
        np.testing.assert_allclose(entry.without.nmse, without[entry.layer].nmse, rtol=1e-4)
    gains = ranking.by_gain()
    assert gains[0].without is not None
    assert gains[0].without.nmse == min(e.without.nmse for e in ranking.layers if e.without)
    assert str(ranking).count("\n") == len(layers)


def test_a_user_metric_ranks_first():
    samples, variants = decided(GRAPH, ORT, count=8)

    def metric(outputs):
        return -float(np.abs(next(iter(outputs.values()))[:, 3]).sum())

    simulation = Simulation(variants.base.plan, samples, metric=metric)
    ranking = sensitivity(variants, simulation, without=False)
    drops = [entry.alone.drop for entry in ranking.layers]
    assert drops == sorted(drops, reverse=True)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("decibels", [1, 4, 20])
def test_a_smallest_sqnr_is_met_by_the_real_graph(decibels, wide):
    samples, variants = decided(GRAPH, ORT, count=8)
    simulation = Simulation(variants.base.plan, samples)
    before = simulation.metrics(variants.base).sqnr
    goal = Goal(min_sqnr=before + decibels)
    format_ = widened(ORT) if wide else None
    result = fall_back(variants, simulation, goal, wide=format_)
    assert result.before.sqnr == before
    assert result.metrics.sqnr >= before + decibels
    assert 1 <= len(result.reverted) <= len(layers_of(variants.base.plan))
    assert {r.to for r in result.reverted} <= ({"uint16", "float"} if wide else {"float"})
    assert all(f"at least {before + decibels:g} dB" in r.reason for r in result.reverted)
    again = plan(GRAPH, ORT, result.overrides)
    assert apply(variants.decided(again)).digest == result.graph.digest
    left = [r for r in result.reverted if r.to == "float"]
    for reverted in left:
        assert "at least" in again.floats[reverted.layer.head]


def test_nothing_is_reverted_that_is_not_needed():
    samples, variants = decided(GRAPH, ORT, count=8)
    simulation = Simulation(variants.base.plan, samples)
    easy = fall_back(variants, simulation, Goal(min_sqnr=5.0), wide=widened(ORT))
    assert not easy.reverted
    assert easy.ranking is None
    assert easy.graph.digest == apply(variants.base).digest
    agree = fall_back(variants, simulation, Goal(max_drop=0.5))
    assert not agree.reverted


def test_one_layer_is_found_in_few_trials():
    samples, variants = decided(network(spread=300.0), ORT_S8, count=8)
    simulation = Simulation(variants.base.plan, samples)
    ranking = sensitivity(variants, simulation, without=False)
    wide, first = widened(ORT_S8), ranking.layers[0].layer
    enough = simulation.metrics(variants.decision({first: LayerChange(wide)})).sqnr
    assert enough > ranking.everything.sqnr + 0.5
    said = []
    halfway = (ranking.everything.sqnr + enough) / 2
    result = fall_back(
        variants, simulation, Goal(min_sqnr=halfway), wide=wide, ranking=ranking,
        progress=lambda *done: said.append(done),
    )  # fmt: skip
    assert [(r.layer, r.to, r.rank) for r in result.reverted] == [(first, "int16", 1)]
    assert result.evaluations <= 2 + np.ceil(np.log2(len(ranking.layers))) + 1
    assert [done for done, _ in said[:-1]] == list(range(1, result.evaluations + 1))
    assert all(done <= result.evaluations <= total for done, total in said)
    assert said[-1] == (result.evaluations, result.evaluations)


def test_goals_that_say_nothing_or_cannot_be_met():
    with pytest.raises(InputDataError, match="how good"):
        Goal()
    samples, variants = decided(GRAPH, ORT, count=4)
    simulation = Simulation(variants.base.plan, samples)
    with pytest.raises(InputDataError, match="no choice"):
        fall_back(variants, simulation, Goal(min_sqnr=90.0), wide=widened(ORT), to_float=False)
    images = next(node.output for node in GRAPH.nodes if node.op.name == "GlobalAveragePool")
    flat = Simulation(variants.base.plan, samples, values=[images], metric=None)
    assert flat.metrics(variants.base).top1 is not None
    assert widened(A16W8) is None


def test_the_whole_way_from_a_decision():
    samples, variants = decided(GRAPH, ORT, count=8)
    decision, target, stats = variants.base, variants.target, variants.stats
    before = Simulation(decision.plan, samples).metrics(decision).sqnr
    said = []
    result = meet_goal(
        decision, Goal(min_sqnr=before + 3), samples, target, stats,
        progress=lambda *done: said.append(done),
    )  # fmt: skip
    assert result.metrics.sqnr >= before + 3
    layers = len(layers_of(decision.plan))
    done, total = zip(*said, strict=True)
    assert done[:-1] == tuple(range(1, layers + result.evaluations + 1))
    assert total[0] > layers  # the search is counted from the start
    assert all(count >= place for place, count in said) and done[-1] == total[-1]
    floats = meet_goal(
        decision, Goal(min_sqnr=before + 3), samples, target, stats, fallback="float"
    )
    assert {r.to for r in floats.reverted} == {"float"}
