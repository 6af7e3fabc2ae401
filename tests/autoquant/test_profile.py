import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqbridge.autoquant.profiling.profile import (
    Profile,
    ProfileEntry,
    merge,
    parse_profile,
    profile_text,
    read_profile,
    sample_hash,
)
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.errors import InputDataError


def profile_of(samples, model="m"):
    total = Profile(model, tensors={"a": ProfileEntry("x", "Conv", 0, ("n", 3), TensorStats())})
    for sample in samples:
        stats = TensorStats.of(sample[None], channel_axis=1)
        entry = ProfileEntry("x", "Conv", 0, ("n", 3), stats)
        one = Profile(model, 1, sample_hash({"x": sample}), tensors={"a": entry})
        total = total.merged(one)
    return total


def drawn(seed):
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal((int(rng.integers(1, 9)), 3, 7)) * 10.0 ** rng.uniform(-9, 9)
    samples[rng.random(samples.shape) < 0.05] = rng.choice([0, np.nan, np.inf, -np.inf])
    return rng, samples.astype(np.float32)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_shards_in_any_order_merge_to_the_same_bytes(seed):
    rng, samples = drawn(seed)
    order = rng.permutation(len(samples))
    cuts = np.sort(rng.integers(0, len(samples) + 1, 3))
    shards = [profile_of(samples[part]) for part in np.split(order, cuts)]
    again = [parse_profile(profile_text(shards[i]), "shard") for i in rng.permutation(len(shards))]
    assert profile_text(merge(again)) == profile_text(profile_of(samples))


def test_other_samples_have_another_hash():
    samples = np.zeros((2, 3), np.float32)
    other = samples.copy()
    other[0, 0] = -0.0
    assert profile_of(samples).data != profile_of(other).data
    assert sample_hash({"x": samples}) != sample_hash({"x": samples.reshape(3, 2)})


def test_another_model_is_refused():
    with pytest.raises(InputDataError, match="different models"):
        profile_of([]).merged(profile_of([], model="other"))


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop("schema"),
        lambda r: r.update(schema="qdqbridge-profile 2"),
        lambda r: r.update(samples=-1),
        lambda r: r.update(samples=True),
        lambda r: r.update(tensors=[]),
        lambda r: r["tensors"]["a"].pop("sums", r["tensors"]["a"].pop("per_sample")),
        lambda r: r["tensors"]["a"]["histogram"].update(first=5000),
        lambda r: r["tensors"]["a"]["histogram"]["counts"].append(-1),
    ],
)
def test_a_damaged_file_is_refused(change, tmp_path):
    record = json.loads(profile_text(profile_of(np.ones((2, 3), np.float32))))
    change(record)
    path = tmp_path / "p.json"
    path.write_text(json.dumps(record), "utf-8")
    with pytest.raises(InputDataError):
        read_profile(path)


def test_not_a_file_at_all(tmp_path):
    with pytest.raises(InputDataError, match="cannot be read"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "p").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputDataError):
        read_profile(tmp_path / "p")
