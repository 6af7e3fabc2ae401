import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.autoquant.choosers import (
    KL,
    MSE,
    Context,
    Extrapolated,
    MeanOfMaxima,
    MinMax,
    Moments,
    Percentile,
    RangeChooser,
    divergences,
    threshold,
)
from qdqbridge.autoquant.planning.constants import of_constant
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.targets import WEIGHTS
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import QuantParams, TensorType, per_tensor
from qdqbridge.errors import InputDataError
from tests.places import MODELS

RNG = np.random.default_rng(0)
U8 = Format(DType.UINT8)
S8 = Format(DType.INT8, symmetric=True)
S4 = Format(DType.INT4, symmetric=True)
F8 = [Format(dtype, symmetric=True) for dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)]
HERE = Context()
DRAWN = {
    "normal": RNG.standard_normal(40_000),
    "relu": np.maximum(RNG.standard_normal(40_000), 0),
    "laplace": RNG.laplace(size=40_000),
    "heavy": RNG.standard_t(2, 40_000),
    "lognormal": RNG.lognormal(0, 1.5, 40_000),
    "softmax": RNG.dirichlet(np.full(100, 0.05), 400).ravel(),
    "uniform": RNG.uniform(-1, 3, 40_000),
    "outlier": np.append(RNG.standard_normal(39_999), 50),
    "bimodal": np.append(RNG.normal(-4, 0.1, 20_000), RNG.normal(4, 0.1, 20_000)),
}
TENSORS = {name: values.astype(np.float32) for name, values in DRAWN.items()}
STATS = {name: TensorStats.of(values) for name, values in TENSORS.items()}
each_tensor = pytest.mark.parametrize("name", TENSORS)
each_format = pytest.mark.parametrize("format", [U8, S8, S4], ids=["u8", "s8", "s4"])


def error(values, params):
    real = dequantize(quantize(values, params), params).astype(np.float64)
    return float(np.mean((real - values) ** 2))


@each_format
@each_tensor
def test_min_max_clips_nothing(name, format):
    params = MinMax()(STATS[name], format, HERE)
    values = TENSORS[name]
    assert (
        np.abs(dequantize(quantize(values, params), params) - values).max()
        <= float(params.scale) * 0.51
    )


@pytest.mark.parametrize("saturation", [1.0, 3.0])
@pytest.mark.parametrize("format", [U8, S8, S4, *F8], ids=str)
@each_tensor
def test_the_error_is_the_sum_over_all_cells(name, format, saturation):
    stats = STATS[name]
    moments = Moments(stats.histogram, stats.minimum, stats.maximum)
    ends = np.linspace(0.1, 1.2, 12)
    low, high = (ends * end for end in (min(stats.minimum, 0.0), max(stats.maximum, 0.0)))
    if format.symmetric:
        low, high = -ends * stats.magnitude, ends * stats.magnitude
    scale, zero = (each.astype(np.float64) for each in format.scale(low, high))
    codes = (format.grid - zero[:, None]) * scale[:, None]
    beyond = scale[:, None] * (format.grid[-1] - format.grid[-2]) / 2
    inner = (codes[:, 1:] + codes[:, :-1]) / 2
    endless = np.full_like(beyond, np.inf)
    outer = -endless, codes[:, :1] - beyond, inner, codes[:, -1:] + beyond, endless
    mass, first, square = (np.diff(m, axis=1) for m in moments.below(np.concatenate(outer, 1)))
    values = np.concatenate([codes[:, :1], codes, codes[:, -1:]], axis=1)
    each = square - 2 * values * first + values**2 * mass
    each[:, [0, -1]] *= saturation
    got = moments.error(scale, zero, format, saturation)
    np.testing.assert_allclose(got, each.sum(axis=1), rtol=1e-6)  # of differences in float64


@each_format
@each_tensor
def test_mse_is_the_best_of_all_and_near_brute_force(name, format):
    values, stats = TENSORS[name], STATS[name]
    ours = error(values, MSE()(stats, format, HERE))
    for other in (MinMax(), MeanOfMaxima(), Percentile(), Percentile(99.9), KL()):
        assert ours <= error(values, other(stats, format, HERE)) * 1.02
    low, high = min(stats.minimum, 0), max(stats.maximum, 0)
    tried = [
        error(values, format.params(low * a, high * b))
        for a in np.linspace(0.02, 1, 25)
        for b in np.linspace(0.02, 1, 25)
    ]
    assert ours <= min(tried) * 1.03


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (lambda format: None, "NoneType"),
        (lambda format: (0.1, 0), "tuple"),
        (lambda format: per_tensor(DType.UINT8, np.inf), "a scale of inf"),
        (
            lambda format: QuantParams(DType.UINT8, np.ones(3), np.zeros(3, np.int32), axis=1),
            "axis 1",
        ),
        (lambda format: format.params(np.nan, 1.0), ""),
        (lambda format: format.params(-np.inf, 1.0), ""),
    ],
)
def test_a_function_that_says_no_parameters_is_told(said, why):
    images = np.load(MODELS / "digits_test.npz")["x"][:8]

    def chooser(stats, format, context):
        return said(format)

    with pytest.raises(InputDataError, match="no parameters") as raised:
        qb.quantize(MODELS / "digits_mlp_float.onnx", {"input": images}, chooser=chooser, repair=())
    assert why in raised.value.why


