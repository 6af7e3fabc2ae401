"""What users do wrong with data files, and what they are reported."""

import re
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy

from qdqbridge.app.cli.failures import run
from qdqbridge.app.cli.files import read_inputs
from qdqbridge.core.graph.atomic_write import write_arrays
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.errors import InputDataError, OutputFileError
from tests.places import MODELS

IMAGE = Value(TensorType(DType.FLOAT32, ("batch", 1, 8, 8)), "image")
MASK = Value(TensorType(DType.FLOAT32, ("batch", 8)), "mask")
PIXELS = np.zeros((5, 1, 8, 8), np.float32)


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def refused(path, inputs, match):
    with pytest.raises(InputDataError, match=match) as caught:
        read_inputs(path, inputs)
    assert str(path) in caught.value.where
    assert caught.value.fix
    return caught.value


def test_arrays_are_found_by_name(tmp_path):
    path = saved(tmp_path / "d.npz", mask=np.ones((5, 8), np.float32), image=PIXELS)
    assert set(read_inputs(path, [IMAGE, MASK])) == {"image", "mask"}


def test_the_only_array_of_the_only_input_may_have_any_name_and_a_warning_says_so(tmp_path, capsys):
    assert set(read_inputs(saved(tmp_path / "d.npz", x=PIXELS), [IMAGE])) == {"image"}
    assert capsys.readouterr().err == (
        "warning: the array 'x' is fed to the model's only input, 'image'\n"
    )
    read_inputs(saved(tmp_path / "d.npz", image=PIXELS), [IMAGE])
    assert capsys.readouterr().err == ""


def test_an_npy_file_has_no_names_to_warn_about(tmp_path, capsys):
    np.save(tmp_path / "d.npy", PIXELS)
    assert set(read_inputs(tmp_path / "d.npy", [IMAGE])) == {"image"}
    assert capsys.readouterr().err == ""


def test_labels_are_left_out_with_a_warning(tmp_path, capsys):
    path = saved(tmp_path / "d.npz", x=PIXELS, labels=np.arange(5))
    assert set(read_inputs(path, [IMAGE])) == {"image"}
    assert "warning: the array 'labels'" in capsys.readouterr().err


def test_other_extra_arrays_are_an_error(tmp_path):
    path = saved(tmp_path / "d.npz", image=PIXELS, extra=np.arange(5))
    assert "unknown: extra" in refused(path, [IMAGE], "not the inputs of the model").why


def test_missing_arrays_are_named(tmp_path):
    error = refused(saved(tmp_path / "d.npz", image=PIXELS), [IMAGE, MASK], "not the inputs")
    assert "missing: mask" in error.why


@pytest.mark.parametrize(
    ("shape", "fix"),
    [
        ((5, 8, 8), "numpy.expand_dims(array, 1)"),
        ((1, 8, 8), "numpy.expand_dims(array, 0)"),
        ((5, 64), "reshape"),
    ],
)
def test_a_wrong_number_of_axes_is_explained(tmp_path, shape, fix):
    error = refused(saved(tmp_path / "d.npz", image=np.zeros(shape)), [IMAGE], "axes")
    assert str(list(shape)) in error.why
    assert fix in error.fix


def test_files_that_are_no_data(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npz").write_bytes(b"")
    whole = saved(tmp_path / "whole.npz", image=PIXELS).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "objects.npz", image=np.array([{}, "text"], dtype=object))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    names = ("missing.npz", "text.npz", "empty.npz", "cut.npz", "objects.npz", "objects.npy", ".")
    for name in names:
        refused(tmp_path / name, [IMAGE], "cannot read the data file")


def test_damaged_elements_are_found(tmp_path):
    path = saved(tmp_path / "d.npz", image=np.ones((5, 1, 8, 8), np.float32))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    refused(path, [IMAGE], "cannot read the data file")


def test_any_name_can_be_written(tmp_path):
    arrays = {"file": np.arange(3), "a/b:0": np.ones((2, 2), np.float32)}
    write_arrays(tmp_path / "o.npz", arrays)
    with np.load(tmp_path / "o.npz") as read:
        assert {name: read[name].tolist() for name in read.files} == {
            name: array.tolist() for name, array in arrays.items()
        }


