from collections import Counter

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

import qdqbridge as qb
from qdqbridge.autoquant.profiling.collect import (
    Recording,
    check_profile,
    collect,
    in_float32,
    observable,
    onnxruntime_observer,
)
from qdqbridge.autoquant.profiling.profile import merge, parse_profile, profile_text
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.errors import InputDataError
from tests.onnx_models import FLOAT, canonical
from tests.places import MODELS

IMAGES = np.load(MODELS / "digits_test.npz")["x"][:12]


@pytest.fixture(scope="module")
def graph():
    return qb.load(MODELS / "digits_cnn_float.onnx")


@pytest.fixture(scope="module")
def observer(graph):
    return onnxruntime_observer(graph, threads=1)


def samples_of(graph, images):
    return Samples.of(graph.inputs, {graph.inputs[0].name: images})


def test_every_float_tensor_is_profiled(graph, observer):
    profile = collect(graph, samples_of(graph, IMAGES), observer)
    names = {entry.name for entry in profile.tensors.values()}
    assert names == {graph.inputs[0].name} | {v.name for n in graph.nodes for v in n.outputs}
    for entry in profile.tensors.values():
        assert entry.stats.per_sample.samples == len(IMAGES)


def test_statistics_are_those_of_the_raw_tensors(graph, observer):
    profile = collect(graph, samples_of(graph, IMAGES), observer).by_name()
    values = [v for v in observable(graph) if v.producer is not None]
    _, raw = evaluate(graph, {graph.inputs[0].name: IMAGES}, wanted=values)
    for value in values:
        stats = profile[value.name]
        # onnxruntime adds the products of a layer in another order: some ulp of float32.
        assert stats.maximum == pytest.approx(float(raw[value].max()), rel=1e-5, abs=1e-5)
        assert stats.minimum == pytest.approx(float(raw[value].min()), rel=1e-5, abs=1e-5)
        assert stats.count == raw[value].size


def test_shards_and_resumption_give_the_same_bytes(graph, observer):
    whole = profile_text(collect(graph, samples_of(graph, IMAGES), observer))
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = rng.permutation(len(IMAGES))
        cut = int(rng.integers(1, len(IMAGES)))
        shards = [
            collect(graph, samples_of(graph, IMAGES[part]), observer)
            for part in (order[:cut], order[cut:])
        ]
        assert profile_text(merge(shards)) == whole
        first = collect(graph, samples_of(graph, IMAGES[:cut]), observer)
        again = parse_profile(profile_text(first), "checkpoint")
        assert (
            profile_text(collect(graph, samples_of(graph, IMAGES), observer, start=again)) == whole
        )


def test_a_killed_run_goes_on_where_it_was(graph, observer):
    saved = []

    def stop(profile):
        saved.append(profile)
        if len(saved) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(graph, samples_of(graph, IMAGES), observer, checkpoint=stop, interval=0)
    rest = []
    profile = collect(
        graph,
        samples_of(graph, IMAGES),
        observer,
        start=saved[-1],
        progress=lambda done, total: rest.append(done),
    )
    assert rest == list(range(6, len(IMAGES) + 1))
    assert profile_text(profile) == profile_text(
        collect(graph, samples_of(graph, IMAGES), observer)
    )


def test_other_data_and_other_models_are_refused(graph, observer):
    profile = collect(graph, samples_of(graph, IMAGES[:3]), observer)
    for other in (IMAGES[::-1], IMAGES[:2]):
        with pytest.raises(InputDataError, match="other data"):
            collect(graph, samples_of(graph, other), observer, start=profile)
    with pytest.raises(InputDataError, match="another model"):
        check_profile(profile, qb.load(MODELS / "digits_attention_float.onnx"))
    check_profile(profile, graph)


