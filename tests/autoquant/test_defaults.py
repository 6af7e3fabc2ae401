"""What the defaults try by themselves: room for few samples, fewer operators, and a warning."""

import itertools
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.advice.few_samples import (
    ENOUGH,
    WithRoom,
    different,
    distinct,
    outlying,
    with_room,
    worth_trying,
)
from qdqbridge.autoquant.advice.input_scale import misscaled
from qdqbridge.autoquant.choosers import Context, MinMax
from qdqbridge.autoquant.planning.targets import ORT, POWER_OF_TWO, TARGETS, U8, Wide
from qdqbridge.autoquant.profiling.profile import Profile
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.quantize import QuantizeOptions, quantized
from qdqbridge.autoquant.repair.steps import GRAPH_STEPS, LATE
from qdqbridge.autoquant.search import operator_choice
from qdqbridge.autoquant.search.operator_choice import STEP, chosen
from qdqbridge.autoquant.search.sensitivity import wider
from qdqbridge.autoquant.search.tuning import spread_unlike
from tests.autoquant.float_models import masked
from tests.onnx_models import Builder, canonical
from tests.places import MODELS

CNN, MLP = (MODELS / f"digits_{name}_float.onnx" for name in ("cnn", "mlp"))
IMAGES = np.load(MODELS / "digits_test.npz")["x"]


def sqnr(model, graph, inputs):
    (real,) = qb.evaluate(model if isinstance(model, qb.Graph) else qb.load(model), inputs).values()
    (rough,) = qb.evaluate(graph, inputs).values()
    wide = real.astype(np.float64)
    return 10 * np.log10(np.sum(wide**2) / np.sum((wide - rough) ** 2))


@pytest.mark.parametrize("repeated", [1, 32])
def test_one_sample_leaves_room_for_others(repeated):
    one = {"input": np.repeat(IMAGES[:1], repeated, axis=0)}
    unseen = {"input": IMAGES[100:200]}
    found = sqnr(CNN, qb.quantize(CNN, one, repair=()), unseen)
    extremes = sqnr(CNN, qb.quantize(CNN, one, repair=(), chooser="minmax"), unseen)
    assert found > extremes + 6


