"""Models whose inputs share no axis of examples: a state, a rate, pieces of any length."""

from typing import Any

import numpy as np
import onnx.parser
import pytest

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.profiling.profile import profile_text
from qdqbridge.autoquant.profiling.samples import (
    RunSamples,
    Samples,
    batch_samples,
    is_one_run,
    open_samples,
    samples_of,
)
from qdqbridge.autoquant.search.tuning import errors_between, spread
from qdqbridge.errors import InputDataError
from tests.onnx_models import canonical

STREAM = """
<ir_version: 8, opset_import: ["" : 17]>
stream (float[n, 16] sound, float[2, n, 8] state, int64 rate)
    => (float[n, 4] speech, float[2, n, 8] next)
{
    fast = Constant<value_int = 16000>()
    known = Equal(rate, fast)
    speech, next = If(known) <
        then_branch = then () => (float[n, 4] t_speech, float[2, n, 8] t_next) {
            t_zero = Constant<value_int = 0>()
            t_axes = Constant<value_ints = [0]>()
            t_layer = Gather(state, t_zero)
            t_x = MatMul(sound, w)
            t_h = MatMul(t_layer, u)
            t_sum = Add(t_x, t_h)
            t_new = Tanh(t_sum)
            t_speech = MatMul(t_new, v)
            t_one = Unsqueeze(t_new, t_axes)
            t_next = Concat<axis = 0>(t_one, t_one)
        },
        else_branch = else () => (float[n, 4] e_speech, float[2, n, 8] e_next) {
            e_speech = MatMul(sound, z)
            e_next = Identity(state)
        }
    >
}
"""
SHAPES = {"w": (16, 8), "u": (8, 8), "v": (8, 4), "z": (16, 4)}


@pytest.fixture(scope="module")
def stream():
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(STREAM)
    for name, shape in SHAPES.items():
        weight = rng.normal(size=shape).astype(np.float32) / 3
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return canonical(model)


def runs(count):
    rng = np.random.default_rng(1)
    return [
        {
            "sound": rng.normal(size=(1, 16)).astype(np.float32),
            "state": np.tanh(rng.normal(size=(2, 1, 8))).astype(np.float32),
            "rate": np.array(16000),
        }
        for _ in range(count)
    ]


def in_files(folder, samples):
    for number, sample in enumerate(samples):
        np.savez(folder / f"{number:03d}.npz", **sample)
    return folder


def test_a_file_is_one_run(stream, tmp_path):
    given = runs(12)
    samples = open_samples(in_files(tmp_path, given), stream.inputs)
    assert len(samples) == len(given)
    for found, wanted in zip(samples, given, strict=True):
        assert {name: a.tobytes() for name, a in found.items()} == {
            name: a.tobytes() for name, a in wanted.items()
        }
        assert found["state"].shape == (2, 1, 8)
        assert found["rate"].shape == ()
    few = spread(samples, 5)
    assert isinstance(few, RunSamples)
    assert len(few) == 5


def test_a_state_stored_by_columns(stream, tmp_path):
    sample = runs(1)[0]
    sample["state"] = np.asfortranarray(np.arange(32, dtype=np.float32).reshape(2, 2, 8))
    sample["sound"] = np.zeros((2, 16), np.float32)
    found = next(iter(open_samples(in_files(tmp_path, [sample]), stream.inputs)))
    assert np.array_equal(found["state"], sample["state"])


def test_arrays_that_are_one_run(stream):
    sample = runs(1)[0]
    assert is_one_run(stream.inputs, sample)
    assert len(Samples.of(stream.inputs, sample)) == 1
    # Without the rate, and two at once: what the state counts might be examples.
    sound, state, _ = stream.inputs
    pair = {"sound": np.zeros((2, 16), np.float32), "state": np.zeros((2, 2, 8), np.float32)}
    assert not is_one_run([sound, state], pair)
    assert not is_one_run([sound, state], pair | {"state": np.zeros((3, 1, 8), np.float32)})
    assert not is_one_run([sound], {"sound": pair["sound"]})
    with pytest.raises(InputDataError, match="same number of examples"):
        Samples.of(stream.inputs, sample | {"state": np.zeros((3, 1, 8), np.float32)})


def test_runs_in_python(stream):
    nameless: Any = np.zeros((3, 1, 16), np.float32)
    nothing: Any = 3
    assert isinstance(samples_of(stream.inputs, runs(3)), RunSamples)
    with pytest.raises(InputDataError, match="no sample"):
        samples_of(stream.inputs, [])
    with pytest.raises(InputDataError, match="wrong shape"):
        samples_of(stream.inputs, [runs(1)[0] | {"sound": np.zeros((1, 15), np.float32)}])
    with pytest.raises(InputDataError, match="without their names"):
        samples_of(stream.inputs, nameless)
    with pytest.raises(InputDataError, match="without their names"):
        samples_of(stream.inputs, nothing)


def test_pieces_of_one_length_are_joined_again():
    alike = [{"x": np.full((2, 3), number, np.float32)} for number in range(4)]
    together = batch_samples(alike)
    assert not isinstance(together, RunSamples)
    assert (len(together), together.step) == (4, 2)
    assert np.array_equal(together[3]["x"], alike[3]["x"])
    others = [*alike, {"x": np.zeros((2, 4), np.float32)}]
    assert isinstance(batch_samples(others), RunSamples)


