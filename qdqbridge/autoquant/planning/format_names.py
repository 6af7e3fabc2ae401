"""Formats as users write them: ``int8``, ``int4/32`` (blocks of 32), ``float8_e5m2``, ``float``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.autoquant.planning.targets import E4M3, E5M2, S8, SYMMETRIC_S16, U8, U16, WEIGHTS
from qdqbridge.errors import UnsupportedTargetError

ACTIVATIONS: Mapping[str, Format | Unstored] = MappingProxyType(
    {
        "uint8": U8,
        "int8": S8,
        "uint16": U16,
        "int16": SYMMETRIC_S16,
        "float8_e4m3fn": E4M3,
        "float8_e5m2": E5M2,
        **{str(read): read for read in Unstored},
    }
)
"""Formats of activations by name, and how products read what nobody stores."""


def format_of(name: str) -> Format | Unstored:
    """Returns the format of activations that a name stands for.

    Raises:
        UnsupportedTargetError: There is none.
    """
    if name in WEIGHTS and WEIGHTS[name].microscaled:
        raise UnsupportedTargetError(
            f"no opset stores activations as {name}",
            why="the exponents of its blocks are those of each run; ONNX's are constants",
            fix="store weights so (--weight-format), and activations as float8_e4m3fn or float",
        )
    if name not in ACTIVATIONS:
        raise _unknown("format of activations", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def weights_of(name: str) -> Format:
    """Returns the format of weights that a name stands for, as ``int8`` or ``int4/32``.

    Raises:
        UnsupportedTargetError: There is none.
    """
    storage, separator, block = name.partition("/")
    if storage not in WEIGHTS:
        raise _unknown("type of weights", storage, WEIGHTS)
    if not separator:
        return WEIGHTS[storage]
    if not block.isdecimal():
        raise UnsupportedTargetError(f"'{name}' says no length of blocks", fix="write int4/32")
    return in_blocks(WEIGHTS[storage], int(block))


def in_blocks(format: Format, block: int) -> Format:
    """Returns a format of weights with a scale for every block of so many terms of a sum.

    Raises:
        UnsupportedTargetError: There are no such blocks.
    """
    if block < 2:
        raise UnsupportedTargetError(
            f"there are no blocks of {block} weights", fix="give 16, 32, 64 or 128"
        )
    lone = format.symmetric and format.storage.bits < 8  # every code counts in a short block
    return replace(format, axis=0, block=block, restricted=format.restricted and not lone)


def _unknown(kind: str, name: str, known: Mapping[str, object]) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        f"there is no {kind} '{name}'", why=f"there are {', '.join(known)}", fix="use one"
    )
