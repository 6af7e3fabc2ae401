import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqbridge.autoquant.profiling.stats import TensorStats


def samples_of(rng, count):
    samples = rng.standard_normal((count, 3, 4, 5)) * 10.0 ** rng.uniform(-20, 20, (count, 1, 1, 1))
    samples[rng.random(samples.shape) < 0.2] = 0
    for special in (np.nan, np.inf, -np.inf):
        if rng.random() < 0.3:
            samples[rng.random(samples.shape) < 0.02] = special
    return samples.astype(np.float32)


def merged(parts):
    total = TensorStats()
    for part in parts:
        total = total.merged(part)
    return total


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_split_order_and_merge_gives_the_same(seed):
    rng = np.random.default_rng(seed)
    samples = samples_of(rng, int(rng.integers(1, 12)))
    parts = [TensorStats.of(s[None], channel_axis=1) for s in samples]
    whole = merged(parts)
    shuffled = [parts[i] for i in rng.permutation(len(parts))]
    cuts = np.sort(rng.integers(0, len(parts) + 1, 3))
    shards = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(parts)], strict=True)]
    assert merged([merged(shard) for shard in shards]) == whole
    assert TensorStats.of_each([s[None] for s in samples], channel_axis=1) == whole


def test_what_is_counted():
    values = np.array([[1, -2, 0, np.nan], [np.inf, 3, -np.inf, -0.0]], np.float32)
    stats = TensorStats.of(values, channel_axis=1)
    assert (stats.count, stats.zeros, stats.nans, stats.finite) == (8, 2, 1, 5)
    assert (stats.positive_infinities, stats.negative_infinities) == (1, 1)
    assert (stats.minimum, stats.maximum, stats.magnitude) == (-2, 3, 3)
    assert stats.channels is not None
    assert stats.channels.minimum.tolist() == [1, -2, 0, 0]
    assert stats.channels.maximum.tolist() == [1, 3, 0, 0]
    assert stats.histogram.total == 3


def test_extremes_are_those_of_numpy():
    samples = np.random.default_rng(0).standard_normal((7, 3, 4)).astype(np.float32)
    stats = merged(TensorStats.of(s[None], channel_axis=1) for s in samples)
    assert stats.minimum == samples.min() and stats.maximum == samples.max()
    assert stats.channels is not None
    assert np.array_equal(stats.channels.maximum, samples.max(axis=(0, 2)))
    maxima = samples.reshape(7, -1).max(axis=1).astype(np.float64)
    assert stats.per_sample.mean_maximum == maxima.mean()
    magnitudes = np.abs(samples).reshape(7, -1).max(axis=1).astype(np.float64)
    assert stats.per_sample.mean_magnitude == magnitudes.mean()


@pytest.mark.parametrize("values", [[], [np.nan], [np.inf, -np.inf]])
def test_nothing_finite(values):
    stats = TensorStats.of(np.array(values, np.float32), channel_axis=0)
    assert stats.finite == 0 and stats.minimum == np.inf and stats.maximum == -np.inf
    assert stats.magnitude == 0 and stats.per_sample.samples == 0
