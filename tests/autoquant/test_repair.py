"""Repair on the project's networks: what helps is kept, what does not is told and left out."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import qdqbridge
from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.targets import ORT
from qdqbridge.autoquant.profiling.collect import prepared
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.quantize import QuantizeOptions
from qdqbridge.autoquant.repair import steps
from qdqbridge.autoquant.repair.equalize import equalized, links, rescaled
from qdqbridge.autoquant.repair.layers import layer_of
from qdqbridge.autoquant.repair.steps import (
    CLEARLY,
    DEFAULT,
    GAIN,
    GRAPH_STEPS,
    SCALED,
    TRYING_CHOOSERS,
    left_out_sqnr,
)
from qdqbridge.autoquant.repair.sweep import FloatReference
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.errors import InputDataError, UnsupportedModelError, UnsupportedTargetError
from tests.autoquant.float_models import quantize_model
from tests.combinations import each_once
from tests.onnx_models import Builder, canonical
from tests.places import MODELS

DIGITS = dict(np.load(MODELS / "digits_test.npz"))
SEEN, FRESH, LABELS = DIGITS["x"][:200], DIGITS["x"][200:], DIGITS["labels"][200:]
DATA = {"input": SEEN}


def network(name):
    return prepared(qdqbridge.load(MODELS / f"{name}.onnx"))


@cache
def unrepaired(name):
    """A network of the project's, quantized without repair: what repair is compared with."""
    return quantize_model(network(name), DATA, repair=())


@cache
def repaired(name):
    """The same with the default steps, and the progress that it told."""
    told = []
    return quantize_model(network(name), DATA, progress=lambda *a: told.append(a)), told


def judged(graph, *others):
    judge = FloatReference(graph, Samples.of(graph.inputs, {"input": FRESH}), len(FRESH))
    return [judge.sqnr(other) for other in others]


def top1(graph):
    (logits,) = qdqbridge.evaluate(graph, {"input": FRESH}).values()
    return 100 * float(np.mean(logits.argmax(axis=1) == LABELS))


def weights(graph):
    return [layer.weight for node in graph.nodes if (layer := layer_of(node)) is not None]


def sabotaged(graph, seed, width):
    """The same function, its channels scaled by 10^U(-width, width)."""
    rng = np.random.default_rng(seed)
    found = links(graph, {}).links
    return rescaled(
        graph, {link: 10 ** rng.uniform(-width, width, link.source.outputs) for link in found}
    )


@pytest.mark.parametrize(
    ("name", "least", "width"),
    each_once([("digits_mlp_float", 38), ("digits_mobile_float", 31)], [1, 2]),
)
def test_sabotage_is_repaired(name, least, width):
    """By equalization alone: no other choosers are tried, which hide some of the damage."""
    graph = network(name)
    settled = weights(equalized(graph, {})[0])
    broken = sabotaged(graph, seed=width, width=width)
    plain = quantize_model(broken, DATA, repair=(), tune=False)
    found = quantize_model(broken, DATA, repair=("equalize",), tune=False)
    (record,) = found.repairs
    assert record.applied and record.before is not None and record.after is not None
    assert record.after > record.before + 15
    before, after = judged(graph, plain.graph, found.graph)
    assert after >= least and after > before + 15
    assert top1(found.graph) >= 96.5
    for a, b in zip(settled, weights(found.decision.plan.graph), strict=True):
        # Rounded to float32 when they were sabotaged, and again when they were repaired.
        np.testing.assert_allclose(b, a, rtol=1e-5)


EXACT = replace(ORT, avoided_pairs=None)
"""Larger scales cost scaled channels more than others, which is not what these are about."""


def long_tailed(seed):
    """An MLP whose inputs have long tails: what 64 samples show ends far before others do."""
    rng, b = np.random.default_rng(seed), Builder()
    y = b.input("x", ["n", 10])
    for terms, rows in ((10, 64), (64, 64), (64, 1)):
        drawn = rng.normal(size=(terms, rows)) * (2 / terms) ** 0.5
        weight = b.init((drawn * rng.lognormal(0, 0.7, rows)).astype(np.float32))
        y = b.op("Gemm", y, weight, b.init((rng.normal(size=rows) * -0.5).astype(np.float32)))
        y = b.op("Relu", y) if rows > 1 else y
    b.output(y, ["n", 1])
    return canonical(b.model()), rng.standard_t(3, (576, 10)).astype(np.float32)


