"""Encodings as AIMET writes them, and QAIRT and QNN read them (versions 0.6.1 to 2.1.0).

Until version 1 integers ``q`` are counted from 0 and ``real = (q + offset) * scale``; a symmetric
tensor is signed. From version 2 an entry is what QuantizeLinear has. Source: AIMET's
``encoding_spec.rst``, and ``aimet_onnx._encoding``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.ops.shapes import laid_along
from qdqbridge.targets.encodings.encoding import (
    TensorEncoding,
    Unfit,
    checked_encoding,
    numbers,
)

_INTEGERS: Mapping[tuple[bool, int], DType] = MappingProxyType(
    {(d.is_signed, d.bits): d for d in DType if d.is_integer and (d.bits <= 16 or d is DType.INT32)}
)
_TYPES: Mapping[str, DType] = MappingProxyType(
    {
        **{dtype.label: dtype for dtype in _INTEGERS.values()},
        "float4e2m1": DType.FLOAT4_E2M1,
        "float8e4m3fn": DType.FLOAT8_E4M3FN,
        "float8e4m3fnuz": DType.FLOAT8_E4M3FNUZ,
        "float8e5m2": DType.FLOAT8_E5M2,
        "float8e5m2fnuz": DType.FLOAT8_E5M2FNUZ,
    }
)
_NAMES = MappingProxyType({dtype: name for name, dtype in _TYPES.items()})
_PARTS = ("activation_encodings", "param_encodings")


def version_of(record: Any) -> str | None:
    """Returns the version of a file, None if it is not AIMET's; the oldest ones do not say it."""
    if not isinstance(record, dict) or not ({"encodings", *_PARTS} & record.keys()):
        return None
    return str(record.get("version", "0.4.0"))


