"""Choosers tried on samples: what is taken helps on others, and nothing else changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import qdqbridge
from qdqbridge.autoquant.choosers import MinMax, Percentile, RangeChooser
from qdqbridge.autoquant.hardware.scales import ROOM, product_of
from qdqbridge.autoquant.planning.decide import apply, decide
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.plan import Derived, plan
from qdqbridge.autoquant.planning.targets import ORT, OperatorRule
from qdqbridge.autoquant.profiling.collect import collect, onnxruntime_observer, prepared
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.steps import QuantizedState, folds_of, with_choosers_tried
from qdqbridge.autoquant.repair.sweep import FloatReference
from qdqbridge.autoquant.search.tuning import (
    LEAST,
    errors_of,
    is_better,
    is_worse,
    spread,
)
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import per_tensor
from tests.autoquant.float_models import quantize_model
from tests.onnx_models import Builder, canonical
from tests.places import MODELS

IMAGES = np.load(MODELS / "digits_test.npz")["x"]


def gate(seed=0):
    """``Relu(x w - 3)``: only the large values of the product count, the many small ones do not."""
    rng = np.random.default_rng(seed)
    b = Builder(17)
    y = b.op("MatMul", b.input("x", ["n", 16]), b.init(np.eye(16, dtype=np.float32)))
    y = b.op("Tanh", b.op("Add", y, b.init(np.zeros((1, 16), np.float32))))
    y = b.op("Relu", b.op("Sub", y, b.init(np.full(1, 0.9, np.float32))))
    b.output(b.op("MatMul", y, b.init(rng.standard_normal((16, 4)).astype(np.float32))))
    return prepared(canonical(b.model()))


def samples_of(graph, array):
    return Samples.of(graph.inputs, {graph.inputs[0].name: array})


def drawn(count, seed=1):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((count, 16)) * rng.lognormal(0, 0.5, (count, 1))).astype(np.float32)


def begun(graph, target, array):
    """A state with the parameters of the target's own choosers."""
    samples = samples_of(graph, array)
    profile = collect(graph, samples, onnxruntime_observer(graph))
    seen = profile.by_name()
    made = plan(graph, target)
    decision = decide(made, {value: seen[value.name] for value in made.observed()}, target)
    return QuantizedState(decision, profile), samples


@pytest.mark.parametrize("chooser", [Percentile(95), MinMax(8.0)], ids=repr)
def test_what_is_taken_helps_on_other_samples(chooser):
    """The first cuts off what counts here, the second wastes three bits."""
    graph = gate()
    target = replace(ORT, chooser=chooser)
    state, samples = begun(graph, target, drawn(64))
    found, record = with_choosers_tried(state, samples, target)
    assert record.applied and record.step == "choosers"
    assert record.before is not None and record.after is not None
    assert record.after > record.before + 5
    judge = FloatReference(graph, samples_of(graph, drawn(400, seed=2)), 400)
    assert judge.sqnr(found.graph) > judge.sqnr(state.graph) + 5
    assert found.profile is state.profile and state.graph.digest == apply(state.decision).digest


def test_where_nothing_helps_all_stays_as_it_is():
    graph = gate()
    target = replace(ORT, chooser=MinMax(), candidates=(MinMax(),), weight_candidates=(MinMax(),))
    state, samples = begun(graph, target, drawn(32))
    found, record = with_choosers_tried(state, samples, target)
    assert found is state and not record.applied
    assert record.outcome == "of MinMax(margin=1.0), MinMax(margin=1.0) is the best everywhere"
    assert record.before == record.after


def test_few_samples_say_little():
    state, samples = begun(gate(), ORT, drawn(LEAST - 1))
    found, record = with_choosers_tried(state, samples, ORT)
    assert (
        found is state and record.outcome == f"{LEAST - 1} samples are too few to try choosers on"
    )


@dataclass(frozen=True, slots=True)
class Memory(RangeChooser):
    """Covers what it was shown and nothing beyond, however wide the rest of the data reaches."""

    def range(self, stats, format):
        return stats.minimum, stats.maximum