def test_pieces_of_several_lengths_are_quantized(tmp_path):
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    open (float[1, 2, length] x) => (float[1, 3, m] y) { y = Conv(x, w) }
    """
    rng = np.random.default_rng(2)
    model = onnx.parser.parse_model(text)
    weight = rng.normal(size=(3, 2, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    pieces = [{"x": rng.normal(size=(1, 2, 9 + i % 3)).astype(np.float32)} for i in range(12)]
    made = quantization(canonical(model), in_files(tmp_path, pieces))
    outputs = made.outputs()
    assert outputs is not None
    assert outputs.sqnr > 35


def test_errors_of_outputs_that_count_other_things():
    wanted = [[np.ones((1, 4)), np.full((2, 1, 8), 2.0)] for _ in range(3)]
    found = [[np.ones((1, 4)), np.full((2, 1, 8), 2.0 + number)] for number in range(3)]
    # The first output is the same; the second's power is 4 for each number.
    assert errors_between(wanted, found).tolist() == pytest.approx([0, 0.125, 0.5])  # floats


def test_a_model_all_of_whose_nodes_are_in_branches(stream, tmp_path):
    given, folder = runs(40), tmp_path / "d"
    folder.mkdir()
    made = quantization(stream, in_files(folder, given))
    outputs = made.outputs()
    assert sum(body.integers for body in made.inside) >= 3
    assert outputs is not None
    assert outputs.sqnr > 30
    assert quantization(stream, given).graph.digest == made.graph.digest
    assert profile_text(qb.profile(stream, given)) == profile_text(qb.profile(stream, folder))


def one_input():
    """Returns a network and eighteen of its inputs."""
    images = np.random.default_rng(3).standard_normal((18, 6)).astype(np.float32)
    return canonical(onnx.parser.parse_model(ONE_INPUT)), images


ONE_INPUT = """
<ir_version: 8, opset_import: ["" : 17]>
one (float[n, 6] x) => (float[n, 3] y)
<float[6, 3] w = {1, 0, 0, 2, 0, 1, 0, 1, 3, 0, 0, 1, 0, 0, 1, 0, 1, 0}>
{
    product = MatMul(x, w)
    y = Relu(product)
}
"""


@pytest.mark.parametrize(
    "given",
    [
        lambda rows: rows,
        list,
        lambda rows: (row for row in rows),
        lambda rows: [row[None] for row in rows],
        lambda rows: iter([{"x": row[None]} for row in rows]),
        lambda rows: [row.tolist() for row in rows.astype(np.float64).astype(np.float32)],
    ],
    ids=["array", "arrays", "generator", "runs", "mappings", "numbers"],
)
def test_arrays_of_the_only_input(given):
    graph, images = one_input()
    wanted = qb.quantize(graph, {"x": images}, repair=(), chooser="minmax")
    try:
        found = qb.quantize(graph, given(images), repair=(), chooser="minmax")
    except InputDataError as error:  # lists of Python's numbers are of float64, as NumPy reads them
        assert error.fix == "convert it: array.astype('float32')"
    else:
        assert found.digest == wanted.digest


def test_arrays_in_the_order_of_the_inputs(stream):
    state, rate = np.ones((2, 1, 8), np.float32), np.int64(16000)
    sounds = np.random.default_rng(2).standard_normal((3, 1, 16)).astype(np.float32)
    in_order = samples_of(stream.inputs, ([sound, state, rate] for sound in sounds))
    named = [{"sound": sound, "state": state, "rate": rate} for sound in sounds]
    for found, wanted in zip(in_order, samples_of(stream.inputs, named), strict=True):
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    wrong: Any
    for wrong in ([sounds[0]], [[sounds[0], state]], [sounds[0], state, rate], 5, []):
        with pytest.raises(InputDataError):
            samples_of(stream.inputs, wrong)


UNREAD = """
<ir_version: 8, opset_import: ["" : 17]>
unread (float[n, 6] x, int64[n, t] mask, float rate) => (float[n, 3] y)
<float[6, 3] w = {1, 0, 0, 2, 0, 1, 0, 1, 3, 0, 0, 1, 0, 0, 1, 0, 1, 0}>
{
    product = MatMul(x, w)
    y = Relu(product)
}
"""


@pytest.mark.parametrize("form", ["arrays", "runs", "array", "file", "files"])
def test_what_nothing_reads_need_not_be_fed(form, tmp_path):
    graph, images = canonical(onnx.parser.parse_model(UNREAD)), one_input()[1]
    np.savez(tmp_path / "a.npz", x=images[:9])
    np.savez(tmp_path / "b.npz", x=images[9:])
    np.savez(tmp_path / "all.npz", anything=images)
    (tmp_path / "all.npz").rename(tmp_path.parent / f"{form}_all.npz")
    data = {
        "arrays": {"x": images},
        "runs": [{"x": image[None]} for image in images],
        "array": images,
        "file": tmp_path.parent / f"{form}_all.npz",
        "files": tmp_path,
    }[form]
    assert len(quantization(graph, data, repair=()).graph.inputs) == 3
    profile = qb.profile(graph, data)
    assert profile_text(profile) == profile_text(qb.profile(graph, {"x": images}))
    with pytest.raises(InputDataError, match="not the inputs of the model"):
        qb.quantize(graph, {"mask": np.ones((18, 2), np.int64)})
    fed = {"x": images, "mask": np.ones((18, 2), np.int64)}  # what is given is looked at
    assert samples_of(graph.inputs, fed)[3]["mask"].tolist() == [[1, 1]]
    with pytest.raises(InputDataError, match="same number"):
        samples_of(graph.inputs, {**fed, "mask": fed["mask"][:5]})
