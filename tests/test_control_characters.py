"""Names of a foreign model reach no terminal and no page as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.app.viewer.model_explorer import model_explorer_text, node_data_texts
from qdqbridge.control_characters import all_visible, visible
from tests.places import MODELS

OBEYED = [*range(9), *range(11, 32), *range(127, 160)]
TURNING = [0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
ALL = "".join(map(chr, [*OBEYED, *TURNING]))
_SHOWN = re.compile(f"[{re.escape(ALL)}]")
QUANTIZED = str(MODELS / "digits_cnn_u8s8_per_channel.onnx")


def model(path: Path, name: str) -> str:
    """Writes a model in which everything that has a name has this one."""
    nodes = [
        helper.make_node("QuantizeLinear", [f"{name}x", "s", "z"], [f"{name}q"], f"{name}Q"),
        helper.make_node("DequantizeLinear", [f"{name}q", "s", "z"], [f"{name}d"], f"{name}D"),
        helper.make_node("Foo" + name, [f"{name}d"], [f"{name}f"], f"{name}F", domain="d" + name),
        helper.make_node("Softmax", [f"{name}d"], [f"{name}y"], f"{name}S"),
    ]
    x, y = (helper.make_tensor_value_info(f"{name}{end}", 1, (f"b{name}", 4)) for end in "xy")
    outputs = [y, helper.make_tensor_value_info(f"{name}f", 1, None)]
    tensors = [numpy_helper.from_array(np.array(0.02, np.float32), "s")]
    tensors += [numpy_helper.from_array(np.array(128, np.uint8), "z")]
    graph = helper.make_graph(nodes, f"g{name}", [x], outputs, tensors, doc_string=name)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("d" + name, 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name=name)
    made.metadata_props.add(key=name, value=name)
    onnx.save(made, path)
    return str(path)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> str:
    name = f"\x1b]0;title\x07\x1b[31m{ALL}</script><img src=x>"
    return model(tmp_path_factory.mktemp("bad") / "m.onnx", name)


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"], ["canonicalize"], ["explain"], ["accumulators"], ["export", "--check"],
        ["diff", QUANTIZED], ["run", "--data", "none.npz"], ["view", "-o", "page.html"],
        ["export", "-o", "m.tflite"], ["export", "-o", "o.onnx"],
        pytest.param(["partition"], marks=pytest.mark.relax),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)  # fmt: skip
def test_what_verbs_print(
    arguments: list[str], bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([arguments[0], bad, *arguments[1:]]) in (0, 1, 2, 3)
    said = capsys.readouterr()
    assert said.out + said.err
    assert not _SHOWN.findall(said.out + said.err)


def test_json_has_the_names(bad: str, capsys: Any) -> None:
    assert run(["inspect", bad, "--json"]) == 0
    said = capsys.readouterr().out
    assert any(ALL in str(each) for each in _texts(json.loads(said)))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in _texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in _texts(each)]
    return [str(value)]


def test_pages(bad: str, tmp_path: Path) -> None:
    qb.view(bad, QUANTIZED, path=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    (data,) = re.findall('id="model">(.*?)</script>', page, re.DOTALL)
    assert not any(_SHOWN.findall(text) for text in _texts(json.loads(data)))
    assert "\\u202e" in str(json.loads(data)) and "<img src=x" not in page
    (title,) = re.findall("<title>(.*?)</title>", page, re.DOTALL)
    assert not _SHOWN.findall(title)


def test_files_for_model_explorer(bad: str) -> None:
    document = qb.view(bad, QUANTIZED)
    made = [model_explorer_text(document), *node_data_texts(document).values()]
    assert not any(_SHOWN.findall(text) for each in made for text in _texts(json.loads(each)))
    assert "\\u202e" in str(json.loads(made[0]))


def test_errors_and_graphs_of_python(bad: str) -> None:
    graph = qb.load(bad)
    assert not _SHOWN.findall(repr(graph))
    with pytest.raises(qb.QdqBridgeError) as error:
        qb.evaluate(graph, {})
    assert not _SHOWN.findall(str(error.value))
    assert ALL in error.value.what + error.value.where + error.value.why + error.value.fix


def test_logs(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "qdqbridge"):
        qb.load(bad)
    assert caplog.text.strip()
    assert not _SHOWN.findall(caplog.text)


def test_what_is_escaped() -> None:
    for number in [*OBEYED, *TURNING]:
        shown = visible(f"a{chr(number)}b")
        assert shown.isprintable() and len(shown) > 3
        assert shown[1:-1].encode().decode("unicode_escape") == chr(number)
    plain = "naïve 層 \t\n'\"\\ \u00a0é"
    assert visible(plain) == plain
    assert all_visible({"\x1b": ["\x07", 1, None]}) == {"\\x1b": ["\\x07", 1, None]}