def test_parameters_are_judged_on_samples_that_they_were_not_made_of():
    """One sample in a hundred is large: seen, it sets the range; not seen, it is clipped."""
    graph = gate()
    array = drawn(16) / 100
    array[0], array[1] = 3, 5  # one in each fold
    state, samples = begun(graph, ORT, array)
    first, second = folds_of(state, samples)
    (x,) = graph.inputs
    assert (first.stats[x].maximum, second.stats[x].maximum) == (5, 3)
    whole = collect(graph, samples, onnxruntime_observer(graph)).by_name()
    for value, stats in first.stats.items():
        assert stats.merged(second.stats[value]).histogram == whole[value.name].histogram
    for fold, kept in ((first, array[::2]), (second, array[1::2])):
        fed = np.concatenate([batch["x"] for batch in fold.simulation.batches])
        np.testing.assert_array_equal(fed, kept)


def test_clipping_what_the_other_half_holds_is_found_out():
    graph = gate()
    array = np.tanh(drawn(32)) / 4
    array[::2] *= 40  # the second fold's parameters clip the first, whatever chooses tightly
    tight = replace(ORT, chooser=MinMax(50.0), candidates=(Memory(),), weight_candidates=())
    state, samples = begun(graph, tight, array)
    first = folds_of(state, samples)[0]
    made = state.decision.plan
    own = decide(made, folds_of(state, samples)[1].stats, replace(tight, chooser=Memory()))
    other = decide(made, first.stats, replace(tight, chooser=Memory()))
    assert errors_of(first.simulation, other).mean() > 10 * errors_of(first.simulation, own).mean()


def test_errors_are_those_of_the_quantized_graph():
    graph = gate()
    state, samples = begun(graph, ORT, drawn(20))
    found = errors_of(Simulation(state.decision.plan, samples), state.decision)
    (real,) = qdqbridge.evaluate(graph, samples.arrays).values()
    (rough,) = qdqbridge.evaluate(state.graph, samples.arrays).values()
    squares = ((real.astype(np.float64) - rough) ** 2).sum(axis=1)
    power = (real.astype(np.float64) ** 2).sum(axis=1).mean()
    # The simulation rounds what onnxruntime computed: a tie of a tensor is rounded otherwise.
    np.testing.assert_allclose(found, squares / power, rtol=5e-3, atol=1e-6)


def test_better_and_worse():
    base = np.full(16, 1.0)
    noise = np.random.default_rng(0).standard_normal(16)
    noise -= noise.mean()
    assert is_better(base - 0.1, base) and not is_worse(base - 0.1, base)
    assert is_worse(base + 0.1, base) and not is_better(base + 0.1, base)
    assert not is_better(base, base) and not is_worse(base, base)
    assert not is_better(base - 1e-5, base)  # a trifle
    assert not is_better(base - 0.05 + noise, base)  # chance
    assert not is_worse(base + 0.05 + noise, base)  # as well
    zero = np.zeros(16)
    assert not is_better(zero, zero) and not is_worse(zero, zero)
    nothing = np.full(16, np.nan)
    assert not is_better(nothing, base) and not is_worse(nothing, base)
    assert is_better(np.array([0.5]), np.array([1.0]))


def test_what_shares_parameters_goes_on_sharing_them():
    b = Builder(17)
    x = b.input("x", ["n", 16])
    weight = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32)
    parts = [b.op("Relu", b.op("MatMul", x, b.init(weight))), b.op("Tanh", x)]
    y = b.op("Concat", *parts, axis=1)
    b.output(b.op("MatMul", y, b.init(np.concatenate([weight, weight])[:, :4])))
    graph = prepared(canonical(b.model()))
    rules = (OperatorRule("joins", ("Concat",), shares=True), *ORT.rules)
    target = replace(ORT, rules=rules, chooser=MinMax(3.0))
    state, samples = begun(graph, target, drawn(64))
    found, record = with_choosers_tried(state, samples, target)
    assert record.applied
    made = found.decision.plan
    assert any(made.joined.values())
    for value, params in found.decision.values.items():
        assert params == found.decision.values[made.root(value)]


