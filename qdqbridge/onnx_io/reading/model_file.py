"""From a path to a ModelProto whose header makes sense. External data stays on disk."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import StringStringEntryProto, TensorProto
from onnx.external_data_helper import uses_external_data

from qdqbridge.core.graph.graph import Header
from qdqbridge.errors import InvalidModelError, ModelFileError
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS

OLDEST_OPSET, OLDEST_IR = 1, 3


def read_model(path: Path) -> onnx.ModelProto:
    """Parses the file and checks its header.

    Raises:
        ModelFileError: The file is missing, empty, truncated or not ONNX.
        InvalidModelError: Its IR version or opset is one that ONNX does not have.
    """
    return _read_file_or_explain(path, lambda path: (path.read_bytes(), []))[0]


def read_model_apart(path: Path) -> tuple[onnx.ModelProto, list[Bytes]]:
    """Does the same without the bytes of large initializers, which come beside the model.

    Raises:
        ModelFileError: The file is missing, empty, truncated or not ONNX.
        InvalidModelError: Its IR version or opset is one that ONNX does not have.
    """
    return _read_file_or_explain(path, read_apart)


def has_files_beside(path: Path) -> bool:
    """True where tensors of a model are in other files, which a copy of this one would not have.

    Raises:
        ModelFileError: The file is missing, empty, truncated or not ONNX.
    """
    model, _ = read_model_apart(path)
    return any(map(uses_external_data, model.graph.initializer))


def _read_file_or_explain(
    path: Path, read: Callable[[Path], tuple[bytes, list[Bytes]]]
) -> tuple[onnx.ModelProto, list[Bytes]]:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ValueError("it is a pipe or a device, which need not end")
        data, apart = read(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ModelFileError(
            "cannot read the model file",
            where=str(path),
            why=getattr(error, "strerror", None) or str(error),
            fix="check the path and its permissions",
        ) from error
    model = _parse(data, path)
    _check_header(model, path)
    return model, apart


def _parse(data: bytes, path: Path) -> onnx.ModelProto:
    if not data:
        raise ModelFileError(
            "the model file is empty",
            where=str(path),
            why="it has 0 bytes",
            fix="export or download it again",
        )
    if data.startswith(b"version https://git-lfs"):
        raise ModelFileError(
            "the file is a Git LFS pointer, not the model",
            where=str(path),
            why="it begins with 'version https://git-lfs'",
            fix="run 'git lfs pull' in the repository it comes from",
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelFileError(
            "the file is not an ONNX model, or it is truncated",
            where=str(path),
            why=f"protobuf cannot parse its {len(data)} bytes",
            fix="export or download it again",
        ) from error
    if not model.HasField("graph") or not model.ir_version:
        raise ModelFileError(
            "the file holds no ONNX graph",
            where=str(path),
            why="the graph or the IR version is missing",
            fix="check that this is an ONNX file, not another format renamed",
        )
    return model


def _check_header(model: onnx.ModelProto, path: Path) -> None:
    if not OLDEST_IR <= model.ir_version <= onnx.IR_VERSION:
        raise InvalidModelError(
            f"IR version {model.ir_version} is not known",
            where=str(path),
            why=f"versions {OLDEST_IR} to {onnx.IR_VERSION} exist for onnx {onnx.__version__}",
            fix="upgrade the onnx package, or export with an older one",
        )
    domains = [entry.domain for entry in model.opset_import]
    own = [node.op_type for node in model.graph.node if node.domain in ONNX_DOMAINS]
    if not domains or (own and not set(domains) & set(ONNX_DOMAINS)):
        raise InvalidModelError(
            "the model does not say which opset it uses",
            where=str(path),
            why=f"opset_import lists {domains or 'nothing'}",
            fix="add an opset_import entry for the default domain",
        )
    newest = onnx.defs.onnx_opset_version()
    opset = default_opset(model)
    if set(domains) & set(ONNX_DOMAINS) and not OLDEST_OPSET <= opset <= newest:
        raise InvalidModelError(
            f"opset {opset} is not supported",
            where=str(path),
            why=f"this reads opsets {OLDEST_OPSET} to {newest} (onnx {onnx.__version__})",
            fix="convert the model with onnx.version_converter, or upgrade the onnx package",
        )


def default_opset(model: onnx.ModelProto) -> int:
    """Returns the opset of the default domain (the newest listed, 0 if none)."""
    return max(
        (entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS), default=0
    )


# ---- What an ONNX file says about itself


def header(path: Path) -> Header:
    """Returns versions, producer and operator counts of a model file.

    Raises:
        ModelFileError: The file cannot be read.
        InvalidModelError: Its header makes no sense.
    """
    model = read_model(path)
    names = (f"{node.domain}.{node.op_type}".removeprefix("ai.onnx") for node in model.graph.node)
    return Header(
        file=path.name,
        ir_version=model.ir_version,
        opsets={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        operators=dict(Counter(name.lstrip(".") for name in names).most_common()),
    )


# ---- A model file whose large initializers are read straight into arrays of their own
#
# Protobuf wants the whole file in memory, copies it into a message, and copies a tensor's bytes
# once more for whoever asks. Here the file is walked in protobuf's wire format, and the bytes of
# a large initializer leave it. What stays in the message says where they are as external data do,
# under a location that no file can have.

Bytes = NDArray[np.uint8]
LARGE = 1 << 16
"""Bytes of a field from which it is read apart."""

_TO_THE_DATA = tuple(number << 3 | 2 for number in (7, 5, 9))
"""Tags of onnx.proto: a model's graph, its initializers, their ``raw_data``."""
_BESIDE_THE_DATA = (1, 2, 8, 9, 12, 16)
"""Fields of a tensor that say nothing of its elements, and ``raw_data``."""
_VARINT, _COUNTED, _FIXED = 0, 2, {1: 8, 5: 4}
"""Wire types; bytes of those that are always as long."""

