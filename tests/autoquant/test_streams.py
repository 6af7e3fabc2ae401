import numpy as np
import pytest

from qdqbridge.autoquant.profiling.samples import Samples, open_samples
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.errors import InputDataError

X = Value(TensorType(DType.FLOAT32, ("n", 2, 3)), "x")
Y = Value(TensorType(DType.INT64, ("n",)), "y")
ARRAY = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
NUMBERS = np.arange(10)


def rows(path, inputs, **more):
    samples = open_samples(path, inputs, **more)
    found = list(samples)
    assert len(found) == len(samples)
    return {v.name: np.concatenate([sample[v.name] for sample in found]) for v in inputs}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_row_by_row(save, tmp_path):
    save(tmp_path / "d.npz", x=ARRAY, y=NUMBERS, labels=NUMBERS)
    said = []
    found = rows(tmp_path / "d.npz", [X, Y], warn=said.append)
    assert np.array_equal(found["x"], ARRAY)
    assert np.array_equal(found["y"], NUMBERS)
    assert said == ["the array 'labels' is ignored: the model has no input of that name"]
    said.clear()
    rows(tmp_path / "d.npz", [X, Y], warn=said.append, labelled=True)
    assert not said


def test_a_folder_in_the_order_of_names(tmp_path):
    np.savez(tmp_path / "b.npz", x=ARRAY[4:])
    np.savez(tmp_path / "a.npz", other=ARRAY[:4])
    assert np.array_equal(rows(tmp_path, [X])["x"], ARRAY)


def test_a_bare_array_and_one_by_columns(tmp_path):
    np.save(tmp_path / "d.npy", ARRAY)
    assert np.array_equal(rows(tmp_path / "d.npy", [X])["x"], ARRAY)
    np.savez(tmp_path / "f.npz", x=np.asfortranarray(ARRAY))
    assert np.array_equal(rows(tmp_path / "f.npz", [X])["x"], ARRAY)


def test_a_model_that_takes_several_examples(tmp_path):
    fixed = Value(TensorType(DType.FLOAT32, (5, 2, 3)), "x")
    np.savez(tmp_path / "d.npz", x=ARRAY)
    samples = open_samples(tmp_path / "d.npz", [fixed])
    assert [sample["x"].shape for sample in samples] == [(5, 2, 3)] * 2
    assert list(samples)[1]["x"][0, 0, 0] == ARRAY[5, 0, 0]
    np.savez(tmp_path / "d.npz", x=ARRAY[:7])
    with pytest.raises(InputDataError, match="left over"):
        open_samples(tmp_path / "d.npz", [fixed])


def test_what_is_no_data(tmp_path):
    with pytest.raises(InputDataError, match="holds no data"):
        open_samples(tmp_path, [X])
    with pytest.raises(InputDataError, match="cannot read"):
        open_samples(tmp_path / "none.npz", [X])
    (tmp_path / "d.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(InputDataError, match="cannot read"):
        open_samples(tmp_path / "d.npz", [X])
    np.savez(tmp_path / "d.npz", x=ARRAY, z=ARRAY)
    with pytest.raises(InputDataError, match="not the inputs"):
        open_samples(tmp_path / "d.npz", [X])
    np.savez(tmp_path / "d.npz", x=ARRAY, y=NUMBERS[:3])
    with pytest.raises(InputDataError, match="same number"):
        open_samples(tmp_path / "d.npz", [X, Y])
    np.savez(tmp_path / "d.npz", x=np.array([{}, {}]))
    with pytest.raises(InputDataError, match="objects"):
        open_samples(tmp_path / "d.npz", [X])


def test_samples_that_are_none_of_the_model():
    with pytest.raises(InputDataError, match="shape"):
        Samples.of([X, Y], {"x": ARRAY[:, :1], "y": NUMBERS})
    with pytest.raises(InputDataError, match="type"):
        Samples.of([X, Y], {"x": ARRAY, "y": NUMBERS.astype(np.float32)})


def test_a_file_that_ends_too_early(tmp_path):
    np.save(tmp_path / "d.npy", ARRAY)
    whole = (tmp_path / "d.npy").read_bytes()
    (tmp_path / "d.npy").write_bytes(whole[:-30])
    samples = open_samples(tmp_path / "d.npy", [X])
    with pytest.raises(InputDataError, match="ends too early"):
        list(samples)
