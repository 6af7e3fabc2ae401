"""Small files that ask for much are read, or refused, within little time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzzing.measured import run
from tests.onnx_io.bombs import bombs
from tests.onnx_models import conv_model

SECONDS = 10.0


def _put(seed: int, folder: Path) -> None:
    run(conv_model().SerializeToString(), folder)  # imports are not the models'
    for name, model in bombs(seed):
        found = run(model.SerializeToString(), folder)
        assert not found["finding"], f"{name}: {found['finding']}"
        assert found["seconds"] < SECONDS, f"{name}: {found['seconds']} s"


@pytest.mark.filterwarnings("ignore")
def test_little_is_taken(tmp_path: Path) -> None:
    _put(0, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(1, 7))
def test_little_is_taken_by_others(tmp_path: Path, seed: int) -> None:
    _put(seed, tmp_path)
