"""Random graphs as TFLite files: the digest comes back, and LiteRT computes the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
pytest.importorskip("ai_edge_litert", reason="LiteRT, the judge")

from tests.tflite_io.random_graphs import differences

LAYOUTS = (0, 1, 10, 52, 104, 121, 159, 805, 961)
"""Seeds whose transposes once came back in another order."""
TYPES = (16, 30, 48, 178, 184, 262, 352, 372)
"""Seeds of 16-bit and unsigned interfaces, of clamps between types, and of a steep HardSwish."""


@pytest.mark.parametrize("seed", [*LAYOUTS, *TYPES, *range(2000, 2030)])
def test_a_random_graph(seed: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    assert differences(seed, tmp_path, counts) == []
    assert counts.total() == 1
