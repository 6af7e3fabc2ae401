"""What was compiled once is loaded: the same results, and nothing wrong ever."""

import os
import subprocess
import sys

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.errors import OutputFileError
from qdqbridge.tvm.relax.executable import key_of
from tests.onnx_models import canonical, conv_input, conv_model

X = conv_input()
_WRITER = """
import sys
import numpy as np
import qdqbridge as qb
made = qb.compile(qb.load(sys.argv[1]), cache=sys.argv[2])
x = np.load(sys.argv[3])["x"]
print(next(iter(made.run({"x": x}).values())).tobytes().hex())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "conv.onnx"
    path.write_bytes(conv_model().SerializeToString())
    return path


def outputs(executable):
    return [array.tobytes() for array in executable.run(X).values()]


def test_the_second_time_is_loaded_and_damage_is_compiled_anew(model, tmp_path, caplog):
    graph = qb.load(model)
    first = qb.compile(graph, cache=tmp_path / "new" / "folder")
    (entry,) = (tmp_path / "new" / "folder").iterdir()
    second = qb.compile(graph, cache=tmp_path / "new" / "folder")
    assert first.module is not None and second.module is None  # of one that was loaded
    assert outputs(first) == outputs(second)
    good = entry.read_bytes()
    for bad in (b"", good[:1000], good[:5000] + bytes([good[5000] ^ 1]) + good[5001:]):
        entry.unlink()  # a loaded library stays mapped
        entry.write_bytes(bad)
        again = qb.compile(graph, cache=entry.parent)
        assert again.module is not None and outputs(again) == outputs(first)
        assert "compiled anew" in caplog.text
        assert qb.compile(graph, cache=entry.parent).module is None
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


def test_whatever_code_follows_from_is_in_the_key(model):
    graph, other = qb.load(model), qb.load(model)
    key = key_of(graph, "host", "fast", 1)
    assert key == key_of(other, "host", "fast", 1)
    other.output_names[0] = "renamed"
    keys = {
        key,
        key_of(other, "host", "fast", 1),
        key_of(graph, "llvm", "fast", 1),
        key_of(graph, "host", "reference", 1),
        key_of(graph, "host", "fast", 2),
        key_of(canonical(conv_model(relu=False)), "host", "fast", 1),
    }
    assert len(keys) == 6


def test_several_processes_write_at_once(model, tmp_path):
    np.savez(model.with_suffix(".npz"), x=X["x"])
    arguments = [sys.executable, "-c", _WRITER, model, tmp_path, model.with_suffix(".npz")]
    writers = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, env=dict(os.environ)) for _ in range(2)
    ]
    found = {writer.communicate(timeout=240)[0] for writer in writers}
    assert all(writer.returncode == 0 for writer in writers) and len(found) == 1
    assert len(list(tmp_path.iterdir())) == 1
    loaded = qb.compile(qb.load(model), cache=tmp_path)
    assert loaded.module is None and outputs(loaded)[0].hex() == found.pop().decode().strip()


def test_a_folder_that_cannot_be_made_is_refused(model, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OutputFileError, match="folder of the cache"):
        qb.compile(qb.load(model), cache=tmp_path / "file")
