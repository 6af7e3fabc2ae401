"""A float model and encodings, written: they are the graph again, or it is said in what not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.core.canonical.unquantized import is_quantized
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.options import EncodingsFormat
from tests.onnx_io.random_models import random_model
from tests.targets.encodings.networks import random_network

AIMET = Path(__file__).parent / "aimet"
FORMS = ("aimet-0.6.1", "aimet-1.0.0", "aimet-2.0.0", "ort-overrides")


def written(graph: Graph, folder: Path, form: EncodingsFormat) -> tuple[tuple[str, ...], Graph]:
    """Returns what is said to be otherwise, and the graph that is read back."""
    model, file = folder / "float.onnx", folder / "encodings"
    otherwise = qb.save_encodings(graph, model, file, format=form, overwrite=True)
    assert not is_quantized(qb.load(model))
    return otherwise, qb.load(model, encodings=file)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["w8a8", "w4a16"])
def test_an_aimet_model_comes_back(form: EncodingsFormat, kind: str, tmp_path: Path) -> None:
    graph = qb.load(AIMET / f"{kind}.qdq.onnx")
    otherwise, again = written(graph, tmp_path, form)
    assert otherwise == ()
    assert again.digest == graph.digest


@pytest.mark.parametrize("form", FORMS[1:3])
def test_random_models_come_back_or_it_is_said_why_not(
    form: EncodingsFormat, tmp_path: Path
) -> None:
    same = 0
    for seed in range(30):
        onnx.save(random_model(seed), tmp_path / "model.onnx")
        graph = qb.load(tmp_path / "model.onnx")
        otherwise, again = written(graph, tmp_path, form)
        assert (again.digest == graph.digest) == (not otherwise), seed
        unsaid = any("other parameters" in each for each in otherwise)
        moved = form in FORMS[:2] and any("integers moved by" in each for each in otherwise)
        assert not otherwise or unsaid or moved, (seed, otherwise)
        same += not otherwise
    assert same >= (3 if form in FORMS[:2] else 8)


@pytest.mark.parametrize("form", [*FORMS, "tensorrt"])
def test_random_networks_come_back(form: EncodingsFormat, tmp_path: Path) -> None:
    for seed in range(100, 108):
        network = random_network(seed, symmetric=form == "tensorrt")
        graph = qb.load(network.write(tmp_path / "q.onnx", quantized=True))
        otherwise, again = written(graph, tmp_path, form)
        if form in FORMS[:2] and otherwise:
            x = np.random.default_rng(seed).normal(0, 2, (1, 4, 6, 6)).astype(np.float32)
            y, z = (evaluate(g, {"x": x})[0] for g in (graph, again))
            assert [a.tobytes() for a in y.values()] == [a.tobytes() for a in z.values()], seed
        else:
            assert (otherwise, again.digest) == ((), graph.digest), seed


def test_names_and_numbers_are_those_of_the_float_model(tmp_path: Path) -> None:
    graph = qb.load(AIMET / "w8a8.qdq.onnx")
    qb.save_encodings(graph, tmp_path / "f.onnx", tmp_path / "e.json")
    record = json.loads((tmp_path / "e.json").read_text())
    assert record["version"] == "2.0.0"
    float_model = onnx.load(tmp_path / "f.onnx").graph
    names = {t.name for t in (*float_model.input, *float_model.initializer)}
    names |= {name for node in float_model.node for name in node.output}
    found = {entry["name"]: entry for entry in record["encodings"]}
    assert set(found) <= names
    theirs = json.loads((AIMET / "w8a8-2.0.0.json").read_text())["encodings"]
    for entry in theirs:
        if entry["name"] in ("w1", "wd", "wt", "wg", "wm", "x"):
            own = found[entry["name"]]
            assert np.array_equal(np.float32(own["y_scale"]), np.float32(entry["y_scale"]))
            same = ("output_dtype", "axis", "y_zero_point")
            assert [own.get(key) for key in same] == [entry.get(key) for key in same]


def test_the_bias_of_a_float_result_is_named(tmp_path: Path) -> None:
    """Nothing else says that it is stored: a float result leaves a bias float."""
    record = json.loads((AIMET / "w8a8-2.0.0.json").read_text())
    record["encodings"] = [e for e in record["encodings"] if e["name"] not in ("g", "m", "y")]
    (tmp_path / "cut.json").write_text(json.dumps(record))
    graph = qb.load(AIMET / "float.onnx", encodings=tmp_path / "cut.json")
    assert written(graph, tmp_path, "aimet-2.0.0")[0] == ()
    assert ["bias" in each for each in written(graph, tmp_path, "aimet-1.0.0")[0]] == [True]


def test_what_a_format_cannot_say_is_listed(tmp_path: Path) -> None:
    graph = qb.load(AIMET / "w8a8.qdq.onnx")
    with pytest.raises(qb.QdqBridgeError, match="tensorrt cannot say") as caught:
        qb.save_encodings(graph, tmp_path / "f.onnx", tmp_path / "e.cache", format="tensorrt")
    assert "'x': TensorRT has int8 with one scale and zero point 0 only" in caught.value.why
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(qb.QdqBridgeError, match="what format is given"):
        qb.save_encodings(graph, tmp_path / "f.onnx", tmp_path / "e", format="ort-table")  # pyright: ignore[reportArgumentType]


def test_integer_inputs_are_said_to_become_floats(tmp_path: Path) -> None:
    from qdqbridge.app.pipeline import with_io

    graph = with_io(qb.load(AIMET / "w8a8.qdq.onnx"), "as-stored")
    otherwise, again = written(graph, tmp_path, "aimet-2.0.0")
    assert any("input 0 ('x')" in each for each in otherwise)
    assert again.digest == qb.load(AIMET / "w8a8.qdq.onnx").digest


def test_files_are_replaced_only_if_asked(tmp_path: Path) -> None:
    graph = qb.load(AIMET / "w8a8.qdq.onnx")
    for there in ("f.onnx", "e.json"):
        (tmp_path / there).write_text("mine")
        with pytest.raises(qb.QdqBridgeError, match="there already"):
            qb.save_encodings(graph, tmp_path / "f.onnx", tmp_path / "e.json")
        assert [each.name for each in tmp_path.iterdir()] == [there]
        assert (tmp_path / there).read_text() == "mine"
        (tmp_path / there).unlink()
