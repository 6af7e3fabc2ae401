"""What was compiled once is loaded: the same results, and nothing wrong ever."""

import os
import subprocess
import sys

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.errors import OutputFileError
from qdqbridge.tvm.relax.compile_cache import key_of
from tests.places import MODELS

MODEL = MODELS / "digits_cnn_u8s8_per_channel.onnx"
X = {"input": np.load(MODELS / "digits_test.npz")["x"][:3]}
_WRITER = """
import sys
import numpy as np
import qdqbridge as qb
made = qb.compile(qb.load(sys.argv[1]), cache=sys.argv[2])
x = np.load(sys.argv[3])["x"][:3]
print(next(iter(made.run({"input": x}).values())).tobytes().hex())
"""


def outputs(executable):
    return [array.tobytes() for array in executable.run(X).values()]


def test_the_second_time_is_loaded_and_damage_is_compiled_anew(tmp_path, caplog):
    graph = qb.load(MODEL)
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


def test_whatever_code_follows_from_is_in_the_key(tmp_path):
    graph, other = qb.load(MODEL), qb.load(MODEL)
    key = key_of(graph, "host", "fast", 1)
    assert key == key_of(other, "host", "fast", 1)
    other.output_names[0] = "renamed"
    keys = {
        key,
        key_of(other, "host", "fast", 1),
        key_of(graph, "llvm", "fast", 1),
        key_of(graph, "host", "reference", 1),
        key_of(graph, "host", "fast", 2),
        key_of(qb.load(MODELS / "digits_cnn_s8s8_per_tensor.onnx"), "host", "fast", 1),
    }
    assert len(keys) == 6


def test_several_processes_write_at_once(tmp_path):
    arguments = [sys.executable, "-c", _WRITER, MODEL, tmp_path, MODELS / "digits_test.npz"]
    writers = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, env=dict(os.environ)) for _ in range(3)
    ]
    found = {writer.communicate(timeout=240)[0] for writer in writers}
    assert all(writer.returncode == 0 for writer in writers) and len(found) == 1
    assert len(list(tmp_path.iterdir())) == 1
    loaded = qb.compile(qb.load(MODEL), cache=tmp_path)
    assert loaded.module is None and outputs(loaded)[0].hex() == found.pop().decode().strip()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OutputFileError, match="folder of the cache"):
        qb.compile(qb.load(MODEL), cache=tmp_path / "file")