def test_no_range_reaches_beyond_an_interval():
    gate = Context(interval=(0.0, 255 / 256))
    seen = TensorStats.of(np.linspace(0.2, 0.9, 100, dtype=np.float32))
    assert float(MinMax()(seen, U8, gate).scale) == np.float32(0.9 / 255)
    assert float(MinMax(2.0)(seen, U8, gate).scale) == 1 / 256
    assert float(MinMax(2.0)(seen, U8, HERE).scale) == np.float32(1.8 / 255)
    both = Context(interval=(-1.0, 127 / 128))
    reaching = TensorStats.of(np.linspace(-0.9, 0.9, 100, dtype=np.float32))
    params = MinMax(2.0)(reaching, U8, both)
    assert (float(params.scale), int(params.zero_point)) == (1 / 128, 128)


def reached(samples, times=4.0):
    """The range of so many samples, each of which reaches as far as it says on either side."""
    stats = TensorStats()
    for value in samples:
        stats = stats.merged(TensorStats.of(np.array([-0.5, value], np.float32)))
    return Extrapolated(times).range(stats, U8)


def test_room_is_what_more_samples_of_an_exponential_tail_reach():
    rng = np.random.default_rng(0)
    drawn = 1 + rng.exponential(1, (2000, 128)).astype(np.float32)
    found = np.array([reached(row[:32])[1] for row in drawn[:400]])
    assert abs(found.mean() - drawn.max(axis=1).mean()) < 0.1  # four times as many reach so far
    assert found.mean() > drawn[:400, :32].max(axis=1).mean() + 1


def test_samples_that_reach_alike_get_no_room():
    assert reached([1.0] * 16) == (-0.5, 1.0)
    assert reached([1.0, 3.0], times=1.0) == (-0.5, 3.0)
    assert reached([3.0]) == (-0.5, 3.0)  # one sample tells no spread


CHOOSERS = [MSE(), MinMax(), Percentile(99.9), MeanOfMaxima(), KL()]


@pytest.mark.parametrize("chooser", CHOOSERS, ids=[type(each).__name__ for each in CHOOSERS])
@pytest.mark.parametrize("symmetric", [False, True], ids=["u16", "s16"])
def test_sixteen_bits_have_room_for_what_other_data_reach(chooser, symmetric):
    format = Format(DType.INT16 if symmetric else DType.UINT16, symmetric=symmetric)
    rng = np.random.default_rng(0)
    drawn = rng.lognormal(0, 1, (4000, 8)).astype(np.float32)
    stats = TensorStats.of(drawn[0])
    for row in drawn[1:100]:
        stats = stats.merged(TensorStats.of(row))
    assert drawn.max() > 1.5 * drawn[:100].max()
    assert error(drawn.ravel(), chooser(stats, format, HERE)) < 1e-3
    alone = chooser(TensorStats.of(drawn), format, HERE)  # as a constant: nothing else comes
    assert quantize(drawn.max(), alone) in (format.high, format.high - 1)


@pytest.mark.parametrize("format", F8, ids=["e4m3", "e5m2"])
@each_tensor
def test_mse_finds_the_best_scale_of_floats(name, format):
    values, stats = TENSORS[name], STATS[name]
    ours = error(values, MSE()(stats, format, HERE))
    reach = max(-stats.minimum, stats.maximum)
    tried = [error(values, format.params(-reach * a, reach * a)) for a in np.linspace(0.02, 1, 99)]
    # What lies in a bin is taken as evenly spread, which floats near zero resolve far finer.
    assert ours <= min(tried) * 1.03
    assert ours <= error(values, MinMax()(stats, format, HERE))


@pytest.mark.parametrize("percent", [90, 99, 99.9, 99.999])
@each_tensor
def test_percentile_lies_within_a_bin_of_the_quantile(name, percent):
    values, stats = TENSORS[name], STATS[name]
    low, high = Percentile(percent).range(stats, U8)
    tail = (100 - percent) / 200
    width = stats.histogram.width
    step = np.sort(values)  # a quantile lies between two neighbouring values
    for found, rank in ((low, tail), (high, 1 - tail)):
        at = rank * len(values)
        before = step[max(int(at) - 2, 0)]
        after = step[min(int(at) + 2, len(step) - 1)]
        assert before - width <= found <= after + width


def test_mean_of_maxima_is_a_mean():
    samples = [np.array([-1, 2], np.float32), np.array([-3, 8], np.float32)]
    stats = TensorStats.of(samples[0]).merged(TensorStats.of(samples[1]))
    assert MeanOfMaxima().range(stats, U8) == (-2, 5)
    assert MeanOfMaxima().range(stats, S8) == (-5, 5)