def named_lists(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the entries of versions below 1: lists by name, an encoding for each channel."""
    for part in _PARTS:
        yield from record.get(part, {}).items()


def named_entries(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the entries of versions from 1: records that have a name."""
    for part in (*_PARTS, "encodings"):
        for entry in record.get(part, ()):
            yield str(entry["name"]), entry


def of_list(name: str, entries: Any) -> TensorEncoding | None:
    """Returns what a file of a version below 1 says of a tensor; None: it is not quantized."""
    first = entries[0]
    if first.get("dtype", "int") != "int":
        return None
    if any(e["bitwidth"] != first["bitwidth"] for e in entries):
        raise Unfit("its channels have several widths")
    if any("scale" not in e or "offset" not in e for e in entries):
        raise Unfit("it has a range without scale and offset")
    scales, offsets = ([e[key] for e in entries] for key in ("scale", "offset"))
    signed = str(first["is_symmetric"]) == "True"
    return _counted_from_zero(name, signed, first["bitwidth"], scales, offsets)


def of_bits(name: str, entry: Any) -> TensorEncoding | None:
    """Returns what a file of version 1 says of a tensor; None: it is not quantized."""
    if entry["dtype"] != "INT":
        return None
    if entry["enc_type"] not in ("PER_TENSOR", "PER_CHANNEL"):
        raise Unfit(f"its scales are {entry['enc_type']}, whose axes only version 2.0.0 says")
    if any(entry.get("zero_point_shift", ())):
        raise Unfit("its zero point lies between two integers (zero_point_shift)")
    return _counted_from_zero(name, entry["is_sym"], entry["bw"], entry["scale"], entry["offset"])


def _counted_from_zero(
    name: str, signed: bool, bits: Any, scale: Any, offset: Any
) -> TensorEncoding:
    dtype = _INTEGERS.get((signed, bits))
    if dtype is None:
        raise Unfit(f"there is no integer type of {bits} bits")
    zero_point = -np.asarray(offset, np.float64) - (2 ** (bits - 1) if signed else 0)
    return checked_encoding(name, dtype, scale, zero_point)


def of_types(name: str, entry: Any) -> TensorEncoding:
    """Returns what a file of version 2 says of a tensor."""
    dtype = _TYPES.get(entry["output_dtype"])
    if dtype is None:
        raise Unfit(f"there is no type {entry['output_dtype']!r}")
    return checked_encoding(
        name, dtype, _scales(entry), entry.get("y_zero_point", 0), axis=entry.get("axis"),
        block_size=entry.get("block_size"),
    )  # fmt: skip


def _scales(entry: Any) -> Any:
    """Returns the scales of an entry of version 2, also where they are quantized themselves (LPBQ).

    Version 2.0.0 has whole numbers for blocks and a float for each channel, whose axis it does not
    say; version 2.1.0 has what a DequantizeLinear of them has.
    """
    if "per_block_int_scale" in entry:
        codes = numbers(entry["per_block_int_scale"], "per_block_int_scale")
        steps, zero_point = entry["per_channel_float_scale"], 0
        axis, block_size = int(entry["axis"] % max(codes.ndim, 1) != 1), None
    elif isinstance(entry["y_scale"], dict):
        meta: dict[str, Any] = entry["y_scale"]
        codes, steps, zero_point = (
            numbers(meta["x"], "x"),
            meta["x_scale"],
            meta.get("x_zero_point", 0),
        )
        axis, block_size = meta.get("axis"), meta.get("block_size")
    else:
        return entry["y_scale"]
    found = [numbers(each, "scale of scales") for each in (steps, zero_point)]
    step, zero = (_of_scales(each, codes.shape, axis, block_size) for each in found)
    return ((codes - zero).astype(np.float32) * step.astype(np.float32)).astype(np.float64)


def _of_scales(
    array: NDArray[np.float64], shape: tuple[int, ...], axis: int | None, block_size: int | None
) -> NDArray[np.float64]:
    """Returns parameters of scales as scales of a shape are multiplied with them."""
    if block_size is not None:
        raise Unfit("its scales are quantized in blocks of their own")
    if array.size == 1:
        return array.reshape(())
    if axis is None or not -len(shape) <= axis < len(shape) or array.size != shape[axis]:
        raise Unfit(f"its scales of shape {shape} have {array.size} scales of their own")
    return laid_along(array, axis, len(shape))


def written_lists(encodings: Sequence[TensorEncoding]) -> str:
    """Returns a file of version 0.6.1."""
    parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
    for encoding in encodings:
        bits, symmetric, scales, offsets = _from_zero(encoding)
        parts[_PARTS[encoding.constant]][encoding.name] = [
            {
                "bitwidth": bits, "dtype": "int", "is_symmetric": str(symmetric), "scale": scale,
                "offset": offset, "min": offset * scale, "max": (offset + 2**bits - 1) * scale,
            }
            for scale, offset in zip(scales, offsets, strict=True)
        ]  # fmt: skip
    return _file("0.6.1", parts)


def written_bits(encodings: Sequence[TensorEncoding]) -> str:
    """Returns a file of version 1.0.0."""
    parts: dict[str, list[Any]] = {part: [] for part in _PARTS}
    for encoding in encodings:
        bits, symmetric, scales, offsets = _from_zero(encoding)
        parts[_PARTS[encoding.constant]].append(
            {
                "name": encoding.name, "dtype": "INT", "bw": bits, "is_sym": symmetric,
                "enc_type": "PER_TENSOR" if encoding.per_tensor else "PER_CHANNEL",
                "scale": scales, "offset": offsets,
            }
        )  # fmt: skip
    return _file("1.0.0", parts)


def written_types(encodings: Sequence[TensorEncoding]) -> str:
    """Returns a file of version 2.0.0."""
    found: list[Any] = []
    for encoding in encodings:
        entry: dict[str, Any] = {
            "name": encoding.name,
            "output_dtype": _NAMES[encoding.dtype],
            "y_scale": encoding.scale.tolist(),
        }
        if encoding.zero_point.any():
            entry["y_zero_point"] = encoding.zero_point.tolist()
        if encoding.axis is not None:
            entry["axis"] = encoding.axis
        if encoding.block_size is not None:
            entry["block_size"] = encoding.block_size
        found.append(entry)
    return _file("2.0.0", {"encodings": found})


def of_any_type(encoding: TensorEncoding) -> str:
    """Returns why version 2 cannot say an encoding; nothing if it can."""
    return "" if encoding.dtype in _NAMES else f"there is no type {encoding.dtype}"


def counted_from_zero(encoding: TensorEncoding) -> str:
    """Returns why versions below 2 cannot say an encoding; nothing if they can."""
    if encoding.block_size is not None or not (encoding.per_tensor or encoding.along_results):
        return "its scales do not lie along the results of a product"
    if encoding.dtype not in _INTEGERS.values():
        return f"{encoding.dtype} is no integer type"
    return ""


def _from_zero(encoding: TensorEncoding) -> tuple[int, bool, list[float], list[int]]:
    """Returns bits, whether the tensor is symmetric, scales and offsets.

    What is signed and not symmetric becomes unsigned: the same numbers.
    """
    bits, signed = encoding.dtype.bits, encoding.dtype.is_signed
    zero_points = encoding.zero_point.astype(np.int64).reshape(-1)
    offsets = -zero_points - (2 ** (bits - 1) if signed else 0)
    symmetric = signed and not zero_points.any()
    return bits, symmetric, encoding.scale.reshape(-1).tolist(), offsets.tolist()


def _file(version: str, parts: Mapping[str, Any]) -> str:
    return json.dumps({"version": version, **parts}, indent=1) + "\n"
