"""Wrong command lines of every verb, made from what the verbs say that they take."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from qdqbridge.app.cli.failures import run
from qdqbridge.app.cli.verbs import app
from qdqbridge.onnx_io.runtime.products import saturates
from qdqbridge.targets.engines.kinds import ENGINES
from tests.places import MODELS

MODEL = str(MODELS / "digits_cnn_u8s8_per_channel.onnx")
LONG = "n" * 300 + ".onnx"
WRITTEN = {"view": "out.html", "to-tvm": "out.json", "quantize": "out.onnx", "fix": "out.onnx"}
NAMED = {"--data": "no.npz", "--for": "ort"}
BESIDES = {
    "blame": ["--engine", "onnxruntime-optimized"],
    "export": ["--check"],
    "quantize": ["--data", "no.npz"],
}
"""What else a verb must be given, of several things."""
WRONG_FILES = ("missing", "empty", "damaged", "text", "folder", "long", "inside a file")


def _verbs(parent: Any = app, chain: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in parent:
        if not name.startswith("-"):
            child = parent[name]
            yield (*chain, name), child
            yield from _verbs(child, (*chain, name))


VERBS = dict(_verbs())


def _taken(verb: Any) -> list[Any]:
    return [a for a in verb.assemble_argument_collection() if a.show or a.required]


def _right(chain: tuple[str, ...], folder: Path, model: str) -> list[list[str]]:
    """Returns what must be given, the model as it is said and files that are not there."""
    found: list[list[str]] = []
    for argument in _taken(VERBS[chain]):
        positional = not argument.name.startswith("-")
        if argument.required and positional:
            found.append([model])
        elif argument.required:
            value = NAMED.get(argument.name) or str(folder / WRITTEN.get(chain[0], "out.json"))
            found.append([argument.name, value])
    return found


def _flat(parts: list[list[str]]) -> list[str]:
    return list(itertools.chain(*parts))


def _refused(arguments: list[str], code: int, capsys: Any, *words: str) -> None:
    assert run(arguments) == code, arguments
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if line.startswith(("error:", "  "))]
    assert not out, arguments
    assert said and said[0].startswith("error: ") and said[-1].startswith("  fix "), err
    assert all(word in err for word in words), err
    assert "Traceback" not in err and "a bug in qdqbridge" not in err


@pytest.mark.parametrize("chain", VERBS, ids=" ".join)
def test_usage(chain: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    verb, start = VERBS[chain], list(chain)
    parts = _right(chain, tmp_path, MODEL)
    for index in range(len(parts)):  # each of what must be given is left out
        _refused([*start, *_flat(parts[:index] + parts[index + 1 :])], 2, capsys, "missing")
    if chain == ("profile", "merge"):
        _refused([*start, *_flat(parts)], 2, capsys, "missing")
    for unknown in ("--frobnicate", "--frobnicate=3"):
        _refused([*start, *_flat(parts), unknown], 2, capsys, "--frobnicate")
        _refused([*start, *_flat(parts[:1]), unknown], 2, capsys, "--frobnicate")
    for argument in _taken(verb):
        if argument.name.startswith("-") and not argument.is_flag():
            given = _flat([part for part in parts if part[0] != argument.name])
            _refused([*start, *given, argument.name], 2, capsys, argument.name)


@pytest.mark.parametrize("chain", VERBS, ids=" ".join)
def test_files(chain: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    whole = Path(MODEL).read_bytes()
    files = {kind: tmp_path / f"{kind}.onnx" for kind in WRONG_FILES}
    files["empty"].write_bytes(b"")
    files["damaged"].write_bytes(whole[: len(whole) // 2])
    files["text"].write_text("no model\n" * 9, "utf-8")
    files["folder"].mkdir()
    files["long"] = tmp_path / LONG
    files["inside a file"] = files["text"] / "m.onnx"
    for path in files.values():
        parts = _right(chain, tmp_path, str(path))
        if parts and parts[0] == [str(path)]:
            _refused([*chain, *_flat(parts), *BESIDES.get(chain[0], [])], 3, capsys, "why")


@pytest.mark.parametrize("verb", ["quantize", "export", "compare", "run", "fix", "blame"])
def test_help_fits_a_screen_and_help_all_has_every_option(verb, capsys):
    assert run([verb, "--help"]) == 0
    short = capsys.readouterr().out
    assert run([verb, "--help-all"]) == 0
    whole = capsys.readouterr().out
    assert len(short.splitlines()) <= 48
    options = set(re.findall(r"--[a-z][a-z-]*", whole))
    assert options - set(re.findall(r"--[a-z][a-z-]*", short)) == set()
    assert len(whole.splitlines()) >= len(short.splitlines())


def test_doors_come_first_and_exit_codes_are_told(capsys):
    assert run(["--help"]) == 0
    told = capsys.readouterr().out
    doors = ["I have a quantized model", "I have a float model", "I compile with TVM"]
    assert [told.index(each) for each in doors] == sorted(told.index(each) for each in doors)
    assert "Exit codes: 0 done" in told


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_verbs_and_options(shell, capsys):
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "quantize" in script and "max-drop" in script


def test_the_doctor_tells_what_is_here(capsys):
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["onnx"] == version("onnx")
    assert set(found["engines"]) == set(ENGINES)
    assert saturates() == ("saturate" in found["processor"]["onnxruntime"])