def published_divergence(counts, kept, levels):
    """The published loop, from its description: bins merged to cells, then spread again."""
    p = counts[:kept].copy()
    p[-1] += counts[kept:].sum()
    q = np.zeros(kept)
    for cell in range(levels):
        inside = [j for j in range(kept) if j * levels // kept == cell]
        used = [j for j in inside if counts[j] > 0]
        for j in used:
            q[j] = counts[inside].sum() / len(used)
    p, q = p / p.sum(), q / q.sum()
    if (q[p > 0] == 0).any():
        return np.inf
    return float(np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0])))


@pytest.mark.parametrize("seed", range(6))
def test_kl_is_the_published_one(seed):
    rng = np.random.default_rng(seed)
    counts = np.floor(rng.exponential(20, 120) * (rng.random(120) < 0.8))
    counts[-1] = 1
    levels = 16
    ours = divergences(counts, levels)
    theirs = [published_divergence(counts, i, levels) for i in range(levels, 121)]
    # Sums of up to 120 float64 numbers of at most 1, in another order.
    assert np.allclose(ours, theirs, rtol=0, atol=1e-12)
    assert threshold(counts, levels) == levels + int(np.argmin(theirs))


@each_tensor
@pytest.mark.parametrize("chooser", [MinMax(), MeanOfMaxima(), Percentile(), MSE(), KL()], ids=repr)
def test_a_choice_takes_milliseconds(chooser, name):
    spent = []
    for _ in range(3):
        start = time.process_time()
        chooser(STATS[name], U8, HERE)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.05  # 10 ms where nothing else runs


@pytest.mark.parametrize("chooser", [MinMax(), MeanOfMaxima(), Percentile(), MSE(), KL()], ids=repr)
@pytest.mark.parametrize("values", [[], [np.nan], [0, 0], [3.0], [-3.0], [1e-44], [3e38, -3e38]])
def test_odd_tensors_have_parameters(chooser, values):
    for format in (U8, S8):
        params = chooser(TensorStats.of(np.array(values, np.float32)), format, HERE)
        assert np.isfinite(params.scale) and params.scale > 0
        if 0 < np.abs(np.nan_to_num(values)).max(initial=0) < 1e38 and len(values) == 1:
            array = np.array(values, np.float32)
            error = dequantize(quantize(array, params), params) - array
            assert np.abs(error).max() <= max(1e-6 * abs(values[0]), 1e-38)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", list(WEIGHTS))
def test_extremes_of_a_weight_are_those_of_its_rows_and_need_no_statistics(monkeypatch, name, axis):
    weight = np.random.default_rng(7).standard_normal((24, 20, 3)).astype(np.float32)
    weight[3], weight[:, 5], weight[7] = 0, np.abs(weight[:, 5]), 1e-30 * weight[7]
    value = Value(TensorType(DType.FLOAT32, weight.shape), "w", constant=Constant.of(weight))
    format = replace(WEIGHTS[name], axis=axis, block=None, microscaled=False)
    each = of_constant(value, format, partial(MinMax()), Context())  # a function of rows
    monkeypatch.setattr(TensorStats, "of", None)
    assert of_constant(value, format, MinMax(), Context()) == each


@pytest.mark.parametrize("axis", [None, 0])
def test_costly_choosers_look_at_the_same_weights_once(monkeypatch, axis):
    asked = []
    looked = MSE._search
    monkeypatch.setattr(MSE, "_search", lambda *given: (asked.append(1), looked(*given))[1])

    def chosen(weight, format=None, chooser=None):
        format, chooser = format or replace(S8, axis=axis), chooser or MSE()
        value = Value(TensorType(DType.FLOAT32, weight.shape), "w", constant=Constant.of(weight))
        asked.clear()
        return of_constant(value, format, chooser, Context()), bool(asked)

    weight = np.random.default_rng(11).standard_normal((6, 40)).astype(np.float32)
    first, new = chosen(weight)
    assert new and chosen(weight.copy()) == (first, False)
    for other in (weight + np.float32(1e-7), weight.reshape(6, 5, 8), weight.astype(np.float64)):
        assert chosen(other)[1]
    assert chosen(weight, Format(DType.INT4, symmetric=True, axis=axis))[1]
    assert chosen(weight, chooser=MSE(saturation=2.0))[1]


def test_choosers_of_users_are_asked_each_time():
    asked = []

    class Told(RangeChooser):
        def range(self, stats, format):
            asked.append(stats.maximum)
            return 0.0, stats.maximum

    weight = np.ones((3, 4), np.float32)
    value = Value(TensorType(DType.FLOAT32, weight.shape), "w", constant=Constant.of(weight))
    for _ in range(2):
        of_constant(value, S8, Told(), Context())
    assert asked == [1.0, 1.0]
