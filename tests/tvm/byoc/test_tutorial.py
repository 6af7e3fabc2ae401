"""Every block of the tutorial runs, in order, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.places import MODELS

pytest.importorskip("tvm")

import qdqbridge.tvm.byoc

pytestmark = pytest.mark.relax

PAGE = Path(qdqbridge.tvm.byoc.__file__).with_name("README.md")
MODEL = MODELS / "digits_cnn_u8s8_per_channel.onnx"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Returns (language, text) of every block of the page."""
    return _BLOCK.findall(PAGE.read_text("utf-8"))


def test_every_block_runs_and_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(MODEL, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "tutorial"}
    printed, ran = "", 0
    for language, text in blocks():
        if language == "text":
            assert printed.splitlines() == text.splitlines()
            continue
        assert language == "python"
        out, ran = io.StringIO(), ran + 1
        with contextlib.redirect_stdout(out):
            exec(compile(text, f"{PAGE.name}, block {ran}", "exec"), names)
        printed = out.getvalue()
    assert ran >= 8


def test_the_files_that_the_page_names_exist() -> None:
    page = PAGE.read_text("utf-8")
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", page)
    assert named
    for name in named:
        assert (PAGE.parent / name).exists(), name
