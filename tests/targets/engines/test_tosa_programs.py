"""Arm's programs for TOSA fail in every way: what failed is named, and nothing is half written."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import qdqbridge
from qdqbridge.app.cli.failures import run
from qdqbridge.app.pipeline import save_tosa
from qdqbridge.core.graph.copying import with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.targets.engines.kinds import ENGINES, engine_kind
from qdqbridge.targets.engines.process import ProcessLimits
from tests.places import MODELS

CNN = MODELS / "digits_cnn_u8s8_per_channel.onnx"
CONVERTER, SERIALIZER, MODEL = ENGINES["tosa"].programs
CONV = "/stem/stem.2/Relu_output_0_QuantizeLinear_Output"
LEFT = f"""module {{
  func.func @main(%arg0: tensor<1x1x8x8xf32> {{tf_saved_model.index_path = ["input"]}}) -> \
(tensor<1x10xf32> {{tf_saved_model.index_path = ["logits"]}}) attributes {{}} {{
    %1 = "tfl.conv_2d"(%arg0) : (tensor<1x1x8x8xf32>) -> tensor<1x8x8x24xi8> loc(#loc1)
    return %1 : tensor<1x10xf32> loc(#loc)
  }}
}}
#loc1 = loc("{CONV}"(#loc))
"""
"""A module in which the converter has left a convolution."""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs of these names, first on the PATH, that do nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ENGINES["tosa"].programs:
        write(folder / name, "exit 0")
    monkeypatch.setenv("PATH", os.pathsep.join((str(folder), os.environ["PATH"])))
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "model.tosa"


def write(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    program.chmod(0o755)


def leaves(programs: Path, text: str) -> None:
    """Lets the converter write a text."""
    (programs / "left.mlir").write_text(text, "utf-8")
    write(programs / CONVERTER, f'cp "{programs}/left.mlir" "$5"')


def refused(out: Path, limits: ProcessLimits | None = None, graph: Graph | None = None) -> str:
    """Returns the error of a file that is not written, and leaves what was there."""
    graph = graph or with_numbers(qdqbridge.load(CNN), {"batch": 1})
    out.write_text("before")
    with pytest.raises(UnsupportedTargetError) as failed:
        save_tosa(graph, out, overwrite=True, limits=limits)
    assert out.read_text() == "before" and list(out.parent.iterdir()) == [out]
    return str(failed.value)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no such operator; exit 3", "fails (exit code 3): no such operator"),
        ("kill -SEGV $$", "fails (signal 11)"),
        ('echo "module {}" > "$5"', "no function 'main'"),
    ],
)
def test_a_converter_that_fails(programs: Path, out: Path, script: str, words: str) -> None:
    write(programs / CONVERTER, script)
    assert words in refused(out)


def test_a_converter_that_hangs(programs: Path, out: Path) -> None:
    write(programs / CONVERTER, f"echo $$ > {programs}/pid; sleep 600")
    assert "within 3 s" in refused(out, ProcessLimits(seconds=3))
    state = Path("/proc", (programs / "pid").read_text().strip(), "stat")
    assert not state.exists() or ") Z " in state.read_text()  # nobody may have asked how it ended


def test_a_converter_without_end_of_output(programs: Path, out: Path) -> None:
    write(programs / CONVERTER, 'yes 0123456789 > "$5"; exit 1')
    write(programs / SERIALIZER, "exit 0")
    assert "within 3 s" in refused(out, ProcessLimits(seconds=3))


def test_a_serializer_that_hangs(programs: Path, out: Path) -> None:
    leaves(programs, LEFT.replace("tfl.conv_2d", "tosa.conv2d"))
    write(programs / SERIALIZER, "sleep 600")
    assert "within 3 s" in refused(out, ProcessLimits(seconds=3))


def test_a_serializer_that_fails(programs: Path, out: Path) -> None:
    leaves(programs, LEFT.replace("tfl.conv_2d", "tosa.conv2d"))
    write(programs / SERIALIZER, "echo \"x.tflite:0:0: error: 'tosa.conv2d' op is odd\"; exit 1")
    assert "'tosa.conv2d' op is odd" in refused(out)


def test_what_the_converter_leaves_is_named(
    programs: Path, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    leaves(programs, LEFT)
    words = refused(out)
    assert f"CONV_2D (1, '{CONV}'): " in words
    asked = ["export", str(CNN), "--profile", "tosa", "--check", "--extent", "batch=1"]
    assert run(asked) == 1
    said = capfd.readouterr().out
    assert CONV in said and "has no TOSA for CONV_2D" in said


def test_open_extents_are_refused(
    programs: Path, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    del programs
    for words in (["-o", str(out)], ["--check", "--profile", "tosa"]):
        assert run(["export", str(CNN), *words]) == 3
        assert "--extent batch=1" in capfd.readouterr().err
    assert not list(out.parent.iterdir())


def test_operators_without_counterpart_are_named(programs: Path, out: Path) -> None:
    """TFLite has none: the converter is not even asked."""
    write(programs / CONVERTER, "exit 3")
    graph = qdqbridge.parse(
        "qnn-raw 1\ninput %x: float32[2,3]\n"
        "%y = ThresholdedRelu(%x) {alpha=0.5}: float32[2,3]\noutput %y\n"
    )
    words = refused(out, graph=graph)
    assert "ThresholdedRelu (1," in words and "exit code 3" not in words


def test_programs_that_are_not_there(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqbridge.targets.engines.kinds.installed_program", lambda name: None)
    words = refused(out)
    assert f"there is no program '{CONVERTER}'" in words and "pip install tosa-tools" in words
    monkeypatch.undo()
    with pytest.raises(UnsupportedTargetError, match="no-such-program") as failed:
        engine_kind(replace(ENGINES["tosa"], programs=("no-such-program",)))
    assert "pip install tosa-tools tosa-converter-for-tflite" in failed.value.fix
