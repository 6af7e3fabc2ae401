"""Quantization parameters in files beside a float model: a row for each format of a vendor.

Files are recognised by what is in them. :mod:`.application` puts what they say into a graph, and
:mod:`.application` writes a quantized graph as a float model and such a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqbridge.errors import InputDataError, ModelFileError, UnsupportedTargetError
from qdqbridge.targets.encodings import aimet, calibration
from qdqbridge.targets.encodings.encoding import TensorEncoding, Unfit


@dataclass(frozen=True, slots=True)
class EncodingsFormat:
    """One format of encodings.

    Attributes:
        name: What users call it.
        recognised: Whether a file is one, from its text and what that is as JSON (or None).
        entries: What a file has for each tensor, by name.
        encoding: What an entry says; None if it says that the tensor is not quantized.
        weights: Whether it says how constants are quantized; else its runtime has one way.
        all_tensors: Whether it names biases, too, and results that are only moved elements.
        unsaid: Why it cannot say an encoding; empty if it can.
        written: The text of a file; empty where the format is only read.
    """

    name: str
    recognised: Callable[[str, Any], bool]
    entries: Callable[[Any], Iterator[tuple[str, Any]]]
    encoding: Callable[[str, Any], TensorEncoding | None]
    weights: bool = True
    all_tensors: bool = True
    unsaid: Callable[[TensorEncoding], str] = lambda _: ""
    written: Callable[[Sequence[TensorEncoding]], str] = lambda _: ""


def _version(*majors: str) -> Callable[[str, Any], bool]:
    return lambda _, record: str(aimet.version_of(record)).split(".")[0] in majors


FORMATS = (
    EncodingsFormat(
        "aimet-0.6.1", _version("0"), aimet.named_lists, aimet.of_list,
        all_tensors=False, unsaid=aimet.counted_from_zero, written=aimet.written_lists,
    ),
    EncodingsFormat(
        "aimet-1.0.0", _version("1"), aimet.named_entries, aimet.of_bits,
        all_tensors=False, unsaid=aimet.counted_from_zero, written=aimet.written_bits,
    ),
    EncodingsFormat(
        "aimet-2.0.0", _version("2"), aimet.named_entries, aimet.of_types,
        unsaid=aimet.of_any_type, written=aimet.written_types,
    ),
    EncodingsFormat(
        "ort-overrides", lambda _, record: calibration.is_overrides(record),
        lambda record: iter(record.items()), calibration.of_overrides, all_tensors=False,
        unsaid=calibration.overrides_can_say, written=calibration.written_overrides,
    ),
    EncodingsFormat(
        "ort-table", lambda _, record: calibration.is_table(record),
        calibration.ranges_in, calibration.of_ranges, weights=False,
    ),
    EncodingsFormat(
        "tensorrt", lambda text, _: calibration.is_cache(text),
        calibration.lines_of, calibration.of_bits, weights=False,
        unsaid=calibration.cache_can_say, written=calibration.written_cache,
    ),
)  # fmt: skip
DEFAULT = "aimet-2.0.0"
_DAMAGES = (AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Encodings:
    """What a file says.

    Attributes:
        file: Its name.
        found: What it says of tensors, by name.
        unfit: Why it cannot be followed for others.
    """

    file: str
    format: EncodingsFormat
    found: Mapping[str, TensorEncoding]
    unfit: Mapping[str, str]


def read_encodings(path: Path) -> Encodings:
    """Returns what a file of encodings says.

    Raises:
        ModelFileError: It cannot be read.
        InputDataError: It is in none of the formats, or damaged as a whole.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:  # ValueError: bytes that are no text, a NUL in the path
        raise ModelFileError(
            "cannot read the encodings",
            where=str(path),
            why=getattr(error, "strerror", None) or "it is no text",
            fix="give a file in text; for onnxruntime's calibration.flatbuffers, which holds only "
            "upper ends, give the calibration.json beside it",
        ) from error
    record, reason = None, ""
    if not calibration.is_cache(text):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = f"it is not JSON: {error}"
    chosen = next((each for each in FORMATS if each.recognised(text, record)), None)
    if chosen is None:
        raise _unknown(path, reason, record)
    found: dict[str, TensorEncoding] = {}
    unfit: dict[str, str] = {}
    seen: set[str] = set()
    try:
        for name, entry in chosen.entries(text if record is None else record):
            try:
                encoding = chosen.encoding(name, entry)
                if name in seen:
                    raise Unfit("it stands there twice")
            except (Unfit, *_DAMAGES) as error:
                unfit[name] = _reason(error)
                continue
            seen.add(name)
            if encoding is not None:
                found[name] = encoding
    except _DAMAGES as error:
        raise InputDataError(
            f"the encodings are damaged ({chosen.name})",
            where=str(path),
            why=_reason(error),
            fix="export them again",
        ) from error
    return Encodings(str(path), chosen, found, unfit)


def encodings_format(name: str) -> EncodingsFormat:
    """Returns the format of a name that can be written.

    Raises:
        UnsupportedTargetError: There is none, or it is only read.
    """
    found = next((each for each in FORMATS if each.name == name), None)
    if found is None or not found.written(()):
        names = [each.name for each in FORMATS if each.written(())]
        raise UnsupportedTargetError(
            f"no encodings are written as '{name}'", fix=f"give one of {', '.join(names)}"
        )
    return found


def listed(reasons: Mapping[str, str], most: int = 20) -> str:
    """Returns reasons by tensor, the first ones, as lines of an error."""
    lines = [f"'{name}': {reason}" for name, reason in list(reasons.items())[:most]]
    if len(reasons) > most:
        lines.append(f"and {len(reasons) - most} more")
    return "\n         ".join(lines)


def _reason(error: Exception) -> str:
    if isinstance(error, Unfit):
        return str(error)
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return "its fields are not those of the format"


def _unknown(path: Path, reason: str, record: Any) -> InputDataError:
    version, ours = aimet.version_of(record), isinstance(record, dict) and "schema" in record
    fix = f"give one of {', '.join(each.name for each in FORMATS)}"
    if version is not None:
        reason, fix = f"its version is {version}", "export them in version 2.0.0"
    elif ours:
        reason = f"its schema is {record['schema']!r}"
        fix = "give a profile to 'qdqbridge quantize --profile', which chooses parameters from it"
    return InputDataError(
        "no known format of encodings",
        where=str(path),
        why=reason or "its content is that of none",
        fix=fix,
    )