def test_biases_have_room_and_4_bit_weights_are_tried():
    graph = prepared(qdqbridge.load(MODELS / "digits_mlp_float.onnx"))
    target = replace(ORT, weights=Format(DType.INT4, symmetric=True, axis=0))
    state, samples = begun(graph, target, IMAGES[:64])
    found, record = with_choosers_tried(state, samples, target)
    assert record.applied
    before, after = state.decision.weights, found.decision.weights
    assert any(before[weight] != after[weight] for weight in before)
    own = {weight.node: weight for weight in after if weight.index == 1}
    biases = [w for w in found.decision.plan.weights if isinstance(w.spec, Derived)]
    assert biases
    for bias in biases:
        product = product_of(bias)
        assert product is not None and bias.value.constant is not None
        x = float(found.decision.values[product.operand(0)].scale)
        unit = after[own[product]].scale.astype(np.float64) * x
        assert np.abs(bias.value.constant.numpy().astype(np.float64) / unit).max() <= ROOM


def test_weights_of_the_users_chooser_are_left():
    graph = prepared(qdqbridge.load(MODELS / "digits_mlp_float.onnx"))
    weights = Format(DType.INT4, symmetric=True, axis=0)
    target = replace(ORT, weights=weights, weight_chooser=MinMax())
    state, samples = begun(graph, target, IMAGES[:32])
    found, _ = with_choosers_tried(state, samples, target)
    assert found.decision.weights == state.decision.weights


def test_nothing_is_compiled_anew_and_the_same_comes_out_again():
    graph = gate()
    told: list[tuple[int, int]] = []
    results = []
    for _ in range(2):
        state, samples = begun(graph, ORT, drawn(64))
        found, _ = with_choosers_tried(state, samples, ORT, lambda *a: told.append(a))
        results.append(found.graph.digest)
    assert results[0] == results[1]
    places = len(told) // 2
    assert told[:places] == [(i + 1, places) for i in range(places)] == told[places:]


def test_simulations_of_folds_are_compiled_once(monkeypatch):
    made: list[Simulation] = []
    whole = Simulation.__init__

    def kept(self, *arguments, **options):
        made.append(self)
        whole(self, *arguments, **options)

    monkeypatch.setattr(Simulation, "__init__", kept)
    state, samples = begun(gate(), ORT, drawn(64))
    with_choosers_tried(state, samples, ORT)
    assert len(made) == 1 and made[0].compiled == 1 and made[0].trials > 5


def test_samples_are_spread_over_all_of_them():
    array = np.arange(20, dtype=np.float32).reshape(20, 1)
    whole = Samples({"x": array}, 2)
    picked = spread(whole, 4)
    assert picked.arrays["x"][:, 0].tolist() == [0, 1, 6, 7, 12, 13, 18, 19] and picked.step == 2
    assert spread(whole, 99) is whole

    class Stream:
        def __len__(self):
            return len(whole)

        def __iter__(self):
            return iter(whole)

    streamed = spread(Stream(), 4)
    np.testing.assert_array_equal(streamed.arrays["x"], picked.arrays["x"])
    assert streamed.step == 2


def test_a_chooser_of_the_user_is_not_tried_against_others():
    graph = qdqbridge.load(MODELS / "digits_mlp_float.onnx")
    data = {"input": IMAGES[:32]}
    assert quantize_model(graph, data, repair=()).tuning is not None
    found = quantize_model(graph, data, chooser="minmax", repair=())
    assert found.tuning is None
    (x,) = found.decision.plan.graph.inputs
    assert found.decision.values[x].scale == np.float32(1 / 255)


def test_parameters_of_the_user_stay():
    graph = qdqbridge.load(MODELS / "digits_mlp_float.onnx")
    name = prepared(graph).nodes[2].output.name
    own = per_tensor(DType.UINT8, 0.37, 3)
    found = quantize_model(graph, {"input": IMAGES[:32]}, fixed={name: own}, repair=())
    (value,) = (v for v in found.decision.values if v.name == name)
    assert found.decision.values[value] == own
