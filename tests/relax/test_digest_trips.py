"""The digest through Relax: of random models, and of those where it once moved."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qdqbridge.errors import QdqBridgeError
from tests.onnx_io import digest_trips
from tests.onnx_io.digest_trips import HOSTED, hosted, loaded
from tests.onnx_io.random_models import random_model

FOUND = sorted((Path(digest_trips.__file__).parent / "digest_models").glob("*.onnx"))


@pytest.mark.parametrize("spelling", HOSTED)
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_where_it_once_moved(path: Path, spelling: str) -> None:
    graph = loaded(onnx.load(path))
    assert hosted(graph, spelling).text() == graph.text()


@pytest.mark.parametrize("spelling", HOSTED)
def test_random_models(spelling: str) -> None:
    """``scripts/sweep_digests`` makes as many as one likes; some no host can compute."""
    came_back = 0
    for seed in range(40):
        graph = loaded(random_model(seed))
        try:
            back = hosted(graph, spelling)
        except QdqBridgeError:
            continue
        came_back += 1
        assert back.text() == graph.text(), seed
    assert came_back >= 36