def test_writing_into_nowhere_is_our_error(tmp_path):
    with pytest.raises(OutputFileError, match="cannot write"):
        write_arrays(tmp_path / "no" / "o.npz", {"x": PIXELS})


FLOAT = str(MODELS / "digits_cnn_float.onnx")
QUANTIZED = str(MODELS / "digits_cnn_u8s8_per_channel.onnx")


def written(name):
    """Writes a data file of some kind; returns its name."""
    whole = BytesIO()
    np.savez(whole, input=PIXELS)
    members = {
        "empty.npz": b"",
        "begun.npz": b"\x93NUMPY\x01",
        "words.npz": b"\x93NUMPY\x01\x00v\x00{",
    }
    if name == "channels_last.npz":
        np.savez(name, input=PIXELS.reshape(5, 8, 8, 1))
    elif name == "bomb.npz":
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 1, 8, 8)}
        with (
            zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("input.npy", "w") as member,
        ):
            npy.write_array_header_1_0(member, header)
            for _ in range(256):
                member.write(bytes(1 << 20))
    elif name in members:
        with zipfile.ZipFile(name, "w") as archive:
            archive.writestr("input.npy", members[name])
    elif name != "none.npz":
        data = {"cut.npz": whole.getvalue()[:300], "zero.npz": b"", "text.npz": b"hello"}[name]
        Path(name).write_bytes(data)
    return name


VERBS = {
    "run": [QUANTIZED], "compare": [QUANTIZED], "quantize": [FLOAT, "-o", "q.onnx"],
    "profile": [FLOAT, "-o", "p.json"],
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none.npz", "No such file"), ("cut.npz", "it is damaged"), ("zero.npz", "it is damaged"),
        ("text.npz", "it is damaged"), ("begun.npz", "it is damaged"), ("words.npz", "damaged"),
        ("channels_last.npz", r"\(5, 8, 8, 1\)"),
    ],
)  # fmt: skip
def test_data_that_nobody_can_read(verb, name, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run([verb, *VERBS[verb], "--data", written(name)]) == 3
    said = capsys.readouterr().err
    assert re.search(why, said) and "fix" in said
    assert not re.search("EOF|magic|zip file|pickle", said)


@pytest.mark.parametrize("verb", ["run", "quantize", "profile", "export", "view", "fix"])
def test_names_that_no_file_has(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", input=np.zeros((1, 1, 8, 8), np.float32))
    model = [FLOAT if verb in ("quantize", "profile") else QUANTIZED]
    rest = {"export": [], "view": [], "fix": ["--for", "ort"]}.get(verb, ["--data", "d.npz"])
    suffix = {"view": ".html", "profile": ".json", "run": ".npz"}
    for name, why in (("a" * 300, "a" * 300 + ".*too long"), ("a\0b", "it holds a NUL")):
        path = name + suffix.get(verb, ".onnx")
        assert run([verb, *model, *rest, "-o", path]) == 3
        assert re.search(f"(?s){why}", capsys.readouterr().err)


def test_kilobytes_that_stand_for_gigabytes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["run", QUANTIZED, "--data", written("bomb.npz")]) == 3
    assert "times those in the file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["view", QUANTIZED], "--output"), (["run", QUANTIZED], "--data"), (["inspect"], "MODEL"),
        (["compare", QUANTIZED], "--data"), (["profile", FLOAT, "-o", "p.json"], "--data"),
        (["quantize", FLOAT, "-o", "q.onnx"], "--data"), (["diff", QUANTIZED], "B"),
        (["quantize", FLOAT, "-o", "q.onnx", "--min-sqnr", "30"], "--data"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_to_be_and_is_a_matter_of_usage(arguments, missing, capsys):
    assert run(arguments) == 2
    assert f"{missing} is missing" in capsys.readouterr().err


def test_an_option_without_its_value_is_not_missing(capsys):
    assert run(["run", QUANTIZED, "--data"]) == 2
    assert "--data requires an argument" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a" * 300 + ".txt", "é" * 200 + ".txt"])
def test_names_that_are_too_long(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["canonicalize", QUANTIZED, "-o", name]) == 3
    assert "give a shorter name" in capsys.readouterr().err
