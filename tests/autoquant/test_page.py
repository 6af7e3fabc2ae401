"""Every block of the page about quantization runs, in order, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge.autoquant
from qdqbridge.app.cli.failures import run
from tests.places import MODELS, ROOT

pytest.importorskip("tvm_ffi")
pytestmark = pytest.mark.relax

PAGE = Path(qdqbridge.autoquant.__file__).with_name("README.md")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_runs_and_prints_what_the_page_says(tmp_path, monkeypatch) -> None:
    shutil.copy(MODELS / "digits_mobile_float.onnx", tmp_path / "model.onnx")
    images = np.load(MODELS / "digits_test.npz")["x"][:64]
    np.savez(tmp_path / "digits.npz", input=images)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    printed, ran = "", {"python": 0, "sh": 0, "text": 0}
    for language, text in _BLOCK.findall(PAGE.read_text("utf-8")):
        ran[language] += 1
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if language == "python":
                exec(compile(text, f"{PAGE.name}, block {ran[language]}", "exec"), names)
                printed = out.getvalue()
            elif language == "sh":
                for line in text.splitlines():
                    program, *arguments = shlex.split(line)
                    assert program == "qdqbridge" and run(arguments) == 0
        if language == "text":
            assert printed.splitlines() == text.splitlines()
    assert min(ran.values()) >= 2 and ran["text"] == ran["python"]
    made = {"quantized.onnx", "report.html", "p.json", "from_profile.onnx"}
    assert made <= {path.name for path in tmp_path.iterdir()}


def test_the_files_that_the_page_names_exist() -> None:
    page = PAGE.read_text("utf-8")
    for name in re.findall(r"`(test_\w+\.py)`", page):
        assert (ROOT / "tests" / "autoquant" / name).exists(), name
    sources = re.findall(r"`([a-z_/]+(?:\.py|/))`", page)
    assert len(sources) > 15
    for name in sources:
        here = PAGE.parent / name
        assert name.startswith("test_") or here.exists() or (ROOT / name).exists(), name