@pytest.mark.parametrize("seed", [5, 6])
def test_channels_are_not_scaled_where_samples_left_out_lose(seed):
    """Every channel would end at what was seen of it; on the samples that said so it looks good."""
    graph, x = long_tailed(seed)
    plain, scaled = (
        quantize_model(graph, {"x": x[:64]}, repair=r, tune=False, target=EXACT)
        for r in ((), ("smooth",))
    )
    (record,) = scaled.repairs
    assert not record.applied and "held-out samples" in record.outcome
    assert record.after is not None and record.before is not None
    assert record.after < record.before
    judge = FloatReference(graph, Samples.of(graph.inputs, {"x": x[64:]}), 512)
    assert judge.sqnr(scaled.graph) == judge.sqnr(plain.graph)


def test_one_sample_of_many_does_not_decide():
    """Its error falls by half, and that of all others rises by a tenth."""
    before = np.array([50.0, *np.full(31, 1.0)])
    after = before * np.array([0.5, *np.full(31, 1.1)])
    assert after.sum() < before.sum()
    plain, scaled = left_out_sqnr(before, after)
    assert scaled < plain
    plain, scaled = left_out_sqnr(before, before * 0.9)
    # approx: means of 32 logarithms are added in another order
    assert scaled == pytest.approx(plain - 10 * np.log10(0.9))
    plain, scaled = left_out_sqnr(np.full(8, 1.0), np.array([*np.full(7, 0.5), 100.0]))
    assert scaled < plain == 0
    plain, scaled = left_out_sqnr(before, before)
    assert scaled == plain


def test_channels_are_scaled_where_samples_left_out_gain():
    graph, x = long_tailed(4)
    plain, scaled = (
        quantize_model(graph, {"x": x[:64]}, repair=r, tune=False, target=EXACT)
        for r in ((), ("smooth",))
    )
    judge = FloatReference(graph, Samples.of(graph.inputs, {"x": x[64:]}), 512)
    assert scaled.repairs[0].applied and judge.sqnr(scaled.graph) > judge.sqnr(plain.graph) + 3


@pytest.mark.parametrize("apart", [-2.0, 0.5, 2.0])
def test_channels_stay_as_they_are_where_other_choosers_do_better(apart, monkeypatch):
    """Choosers are tried behind scaled channels and without; what is clearly closer is taken."""
    tried = []

    def choosers_tried(state, *_, **__):
        tried.append(state)
        sqnr = 30.0 + apart * len(tried)
        return state, steps.StepRecord(TRYING_CHOOSERS, True, "", 20.0, sqnr)

    monkeypatch.setattr("qdqbridge.autoquant.quantize.with_choosers_tried", choosers_tried)
    graph, x = long_tailed(4)
    found = quantize_model(graph, {"x": x[:64]}, repair=("smooth",), target=EXACT)
    scaled, plain = tried
    (record,) = found.repairs
    taken = plain if apart > CLEARLY else scaled
    assert found.decision is taken.decision and found.profile is taken.profile
    assert found.tuning is not None
    assert found.tuning.after == 30 + (2 * apart if taken is plain else apart)
    assert record.applied == (taken is scaled)
    assert ("other choosers do better without it" in record.outcome) == (taken is plain)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("digits_cnn_float", 1.0),
        ("digits_mlp_float", 1.0),
        # 64 samples judge a step: its bias gains 0.4 dB on them, and loses 0.07 on these
        pytest.param("digits_attention_float", -0.1, marks=pytest.mark.slow),
    ],
)
def test_the_default_steps_help_on_other_samples(name, least):
    graph, plain = network(name), unrepaired(name)
    found = repaired(name)[0]
    assert [record.step for record in found.repairs] == list(DEFAULT)
    before, after = judged(graph, plain.graph, found.graph)
    assert after > before + least
    for record in found.repairs:
        wanted = (record.before or 0) + (SCALED if record.step in GRAPH_STEPS else GAIN)
        gained = record.after is not None and record.after >= wanted
        few = "a few samples" in record.outcome  # whose errors fell, and most others' rose
        assert record.applied == (gained and not few) and record.outcome


@pytest.mark.parametrize(
    "name", ["digits_mlp_float", pytest.param("digits_cnn_float", marks=pytest.mark.slow)]
)
def test_4_bit_weights_gain_most(name):
    graph = network(name)
    target = replace(ORT, weights=Format(DType.INT4, symmetric=True, axis=0))
    plain = quantize_model(graph, DATA, target, repair=())
    found = quantize_model(graph, DATA, target)
    gptq = quantize_model(graph, DATA, target, repair=("equalize", "smooth", "round", "bias"))
    assert {r.step for r in gptq.repairs if r.applied} >= {"round", "bias"}
    assert {r.step for r in found.repairs if r.applied} >= {"round", "learn"}
    before, between, after = judged(graph, plain.graph, gptq.graph, found.graph)
    assert after > between + 0.5 and between > before + 4


