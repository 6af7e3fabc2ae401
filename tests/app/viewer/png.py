"""Pictures of a browser as arrays: 8-bit RGB and RGBA files that are not interlaced.

Source: PNG (W3C Recommendation), sections 9 (filters) and 11 (chunks).
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {2: 3, 6: 4}


def pixels(data: bytes) -> NDArray[Any]:
    """Returns the colours of a PNG file: height, width, red green blue."""
    assert data.startswith(_SIGNATURE)
    at, packed, header = len(_SIGNATURE), b"", b""
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        header = content if kind == b"IHDR" else header
        packed += content if kind == b"IDAT" else b""
        at += 12 + size
    width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    assert (bits, interlaced) == (8, 0)
    channels = _CHANNELS[colour]
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, -1)
    image = np.zeros((height, width, channels), np.uint8)
    above = np.zeros((width, channels), np.uint8)
    for index, row in enumerate(rows):
        above = _unfiltered(int(row[0]), row[1:].reshape(width, channels), above)
        image[index] = above
    return image[:, :, :3]


def _unfiltered(kind: int, row: NDArray[Any], above: NDArray[Any]) -> NDArray[Any]:
    if kind == 0:
        return row
    if kind == 1:
        return np.cumsum(row, axis=0, dtype=np.uint8)
    if kind == 2:
        return row + above
    made = np.zeros(row.shape, np.int32)
    left = corner = np.zeros(row.shape[1], np.int32)
    for place, (own, up) in enumerate(
        zip(row.astype(np.int32), above.astype(np.int32), strict=True)
    ):
        guess = (left + up) // 2 if kind == 3 else _paeth(left, up, corner)
        left, corner = (own + guess) & 255, up
        made[place] = left
    return made.astype(np.uint8)


def _paeth(left: NDArray[Any], up: NDArray[Any], corner: NDArray[Any]) -> NDArray[Any]:
    estimate = left + up - corner
    gaps = [np.abs(estimate - each) for each in (left, up, corner)]
    first = (gaps[0] <= gaps[1]) & (gaps[0] <= gaps[2])
    return np.where(first, left, np.where(gaps[1] <= gaps[2], up, corner))


def thumbnail(image: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """Returns the mean colours of equal parts of a picture: what fonts and edges do is lost."""
    rows, columns = image.shape[0] // height, image.shape[1] // width
    cut = image[: rows * height, : columns * width].astype(np.float64)
    return cut.reshape(height, rows, width, columns, 3).mean(axis=(1, 3))
