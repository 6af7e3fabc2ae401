"""Stale declared shapes, computed integers and forms of a Reshape: a few of each generated."""

from pathlib import Path

import pytest

from tests.onnx_io.shape_relatives import computed_case, reshape_case, stale_case


@pytest.mark.parametrize("seed", range(24))
def test_declared_shapes_are_hints(seed: int, tmp_path: Path) -> None:
    assert stale_case(seed, tmp_path) == ""


@pytest.mark.parametrize("seed", range(30))
def test_computed_integers_are_constants(seed: int, tmp_path: Path) -> None:
    assert computed_case(seed, tmp_path) == ""


@pytest.mark.parametrize("seed", range(24))
def test_a_reshape_has_one_spelling(seed: int, tmp_path: Path) -> None:
    assert reshape_case(seed, tmp_path) == ""


@pytest.mark.slow
def test_many_more(tmp_path: Path) -> None:
    cases = (stale_case, computed_case, reshape_case)
    failed = {(f.__name__, seed): f(seed, tmp_path) for f in cases for seed in range(100, 300)}
    assert {key: problem for key, problem in failed.items() if problem} == {}