def test_steps_that_do_not_exist_and_parameters_of_the_user():
    graph = network("digits_mlp_float")
    with pytest.raises(InputDataError, match="no repair step 'polish'"):
        quantize_model(graph, DATA, repair=("polish",))
    name = graph.nodes[2].output.name
    fixed = {name: per_tensor(DType.UINT8, 0.05)}
    found = quantize_model(graph, DATA, fixed=fixed, repair=("equalize",))
    assert not found.repairs[0].applied and "the user fixed" in found.repairs[0].outcome


def test_what_cannot_be_tried_is_told(monkeypatch):
    def broken(decision, samples, progress):
        raise UnsupportedModelError("an operator that nobody can run", fix="none")

    monkeypatch.setitem(steps._CHANGES, "bias", broken)
    found = quantize_model(network("digits_mlp_float"), DATA, repair=("bias",))
    (record,) = found.repairs
    assert not record.applied and record.outcome.endswith("tried: an operator that nobody can run")


def test_infinite_outputs_do_not_decide():
    b = Builder(17)
    mask = np.array([[0, -np.inf, 0]], np.float32)
    y = b.op("MatMul", b.input("x", ["n", 4]), b.init(np.eye(4, 3, dtype=np.float32)))
    b.output(b.op("Add", y, b.init(mask)))
    graph = canonical(b.model())
    judge = FloatReference(graph, Samples.of(graph.inputs, {"x": np.ones((5, 4), np.float32)}))
    assert judge.sqnr(graph) == np.inf


def test_no_data_no_repair():
    graph = network("digits_mlp_float")
    profile = unrepaired("digits_mlp_float").profile
    found = quantize_model(graph, None, profile=profile)
    assert found.repairs == ()
    both = quantize_model(graph, DATA, profile=profile)
    assert both.repairs and both.graph.digest == repaired("digits_mlp_float")[0].graph.digest


def test_progress_never_goes_back():
    b = Builder(17)
    weight = np.ones((3, 3), np.float32)
    b.output(b.op("Sigmoid", b.op("MatMul", b.input("input", ["n", 3]), b.init(weight))))
    graph = canonical(b.model())
    data = {"input": np.linspace(-1, 1, 30, dtype=np.float32).reshape(10, 3)}
    own = []
    quantize_model(graph, data, progress=lambda *a: own.append(a))
    for told in (repaired("digits_mlp_float")[1], own):
        done, totals = zip(*told, strict=True)
        assert len(set(totals)) == 1 and list(done) == sorted(done) and done[-1] == totals[0]


class Told:
    """A callback that keeps what is tried and what is left."""

    def __init__(self):
        self.tried = []

    def __call__(self, done, total):
        assert 0 <= done <= total

    def trying(self, what, left):
        self.tried.append((what, *left))


def test_fast_tries_biases_alone():
    told = Told()
    images = np.load(MODELS / "digits_test.npz")["x"][:48]
    made = quantization(
        MODELS / "digits_mlp_float.onnx", {"input": images}, preset="fast", progress=told
    )
    assert [step.step for step in made.made.repairs] == ["bias"]
    assert made.made.tuning is None
    assert made.made.options.chooser == "extrapolated"
    assert told.tried[-2:] == [("ranges", "bias"), ("bias",)]
    asked = QuantizeOptions(preset="fast", repair=("learn",), chooser="mse")
    assert (asked.repair, asked.chooser, asked.tune) == (("learn",), "mse", False)
    with pytest.raises(UnsupportedTargetError, match="no preset 'faster'"):
        QuantizeOptions(preset="faster")


def test_progress_says_what_is_left():
    told = Told()
    images = np.load(MODELS / "digits_test.npz")["x"][:24]
    quantization(
        MODELS / "digits_mlp_float.onnx", {"input": images}, repair=("equalize", "bias"),
        progress=told,
    )  # fmt: skip
    assert told.tried[0][0] == "operators"
    assert told.tried[-4:] == [
        ("ranges", "choosers", "equalize", "bias"),
        ("equalize", "choosers", "bias"),
        ("choosers", "bias"),
        ("bias",),
    ]
