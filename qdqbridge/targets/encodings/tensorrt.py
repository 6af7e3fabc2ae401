"""TensorRT's calibration cache: text, the scale of each int8 activation as bits of a float32."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.encodings.encoding import TensorEncoding, Unfit, checked_encoding

_FIRST = "TRT-8601-EntropyCalibration2"
"""The first line: version and calibrator. TensorRT ignores a cache of another calibrator."""
_BITS = re.compile(r"[0-9a-fA-F]{8}")
_INTERNAL = "(Unnamed Layer*"


def is_cache(text: str) -> bool:
    """Returns whether a text is a calibration cache."""
    return text.startswith("TRT-")


def lines_of(text: str) -> Iterator[tuple[str, str]]:
    """Yields the entries: a name and eight hexadecimal digits."""
    for line in text.splitlines()[1:]:
        if line.strip():
            name, _, bits = line.rpartition(":")
            yield name or line, bits.strip()


def of_bits(name: str, bits: str) -> TensorEncoding | None:
    """Returns what a cache says of a tensor: int8, zero point 0; None for TensorRT's own."""
    if name.startswith(_INTERNAL):
        return None
    if not _BITS.fullmatch(bits):
        raise Unfit(f"{bits[:20]!r} is not eight hexadecimal digits")
    return checked_encoding(name, DType.INT8, struct.unpack(">f", bytes.fromhex(bits))[0])


def cache_can_say(encoding: TensorEncoding) -> str:
    """Returns why a cache cannot say an encoding; nothing if it can, or leaves it out."""
    if encoding.constant:
        return ""
    if not encoding.per_tensor or encoding.dtype is not DType.INT8 or encoding.zero_point.any():
        return "TensorRT has int8 with one scale and zero point 0 only"
    return ""


def written_cache(encodings: Sequence[TensorEncoding]) -> str:
    """Returns a cache; TensorRT quantizes constants itself, so they are left out."""
    activations = (each for each in encodings if not each.constant)
    lines = (f"{e.name}: {struct.pack('>f', float(e.scale)).hex()}" for e in activations)
    return "\n".join((_FIRST, *lines, ""))
