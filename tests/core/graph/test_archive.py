"""Archives that are damaged, or promise more than there is, end in one clear error."""

import io
import struct
import zipfile

import numpy as np
import pytest
from numpy.lib import format as npy

from qdqbridge.autoquant.profiling.samples import open_samples
from qdqbridge.core.graph.atomic_write import read_arrays
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.errors import InputDataError

PIXELS = np.random.default_rng(0).random((50, 8)).astype(np.float32)


def packed(*members, kind=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return bytearray(file.getvalue())


def header(shape):
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def claims(shape):
    return packed(("x.npy", header(shape) + bytes(64)), kind=zipfile.ZIP_DEFLATED)


def compressed(kind):
    """Returns an archive whose compressed bytes are overwritten in front."""
    data = packed(("x.npy", header(PIXELS.shape) + PIXELS.tobytes()), kind=kind)
    data[45:65] = bytes(20)
    return data


def with_flag(offset, value):
    """Returns an archive that says something else in both of its headers."""
    data = packed(("x.npy", header(PIXELS.shape) + PIXELS.tobytes()))
    directory = data.find(b"PK\1\2")
    data[6 + offset : 8 + offset] = data[directory + 8 + offset : directory + 10 + offset] = (
        struct.pack("<H", value)
    )
    return data


CLAIMED = {
    "2^60 elements": lambda: claims((1 << 60,)),
    "2^62 rows of 2^62": lambda: claims((1 << 62, 1 << 62)),
    "rows of 2^40": lambda: claims((2, 1 << 40)),
    "an extent of -1": lambda: claims((-1, 8)),
    "a sizeless shape": lambda: claims((1,) * 200),
}
DAMAGED = {
    "a text among the arrays": lambda: packed(("read me.txt", b"hello")),
    "an empty member": lambda: packed(("x.npy", b"")),
    "damaged deflate": lambda: compressed(zipfile.ZIP_DEFLATED),
    "damaged lzma": lambda: compressed(zipfile.ZIP_LZMA),
    "damaged bzip2": lambda: compressed(zipfile.ZIP_BZIP2),
    "a compression nobody has": lambda: with_flag(2, 99),
    "an encrypted member": lambda: with_flag(0, 1),
    "a header of brackets": lambda: packed(
        ("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000)
    ),
}


@pytest.mark.parametrize("name", (*CLAIMED, *DAMAGED))
def test_an_archive_that_is_none_is_told(name, tmp_path):
    path = tmp_path / "d.npz"
    path.write_bytes((CLAIMED | DAMAGED)[name]())
    x = Value(TensorType(DType.FLOAT32, ("n", "m") if "rows" in name else ("n", 8)), "x")
    with pytest.raises(InputDataError, match="cannot read the data file"):
        read_arrays(path)
    with pytest.raises(InputDataError):
        for _ in open_samples(path, [x]):
            pass


def test_two_members_of_one_name_are_told(tmp_path):
    array = header((1,)) + bytes(4)
    with pytest.warns(UserWarning, match="Duplicate"):
        (tmp_path / "d.npz").write_bytes(packed(("x.npy", array), ("x.npy", array)))
    with pytest.raises(InputDataError, match=r"'x\.npy' twice"):
        read_arrays(tmp_path / "d.npz")


def test_what_unpacks_to_more_than_memory_is_not_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros((100, 1000), np.float32))
    monkeypatch.setattr("qdqbridge.core.graph.atomic_write.most_bytes", lambda: 100_000)
    with pytest.raises(InputDataError, match="unpacked it has 400128 bytes"):
        read_arrays(tmp_path / "d.npz")