def drawn(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def seen(*values, times=1):
    return TensorStats.of(np.repeat(np.array(values, np.float32), times))


def upper_end(params):
    """Returns the largest value of 8 unsigned bits."""
    return float(params.scale) * (255 - int(params.zero_point))


def test_few_values_do_not_say_which_sign_reaches_further():
    room = WithRoom(2.0)
    assert room.range(seen(-2, -1, 0.125), U8) == (-4, 4)
    assert room.range(seen(-0.125, 0.5, 1), U8) == (-2, 2)
    assert room.range(seen(0.5, 1), U8) == (1, 2)  # zero is in every range
    assert room.range(seen(-2, -0.25, 0.125, 0.125, times=16), U8) == (-4, 1)  # a quarter of 2
    assert room.range(seen(-2, 1, times=500), U8) == (-4, 2)


@pytest.mark.parametrize(("reached", "end"), [(0.75, 1.0), (1.5, 1.5)])
def test_results_of_a_tanh_end_at_1_unless_one_was_larger(reached, end):
    stats = seen(-0.5, reached)  # ends are read to one of 255 steps
    assert upper_end(WithRoom(2.0)(stats, U8, Context(producer="GRU"))) == pytest.approx(end, 0.01)
    plain = upper_end(WithRoom(2.0)(stats, U8, Context(producer="Add")))
    assert plain == pytest.approx(2 * reached, 0.01)


def test_a_sample_that_is_nearly_all_negative_is_enough():
    rng = np.random.default_rng(5)
    b = Builder(17)
    y = b.op("MatMul", b.input("x", ["n", 10]), b.init(drawn(rng, 10, 32)))
    b.output(b.op("MatMul", b.op("Relu", y), b.init(drawn(rng, 32, 2))), ["n", 2])
    graph, one, unseen = canonical(b.model()), -np.abs(drawn(rng, 1, 10)), drawn(rng, 200, 10)
    one[0, 3] = 0.01
    made, doubled = (
        qb.quantize(graph, {"x": one}, repair=(), chooser=chooser)
        for chooser in (None, MinMax(2.0))
    )
    assert sqnr(graph, made, {"x": unseen}) > 25 and sqnr(graph, doubled, {"x": unseen}) < 5
    again = qb.quantize(graph, {"x": np.repeat(one, 64, axis=0)}, repair=())
    assert again.digest == made.digest


def test_room_shrinks_with_samples_and_is_not_forced():
    graph = qb.load(CNN)
    for count, margin in ((1, 2.0), (4, 1.5)):
        samples = Samples.of(graph.inputs, {"input": np.repeat(IMAGES[:count], 3, axis=0)})
        assert different(samples) == count
        assert with_room(ORT, count).chooser == WithRoom(margin)
    assert different(Samples.of(graph.inputs, {"input": IMAGES[:50]})) == ENOUGH
    assert with_room(ORT, ENOUGH) is ORT
    own = QuantizeOptions(chooser="mse").described()
    assert with_room(own, 1) is own  # a chooser that the user names stays
    assert with_room(POWER_OF_TWO, 0) is POWER_OF_TWO


def test_a_sample_far_larger_than_all_others_is_left_out_and_told(caplog, tmp_path):
    data = IMAGES[:64].copy()
    data[7] *= 1000
    assert outlying(Samples.of(qb.load(CNN).inputs, {"input": data})) == [7]
    assert outlying(Samples.of(qb.load(CNN).inputs, {"input": data[:7]})) == []
    data[20:40] *= 1000  # no accident: the model has to bear both
    assert outlying(Samples.of(qb.load(CNN).inputs, {"input": data})) == []
    data[20:40] /= 1000
    with caplog.at_level(logging.WARNING):
        graph = qb.quantize(CNN, {"input": data}, repair=())
    assert "samples 7 are more than 100 times" in caplog.text
    np.savez(tmp_path / "d.npz", input=data)
    told: list[str] = []
    file = quantization(CNN, tmp_path / "d.npz", repair=(), warn=told.append)
    assert file.graph.digest == graph.digest and "samples 7 are" in told[-1]
    assert sqnr(CNN, graph, {"input": IMAGES[100:200]}) > 25


def test_fewer_operators_run_on_integers_where_all_are_bad(tmp_path):
    path = masked(tmp_path / "f.onnx")
    rng = np.random.default_rng(1)
    x, unseen = (rng.standard_normal((48, 8, 16)).astype(np.float32) for _ in range(2))
    made = quantization(path, {"x": x})
    first = made.made.repairs[0]
    assert first.step == STEP and first.applied and "products" in first.outcome
    assert first.before is not None and first.after is not None
    assert first.after > first.before + 3
    kinds = {node.op.name for node in made.made.decision.plan.rules}
    assert kinds == {"MatMul"}
    everything = qb.quantize(path, {"x": x}, repair=())
    assert sqnr(path, made.graph, {"x": unseen}) > sqnr(path, everything, {"x": unseen}) + 6


def ends(b, start, end):
    return (b.init(np.array([n], np.int64)) for n in (start, end, 1))


def headed(path, *, bounded=False):
    """Products whose results are decoded by operators between whose results little is left.

    ``bounded`` cuts them off at numbers that many samples reach: others leave no range then.
    """
    rng = np.random.default_rng(0)
    b = Builder(17)
    x = b.input("x", ["n", 16])
    y = b.op("Relu", b.op("MatMul", x, b.init((rng.standard_normal((16, 32)) / 4).astype("f4"))))
    y = b.op("MatMul", y, b.init((rng.standard_normal((32, 8)) / 4).astype("f4")))
    y = b.op("Add", y, b.init(rng.standard_normal(8).astype("f4")))
    if bounded:
        y = b.op("Clip", y, b.init(np.array(-1, np.float32)), b.init(np.array(1, np.float32)))
    u, v = b.op("Slice", y, *ends(b, 0, 4)), b.op("Slice", y, *ends(b, 4, 8))
    far = b.op("Add", u, b.init(np.full(4, 100, np.float32)))
    whole = b.op("Mul", far, b.op("Add", v, b.init(np.full(4, 100, np.float32))))
    b.output(b.op("Sub", whole, b.op("Mul", far, b.init(np.full(4, 100, np.float32)))))
    onnx.save(b.model(), path)
    return path


def test_what_follows_the_last_products_stays_float_where_that_helps(tmp_path):
    path = headed(tmp_path / "f.onnx")
    rng = np.random.default_rng(1)
    x, unseen = (rng.standard_normal((64, 16)).astype(np.float32) for _ in range(2))
    made = quantization(path, {"x": x})
    first = made.made.repairs[0]
    assert first.step == STEP and first.applied and "last products" in first.outcome
    kinds = {node.op.name for node in made.made.decision.plan.rules}
    assert "Relu" in kinds and not kinds & {"Mul", "Sub"}
    everything = qb.quantize(path, {"x": x}, repair=())
    assert sqnr(path, made.graph, {"x": unseen}) > sqnr(path, everything, {"x": unseen}) + 3


def widths(graph):
    """Returns the operators by the bits of what they compute."""
    found: dict[int, set[str]] = {}
    for node in graph.nodes:
        if node.output.quant is not None:
            bits = node.output.quant.params.storage_dtype.bits
            found.setdefault(bits, set()).add(node.op.name)
    return found


def even(seed, *shape):
    """Returns samples whose range others do not leave."""
    return np.random.default_rng(seed).uniform(-1.7, 1.7, shape).astype(np.float32)


def test_sixteen_bits_come_before_float_where_the_engine_has_kernels_for_them(tmp_path):
    path = masked(tmp_path / "f.onnx")
    x, unseen = even(1, 64, 8, 16), even(2, 64, 8, 16)
    made = quantization(path, {"x": x}, target="qnn")
    first = made.made.repairs[0]
    assert first.step == STEP and first.applied
    assert first.outcome == "16-bit activations of all but products"
    assert not made.made.decision.plan.floats
    assert {"Add", "Softmax"} <= widths(made.graph)[16]
    assert "MatMul" in widths(made.graph)[8]  # what reads no more bits keeps the target's own
    everything = qb.quantize(path, {"x": x}, target="qnn", repair=())
    assert sqnr(path, made.graph, {"x": unseen}) > sqnr(path, everything, {"x": unseen}) + 6


def test_sixteen_bits_are_told_where_the_engine_computes_them_in_floats(tmp_path):
    """They stay float there, which is quicker: the file is the one of a target without them."""
    path = masked(tmp_path / "f.onnx")
    x = even(1, 64, 8, 16)
    made = quantization(path, {"x": x})
    first = made.made.repairs[0]
    told = first.outcome
    assert "--format '*=uint16'" in told and "no integer kernels" in told
    silent = quantization(path, {"x": x}, target=replace(ORT, wide=Wide.REFUSED))
    assert silent.made.repairs[0].outcome == told.split(";")[0]
    assert silent.graph.digest == made.graph.digest
    promised = float(told.split(" dB")[0].split()[-1])
    plain: dict[str, Any] = {"repair": (), "tune": False, "formats": {"*": wider(U8)}}
    wide = quantization(path, {"x": x}, **plain)
    assert not wide.made.decision.plan.floats and set(widths(wide.graph)) == {16}
    assert first.after is not None and promised >= first.after
    assert sqnr(path, wide.graph, {"x": x}) > promised - 1


def test_what_follows_the_last_products_gets_sixteen_bits(tmp_path):
    path = headed(tmp_path / "f.onnx", bounded=True)
    x = even(1, 64, 16)
    made = quantization(path, {"x": x}, target="qnn")
    first = made.made.repairs[0]
    assert first.applied and first.outcome == "16-bit activations of what follows the last products"
    assert not made.made.decision.plan.floats
    assert {"Mul", "Sub"} <= widths(made.graph)[16]
    assert widths(made.graph)[8] >= {"Dense"}


def test_engines_that_take_no_sixteen_bits_get_none(tmp_path):
    path = masked(tmp_path / "f.onnx")
    x = even(1, 64, 8, 16)
    for target in ("tensorrt", "tflite"):
        made = quantization(path, {"x": x}, target=target)
        first = made.made.repairs[0]
        assert first.step == STEP and "16-bit" not in first.outcome
        assert set(widths(made.graph)) == {8}


@pytest.mark.parametrize("seconds", [0.0, 12.0, 30.0])
def test_nothing_is_tried_once_the_time_is_over(monkeypatch, seconds):
    """Each look at this clock takes a second; a step that is under way ends too."""
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    made = quantization(MLP, {"input": IMAGES[:16]}, budget=seconds)
    late = [step.outcome == LATE for step in made.made.repairs if step.step != "pairs"]
    assert late == sorted(late) and late[-1] and all(late) == (seconds < 30)
    assert next(clock) <= max(seconds, 16)
    plain = quantization(MLP, {"input": IMAGES[:16]}, repair=(), tune=False)
    assert seconds or made.graph.digest == plain.graph.digest


def test_what_is_good_or_wished_for_is_left_alone():
    graph = qb.load(CNN)
    samples = Samples.of(graph.inputs, {"input": IMAGES[:48]})
    options = QuantizeOptions()
    found, steps = chosen(graph, samples, options)
    assert found == options and [step.step for step in steps] == ["pairs"]
    wished = QuantizeOptions(only=["Conv"], weights="int2")
    found, steps = chosen(graph, samples, wished)
    assert found == wished and not steps  # no pair of 2 bits saturates


def test_what_operators_are_chosen_by_is_not_looked_for_twice(monkeypatch):
    """Channels are scaled only where outputs are bad without; all attempts read one profile.

    What is only told, of 16 bits, does without scaled channels.
    """
    asked: list[tuple[str, ...]] = []
    known: list[Profile] = []

    def noted(graph, data, options, **others):
        asked.append(tuple(options.repair))
        known.append(others["ready"].known)
        return quantized(graph, data, options, **others)

    monkeypatch.setattr(operator_choice, "quantized", noted)
    graph = qb.load(MLP)
    samples = Samples.of(graph.inputs, {"input": IMAGES[:48]})
    chosen(graph, samples, QuantizeOptions())
    assert asked[:2] == [(), ()]  # with scales for pairs, and without
    assert known[0] is not None and all(each is known[0] for each in known)
    asked.clear()
    chosen(graph, samples, QuantizeOptions(target=replace(ORT, avoided_pairs=None)))
    assert asked == [()]
    asked.clear()
    chosen(graph, samples, QuantizeOptions(weights="int2"))
    assert asked[0] == asked[-1] == () and set(asked[1:-1]) == {GRAPH_STEPS}


def test_bad_outputs_are_told_with_what_mends_them(caplog):
    rough: dict[str, Any] = {"weights": "int2", "repair": (), "chooser": "minmax"}
    made = quantization(CNN, {"input": IMAGES[:48]}, **rough)
    (warning,) = made.doubts()
    names = [node.name for node in made.made.decision.plan.rules]
    assert "--min-sqnr" in warning and any(f"--exclude '{name}'" in warning for name in names)
    assert quantization(CNN, {"input": IMAGES[:48]}, repair=()).doubts() == []
    with caplog.at_level(logging.WARNING):
        qb.quantize(CNN, {"input": IMAGES[:48]}, **rough)
    assert warning in caplog.text


@pytest.mark.parametrize("network", ["attention", "cnn", "mlp", "mobile"])
def test_data_ten_times_too_small_are_told_and_right_data_are_not(network, caplog):
    graph = qb.load(MODELS / f"digits_{network}_float.onnx")
    with caplog.at_level(logging.WARNING):
        qb.quantize(graph, {"input": IMAGES[:64]}, repair=(), chooser="minmax")
    assert "another scale" not in caplog.text
    with caplog.at_level(logging.WARNING):
        qb.quantize(graph, {"input": IMAGES[:64] / 10}, repair=(), chooser="minmax")
    assert "another scale" in caplog.text and "input 'input' is about 10 times" in caplog.text
    for scale in (2.0, 0.5):  # another camera's contrast is no mistake
        assert not misscaled(graph, Samples.of(graph.inputs, {"input": IMAGES[:64] * scale}))


@pytest.mark.parametrize("network", ["attention", "cnn", "mlp", "mobile"])
def test_data_normalized_twice_or_not_at_all_are_told(network):
    graph = qb.load(MODELS / f"digits_{network}_float.onnx")
    for mean, deviation in ((0.5, 0.5), (0.449, 0.226)):
        for x, said in (
            ((IMAGES[:64] - mean) / deviation, "normalized twice"),
            (IMAGES[:64] * deviation + mean, "normalized by a mean of"),
        ):
            assert said in misscaled(graph, Samples.of(graph.inputs, {"input": x}))


def test_data_of_few_classes_are_no_data_of_another_scale():
    labels = np.load(MODELS / "digits_test.npz")["labels"]
    rng = np.random.default_rng(5)
    for network in ("attention", "cnn", "mlp", "mobile"):
        graph = qb.load(MODELS / f"digits_{network}_float.onnx")
        for count in (1, 2, 3, 5):
            kept = np.isin(labels, rng.choice(10, count, replace=False))
            data = {"input": IMAGES[kept][:64]}
            assert not misscaled(graph, Samples.of(graph.inputs, data)), (network, count)


def classifier(*, bounded):
    """Ten classes, by which input is the largest; ``bounded`` with biases and a Tanh."""
    b = Builder(17)
    y = b.op("MatMul", b.input("x", ["n", 10]), b.init(2 * np.eye(10, dtype=np.float32)))
    if bounded:
        y = b.op("Tanh", b.op("Add", y, b.init(np.linspace(-0.3, 0.3, 10).astype(np.float32))))
    b.output(y, ["n", 10])
    return canonical(b.model())


def told_of(graph, factor, classes=10, count=64):
    rng = np.random.default_rng(2)
    chosen = rng.permutation(10)[rng.integers(0, classes, count)]
    x = np.eye(10)[chosen] + rng.normal(0, 0.1, (count, 10))
    data = {"x": (x * factor).astype(np.float32)}
    return misscaled(graph, Samples.of(graph.inputs, data))


def test_data_that_lose_no_class_are_told_where_another_scale_decides_more_firmly():
    """All ten are used at ten times the scale too, where 0.1 saturates nearly as 1 does."""
    graph = classifier(bounded=True)
    found = told_of(graph, 10.0)
    assert "prefers its first choice by" in found and "divided by 10 or so" in found
    for classes in (1, 2, 3, 5, 10):
        for count in (8, 20, 64):
            assert not told_of(graph, 1.0, classes, count), (classes, count)


def test_a_network_without_biases_has_no_scale():
    """Its answers at ten times the scale are ten times these: nothing can be told, and is not."""
    graph = classifier(bounded=False)
    assert not any(told_of(graph, factor) for factor in (0.01, 0.1, 1.0, 10.0, 100.0))


def test_a_batch_normalization_knows_the_scale_of_its_training(tmp_path):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((64, 4, 10)).astype(np.float32) * 2 + 1
    weight = rng.standard_normal((6, 4, 3)).astype(np.float32)
    computed = np.einsum("nctk,ock->not", np.lib.stride_tricks.sliding_window_view(x, 3, 2), weight)
    b = Builder(17)
    gamma, beta = rng.uniform(0.5, 2, 6), rng.standard_normal(6)
    kept = (gamma, beta, computed.mean((0, 2)), computed.var((0, 2)))
    conv = b.op("Conv", b.input("x", ["n", 4, 10]), b.init(weight))
    norm = b.op("BatchNormalization", conv, *(b.init(a.astype(np.float32)) for a in kept))
    b.output(norm, ["n", 6, 8])
    onnx.save(b.model(), tmp_path / "f.onnx")
    graph = qb.load(tmp_path / "f.onnx")
    for scale, told in ((1, ""), (2.5, ""), (0.1, "0.1 times"), (10, "10 times")):
        found = misscaled(graph, Samples.of(graph.inputs, {"x": x * np.float32(scale)}))
        assert (told in found and "node_batchnorm" in found) if told else not found
    few = {"x": x[:4] * np.float32(10)}  # four samples say nothing
    assert not misscaled(graph, Samples.of(graph.inputs, few))


def test_one_sample_teaches_nothing() -> None:
    """What is learned of a sample, and kept by the same one, makes others worse."""
    model, data = MODELS / "digits_mobile_float.onnx", np.load(MODELS / "digits_test.npz")["x"]
    made = quantization(model, {"input": data[:1]})
    records = {step.step: step for step in made.made.repairs}
    for name in ("round", "learn", "bias"):
        assert not records[name].applied
        assert records[name].outcome == "1 different sample is too few to judge by"
    few = quantization(model, {"input": data[:4]}, weights="int4", repair=("learn", "bias"))
    assert [s.outcome.startswith("4 different samples") for s in few.made.repairs] == [False, True]


EXACT_ROWS = replace(TARGETS["dynamic-rows"], avoided_pairs=None)
"""With scales for which no pair saturates, scaled channels lose on that sample already."""


@pytest.mark.parametrize("target", ["ort", EXACT_ROWS], ids=["ort", "dynamic-rows"])
@pytest.mark.parametrize("repeated", [1, 32])
def test_one_sample_scales_no_channels_of_what_is_good(target, repeated):
    """It is close to the float model without them, and nothing says what they do to others."""
    model = MODELS / "digits_mobile_float.onnx"
    data, unseen = {"input": IMAGES[[9] * repeated]}, {"input": IMAGES[100:300]}
    made = quantization(model, data, target=target, preset="full")
    smooth = next(step for step in made.made.repairs if step.step == "smooth")
    assert smooth.before is not None and smooth.after is not None
    assert smooth.after > smooth.before + 1 and not smooth.applied
    assert smooth.outcome.endswith("one sample cannot tell what it does to others")
    plain = sqnr(model, qb.quantize(model, data, target=target, repair=()), unseen)
    assert sqnr(model, made.graph, unseen) >= plain - 0.5


def test_one_sample_scales_channels_where_little_is_to_lose():
    assert worth_trying("smooth", 12.0, 19.0) and not worth_trying("smooth", 30.0, 40.0)
    assert not worth_trying("smooth", 12.0, 14.0) and not worth_trying("equalize", 30.0, 32.0)
    assert worth_trying("equalize", 30.0, 40.0)  # by the weights, whatever the sample is


def test_samples_alike_count_once():
    graph = qb.load(CNN)
    samples = Samples.of(graph.inputs, {"input": IMAGES[[3, 3, 5, 3, 5, 9]]})
    assert distinct(samples) == [0, 2, 5] and distinct(samples, 2) == [0, 2]


def test_copies_of_a_sample_change_nothing():
    """They say nothing more, and must not judge what the same one has chosen."""
    once, copied = (
        quantization(
            MODELS / "digits_mobile_float.onnx", {"input": IMAGES[[0] * times]},
            weights="int4", repair=("bias",),
        )
        for times in (1, 32)
    )  # fmt: skip
    assert [r.step for r in copied.made.repairs] == [r.step for r in once.made.repairs] == ["bias"]
    assert copied.graph.digest == once.graph.digest


def test_what_repair_looks_at_is_there_once():
    graph = qb.load(CNN)
    images = IMAGES[[3, 3, 5, 3, 5, 9, 8, 7, 6, 4, 2, 1, 0, 3]]
    samples = Samples.of(graph.inputs, {"input": images})
    found = spread_unlike(samples, 256).arrays["input"]
    np.testing.assert_array_equal(found, IMAGES[[3, 5, 9, 8, 7, 6, 4, 2, 1, 0]])
    alone = Samples.of(graph.inputs, {"input": IMAGES[:9]})
    assert spread_unlike(alone, 256) is alone
