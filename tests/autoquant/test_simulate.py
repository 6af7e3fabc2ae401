"""The simulated graph computes what the quantized one does."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from qdqbridge.autoquant.planning.decide import Decision, apply, stored_integers
from qdqbridge.autoquant.planning.targets import (
    A16W8,
    FLOAT8,
    ORT,
    ORT_S8,
    POWER_OF_TWO,
    QNN,
    TENSORRT,
)
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.autoquant.simulation.engines import OnnxRuntime
from qdqbridge.autoquant.simulation.teams import TrialJob, TrialWorker
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.errors import InputDataError, UnsupportedQuantization, UnsupportedTargetError
from tests.autoquant.float_models import data, decided, network, quantize_plainly
from tests.onnx_models import Builder, canonical

GRAPH = network()
TARGETS = (ORT, ORT_S8, TENSORRT, A16W8, POWER_OF_TWO)


def one(outputs):
    return np.concatenate([batch[0] for batch in outputs])


def really(decision, x, **how):
    return evaluate(apply(decision), {"x": x}, **how)[0]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_value_is_that_of_the_quantized_graph(target):
    samples, variants = decided(GRAPH, target)
    decision = variants.base
    real = apply(decision)
    names = {v.name: v for v in real.values() if not v.is_constant and v.quant is not None}
    _, found = evaluate(real, {"x": data()}, exact=True, wanted=names.values())
    simulation = Simulation(decision.plan, samples, engine="exact", parts=1)
    places = simulation.roundings(decision)
    compared = 0
    for value, array in places.items():
        stored = names.get(f"{value.name}_quantized")
        if stored is None or stored.quant is None:
            continue  # a clamp behind it took its place
        wanted = dequantize(found[stored], stored.quant.params, np.float64)
        # Only a value next to the middle between two codes may differ: what is read back is
        # rounded to float32 here. Of 16 bits more values are, and later ones differ by several.
        off, fine = np.abs(array - wanted) / stored.quant.params.scale, target is A16W8
        assert off.max() < (50 if fine else 1.01)
        assert (off > 0.01).mean() < (0.2 if fine else 1e-3)
        compared += 1
    assert compared >= 7


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_onnxruntime_is_near_the_contract(target):
    samples, variants = decided(GRAPH, target)
    found = one(Simulation(variants.base.plan, samples).run(variants.base))
    wanted = next(iter(really(variants.base, data()).values()))
    step = float(next(reversed(variants.base.values.values())).scale)
    assert (np.abs(found - wanted) > 0.5 * step).mean() < (0.02 if target is not A16W8 else 0.2)
    assert np.abs(found - wanted).max() < 3.5 * step


def test_tvm_is_near_onnxruntime():
    if find_spec("tvm_ffi") is None:
        return
    samples, variants = decided(GRAPH, ORT)
    plan, decision = variants.base.plan, variants.base
    found = one(Simulation(plan, samples, engine="tvm").run(decision))
    wanted = one(Simulation(plan, samples).run(decision))
    step = float(next(reversed(decision.values.values())).scale)
    assert (np.abs(found - wanted) > 0.5 * step).mean() < 0.02


@pytest.mark.parametrize(
    "engine", ["numpy", "onnxruntime", pytest.param("tvm", marks=pytest.mark.slow)]
)
def test_float8_is_that_of_the_quantized_graph(engine):
    if engine == "tvm" and find_spec("tvm_ffi") is None:
        return
    samples, variants = decided(GRAPH, FLOAT8)
    decision = variants.base
    found = one(Simulation(decision.plan, samples, engine=engine).run(decision))
    wanted = next(iter(really(decision, data()).values()))
    # Sums in another order; where one falls on a middle, the step of a float8 behind it is 1/8.
    close = np.abs(found - wanted) <= 1e-5 * np.abs(wanted).max()
    assert close.mean() > 0.98
    assert np.abs(found - wanted).max() < 0.13 * np.abs(wanted).max()
    exact = Simulation(decision.plan, samples).metrics(decision)
    assert 15 < exact.sqnr < 40


@pytest.mark.parametrize("engine", ["onnxruntime", pytest.param("tvm", marks=pytest.mark.slow)])
def test_float8_beside_integers(engine):
    if engine == "tvm" and find_spec("tvm_ffi") is None:
        return
    samples, variants = decided(GRAPH, FLOAT8)
    integers = decided(GRAPH, A16W8)[1].base
    simulation = Simulation(variants.base.plan, samples, also=[integers.plan], engine=engine)
    assert simulation.metrics(integers).sqnr > simulation.metrics(variants.base).sqnr + 6
    assert simulation.compiled == 1


def test_nothing_decided_is_the_float_model():
    samples, variants = decided(GRAPH, ORT)
    simulation = Simulation(variants.base.plan, samples, engine="numpy")
    wanted = next(iter(evaluate(GRAPH, {"x": data()})[0].values()))
    np.testing.assert_array_equal(one(simulation.run()), wanted)
    assert simulation.metrics().nmse == 0
    assert simulation.metrics().sqnr == np.inf
    assert simulation.metrics().top1 == 1.0


def test_other_parameters_compile_nothing():
    samples, variants = decided(GRAPH, QNN)
    other = decided(GRAPH, A16W8)[1].base
    simulation = Simulation(variants.base.plan, samples)
    coarse, fine = simulation.metrics(variants.base), simulation.metrics(other)
    assert simulation.compiled == 1
    assert coarse.sqnr + 1 < fine.sqnr
    some = replace(variants.base, weights={})
    assert coarse.sqnr < simulation.metrics(some).sqnr
    assert simulation.compiled == 1


def test_what_is_held_changes_nothing():
    samples, variants = decided(GRAPH, ORT)
    simulation = Simulation(variants.base.plan, samples, engine=OnnxRuntime(parts=4))
    partly = dict(list(variants.base.values.items())[:-2])
    decision = replace(variants.base, values=partly)
    wanted = [one(simulation.run(d)) for d in (None, decision, variants.base)]
    for held in (None, variants.base, decision):
        simulation.hold(held)
        for array, tried in zip(wanted, (None, decision, variants.base), strict=True):
            np.testing.assert_array_equal(one(simulation.run(tried)), array)
    simulation.release()
    np.testing.assert_array_equal(one(simulation.run(decision)), wanted[1])


def test_integers_and_constants_are_taken():
    samples, variants = decided(GRAPH, ORT)
    decision = variants.base
    simulation = Simulation(decision.plan, samples, engine="exact")
    before = one(simulation.run(decision))
    weight = next(iter(decision.weights))
    integers = stored_integers(weight, decision.weights[weight], decision).numpy()
    changed = replace(decision, integers={weight: integers[::-1].copy()})
    wanted = next(iter(really(changed, data(), exact=True).values()))
    found = one(simulation.run(changed))
    assert np.abs(found - before).max() > 0.1
    assert np.abs(found - wanted).max() < 1e-5
    bias = next(w for w in decision.plan.weights if w.index == 2)
    assert bias.value.constant is not None
    moved = bias.value.constant.numpy().astype(np.float32) + 1
    shifted = one(simulation.run(decision, {(bias.node, bias.index): moved}))
    assert np.abs(shifted - before).max() > 0.1


def test_values_on_the_way_and_a_metric():
    samples, variants = decided(GRAPH, ORT)
    convs = [node.output for node in GRAPH.nodes if node.op.name == "Conv"]
    simulation = Simulation(variants.base.plan, samples, values=convs)
    assert [a.shape[1] for a in next(iter(simulation.run()))] == [8, 8, 8, 12]
    assert 10 < simulation.metrics(variants.base).sqnr < 60

    def metric(outputs):
        return float(next(iter(outputs.values())).shape[0])

    scored = Simulation(variants.base.plan, samples, metric=metric, batch=5)
    assert scored.metrics(variants.base).score == 24
    assert scored.metrics(variants.base).drop == 0


@pytest.mark.parametrize("engine", ["onnxruntime", "numpy", "exact", "tvm"])
def test_constants_and_inputs_are_outputs_too(engine):
    if engine == "tvm" and find_spec("tvm_ffi") is None:
        return
    weight, x = np.arange(12, dtype=np.float32).reshape(3, 4), data()
    b = Builder(17)
    w, given = b.init(weight), b.input("x", ["n", 3])
    for output in (b.op("MatMul", given, w), w, given, w):
        b.output(b.op("Identity", output))
    made = quantize_plainly(canonical(b.model()), {"x": x[:, :, 0, 0]}, ORT)
    simulation = Simulation(made.decision.plan, [{"x": x[:5, :, 0, 0]}], engine=engine)
    found = next(simulation.run(made.decision))
    real = evaluate(made.graph, {"x": x[:5, :, 0, 0]})[0].values()
    for array, wanted in zip(found, real, strict=True):
        assert np.abs(array - wanted).max() < 0.1
    np.testing.assert_array_equal(found[1], weight)
    sent = simulation.sent() if engine == "onnxruntime" else None
    if sent is not None:
        outputs = next(iter(TrialWorker(TrialJob((sent,))).seen([(0, {})])[0]))
        for array, wanted in zip(outputs, simulation.reference[0], strict=True):
            np.testing.assert_array_equal(array, wanted)


def test_samples_that_come_one_by_one():
    samples, variants = decided(GRAPH, ORT)
    alone = Simulation(variants.base.plan, iter(samples), engine="exact")
    together = Simulation(variants.base.plan, samples, engine="exact")
    # float64 products of one row and of many: BLAS adds them in another order.
    np.testing.assert_allclose(
        one(alone.run(variants.base)), one(together.run(variants.base)), rtol=1e-12, atol=1e-12
    )


def test_refusals():
    samples, variants = decided(GRAPH, ORT)
    simulation = Simulation(variants.base.plan, samples)
    other = decided(network(), ORT)[1].base
    with pytest.raises(InputDataError, match="another graph"):
        simulation.metrics(other)
    value, params = next(iter(variants.base.values.items()))
    along = QuantParams(params.storage_dtype, np.ones(3, np.float32), np.zeros(3, np.int32), axis=1)
    with pytest.raises(UnsupportedQuantization, match="per channel"):
        simulation.metrics(Decision(variants.base.plan, {value: along}))
    with pytest.raises(UnsupportedTargetError, match="no engine"):
        Simulation(variants.base.plan, Samples.of(GRAPH.inputs, {"x": data(2)}), engine="none")
