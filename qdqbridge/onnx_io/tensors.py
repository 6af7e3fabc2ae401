"""ONNX tensors and constants, both ways, without trusting what a file says about itself.

Sizes are checked before anything is read or allocated. Sub-byte elements are packed with the
first element in the low bits (ONNX ``TensorProto``, field ``int32_data``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from qdqbridge.core.graph.constant import Constant, HeldBytes, StoredBytes, parts
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from qdqbridge.onnx_io.external_data import external_bytes
from qdqbridge.onnx_io.reading.model_file import bytes_apart
from qdqbridge.onnx_io.reading.structure import subgraphs

_ONNX_NAMES = {
    "FLOAT": DType.FLOAT32,
    "UINT8": DType.UINT8,
    "INT8": DType.INT8,
    "UINT16": DType.UINT16,
    "INT16": DType.INT16,
    "INT32": DType.INT32,
    "INT64": DType.INT64,
    "STRING": DType.STRING,
    "BOOL": DType.BOOL,
    "FLOAT16": DType.FLOAT16,
    "DOUBLE": DType.FLOAT64,
    "UINT32": DType.UINT32,
    "UINT64": DType.UINT64,
    "BFLOAT16": DType.BFLOAT16,
    "FLOAT8E4M3FN": DType.FLOAT8_E4M3FN,
    "FLOAT8E4M3FNUZ": DType.FLOAT8_E4M3FNUZ,
    "FLOAT8E5M2": DType.FLOAT8_E5M2,
    "FLOAT8E5M2FNUZ": DType.FLOAT8_E5M2FNUZ,
    "UINT4": DType.UINT4,
    "INT4": DType.INT4,
    "FLOAT4E2M1": DType.FLOAT4_E2M1,
    "FLOAT6E2M3": DType.FLOAT6_E2M3,
    "FLOAT6E3M2": DType.FLOAT6_E3M2,
    "FLOAT8E8M0": DType.FLOAT8_E8M0,
    "UINT2": DType.UINT2,
    "INT2": DType.INT2,
}
_CODES = dict(TensorProto.DataType.items())
_BY_CODE = {_CODES[name]: dtype for name, dtype in _ONNX_NAMES.items() if name in _CODES}
_CODE_OF = {dtype: code for code, dtype in _BY_CODE.items()}

_TYPED_FIELDS = (
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
)
_FIELD_OF = {
    DType.FLOAT32: "float_data",
    DType.FLOAT64: "double_data",
    DType.INT64: "int64_data",
    DType.UINT64: "uint64_data",
    DType.UINT32: "uint64_data",
    DType.STRING: "string_data",
}
_SIXES, _TRIPLE = 4, 3
"""Codes of 6 bits, and the bytes that they take together."""
_MAX_BYTES = 2**63 - 1
_MAX_RANK = 32
"""NumPy 1.26's limit; no real tensor comes near it."""


def dtype_of(code: int, where: str) -> DType:
    """Returns the element type of an ONNX ``data_type`` number.

    Raises:
        InvalidModelError: The number is 0 (undefined) or unknown to ONNX.
        UnsupportedModelError: ONNX knows the type and there is no counterpart here.
    """
    dtype = _BY_CODE.get(code)
    if dtype is not None:
        return dtype
    names = {number: name for name, number in _CODES.items()}
    if code == TensorProto.UNDEFINED or code not in names:
        raise InvalidModelError(
            "a tensor has no known element type",
            where=where,
            why=f"data_type is {code}" + (" (undefined)" if code == 0 else ""),
            fix="export the model again; the file is damaged or newer than this program",
        )
    raise UnsupportedModelError(
        f"element type {names[code]} has no counterpart here",
        where=where,
        why=f"data_type is {code}",
        fix="cast the tensor to a supported type before exporting",
    )


def dtype_to_onnx(dtype: DType) -> int:
    """Returns the ONNX ``data_type`` number of an element type."""
    return _CODE_OF[dtype]


def onnx_name(dtype: DType) -> str:
    """Returns the name of an element type in the types of ONNX's schemas."""
    return TensorProto.DataType.Name(dtype_to_onnx(dtype)).lower()


