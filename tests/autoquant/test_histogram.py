import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqbridge.autoquant.profiling.stats import FINEST, SIDE, Histogram, exponent_of


def spread(rng, count):
    values = rng.standard_normal(count) * 10.0 ** rng.uniform(-30, 30, count)
    values[rng.random(count) < 0.1] = 0
    values[rng.random(count) < 0.1] *= -0.0
    return values.astype(np.float32)


def test_bins_are_those_of_numpy():
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    histogram = Histogram.of(values)
    expected, _ = np.histogram(values.astype(np.float64), bins=histogram.edges)
    assert np.array_equal(histogram.counts, expected)
    assert SIDE // 2 <= np.abs(values).max() / histogram.width < SIDE


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_partition_and_order_gives_the_same(seed):
    rng = np.random.default_rng(seed)
    values = spread(rng, int(rng.integers(1, 4000)))
    whole = Histogram.of(values)
    cuts = np.sort(rng.integers(0, values.size + 1, rng.integers(0, 12)))
    parts = [Histogram.of(part) for part in np.split(rng.permutation(values), cuts)]
    while len(parts) > 1:  # merged in any shape of tree
        a, b = parts.pop(int(rng.integers(len(parts)))), parts.pop(int(rng.integers(len(parts))))
        parts.append(a.merged(b))
    assert parts[0] == whole


def test_every_value_is_counted_but_zeros():
    values = np.array([0, -0.0, 1, -1, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)
    assert Histogram.of(values).total == 6


@pytest.mark.parametrize("values", [[], [0.0], [-0.0, 0.0]])
def test_nothing_is_neutral(values):
    nothing = Histogram.of(np.array(values, np.float32))
    some = Histogram.of(np.array([1.5, -2], np.float32))
    assert nothing == Histogram.empty()
    assert nothing.merged(some) == some == some.merged(nothing)


@pytest.mark.parametrize(
    ("magnitude", "exponent"),
    [(0, FINEST), (1e-45, FINEST), (1, -10), (0.999, -11), (2048, 1), (2047.9, 0)],
)
def test_the_exponent_follows_from_the_magnitude(magnitude, exponent):
    assert exponent_of(magnitude) == exponent
    assert magnitude < SIDE * 2.0**exponent


def test_coarser_is_what_wider_bins_would_count():
    values = np.random.default_rng(1).uniform(-1, 1, 1000)
    fine = Histogram.of(values)
    for more in (1, 3, 11, 12, 40):
        coarse = fine.coarsened(fine.exponent + more)
        expected = np.floor(values / coarse.width).astype(int) + SIDE
        assert np.array_equal(coarse.counts, np.bincount(expected, minlength=2 * SIDE))
