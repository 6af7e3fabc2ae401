"""Windows that hardly fit: as onnxruntime computes them, where it does what ONNX says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_io.random_windows import case
from tests.onnx_models import Builder, canonical, run


def agrees(seed: int, folder: Path) -> bool:
    """Checks one random case; returns whether there was anything to compare."""
    what = case(seed)
    path, again = folder / "model.onnx", folder / "again.onnx"
    try:
        want = ort_run(what.model, what.data)[0]
    except Exception:  # onnxruntime has many reasons, none of them ours
        return False
    if not what.like_ort or not want.size or np.abs(want).max() > 1e30:  # nothing but padding
        return False
    onnx.save(what.model, path)
    g = qb.load(path)
    ours = next(iter(qb.evaluate(g, what.data).values()))
    # Floats: sums in another order. Codes: a tie may be one step apart, in float32.
    step = 1e-4 if what.scale is None else 1.01 * what.scale
    np.testing.assert_allclose(ours, want, atol=step, rtol=1e-5, err_msg=str(seed))
    qb.save(g, again, overwrite=True)
    assert qb.load(again).digest == g.digest, seed
    np.testing.assert_array_equal(ort_run(onnx.load(again), what.data)[0].shape, want.shape)
    return True


@pytest.mark.parametrize("part", range(4))
def test_random_windows(part: int, tmp_path: Path) -> None:
    assert sum(agrees(seed, tmp_path) for seed in range(10 * part, 10 * part + 10)) >= 3


@pytest.mark.slow
def test_many_random_windows(tmp_path: Path) -> None:
    assert sum(agrees(seed, tmp_path) for seed in range(100, 700)) >= 300


def windows(op: str, size: int, **attributes: Any) -> onnx.ModelProto:
    b = Builder(22)
    x = b.input("x", [1, 1, size])
    w = [b.init(np.ones([1, 1, *attributes["kernel_shape"]], np.float32))]
    b.output(b.op(op, x, *(w if op == "ConvTranspose" else []), **attributes))
    return b.model()


def computed(model: onnx.ModelProto, size: int) -> list[float]:
    x = np.arange(1, size + 1, dtype=np.float32).reshape(1, 1, size)
    return run(canonical(model), {"x": x})[0].reshape(-1).tolist()


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(
    ("size", "fields", "want"),
    [
        (2, {"kernel_shape": [3], "strides": [2]}, [2]),
        (1, {"kernel_shape": [3], "strides": [3]}, [1]),
        (3, {"kernel_shape": [4], "strides": [3], "pads": [1, 2], "dilations": [2]}, [2]),
        (3, {"kernel_shape": [3], "strides": [9], "dilations": [4]}, [1]),
        (6, {"kernel_shape": [3], "strides": [3], "dilations": [3]}, [4]),
    ],
)
def test_a_window_wider_than_the_input_by_less_than_a_stride_is_one_of_what_there_is(
    size: int, fields: dict[str, Any], want: list[float], ceil_mode: int
) -> None:
    for op in ("MaxPool", "AveragePool"):
        model = windows(op, size, ceil_mode=ceil_mode, **fields)
        x = np.arange(1, size + 1, dtype=np.float32).reshape(1, 1, size)
        ours = computed(model, size)
        assert ours == ort_run(model, {"x": x})[0].reshape(-1).tolist()
        assert op == "AveragePool" or ours == want


def test_a_window_wider_by_a_stride_is_none() -> None:
    assert computed(windows("MaxPool", 1, kernel_shape=[3], strides=[2]), 1) == []


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"kernel_shape": [1], "strides": [3]}, [1, 0, 0, 2]),
        ({"kernel_shape": [2], "strides": [4], "output_padding": [1]}, [1, 1, 0, 0, 2, 2, 0]),
        ({"kernel_shape": [3], "strides": [2], "output_padding": [1]}, [1, 3, 2, 2]),
        ({"kernel_shape": [3], "strides": [2]}, [1, 1, 3, 2]),
    ],
)
def test_same_crops_a_transposed_convolution_and_never_widens_it(
    fields: dict[str, Any], want: list[float]
) -> None:
    model = windows("ConvTranspose", 2, auto_pad="SAME_UPPER", **fields)
    x = np.array([[[1, 2]]], np.float32)
    assert computed(model, 2) == want == ort_run(model, {"x": x})[0].reshape(-1).tolist()
