"""The public API: what it promises, what it costs to import, how it fails."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.errors import (
    InputDataError,
    InvalidModelError,
    ModelFileError,
    OutputExistsError,
    UnsupportedTargetError,
)
from tests.places import MODELS, ROOT

MODEL = MODELS / "digits_cnn_u8s8_per_channel.onnx"


@pytest.fixture(scope="module")
def images():
    with np.load(MODELS / "digits_test.npz") as data:
        return data["x"][:8]


def python(code, **environment):
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        timeout=240,
        env=os.environ | environment,
    )  # fmt: skip
    return result.stdout.split()


def test_all_is_few_names_and_they_exist():
    pytest.importorskip("tvm")
    assert len(qb.__all__) <= 25
    assert sorted(qb.__all__) == qb.__all__
    for name in qb.__all__:
        assert getattr(qb, name).__doc__


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'convert'"):
        _ = qb.convert


def test_import_is_cheap(tmp_path):
    code = (
        "import sys; from time import process_time as now; start = now();"
        "import numpy; half = now();"
        "import qdqbridge; print(half - start, now() - half, *sys.modules)"
    )
    # compiled by the first one, also where the shell asks for no bytecode; NumPy starts its
    # threads, as it does for users, also where the tests ask for none
    usual = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    starts = [python(code, **usual, OPENBLAS_NUM_THREADS="") for _ in range(6)]
    for _, _, *modules in starts:
        assert not {"tvm", "onnx", "onnxruntime", "rich", "cyclopts"} & set(modules)
    # CPU time, the shortest, beside that of NumPy, which it needs: it does not count how fast and
    # how busy a machine is (seconds on a busy Xeon: 0.155 and 0.1)
    numpys, own = (min(float(start[i]) for start in starts) for i in range(2))
    assert own < numpys


def test_reading_and_running_does_not_import_tvm():
    code = (
        "import sys, numpy, qdqbridge as qb;"
        f"g = qb.load({str(MODEL)!r});"
        "qb.evaluate(g, {'input': numpy.zeros((1, 1, 8, 8), 'float32')});"
        "print('tvm' in sys.modules)"
    )
    assert python(code) == ["False"]


def test_version_is_that_of_the_project():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert re.findall(r'^version = "(.*)"$', project, re.M) == [qb.__version__]


def test_load_takes_paths_and_strings():
    graph = qb.load(MODEL)
    assert graph.canonical
    assert qb.load(str(MODEL)).digest == graph.digest
    raw = qb.load(MODEL, canonical=False)
    assert not raw.canonical
    assert len(raw.nodes) > len(graph.nodes)


def test_load_maps_every_failure(tmp_path):
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    truncated = MODEL.read_bytes()[:-1000]
    (tmp_path / "cut.onnx").write_bytes(truncated)
    for name in ("missing.onnx", "text.onnx", "empty.onnx", "cut.onnx", "."):
        with pytest.raises((ModelFileError, InvalidModelError)) as caught:
            qb.load(tmp_path / name)
        assert isinstance(caught.value, qb.QdqBridgeError)
        assert caught.value.fix


def test_evaluate_returns_outputs_by_name(images):
    graph = qb.load(MODEL)
    exact = qb.evaluate(graph, {"input": images}, exact=True)["logits"]
    real = qb.evaluate(graph, {"input": images})["logits"]
    assert real.dtype == np.float32
    assert real.shape == (8, 10)
    assert np.abs(exact - real).max() < 0.2  # a few steps of the output scale


def test_explain_returns_the_graphs_notes():
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx", canonical=False)
    notes = qb.explain(graph)
    islands = [note for note in notes if note.rule == "float-region"]
    assert {note.reason.partition(":")[0] for note in islands} >= {"Conv", "Add", "Gemm"}


def test_save_does_not_overwrite(tmp_path):
    graph = qb.load(MODEL)
    path = tmp_path / "out.onnx"
    qb.save(graph, path)
    assert qb.load(path).digest == graph.digest
    with pytest.raises(OutputExistsError) as caught:
        qb.save(graph, str(path))
    assert "overwrite=True" in caught.value.fix
    assert "--force" in caught.value.fix
    qb.save(graph, path, overwrite=True)


def test_save_names_the_profiles(tmp_path):
    with pytest.raises(InputDataError, match="profile is given") as caught:
        qb.save(qb.load(MODEL), tmp_path / "out.onnx", profile="nobody")  # pyright: ignore[reportArgumentType]
    assert "'ort' or 'portable'" in caught.value.fix
    assert not list(tmp_path.iterdir())


def test_compare_two_graphs(images):
    graph = qb.load(MODEL)
    found = qb.compare(graph, qb.load(MODEL), {"input": images})
    assert found.equal
    assert {value.name for value in found.values} >= {"logits", "logits_QuantizeLinear_Output"}
    assert [value.name for value in found.outputs] == ["logits"]
    assert "equal" in str(found)


def test_compare_two_files(images):
    found = qb.compare(MODEL, str(MODEL), {"input": images})
    assert found.equal
    assert (found.a, found.b) == ("onnxruntime", "onnxruntime")


def test_compare_checks_the_data(images):
    with pytest.raises(InputDataError, match="wrong element type"):
        qb.compare(qb.load(MODEL), MODEL, {"input": images.astype(np.float64)})


@pytest.mark.relax
def test_tvm_equals_the_interpreter_at_every_value(images):
    pytest.importorskip("tvm")

    graph = qb.load(MODEL)
    executable = qb.compile(graph, expose=graph.intermediates())
    assert isinstance(executable, qb.Executable)
    found = qb.compare(executable, graph, {"input": images})
    assert found.equal, str(found)
    assert len(found.values) == len(graph.nodes)
    assert [value.name for value in found.outputs] == ["logits"]


@pytest.mark.relax
def test_to_relax_returns_a_module():
    pytest.importorskip("tvm")
    module, params = qb.to_relax(qb.load(MODEL))
    assert "qnn.conv2d" in module.script()
    assert params == {}


def test_without_tvm_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedTargetError) as caught:
        qb.compile(qb.load(MODEL))
    assert "qdqbridge[relax]" in caught.value.fix


@pytest.mark.parametrize("thing", [MODEL, str(MODEL), None, 3], ids=["path", "str", "None", "int"])
def test_what_is_no_graph_is_said_to_need_loading(thing, tmp_path):
    calls = [
        lambda: qb.compile(thing),
        lambda: qb.evaluate(thing, {}),
        lambda: qb.to_relax(thing),
        lambda: qb.save(thing, tmp_path / "out.onnx"),
        lambda: qb.explain(thing),
    ]
    for call in calls:
        with pytest.raises(InputDataError, match="needs a graph") as caught:
            call()
        assert "load it first" in caught.value.fix


@pytest.mark.parametrize("thing", [3, None, b"m.onnx", ["m.onnx"]], ids=repr)
def test_what_is_no_path_is_said_to_be_none(thing, images):
    with pytest.raises(InputDataError, match="cannot take what path is given"):
        qb.load(thing)
    with pytest.raises(InputDataError, match="cannot be compared"):
        qb.compare(qb.load(MODEL), thing, {"input": images})


def test_inputs_without_names_are_refused(images):
    graph = qb.load(MODEL)
    for call in (lambda: qb.evaluate(graph, images), lambda: qb.compare(graph, MODEL, images)):
        with pytest.raises(InputDataError, match="without their names") as caught:
            call()
        assert "'input': array" in caught.value.fix


@pytest.mark.relax
def test_executables_refuse_inputs_without_names(images):
    pytest.importorskip("tvm")
    from tests.tvm.relax.digits import digits

    with pytest.raises(InputDataError, match="without their names"):
        digits().run(images)


@pytest.mark.relax
def test_other_targets_than_the_cpu_are_refused():
    pytest.importorskip("tvm")
    for target in ("cuda", "c"):
        with pytest.raises(UnsupportedTargetError) as caught:
            qb.compile(qb.load(MODEL), target=target)
        assert "only CPU (llvm) targets" in caught.value.why


README = (ROOT / "README.md").read_text("utf-8")


def test_the_page_of_support_lists_every_operator():
    from qdqbridge.core.ops.table import OPERATORS

    page = (ROOT / "docs" / "support.md").read_text("utf-8")
    listed = set(re.findall(r"\b\w+\b", page))
    ours = {row.name for row in OPERATORS if row.name[0].isupper()}
    assert ours - listed == set(), "write them into the list of docs/support.md"


def test_the_readme_shows_real_canonical_text():
    text = qb.load(MODEL).text().splitlines()
    block = README.partition("without names:\n\n```\n")[2].partition("```")[0].splitlines()
    assert block[:2] == text[1:3]
    assert text[3].startswith(block[2].partition("…")[0])
    assert text[3].endswith(block[2].rpartition("}")[2])


@pytest.mark.relax
def test_the_readme_code_runs(monkeypatch, capsys):
    pytest.importorskip("tvm")
    monkeypatch.chdir(ROOT)
    code = README.partition("```python\n")[2].partition("```")[0]
    exec(compile(code, "README.md", "exec"), {})
    assert "TVM against onnxruntime" in capsys.readouterr().out
