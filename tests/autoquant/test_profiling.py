import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.profiling import load_profile, merge_profiles, profile, save_profile
from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.profiling.profile import profile_text
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from tests.onnx_models import Builder, canonical
from tests.places import MODELS

MODEL = MODELS / "digits_cnn_float.onnx"
IMAGES = np.load(MODELS / "digits_test.npz")["x"][:40]


@pytest.fixture(scope="module")
def alone():
    return profile(MODEL, {"input": IMAGES}, threads=1)


def test_ray_makes_the_same_profile(alone):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'qdqbridge[ray]'")
    shared = profile(MODEL, {"input": IMAGES}, workers="ray")
    assert profile_text(shared) == profile_text(alone)


def test_ray_that_is_not_there(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UnsupportedTargetError, match="Ray is not installed"):
        profile(MODEL, {"input": IMAGES[:2]}, workers="ray")


def test_files_in_a_folder_make_the_same_profile(alone, tmp_path):
    for index, start in enumerate((0, 7, 30)):
        np.savez(tmp_path / f"{index}.npz", input=IMAGES[start : (7, 30, 40)[index]])
    assert profile_text(profile(MODEL, tmp_path)) == profile_text(alone)


def test_saved_loaded_and_merged(alone, tmp_path):
    parts = [profile(MODEL, {"input": IMAGES[p]}) for p in (slice(25, 40), slice(0, 25))]
    save_profile(parts[0], tmp_path / "a.json")
    assert profile_text(load_profile(tmp_path / "a.json")) == profile_text(parts[0])
    assert profile_text(merge_profiles([tmp_path / "a.json", parts[1]])) == profile_text(alone)
    assert profile_text(profile(MODEL, {"input": IMAGES}, start=parts[1])) == profile_text(alone)
    with pytest.raises(InputDataError, match="other data"):
        profile(MODEL, {"input": IMAGES}, start=tmp_path / "a.json")


def test_extremes_alone(alone):
    found = profile(MODEL, {"input": IMAGES}, histograms=False)
    for key, entry in found.tensors.items():
        full = alone.tensors[key].stats
        assert not entry.stats.histogram.total
        assert (entry.stats.minimum, entry.stats.zeros) == (full.minimum, full.zeros)
    with pytest.raises(InputDataError, match="with histograms"):
        profile(MODEL, {"input": IMAGES}, start=found)


def test_each_sample_is_checked():
    with pytest.raises(InputDataError, match="wrong element type"):
        profile(MODEL, {"input": IMAGES.astype(np.float64)})
    with pytest.raises(InputDataError, match="number of workers"):
        profile(MODEL, {"input": IMAGES}, workers=0)
    with pytest.raises(InputDataError, match="cannot take what model is given"):
        profile(3, {"input": IMAGES})  # type: ignore[arg-type]


@pytest.mark.relax
@pytest.mark.parametrize("name", ["digits_cnn_float", "digits_attention_float"])
def test_tvm_finds_what_onnxruntime_finds(name):
    pytest.importorskip("tvm_ffi")
    graph = qb.load(MODELS / f"{name}.onnx")
    data = {graph.inputs[0].name: IMAGES[:10]}
    ours = profile(graph, data, engine="tvm").by_name()
    theirs = profile(graph, data).by_name()
    for tensor, stats in ours.items():
        other = theirs[tensor]
        near = 1e-5 * max(other.magnitude, 1e-2)  # sums of float32 in another order
        assert stats.count == other.count
        assert abs(stats.minimum - other.minimum) <= near
        assert abs(stats.maximum - other.maximum) <= near
        assert stats.per_sample.samples == other.per_sample.samples
        if stats.channels is not None and other.channels is not None:
            apart = np.abs(stats.channels.maximum - other.channels.maximum)
            assert apart.max() <= near
        exponent = max(stats.histogram.exponent, other.histogram.exponent)
        counts = [s.histogram.coarsened(exponent + 2).counts for s in (stats, other)]
        # What is next to an edge may be counted on its other side.
        assert np.abs(counts[0] - counts[1]).sum() <= 0.005 * stats.count


@pytest.mark.relax
def test_tvm_counts_what_is_not_finite():
    pytest.importorskip("tvm_ffi")
    images = IMAGES[:3].copy()
    images[1, 0, 2, 2:4] = np.nan, np.inf
    found = profile(MODEL, {"input": images}, engine="tvm").by_name()["input"]
    same = profile(MODEL, {"input": images}).by_name()["input"]
    assert found == same
    assert (found.nans, found.positive_infinities) == (1, 1)


def test_nan_is_told_with_the_infinities_that_made_it():
    b = Builder(17)
    x = b.input("x", ["n", 4])
    eye = np.eye(4, dtype=np.float32)
    large = b.op("MatMul", b.op("MatMul", x, b.init(eye)), b.init(1e30 * eye))
    b.output(b.op("MatMul", large, b.init(eye)))
    data = {"x": np.array([[1e30] * 4, [1] * 4], np.float32)}
    with pytest.raises(InputDataError, match="NaN in 1 tensors") as caught:
        quantization(canonical(b.model()), data, target="qnn")
    assert f"infinities in 1: '{large}'" in str(caught.value)


def test_engines_that_are_none():
    with pytest.raises(InputDataError, match="cannot take what engine is given"):
        profile(MODEL, {"input": IMAGES}, engine="gpu")  # type: ignore[arg-type]


@pytest.mark.relax
def test_tvm_runs_in_one_process():
    with pytest.raises(UnsupportedTargetError, match="onnxruntime only"):
        profile(MODEL, {"input": IMAGES}, engine="tvm", workers=2)