def packed_nbytes(dtype: DType, count: int) -> int:
    """Returns the bytes that ``count`` elements take in a file."""
    return -(-count * dtype.bits // 8)


def constant_from_proto(tensor: TensorProto, folder: Path | None, where: str) -> Constant:
    """Returns the constant that a ``TensorProto`` describes.

    Args:
        tensor: The tensor; its bytes may lie in another file.
        folder: Folder of the model file; None for a model that was not read from a file.
        where: File and tensor, for messages.

    Raises:
        ModelFileError: External data is missing, too short, or outside ``folder``.
        InvalidModelError: Type, extents and data of the tensor contradict each other.
        UnsupportedModelError: An element type without counterpart.
    """
    if tensor.name:
        where = f"{where}, tensor '{tensor.name}'"
    dtype = dtype_of(tensor.data_type, where)
    shape = _checked_shape(tensor.dims, dtype, where)
    _check_one_source(tensor, where)
    apart = bytes_apart(tensor)
    if apart is not None:
        return _raw_constant(apart, dtype, shape, where)
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external_constant(tensor, dtype, shape, folder, where)
    if tensor.HasField("raw_data"):
        return _raw_constant(np.frombuffer(tensor.raw_data, np.uint8), dtype, shape, where)
    return _typed_constant(tensor, dtype, shape, where)


def proto_from_constant(name: str, constant: Constant) -> TensorProto:
    """Returns the ``TensorProto`` of a constant, its bytes in ``raw_data``."""
    tensor = TensorProto(name=name, data_type=dtype_to_onnx(constant.dtype), dims=constant.shape)
    if constant.dtype is DType.STRING:
        tensor.string_data.extend(str(text).encode() for text in constant.numpy().ravel())
    else:
        tensor.raw_data = raw_bytes(constant)
    return tensor


def embed_external_data(node: NodeProto, folder: Path, where: str) -> None:
    """Brings external data of a node's attributes, and of all inside its subgraphs, into the node.

    Raises:
        ModelFileError: The data cannot be read.
    """
    for attribute in node.attribute:
        if attribute.HasField("t") and attribute.t.data_location == TensorProto.EXTERNAL:
            constant = constant_from_proto(attribute.t, folder, where)
            attribute.t.CopyFrom(proto_from_constant(attribute.t.name, constant))
    for body in subgraphs(node):
        for tensor in body.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                constant = constant_from_proto(tensor, folder, where)
                tensor.CopyFrom(proto_from_constant(tensor.name, constant))
        for inner in body.node:
            embed_external_data(inner, folder, where)


def raw_bytes(constant: Constant) -> bytes:
    """Returns a numeric constant as ONNX stores it: little-endian, sub-byte types packed."""
    return b"".join(part.tobytes() for part in raw_parts(constant))


def raw_parts(constant: Constant) -> Iterator[NDArray[np.uint8]]:
    """Yields the bytes of :func:`raw_bytes` in pieces, without a copy of the whole.

    Each piece is to be used before the next one is asked for.
    """
    # A last byte that is not full is packed anew: what a file has in the rest of it is no element.
    held = constant.packed() if constant.size * constant.dtype.bits % 8 == 0 else None
    if held is not None:
        yield held
    elif constant.dtype.bits >= 8:
        yield from parts(constant.numpy())
    else:
        array = np.ascontiguousarray(constant.numpy()).ravel()
        if constant.dtype.is_integer:
            array = array.astype(np.int8)
        yield _pack(array.view(np.uint8), constant.dtype.bits)
    constant.release()


def _product_of_extents(shape: Iterable[int]) -> int:
    # Python's integers: NumPy's product of what a file says may overflow, and look small.
    count = 1
    for extent in shape:
        count *= extent
    return count


def _checked_shape(dims: Iterable[int], dtype: DType, where: str) -> tuple[int, ...]:
    shape = tuple(int(extent) for extent in dims)
    if any(extent < 0 for extent in shape):
        raise InvalidModelError(
            "a tensor has a negative extent",
            where=where,
            why=f"its dims are {list(shape)}",
            fix="export the model again",
        )
    # Zero extents are left out: NumPy refuses (0, 2**62, 2**62) as well.
    nbytes = packed_nbytes(dtype, _product_of_extents(extent for extent in shape if extent))
    if nbytes > _MAX_BYTES or len(shape) > _MAX_RANK:
        raise InvalidModelError(
            "a tensor is larger than anything can hold",
            where=where,
            why=f"its dims are {list(shape)}",
            fix="export the model again",
        )
    return shape


def _check_one_source(tensor: TensorProto, where: str) -> None:
    filled = [field for field in _TYPED_FIELDS if len(getattr(tensor, field))]
    if tensor.HasField("raw_data"):
        filled.append("raw_data")
    if tensor.data_location == TensorProto.EXTERNAL:
        filled = [field for field in filled if field != "raw_data" or tensor.raw_data]
        filled.append("external_data")
    if len(filled) > 1:
        raise InvalidModelError(
            "a tensor holds its data twice",
            where=where,
            why=f"both {' and '.join(filled)} are filled",
            fix="export the model again",
        )


def _wrong_size(
    where: str, shape: tuple[int, ...], dtype: DType, need: str, have: str
) -> InvalidModelError:
    return InvalidModelError(
        "a tensor's data does not fit its shape",
        where=where,
        why=f"{dtype}{list(shape)} takes {need}, and there are {have}",
        fix="export the model again; the file is damaged",
    )


def _raw_constant(
    raw: NDArray[np.uint8], dtype: DType, shape: tuple[int, ...], where: str
) -> Constant:
    need = packed_nbytes(dtype, _product_of_extents(shape))
    if dtype is DType.STRING:
        raise InvalidModelError(
            "a string tensor has raw_data",
            where=where,
            why="strings are stored in string_data",
            fix="export the model again",
        )
    if len(raw) != need:
        raise _wrong_size(where, shape, dtype, f"{need} bytes", str(len(raw)))
    return from_bytes(raw, dtype, shape)


def from_bytes(data: NDArray[np.uint8], dtype: DType, shape: tuple[int, ...]) -> Constant:
    """Returns a constant over bytes in memory: a view, or unpacked when first looked at."""
    held = HeldBytes(data)
    stored = StoredBytes(held.load, _decode_bytes, move=held.move)
    return Constant.stored(dtype, shape, stored)


def _decode_bytes(
    data: NDArray[np.uint8], dtype: DType, shape: tuple[int, ...]
) -> NDArray[np.generic]:
    if dtype is DType.BOOL:
        return (data != 0).reshape(shape)
    if dtype.bits >= 8:
        return data.view(dtype.numpy).reshape(shape)
    codes = _unpack(data, dtype.bits, _product_of_extents(shape))
    if not dtype.is_integer:
        return codes.view(dtype.numpy).reshape(shape)
    if dtype.is_signed:
        half = np.uint8(1 << (dtype.bits - 1))
        # Carries the sign bit of a narrow code on to all bits of its byte.
        codes = ((codes ^ half) - half).view(np.int8)
    return codes.astype(dtype.numpy).reshape(shape)


def _unpack(data: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    if 8 % bits:
        return _unpack_sixes(data, count)
    per_byte = 8 // bits
    codes = np.empty((data.size, per_byte), np.uint8)
    for place in range(per_byte):
        np.right_shift(data, np.uint8(place * bits), out=codes[:, place])
    codes &= np.uint8((1 << bits) - 1)
    return codes.ravel()[:count]


def _unpack_sixes(data: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Four codes of 6 bits lie in three bytes, the first one in the lowest bits."""
    groups = -(-count // _SIXES)
    whole = np.zeros(groups * _TRIPLE, np.uint8)
    whole[: data.size] = data[: whole.size]
    a, b, c = (whole[i::_TRIPLE] for i in range(_TRIPLE))
    codes = np.empty((groups, _SIXES), np.uint8)
    codes[:, 0], codes[:, 1] = a, a >> 6 | b << 2
    codes[:, 2], codes[:, 3] = b >> 4 | c << 4, c >> 2
    codes &= np.uint8(63)
    return codes.ravel()[:count]


def _pack_sixes(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    padded = np.zeros(-(-codes.size // _SIXES) * _SIXES, np.uint8)
    padded[: codes.size] = codes.ravel() & np.uint8(63)
    p, q, r, s = (padded[i::_SIXES] for i in range(_SIXES))
    packed = np.empty((len(p), _TRIPLE), np.uint8)
    packed[:, 0], packed[:, 1], packed[:, 2] = p | q << 6, q >> 2 | r << 4, r >> 4 | s << 2
    return packed.ravel()[: -(-codes.size * 6 // 8)]


def _pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    if 8 % bits:
        return _pack_sixes(codes)
    per_byte = 8 // bits
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, np.uint8)
    padded[: codes.size] = codes & np.uint8((1 << bits) - 1)
    places = padded.reshape(-1, per_byte)
    packed = np.zeros(len(places), np.uint8)
    for place in range(per_byte):
        packed |= places[:, place] << np.uint8(place * bits)
    return packed


def _typed_constant(
    tensor: TensorProto, dtype: DType, shape: tuple[int, ...], where: str
) -> Constant:
    field = _FIELD_OF.get(dtype, "int32_data")
    values: Any = getattr(tensor, field)
    count = _product_of_extents(shape)
    # Elements of 2 or 4 bits share bytes; those of 6 bits, which do not divide 8, have one each.
    together = 0 < dtype.bits < 8 and 8 % dtype.bits == 0
    need = packed_nbytes(dtype, count) if together else count
    if len(values) != need:
        have = next((f for f in _TYPED_FIELDS if len(getattr(tensor, f))), "no data")
        found = f"{len(values)} there" if have in (field, "no data") else f"its data in {have}"
        raise _wrong_size(where, shape, dtype, f"{need} entries of {field}", found)
    if dtype is DType.STRING:
        return Constant.of(_strings(values, shape, where))
    if field != "int32_data":
        # ONNX keeps uint32 in uint64_data, so a number may not fit: that is an error, not a wrap.
        source = {DType.UINT32: np.uint64}.get(dtype, dtype.numpy)
        return Constant.of(_fitting(np.fromiter(values, source, need), dtype, where).reshape(shape))
    numbers = np.fromiter(values, np.int32, need)
    if dtype.bits < 8 and not together:
        codes = (numbers & ((1 << dtype.bits) - 1)).astype(np.uint8)
        return Constant.of(codes.view(dtype.numpy).reshape(shape))
    if dtype.bits < 8:
        return from_bytes(_bit_patterns(numbers, 8, where), dtype, shape)
    if dtype.is_float:
        return from_bytes(_bit_patterns(numbers, dtype.bits, where).view(np.uint8), dtype, shape)
    if dtype is DType.BOOL:
        return Constant.of((numbers != 0).reshape(shape))
    return Constant.of(_fitting(numbers, dtype, where).reshape(shape))


def _fitting(numbers: NDArray[Any], dtype: DType, where: str) -> NDArray[Any]:
    if (
        dtype.is_integer
        and numbers.size
        and (int(numbers.min()) < dtype.qmin or int(numbers.max()) > dtype.qmax)
    ):
        raise InvalidModelError(
            f"a tensor holds numbers that {dtype} cannot",
            where=where,
            why=f"they lie in {int(numbers.min())}..{int(numbers.max())}",
            fix="export the model again",
        )
    return numbers.astype(dtype.numpy, copy=False)


def _bit_patterns(numbers: NDArray[np.int32], bits: int, where: str) -> NDArray[Any]:
    """Returns ``bits``-wide patterns stored one per int32 (sign-extended ones are accepted)."""
    if numbers.size and (numbers.min() < -(1 << (bits - 1)) or numbers.max() >= 1 << bits):
        raise InvalidModelError(
            f"a tensor holds entries wider than {bits} bits",
            where=where,
            why=f"they lie in {int(numbers.min())}..{int(numbers.max())}",
            fix="export the model again",
        )
    return numbers.astype(np.uint8 if bits == 8 else np.uint16)


def _strings(values: Iterable[bytes], shape: tuple[int, ...], where: str) -> NDArray[Any]:
    try:
        texts = [value.decode() for value in values]
    except UnicodeDecodeError as error:
        raise InvalidModelError(
            "a string tensor is not UTF-8",
            where=where,
            why=str(error),
            fix="export the model again",
        ) from error
    # An array of NumPy's own texts would lose zeros at their ends.
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def _external_constant(
    tensor: TensorProto, dtype: DType, shape: tuple[int, ...], folder: Path | None, where: str
) -> Constant:
    if dtype is DType.STRING:
        raise InvalidModelError(
            "a string tensor lies in external data",
            where=where,
            why="ONNX stores strings in string_data only",
            fix="export the model again",
        )
    found = external_bytes(tensor, packed_nbytes(dtype, _product_of_extents(shape)), folder, where)
    stored = StoredBytes(found.load, _decode_bytes, found.release)
    return Constant.stored(dtype, shape, stored, found.check)