def test_engines_agree(graph, observer):
    values = observable(graph)

    def interpret(sample):
        computed = [v for v in values if v.producer is not None]
        _, found = evaluate(graph, sample, wanted=computed)
        return [found[v] if v in found else sample[v.name] for v in values]

    ours = collect(
        graph, samples_of(graph, IMAGES), Recording(values, lambda s: [[a] for a in interpret(s)])
    ).by_name()
    theirs = collect(graph, samples_of(graph, IMAGES), observer).by_name()
    for name, stats in ours.items():  # sums of float32 in another order
        assert stats.maximum == pytest.approx(theirs[name].maximum, rel=1e-5, abs=1e-6)
        assert stats.count == theirs[name].count


@pytest.mark.parametrize(
    "data",
    [{}, {"other": IMAGES}, {"input": IMAGES[:0]}, {"input": np.float32(1)}],
)
def test_data_that_is_none(graph, data):
    with pytest.raises(InputDataError):
        Samples.of(graph.inputs, data)


def in_halves(model, kind):
    """Returns a float model with half floats everywhere."""
    for tensor in model.graph.initializer:
        if tensor.data_type == FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(kind)
            tensor.CopyFrom(onnx.helper.make_tensor(
                tensor.name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)), array.shape,
                array.tobytes(), raw=True,
            ))  # fmt: skip
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == FLOAT:
            value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    return model


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("network", ["cnn", "attention"])
def test_half_floats_are_quantized(network, kind, tmp_path):
    """Inputs and outputs stay half floats; nothing else does."""
    file = MODELS / f"digits_{network}_float.onnx"
    onnx.save(in_halves(onnx.load(file), kind), tmp_path / "half.onnx")
    half, images = qb.load(tmp_path / "half.onnx"), np.load(MODELS / "digits_test.npz")["x"][:32]
    fed = {half.inputs[0].name: images.astype(kind)}
    made, full = (
        qb.quantize(g, data, repair=(), chooser="minmax")
        for g, data in ((half, fed), (qb.load(file), {half.inputs[0].name: images}))
    )
    assert [v.type for v in (*made.inputs, *made.outputs)] == [
        v.type for v in (*half.inputs, *half.outputs)
    ]
    counts = [Counter(n.op.name for n in g.nodes if n.op.name != "Cast") for g in (made, full)]
    assert counts[0] == counts[1]
    profile = qb.profile(half, fed)
    assert qb.quantize(half, None, profile=profile, repair=(), chooser="minmax").digest
    real = qb.evaluate(qb.load(file), {half.inputs[0].name: images})["logits"]
    out = qb.evaluate(made, fed)["logits"].astype(np.float64)
    assert np.sum((out - real) ** 2) < np.sum(real**2) / 10**2.5  # bfloat16 images: 8 bits


def test_half_floats_of_operators_without_a_row():
    """What says its type, by an attribute or in a body, keeps it; other operators are widened."""
    graph = canonical(onnx.parser.parse_model(HALF_BODY))
    wide = in_float32(graph)
    assert {n.op.name: n.output.type.dtype.name.lower() for n in wide.nodes} | {"Cast": ""} == {
        "Gemm": "float32", "If": "float16", "Relu": "float32", "Cast": "",
        "RandomNormalLike": "float16", "Mul": "float32",
    }  # fmt: skip
    fed = {"x": np.eye(4, dtype=np.float16), "c": np.array(True)}
    found, wanted = (qb.evaluate(each, fed)["z"] for each in (wide, graph))
    assert np.array_equal(found, wanted)
    assert in_float32(wide).digest == wide.digest


HALF_BODY = """
<ir_version: 8, opset_import: ["" : 17]>
half (float16[4, 4] x, bool c) => (float16[4, 4] y, float16[4, 4] z)
<float16[4, 4] w = {1, 2, 3, 4, 0, 0, 1, 0, 1, 0, 1, 0, 2, 0, 0, 1}>
{
    noise = RandomNormalLike<dtype = 10>(x)
    product = MatMul(x, w)
    chosen = If(c) <
        then_branch = then () => (float16[4, 4] a) { a = Add(product, x) },
        else_branch = other () => (float16[4, 4] b) { b = Sub(product, x) }
    >
    z = Relu(chosen)
    y = Mul(noise, z)
}
"""
