"""Tensors and constants: every element type both ways, and every lie a file can tell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.errors import InvalidModelError, ModelFileError, UnsupportedModelError
from qdqbridge.onnx_io.tensors import (
    constant_from_proto,
    dtype_of,
    dtype_to_onnx,
    packed_nbytes,
    proto_from_constant,
)


def sample(dtype: DType, count: int) -> np.ndarray[Any, Any]:
    if dtype is DType.STRING:
        return np.array([f"text {i} é" for i in range(count)], object)
    if dtype is DType.BOOL:
        return np.arange(count) % 3 == 0
    if dtype.is_integer:
        span = dtype.qmax - dtype.qmin + 1
        return np.array([dtype.qmin + (i * 5) % span for i in range(count)], dtype.numpy)
    return np.array([1.0, 2.0, 0.5, 4.0])[np.arange(count) % 4].astype(dtype.numpy)


def tensor(**fields: Any) -> TensorProto:
    given: dict[str, Any] = {"name": "t", "data_type": TensorProto.INT8, "dims": [2, 3], **fields}
    return TensorProto(**given)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (0, 4)], ids=str)
def test_every_element_type_survives_both_ways(dtype: DType, shape: tuple[int, ...]) -> None:
    array = sample(dtype, int(np.prod(shape))).reshape(shape)
    proto = proto_from_constant("t", Constant.of(array))
    onnx.checker.check_tensor(proto)
    back = constant_from_proto(proto, None, "m.onnx")
    assert (back.dtype, back.shape) == (dtype, shape)
    np.testing.assert_array_equal(back.numpy(), array)
    assert not back.numpy().flags.writeable


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.STRING], ids=str)
def test_written_tensors_mean_the_same_to_onnx(dtype: DType) -> None:
    array = sample(dtype, 7)
    proto = proto_from_constant("t", Constant.of(array))
    assert len(proto.raw_data) == packed_nbytes(dtype, 7)
    read = numpy_helper.to_array(proto)
    np.testing.assert_array_equal(read.astype(np.float64), array.astype(np.float64))
    assert read.dtype == array.dtype


@pytest.mark.parametrize(
    "dtype",
    [d for d in DType if d is not DType.STRING],
    ids=str,
)
def test_typed_fields_are_read(dtype: DType) -> None:
    values = sample(dtype, 6)
    proto = helper.make_tensor("t", dtype_to_onnx(dtype), [2, 3], values.ravel())
    assert not proto.HasField("raw_data")
    np.testing.assert_array_equal(
        constant_from_proto(proto, None, "m").numpy(), values.reshape(2, 3)
    )


def test_raw_data_is_not_copied() -> None:
    proto = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "t")
    array = constant_from_proto(proto, None, "m").numpy()
    base = array
    while isinstance(base, np.ndarray):
        assert not base.flags.owndata
        base = base.base
    assert isinstance(base, bytes)


def test_bool_bytes_other_than_one_are_true() -> None:
    proto = tensor(data_type=TensorProto.BOOL, dims=[3], raw_data=b"\x00\x01\x80")
    assert constant_from_proto(proto, None, "m").numpy().tolist() == [False, True, True]


BROKEN = {
    "raw short": tensor(raw_data=bytes(5)),
    "raw long": tensor(raw_data=bytes(7)),
    "no data": tensor(),
    "int4 unpacked": tensor(data_type=TensorProto.INT4, raw_data=bytes(6)),
    "int4 short": tensor(data_type=TensorProto.INT4, dims=[5], raw_data=bytes(2)),
    "negative extent": tensor(dims=[-2, 3], raw_data=bytes(6)),
    "two negative extents": tensor(dims=[-2, -3], raw_data=bytes(6)),
    "huge": tensor(dims=[1 << 40, 3], raw_data=bytes(6)),
    "overflow": tensor(dims=[1 << 62, 1 << 62, 4], raw_data=b""),
    "overflow behind zero": tensor(dims=[0, 1 << 62, 1 << 62], raw_data=b""),
    "wraps to six": tensor(dims=[(1 << 63) - 1, 1 << 62, 6], raw_data=bytes(6)),
    "rank": tensor(dims=[1] * 40, raw_data=bytes(1)),
    "undefined": tensor(data_type=0, raw_data=bytes(6)),
    "unknown": tensor(data_type=77, raw_data=bytes(6)),
    "raw string": tensor(data_type=TensorProto.STRING, raw_data=bytes(6)),
    "bad utf-8": tensor(data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff\xfe"]),
    "typed short": tensor(int32_data=[1, 2, 3]),
    "typed range": tensor(int32_data=[1, 2, 3, 4, 5, 300]),
    "wrong field": tensor(float_data=[1.0] * 6),
    "twice": tensor(raw_data=bytes(6), int32_data=[1] * 6),
    "half patterns": tensor(data_type=TensorProto.FLOAT16, int32_data=[70000] * 6),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_tensors_are_refused_by_name(case: str) -> None:
    with pytest.raises(InvalidModelError) as caught:
        constant_from_proto(BROKEN[case], None, "m.onnx")
    assert "tensor 't'" in caught.value.where and caught.value.why and caught.value.fix


def test_complex_numbers_are_refused_as_unsupported() -> None:
    with pytest.raises(UnsupportedModelError, match="COMPLEX64"):
        dtype_of(TensorProto.COMPLEX64, "m")


def external(
    location: str = "w.bin", dims: tuple[int, ...] = (2, 3), **entries: Any
) -> TensorProto:
    proto = tensor(dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "model"
    (inner / "sub").mkdir(parents=True)
    (inner / "w.bin").write_bytes(bytes(range(64)))
    (inner / "empty.bin").write_bytes(b"")
    (tmp_path / "outside.bin").write_bytes(bytes(64))
    (inner / "link.bin").symlink_to(tmp_path / "outside.bin")
    (inner / "outdir").symlink_to(tmp_path)
    (inner / "good_link.bin").symlink_to(inner / "w.bin")
    return inner


def test_external_data_is_one_map_of_views(folder: Path) -> None:
    first = constant_from_proto(external(offset=4, length=6), folder, "m")
    second = constant_from_proto(external("sub/../w.bin", offset=10), folder, "m")
    third = constant_from_proto(external("good_link.bin"), folder, "m")
    assert first.numpy().tolist() == [[4, 5, 6], [7, 8, 9]]
    assert second.numpy().tolist() == [[10, 11, 12], [13, 14, 15]]
    assert third.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    address = [int(c.numpy().__array_interface__["data"][0]) for c in (first, second, third)]
    assert np.diff(address).tolist() == [6, -10]
    assert type(first.numpy()) is np.ndarray


def test_external_data_may_be_misaligned(folder: Path) -> None:
    proto = external(dims=(3,), offset=1, length=12)
    proto.data_type = TensorProto.FLOAT
    expected = np.frombuffer(bytes(range(1, 13)), np.float32)
    np.testing.assert_array_equal(constant_from_proto(proto, folder, "m").numpy(), expected)


def test_external_sub_byte_data_is_unpacked(folder: Path) -> None:
    proto = external(dims=(3,), offset=0x21, length=2)
    proto.data_type = TensorProto.UINT4
    assert constant_from_proto(proto, folder, "m").numpy().astype(int).tolist() == [1, 2, 2]


ESCAPES = {
    "parent": external("../outside.bin"),
    "dots": external("sub/../../outside.bin"),
    "backslash": external("..\\outside.bin"),
    "absolute": external(os.path.abspath(os.sep) + "etc/passwd"),
    "drive": external("C:\\w.bin"),
    "unc": external("\\\\host\\share\\w.bin"),
    "empty": external(""),
    "nul": external("w.bin\0"),
    "directory": external("sub"),
    "folder itself": external("."),
    "missing": external("nowhere.bin"),
    "through a file": external("w.bin/x"),
    "link": external("link.bin"),
    "linked folder": external("outdir/outside.bin"),
    "empty file": external("empty.bin"),
    "past the end": external(offset=60),
    "far past the end": external(offset=1 << 62),
    "long name": external("x" * 5000),
}


@pytest.mark.parametrize("case", ESCAPES)
def test_external_data_stays_inside_its_folder_and_file(case: str, folder: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        constant_from_proto(ESCAPES[case], folder, "m.onnx")
    assert caught.value.why and caught.value.fix


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": -4},
        {"length": -6},
        {"length": 7},
        {"offset": "1e3"},
        {"offset": "9" * 30},
        {"length": "٣"},
    ],
    ids=str,
)
def test_malformed_external_extents_are_refused(entries: dict[str, Any], folder: Path) -> None:
    with pytest.raises(InvalidModelError):
        constant_from_proto(external(**entries), folder, "m.onnx")


def test_a_location_that_is_no_text_is_refused(folder: Path) -> None:
    data = external("w.bin").SerializeToString().replace(b"w.bin", b"\xff.bin")
    with pytest.raises(InvalidModelError, match="no text"):
        constant_from_proto(TensorProto.FromString(data), folder, "m.onnx")


def test_a_model_in_memory_has_no_external_data() -> None:
    with pytest.raises(ModelFileError, match="in memory"):
        constant_from_proto(external(), None, "m.onnx")
