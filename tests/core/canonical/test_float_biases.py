"""A float bias is rounded to the accumulator only where that hardly moves the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.core.ops.accumulator import BIAS_MOVES
from tests.core.canonical.idiom_models import X, constant_of, conv, node_of, settled
from tests.core.canonical.random_biases import product
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_models import Builder, canonical, run

UNIT = X * 2**-7
"""Of the accumulator of :func:`biased`."""
SCALE = 2**-10
"""Of its result: one unit is four of its steps."""


def biased(*numbers: float, scale: float = SCALE) -> onnx.ModelProto:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    bias = b.init(np.array(numbers, np.float32), "bias")
    b.output(b.qdq(conv(b, x, bias=bias), scale, 100))
    return b.model()


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def edge(steps: float) -> tuple[float, float, float, float]:
    """Returns whole units, one of which is ``steps`` steps of the result away from that."""
    return (0.0, UNIT, -3 * UNIT - steps * SCALE, 5 * UNIT)


@pytest.mark.parametrize("sign", [1, -1])
def test_up_to_the_bound_a_bias_is_rounded(sign: int) -> None:
    g = settled(biased(*edge(sign * BIAS_MOVES)))
    assert constant_of(node_of(g, "Conv"), 2).tolist() == [0, 1, -3, 5]
    assert g.digest == canonical(biased(0, UNIT, -3 * UNIT, 5 * UNIT)).digest


@pytest.mark.parametrize("sign", [1, -1])
def test_beyond_the_bound_a_bias_stays_float_and_explain_tells(sign: int, tmp_path: Path) -> None:
    numbers = edge(sign * 1.01 * BIAS_MOVES)
    model = biased(*numbers)
    g = settled(model)
    np.testing.assert_array_equal(constant_of(node_of(g, "Conv"), 2), np.array(numbers, np.float32))
    assert g.digest != canonical(biased(0, UNIT, -3 * UNIT, 5 * UNIT)).digest
    (told,) = [n for n in qb.explain(qb.load(saved(model, tmp_path))) if n.rule == "derived-bias"]
    assert "would move the result by 0.0631 LSB, more than 0.0625" in told.reason


def test_the_steps_are_those_of_the_result() -> None:
    same = [0.3 * UNIT, UNIT, 0.0, 0.0]
    assert constant_of(node_of(settled(biased(*same)), "Conv"), 2).dtype == np.float32
    coarse = settled(biased(*same, scale=2**-2))
    assert constant_of(node_of(coarse, "Conv"), 2).tolist() == [0, 1, 0, 0]


def test_two_biases_under_a_coarse_accumulator_are_two_networks() -> None:
    def model(number: float) -> onnx.ModelProto:
        b = Builder(17)
        x = b.qdq(b.input("x", [1, 2, 2, 2]), 1.0, 0)
        w = b.weight(np.array([[[[1]], [[-1]]]], np.int8), 0.5)
        bias = b.init(np.array([number], np.float32))
        b.output(b.qdq(b.op("Conv", x, w, bias), 0.01, 0))
        return b.model()

    data = {"x": np.array([[[[1, 2], [3, 3]], [[1, 2], [3, 3]]]], np.float32)}
    graphs = [canonical(model(number)) for number in (0.3, 0.7)]
    assert graphs[0].digest != graphs[1].digest
    for g, number in zip(graphs, (0.3, 0.7), strict=True):
        want = ort_run(model(number), data)[0]
        np.testing.assert_array_equal(run(g, data)[0], want)
        np.testing.assert_allclose(want, number, rtol=2**-23)  # a step of 0.01, in float32


@pytest.mark.parametrize("storage", [np.int32, np.int8])
def test_integers_with_a_coarse_scale_of_their_own_stay_their_real_numbers(storage: Any) -> None:
    b = Builder(21)
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    bias = b.dq(b.init(np.array([7, 0, -9, 4], storage)), 0.3 * UNIT, 0, storage)
    b.output(b.qdq(conv(b, x, bias=bias), SCALE, 100))
    g = settled(b.model())
    want = np.array([7, 0, -9, 4]) * np.float32(0.3 * UNIT)
    np.testing.assert_array_equal(constant_of(node_of(g, "Conv"), 2), want.astype(np.float32))
    (note,) = [n.reason for n in g.notes if n.rule == "bias-scale"]
    assert note.endswith("its real value stays float")


# ---- relatives --------------------------------------------------------------------------------


def agrees(seed: int, folder: Path) -> tuple[int, int]:
    """Checks one random product; returns how many results differ from onnxruntime's, and of all.

    One step is allowed: a bias within the bound is rounded, and a float32 sum may decide a tie.
    """
    case = product(seed)
    path, again = saved(case.model, folder), folder / "again.onnx"
    want = ort_run(case.model, case.data)[0]
    g = qb.load(path)
    ours = next(iter(qb.evaluate(g, case.data).values()))
    steps = np.rint((ours.astype(np.float64) - want) / case.scale)
    assert np.abs(steps).max() <= 1, seed
    qb.save(g, again, overwrite=True)
    assert qb.load(again).digest == g.digest, seed
    np.testing.assert_array_equal(ort_run(onnx.load(again), case.data)[0], want)
    return int(np.count_nonzero(steps)), steps.size


@pytest.mark.parametrize("seed", range(20))
def test_random_products(seed: int, tmp_path: Path) -> None:
    agrees(seed, tmp_path)


@pytest.mark.slow
def test_many_random_products(tmp_path: Path) -> None:
    counts = np.array([agrees(seed, tmp_path) for seed in range(30, 330)])
    different, total = counts.sum(axis=0)
    assert different < total * BIAS_MOVES / 4


@pytest.mark.relax
@pytest.mark.parametrize("seed", [0, 6])
def test_the_fast_kernels_add_the_float_bias(seed: int, tmp_path: Path) -> None:
    case = product(seed)
    g = qb.load(saved(case.model, tmp_path))
    assert qb.from_relax(*qb.to_relax(g)).digest == g.digest
    want = qb.evaluate(g, case.data)
    (result,) = qb.compile(g).run(case.data).values()
    np.testing.assert_array_equal(np.asarray(result), next(iter(want.values())))
