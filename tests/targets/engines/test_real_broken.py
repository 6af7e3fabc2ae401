"""Engines that are installed and broken: each is named, with what brings it again."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

import qdqbridge
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.options import EngineName
from qdqbridge.targets.engines.kinds import ENGINES
from qdqbridge.targets.engines.process import EngineProcess, ProcessLimits
from tests.places import MODELS

CNN = MODELS / "digits_cnn_u8s8_per_channel.onnx"


def linked(name: str, folder: Path, leave: str) -> Path:
    """A package of links to the files of an engine's own, but for one."""
    spec = find_spec(ENGINES[name].package)
    assert spec is not None
    assert spec.origin is not None
    source, left = Path(spec.origin).parent, 0
    for libraries in source.parent.glob(f"{source.name}.libs"):
        (folder / libraries.name).symlink_to(libraries)
    for path in source.rglob("*"):
        target = folder / source.name / path.relative_to(source)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif path.match(leave):
            left += 1
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    assert left
    return folder


@pytest.mark.parametrize(
    ("name", "leave"),
    [
        ("openvino", "libopenvino.so*"),
        ("litert", "_pywrap*"),
        ("qnn-htp", "libonnxruntime_providers_qnn.so"),
    ],
)
def test_an_engine_without_its_library_is_named(
    name: EngineName, leave: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(linked(name, tmp_path, leave)))
    with pytest.raises(UnsupportedTargetError) as caught:
        qdqbridge.open_engine(name, qdqbridge.load(CNN), extents={"batch": 1})
    assert caught.value.what == f"{ENGINES[name].label} cannot be imported"
    assert "pip install --force-reinstall" in caught.value.fix
    assert leave.partition("*")[0].partition(".")[0] in caught.value.why


def test_hexagon_without_its_backend_is_not_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(linked("qnn-htp", tmp_path, "libQnnHtp.so")))
    with (
        qdqbridge.open_engine("qnn-htp", qdqbridge.load(CNN), extents={"batch": 1}) as engine,
        pytest.raises(UnsupportedTargetError, match="cannot load the model") as caught,
    ):
        engine.taken()
    assert "libQnnHtp.so" in caught.value.why


@pytest.mark.parametrize("name", ["openvino", "litert", "qnn-htp"])
def test_little_memory_ends_in_words(name: str) -> None:
    kind = ENGINES[name]
    with pytest.raises(UnsupportedTargetError) as caught:
        EngineProcess(kind.worker, kind.label, ProcessLimits(memory=96 << 20), kind.install)
    assert caught.value.what == f"{kind.label} cannot be imported"
    assert "--force-reinstall" in caught.value.fix


@pytest.mark.parametrize("name", ["openvino", "litert"])
@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"TFL3" * 4096])
def test_a_file_that_is_none_is_refused_by_name(name: str, data: bytes, tmp_path: Path) -> None:
    kind, file = ENGINES[name], tmp_path / f"none{ENGINES[name].suffix}"
    file.write_bytes(data)
    engine = EngineProcess(kind.worker, kind.label, ProcessLimits(seconds=60), kind.install)
    with pytest.raises(UnsupportedTargetError, match="cannot load the model"):
        engine.ask("load the model", "load", "key", str(file))
    engine.close()
