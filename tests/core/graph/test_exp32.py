"""The float32 exponential: its bits, and how far it is from the real one."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.numerics import LOWEST, exp32


@pytest.mark.parametrize(
    ("x", "bits"),
    [(0.0, "0x1p+0"), (-0.0, "0x1p+0"), (1.0, "0x1.5bf0a8p+1"), (-1.0, "0x1.78b564p-2"),
     (-10.0, "0x1.7cd79cp-15"), (0.5, "0x1.a61298p+0")],
)  # fmt: skip
def test_bits(x: float, bits: str) -> None:
    (y,) = exp32(np.array([x], np.float32))
    assert y.dtype == np.float32
    assert y == np.float32(float.fromhex(bits))


def test_error_is_below_one_and_a_half_ulp() -> None:
    x = np.concatenate([np.linspace(-86.9, 87.9, 200_001), np.linspace(-1, 1, 50_001)]).astype(
        np.float32
    )
    exact = np.exp(x.astype(np.float64))
    ulp = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(exp32(x) - exact) / ulp).max() <= 1.5


def test_below_the_lowest_it_is_zero() -> None:
    below = np.nextafter(LOWEST, np.float32(-np.inf), dtype=np.float32)
    x = np.array([LOWEST, below, -1000, -np.inf], np.float32)
    y = exp32(x)
    assert y[0] > 0
    assert y[1:].tolist() == [0, 0, 0]
    assert exp32(np.array([1000], np.float32)) == exp32(np.array([88], np.float32))


def test_it_never_decreases_by_more_than_rounding() -> None:
    x = np.linspace(-20, 0, 100_001).astype(np.float32)
    y = exp32(x).astype(np.float64)
    assert (np.diff(y) >= -2 * np.spacing(exp32(x)[:-1])).all()


def test_no_operation_is_done_in_float64() -> None:
    x = np.linspace(-30, 0, 4001).astype(np.float32)
    correctly_rounded = np.exp(x.astype(np.float64)).astype(np.float32)
    assert exp32(x).dtype == np.float32
    assert (exp32(x) != correctly_rounded).any()