_APART: WeakValueDictionary[str, Bytes] = WeakValueDictionary()


def bytes_apart(tensor: TensorProto) -> Bytes | None:
    """Returns the bytes of a tensor that was read apart; None where it is another."""
    if tensor.data_location != TensorProto.EXTERNAL or len(tensor.external_data) != 1:
        return None
    return _APART.get(tensor.external_data[0].value)


def read_apart(path: Path) -> tuple[bytes, list[Bytes]]:
    """Returns what is left of a file, for protobuf to parse, and the bytes that left it.

    The tensors of the message can be read as long as somebody holds these bytes.

    Raises:
        OSError: The operating system refuses.
    """
    with path.open("rb") as stream:
        walk = _Walk(stream)
        try:
            return bytes(walk.message(os.fstat(stream.fileno()).st_size, _TO_THE_DATA)), walk.apart
        except _Otherwise:  # protobuf says what is wrong with it
            stream.seek(0)
            return stream.read(), []


class _Otherwise(Exception):
    """What follows is not of the form that is expected here."""


@dataclass(slots=True, eq=False)
class _Walk:
    """One pass over a file."""

    stream: BufferedReader
    apart: list[Bytes] = field(default_factory=list[Bytes])

    def message(self, end: int, path: tuple[int, ...]) -> bytearray:
        """Returns the fields up to ``end`` without the bytes that ``path`` leads to."""
        rest = bytearray()
        while (start := self.stream.tell()) < end:
            tag = self._varint()
            if len(path) == 1 and tag >> 3 not in _BESIDE_THE_DATA:
                raise _Otherwise
            length = self._length(tag & 7)
            stop = self.stream.tell() + length
            if stop > end:
                raise _Otherwise
            if length < LARGE or tag not in path[:1]:
                self.stream.seek(start)
                rest += self._bytes(stop - start)
            elif len(path) == 1:
                rest += self._left_of(length)
            else:
                inner = self._inner(stop, path[1:])
                rest += _varint(tag) + _varint(len(inner)) + inner
        return rest

    def _inner(self, end: int, path: tuple[int, ...]) -> bytearray:
        if len(path) > 1:
            return self.message(end, path)
        start, before = self.stream.tell(), len(self.apart)
        try:
            inner = self.message(end, path)
            if len(self.apart) == before + 1:
                return inner
        except _Otherwise:  # its elements lie elsewhere, or twice
            pass
        del self.apart[before:]
        self.stream.seek(start)
        return bytearray(self._bytes(end - start))

    def _left_of(self, length: int) -> bytes:
        """Reads bytes apart; returns the fields that say so."""
        data = np.empty(length, np.uint8)
        if self.stream.readinto(data.data) != length:
            raise _Otherwise
        self.apart.append(data)
        location = f"\0{secrets.token_hex(16)}"
        _APART[location] = data
        entry = StringStringEntryProto(key="location", value=location)
        reference = TensorProto(data_location=TensorProto.EXTERNAL, external_data=[entry])
        return reference.SerializeToString()

    def _length(self, kind: int) -> int:
        """Returns how many bytes a field of this wire type has from here on."""
        if kind == _COUNTED:
            return self._varint()
        if kind == _VARINT:
            self._varint()
            return 0
        if kind not in _FIXED:
            raise _Otherwise
        return _FIXED[kind]

    def _bytes(self, length: int) -> bytes:
        found = self.stream.read(length)
        if len(found) != length:
            raise _Otherwise
        return found

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            (digit,) = self._bytes(1)
            number |= (digit & 0x7F) << shift
            if digit < 0x80:
                return number
        raise _Otherwise


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])
