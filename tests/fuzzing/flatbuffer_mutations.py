"""Damage to TFLite files at what a reader looks at: lengths, offsets, indices, options, scales.

A flatbuffer says nowhere what its bytes are. Reading the file once with an eye on every access
shows it: each becomes a site, a place with an element type, and a mutation writes something else
there: an extreme number, a neighbour's, or an offset to another table, possibly an outer one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

import qdqbridge as qb
from tests.fuzzing.mutations import FLOATS, damaged

SMALL = (0, 1, 2, 3, 4, 5, 7, 9, 31, 64, 127, 128, 255, -1, -2, -3, -4, -9, -128)
LARGE = (1 << 15, (1 << 16) - 1, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 32) - 1, 1 << 40,
         (1 << 62), -(1 << 63))  # fmt: skip
_LAYOUT = "HI"
"""Entries of tables of fields; offsets, and lengths of vectors: most damage to them is plain."""


class Site(NamedTuple):
    """A number that reading a file looks at: where it lies, and ``struct``'s letter for it."""

    at: int
    kind: str


def sites(data: bytes, folder: Path) -> list[Site]:
    """Returns every number of a file that reading it looks at."""
    found: dict[Site, None] = {}
    path = folder / "seed.tflite"
    path.write_bytes(data)
    with _watched(lambda at, kind: found.setdefault(Site(at, kind))):
        qb.load(path, canonical=False)
    return [site for site in found if site.at + struct.calcsize(site.kind) <= len(data)]


@contextmanager
def _watched(look: Callable[[int, str], Any]) -> Generator[None, None, None]:
    """Tells of each access of flatbuffers' runtime while it is open."""
    from flatbuffers import encode

    number, vector = encode.Get, encode.GetVectorAsNumpy

    def get(packer: Any, buffer: Any, head: int) -> Any:
        look(int(head), str(packer.format).strip("<"))
        return number(packer, buffer, head)

    def get_vector(numpy_type: Any, buffer: Any, count: int, offset: int) -> Any:
        dtype = np.dtype(numpy_type)
        for place in range(min(count, 64)):
            look(int(offset) + place * dtype.itemsize, dtype.char.replace("l", "q"))
        return vector(numpy_type, buffer, count, offset)

    encode.Get, encode.GetVectorAsNumpy = get, get_vector
    try:
        yield
    finally:
        encode.Get, encode.GetVectorAsNumpy = number, vector


def restructured(data: bytes, known: list[Site], rng: Random) -> bytes:
    """Returns a copy of a file with other numbers where it is looked at; at times other bytes.

    Args:
        data: The file.
        known: What :func:`sites` found in it.
        rng: What to draw from.
    """
    if rng.random() < 0.15:
        return damaged(data, rng)
    changed = bytearray(data)
    layout = [site for site in known if site.kind in _LAYOUT]
    numbers = [site for site in known if site.kind not in _LAYOUT]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        site = rng.choice(layout if rng.random() < 0.2 else numbers)
        struct.pack_into(f"<{site.kind}", changed, site.at, _other(site, changed, known, rng))
    return bytes(changed)


def _other(site: Site, data: bytearray, known: list[Site], rng: Random) -> Any:
    if site.kind in "fd":
        return rng.choice(FLOATS)
    if site.kind == "?":
        return not data[site.at]
    width = 8 * struct.calcsize(site.kind)
    (old,) = struct.unpack_from(f"<{site.kind}", data, site.at)
    new = rng.choice(
        (
            rng.choice(SMALL),
            rng.choice(LARGE),
            int(old) + rng.choice((-4, -1, 1, 4)),
            rng.choice(known).at - site.at,  # an offset, to where something else lies
            rng.getrandbits(width),
        )
    ) % (1 << width)
    return new if site.kind.isupper() or new < 1 << (width - 1) else new - (1 << width)
