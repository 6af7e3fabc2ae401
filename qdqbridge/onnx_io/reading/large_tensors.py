"""A model file whose large initializers are read straight into arrays of their own.

Protobuf wants the whole file in memory, copies it into a message, and copies a tensor's bytes once
more for whoever asks. Here the file is walked in protobuf's wire format, and the bytes of a large
initializer leave it. What stays in the message says where they are as external data do, under a
location that no file can have.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from onnx import StringStringEntryProto, TensorProto

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
