"""What Hexagon takes of an operator, form by form: what the rules of profile ``qnn`` say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqbridge
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.targets.engines.kinds import engine_kind
from qdqbridge.targets.engines.process import EngineProcess, ProcessLimits
from tests.onnx_io.hexagon_forms import REFUSED, TAKEN, choice


@pytest.fixture(scope="module")
def hexagon() -> Iterator[EngineProcess]:
    """The host build of the NPU's backend: one process for all models, none of which ends it."""
    kind = engine_kind("qnn-htp")
    process = EngineProcess(kind.worker, kind.label, ProcessLimits(seconds=60))
    yield process
    process.close()


def takes(hexagon: EngineProcess, model: onnx.ModelProto, folder: Path) -> bool:
    """Returns whether no node is left to the CPU."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    try:
        nodes, _ = hexagon.ask("load it", "load", "model", str(path))
    except UnsupportedTargetError:
        return False
    return all(taken for _, _, _, taken, _ in nodes)


@pytest.mark.parametrize("form", TAKEN)
def test_hexagon_takes_it(form: str, hexagon: EngineProcess, tmp_path: Path) -> None:
    assert takes(hexagon, TAKEN[form], tmp_path)


@pytest.mark.parametrize("form", REFUSED)
def test_hexagon_does_not_take_it(form: str, hexagon: EngineProcess, tmp_path: Path) -> None:
    assert not takes(hexagon, REFUSED[form][1], tmp_path)
    assert hexagon.alive


@pytest.mark.parametrize("constant", [True, False])
def test_a_choice_beside_floats_is_written_as_one_of_stored_numbers(
    constant: bool, hexagon: EngineProcess, tmp_path: Path
) -> None:
    path, written = tmp_path / "model.onnx", tmp_path / "written.onnx"
    onnx.save(choice(constant=constant), path)
    graph = qdqbridge.load(path)
    qdqbridge.save(graph, written, "qnn")
    nodes, _ = hexagon.ask("load it", "load", "written", str(written))
    assert all(taken for _, _, _, taken, _ in nodes)
    rng = np.random.default_rng(0)
    feeds = {"x1": rng.integers(0, 256, (3, 4)).astype(np.uint8)}
    feeds |= {} if constant else {"x2": rng.normal(2, 3, (3, 4)).astype(np.float32)}
    (name,) = graph.output_names
    found = hexagon.ask("run it", "run", "written", feeds, [name])[name]
    np.testing.assert_array_equal(found, qdqbridge.evaluate(graph, feeds)[name])
