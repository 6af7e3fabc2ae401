from dataclasses import replace

import numpy as np
import pytest
from onnxruntime.quantization.quant_utils import compute_scale_zp

from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import dequantize, quantize

RNG = np.random.default_rng(0)
SYMMETRIC_S8 = Format(DType.INT8, symmetric=True)
FORMATS = {
    "u8": Format(DType.UINT8),
    "s8": Format(DType.INT8),
    "u16": Format(DType.UINT16),
    "s8 symmetric": SYMMETRIC_S8,
    "s16 symmetric": Format(DType.INT16, symmetric=True),
    "s4 symmetric": Format(DType.INT4, symmetric=True),
}


def ranges(count):
    low, high = -(10.0 ** RNG.uniform(-6, 6, count)), 10.0 ** RNG.uniform(-6, 6, count)
    low[RNG.random(count) < 0.2] = 0
    high[RNG.random(count) < 0.2] = 0
    return low.astype(np.float32), high.astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_parameters_are_those_of_onnxruntime(name):
    """Scales within a unit in the last place (theirs are float32 arithmetic), zero points equal
    but where the two scales put a half on different sides."""
    format = FORMATS[name]
    low, high = ranges(20_000)
    low, high = low[low != high], high[low != high]
    scale, zero_point = format.scale(low, high)
    ties = 0
    for index in range(len(low)):
        theirs = compute_scale_zp(
            low[index],
            high[index],
            np.int32(format.low),
            np.int32(format.high),
            symmetric=format.symmetric,
        )
        assert abs(scale[index] / theirs[1] - 1) < 3e-7
        ties += int(zero_point[index]) != int(theirs[0])
        assert abs(int(zero_point[index]) - int(theirs[0])) <= 1
    assert ties <= len(low) * (1e-2 if format.storage is DType.UINT16 else 1e-4)


@pytest.mark.parametrize("name", FORMATS)
def test_zero_and_the_ends_are_representable(name):
    format = FORMATS[name]
    for low, high in zip(*ranges(200), strict=True):
        params = format.params(low, high)
        ends = np.array([0, low, high], np.float32)
        back = dequantize(quantize(ends, params), params)
        assert back[0] == 0
        half = float(params.scale) * 0.5001 + np.spacing(np.abs(ends).max())  # float32 rounds it
        assert np.abs(back - ends).max() <= half


def test_restricted_and_whole_symmetric_ranges():
    assert (SYMMETRIC_S8.low, SYMMETRIC_S8.high) == (-127, 127)
    assert SYMMETRIC_S8.params(-2, 1).scale == np.float32(2 / 127)
    assert SYMMETRIC_S8.params(-2, 1).qmin == -127
    whole = Format(DType.INT8, symmetric=True, restricted=False)
    assert whole.params(-2, 1).scale == np.float32(2 / 127.5)
    unsigned = Format(DType.UINT8, symmetric=True)
    assert unsigned.params(-2, 1).zero_point == 128
    assert unsigned.params(-2, 1).scale == np.float32(4 / 255)


def test_powers_of_two_do_not_clip():
    format = Format(DType.INT8, symmetric=True, power_of_two=True)
    scale, _ = format.scale(*ranges(1000))
    mantissa, _ = np.frexp(scale)
    assert set(mantissa.tolist()) == {0.5}
    assert format.params(-127, 3).scale == 1 and format.params(-127.1, 3).scale == 2


def test_nothing_and_the_smallest():
    for format in FORMATS.values():
        assert format.params(0, 0).scale == 1
        assert format.params(0, 1e-45).scale == np.finfo(np.float32).tiny


def test_per_channel():
    params = Format(DType.INT8, symmetric=True, axis=0).params([-1, -2, 0], [1, 0, 0])
    assert params.axis == 0
    assert params.scale.tolist() == [np.float32(1 / 127), np.float32(2 / 127), 1]


def test_whole_reciprocals_reach_as_far_and_lose_no_fraction():
    format = replace(FORMATS["u8"], whole_reciprocal=True)
    high = np.concatenate([10.0 ** RNG.uniform(-4, 2, 2000), [1.0, 0.5, 1 / 3]])
    scale, zero_point = format.scale(np.zeros_like(high), high)
    plain, _ = FORMATS["u8"].scale(np.zeros_like(high), high)
    whole = plain < 1
    reciprocal = np.float32(1) / scale[whole]
    count = np.floor(reciprocal)
    assert (count == np.floor(1 / (high[whole] / 255) * (1 + 1e-9))).all()
    assert (reciprocal - count <= count * 2.0**-22).all()
    assert (scale >= plain * (1 - 2.0**-22)).all() and not zero_point.any()
    np.testing.assert_array_equal(scale[~whole], plain[~whole])
