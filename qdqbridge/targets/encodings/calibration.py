"""Encodings of onnxruntime and TensorRT: overrides of tensors, calibration tables and caches."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.encodings.encoding import TensorEncoding, Unfit, checked_encoding, of_range

# ---- onnxruntime ---------------------------------------------------------------------------------
# Encodings as onnxruntime's quantization has them: overrides of tensors, and calibration tables.
#
# ``TensorQuantOverrides`` is an option of ``quantize_static``: a list by tensor, an entry for each
# channel. A calibration table is what ``save_tensors_data`` and ``write_calibration_table`` write:
# the range of each tensor, from which int8 follows as ``quantize_static`` has it by default.


_TYPES: Mapping[str, DType] = MappingProxyType(
    {
        "QInt8": DType.INT8,
        "QUInt8": DType.UINT8,
        "QInt16": DType.INT16,
        "QUInt16": DType.UINT16,
        "QInt4": DType.INT4,
        "QUInt4": DType.UINT4,
        "QFLOAT8E4M3FN": DType.FLOAT8_E4M3FN,
    }
)
_NAMES = MappingProxyType({dtype: name for name, dtype in _TYPES.items()})
_OPTIONS = {"quant_type", "scale", "zero_point", "rmin", "rmax", "symmetric", "axis", "convert"}


def is_overrides(record: Any) -> bool:
    """Returns whether a file is TensorQuantOverrides: lists of options by tensor."""
    if not isinstance(record, dict):
        return False
    lists = [each for each in record.values() if isinstance(each, list)]
    return len(lists) == len(record) and all(
        isinstance(entry, dict) and (_OPTIONS & entry.keys()) for each in lists for entry in each
    )


def of_overrides(name: str, entries: Any) -> TensorEncoding:
    """Returns what overrides say of a tensor."""
    first, axis = entries[0], entries[0].get("axis")
    if "convert" in first:
        raise Unfit("its readers want several types (convert)")
    if "reduce_range" in first:
        raise Unfit("it asks for a reduced range")
    if "quant_type" not in first:
        raise Unfit("it has no quant_type")
    dtype = _TYPES.get(first["quant_type"])
    if dtype is None:
        raise Unfit(f"there is no type {first['quant_type']!r}")
    if "scale" in first:
        scale, zero = ([each[key] for each in entries] for key in ("scale", "zero_point"))
        return checked_encoding(name, dtype, scale, zero, axis=axis)
    if "rmin" not in first:
        raise Unfit("it has neither a scale nor a range; quantize_static takes one from data")
    symmetric = bool(first.get("symmetric", False))
    ranges = [of_range(name, e["rmin"], e["rmax"], dtype, symmetric=symmetric) for e in entries]
    if axis is None:
        return ranges[0]
    scale, zero = ([getattr(e, key) for e in ranges] for key in ("scale", "zero_point"))
    return checked_encoding(name, dtype, scale, zero, axis=axis)


def overrides_can_say(encoding: TensorEncoding) -> str:
    """Returns why overrides cannot say an encoding; nothing if they can."""
    if encoding.block_size is not None:
        return "it is quantized in blocks"
    if encoding.axis is not None and not encoding.constant:
        return "it is quantized along an axis, which only constants are"
    return "" if encoding.dtype in _NAMES else f"there is no quant_type of {encoding.dtype}"


def written_overrides(encodings: Sequence[TensorEncoding]) -> str:
    """Returns a file of overrides."""
    found: dict[str, Any] = {}
    for encoding in encodings:
        along = {} if encoding.axis is None else {"axis": encoding.axis}
        numbers = (each.reshape(-1).tolist() for each in (encoding.scale, encoding.zero_point))
        found[encoding.name] = [
            {"quant_type": _NAMES[encoding.dtype], "scale": scale, "zero_point": zero, **along}
            for scale, zero in zip(*numbers, strict=True)
        ]
    return json.dumps(found, indent=1) + "\n"


def is_table(record: Any) -> bool:
    """Returns whether a file is a calibration table, of either writer."""
    if not isinstance(record, dict) or not record:
        return False
    if record.get("CLS") == "TensorsData":
        return True
    return all(isinstance(e, dict) and e.get("CLS") == "TensorData" for e in record.values())


def ranges_in(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the entries of a calibration table."""
    yield from (record["data"] if record.get("CLS") == "TensorsData" else record).items()


def of_ranges(name: str, entry: Any) -> TensorEncoding:
    """Returns what ``quantize_static`` makes of a range by default."""
    low, high = (_only(entry[key]) for key in ("lowest", "highest"))
    return of_range(name, low, high, DType.INT8, symmetric=False)


def _only(found: Any) -> float:
    """Returns the number in an array that JSON holds."""
    number = found["data"] if isinstance(found, dict) else found
    while isinstance(number, list) and len(number) == 1:
        number = number[0]
    if not isinstance(number, (int, float)):
        raise Unfit("it has a range for each channel")
    return float(number)


# ---- tensorrt ------------------------------------------------------------------------------------
# TensorRT's calibration cache: text, the scale of each int8 activation as bits of a float32.


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
