"""The digest after save and load: of random models, and of those where it once moved."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.onnx_io.digest_trips import loaded, saved
from tests.onnx_io.random_models import random_model

FOUND = sorted((Path(__file__).parent / "digest_models").glob("*.onnx"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_where_it_once_moved(path: Path) -> None:
    graph = loaded(onnx.load(path))
    assert saved(graph).text() == graph.text()


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_models(first: int) -> None:
    """``scripts/sweep_digests`` makes as many as one likes."""
    for seed in range(first, first + 20):
        graph = loaded(random_model(seed))
        assert saved(graph).text() == graph.text(), seed
