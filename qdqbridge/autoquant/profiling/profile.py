"""What a model did on some data: statistics of every float tensor, in a file anybody can read.

A profile of some samples and a profile of others merge into that of all, byte for byte, in any
order. It knows which model and which data it is of, and is refused elsewhere.

Its file is JSON: versioned, the same bytes for the same statistics, readable without us.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.stats import (
    SIDE,
    ChannelExtremes,
    Histogram,
    SampleExtremes,
    TensorStats,
)
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.printer import tensor_id
from qdqbridge.errors import InputDataError

SCHEMA = "qdqbridge-profile 1"
"""Changes with any change of what the fields mean."""
_COUNTS = ("count", "zeros", "nans", "positive_infinities", "negative_infinities")
_MODULUS = 1 << 256


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """One tensor of the float model.

    Attributes:
        name: Its name in the file.
        operator: The operator that computes it; empty for a graph input.
        index: Which result of that operator it is.
        shape: Its extents in the model; strings are symbolic.
        stats: What was seen of it.
    """

    name: str
    operator: str
    index: int
    shape: tuple[int | str, ...] | None
    stats: TensorStats


@dataclass(frozen=True, slots=True)
class Profile:
    """Statistics of every float tensor of a model over some samples.

    Attributes:
        model: The digest of the canonical float model.
        samples: Number of samples seen.
        data: A hash of the samples that does not depend on their order; hashes of two sets of
            samples add up to that of both.
        histograms: Whether values were counted, or extremes alone taken.
        tensors: By profile id, see :func:`profile_id`.
    """

    model: str
    samples: int = 0
    data: int = 0
    histograms: bool = True
    tensors: Mapping[str, ProfileEntry] = field(default_factory=dict[str, ProfileEntry])

    def merged(self, other: Profile) -> Profile:
        """Returns the profile of both sets of samples.

        Raises:
            InputDataError: The other one is of another model, or counts otherwise.
        """
        if self.model != other.model or self.tensors.keys() != other.tensors.keys():
            raise InputDataError(
                "profiles of different models cannot be merged",
                why=f"one is of the model with digest {self.model[:12]}…, the other of "
                f"{other.model[:12]}…",
                fix="profile both shards of the data with the same model file",
            )
        if self.histograms != other.histograms:
            raise InputDataError(
                "a profile with histograms and one without cannot be merged",
                fix="profile both shards of the data with the same statistics",
            )
        tensors = {
            key: replace(entry, stats=entry.stats.merged(other.tensors[key].stats))
            for key, entry in self.tensors.items()
        }
        return replace(
            self,
            samples=self.samples + other.samples,
            # A sum of the samples' hashes, so that neither order nor batches matter.
            data=(self.data + other.data) % _MODULUS,
            tensors=tensors,
        )

    def by_name(self) -> dict[str, TensorStats]:
        """Returns the statistics by tensor name."""
        return {entry.name: entry.stats for entry in self.tensors.values()}


def profile_id(value: Value) -> str:
    """Returns the stable id of a tensor of the initial float model.

    It is made of the tensor's name, the operator that computes it and which result it is, so that
    it survives saving, loading and renumbering of nodes.
    """
    return tensor_id(value)


def sample_hash(sample: Mapping[str, NDArray[Any]]) -> int:
    """Returns the hash of one sample, to be added to those of others."""
    sha = hashlib.sha256()
    for name in sorted(sample):
        array = sample[name]
        sha.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return int.from_bytes(sha.digest(), "big")


def channel_axis(value: Value) -> int | None:
    """Returns the axis whose entries a neighbour treats as channels: 1 for images, else the last.

    None for tensors of fewer than two axes, and where samples may have different channels.
    """
    rank = value.rank or 0
    neighbours = {node.op.name for node, _ in value.users}
    if value.producer is not None:
        neighbours.add(value.producer.op.name)
    images = {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool"}
    if rank < 2:
        return None
    axis = 1 if rank >= 3 and (neighbours & images or rank == 4) else rank - 1
    return axis if isinstance((value.type.shape or ())[axis], int) else None


def merge(profiles: Iterable[Profile]) -> Profile:
    """Returns the profile of the samples of all ``profiles``.

    Raises:
        InputDataError: There is none, or they are of different models.
    """
    remaining = iter(profiles)
    total = next(remaining, None)
    if total is None:
        raise InputDataError("there is no profile to merge", fix="give at least one file")
    for profile in remaining:
        total = total.merged(profile)
    return total


def profile_text(profile: Profile) -> str:
    """Returns the JSON text of ``profile``; equal profiles have equal texts."""
    record = {
        "schema": SCHEMA,
        "about": "Statistics of float tensors. Histogram bin k counts the finite, nonzero values "
        "with k * 2**exponent <= value < (k + 1) * 2**exponent; 'first' is the k of the first "
        "count. Sums over samples are hexadecimal multiples of 2**-149.",
        "model": profile.model,
        "samples": profile.samples,
        "data": f"{profile.data:064x}",
        "histograms": profile.histograms,
        "tensors": {key: _entry(entry) for key, entry in profile.tensors.items()},
    }
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _entry(entry: ProfileEntry) -> dict[str, Any]:
    stats = entry.stats
    each = stats.per_sample
    record: dict[str, Any] = {
        "name": entry.name,
        "operator": entry.operator,
        "index": entry.index,
        "shape": None if entry.shape is None else list(entry.shape),
        **{name: getattr(stats, name) for name in _COUNTS},
        "minimum": _finite_or_none(stats.minimum),
        "maximum": _finite_or_none(stats.maximum),
        "per_sample": {
            "samples": each.samples,
            "mean_minimum": each.mean_minimum,
            "mean_maximum": each.mean_maximum,
            "mean_magnitude": each.mean_magnitude,
            "sums": [f"{each.minima:x}", f"{each.maxima:x}", f"{each.magnitudes:x}"],
        },
    }
    if stats.channels is not None:
        record["channels"] = {
            "axis": stats.channels.axis,
            "minimum": [_finite_or_none(float(v)) for v in stats.channels.minimum],
            "maximum": [_finite_or_none(float(v)) for v in stats.channels.maximum],
        }
    filled = np.flatnonzero(stats.histogram.counts)
    if filled.size:
        first, last = int(filled[0]), int(filled[-1])
        counts = stats.histogram.counts[first : last + 1]
        record["histogram"] = {
            "exponent": stats.histogram.exponent,
            "first": first - SIDE,
            "counts": counts.tolist(),
        }
    return record


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def parse_profile(content: str, where: str) -> Profile:
    """Returns the profile that a JSON text holds.

    Args:
        content: The text.
        where: What to call it in an error.

    Raises:
        InputDataError: It is not a profile, of another version, or damaged.
    """
    try:
        record = json.loads(content)
        schema = record["schema"]
    except (ValueError, TypeError, KeyError) as error:  # no JSON, no record, no such field
        raise _damaged(where, "it is not JSON, or has no field 'schema'") from error
    if schema != SCHEMA:
        raise InputDataError(
            "a profile of another version",
            where=where,
            why=f"its schema is {schema!r}, this is {SCHEMA!r}",
            fix="profile the data again",
        )
    try:
        return Profile(
            model=str(record["model"]),
            samples=_validated_count(record["samples"]),
            data=int(record["data"], 16),
            histograms=bool(record["histograms"]),
            tensors={str(key): _parse_entry(e) for key, e in record["tensors"].items()},
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        # A field of another kind, or numbers that no statistics have: JSON holds anything.
        raise _damaged(where, f"{type(error).__name__}: {error}") from error


def _damaged(where: str, why: str) -> InputDataError:
    return InputDataError("not a profile", where=where, why=why, fix="profile the data again")


def _validated_count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _parse_entry(record: dict[str, Any]) -> ProfileEntry:
    each = record["per_sample"]
    low, high = record["minimum"], record["maximum"]
    minima, maxima, magnitudes = (int(text, 16) for text in each["sums"])
    counts = {name: _validated_count(record[name]) for name in _COUNTS}
    shape = record["shape"]
    return ProfileEntry(
        str(record["name"]),
        str(record["operator"]),
        _validated_count(record["index"]),
        None if shape is None else tuple(d if isinstance(d, str) else int(d) for d in shape),
        TensorStats(
            **counts,
            minimum=math.inf if low is None else float(low),
            maximum=-math.inf if high is None else float(high),
            per_sample=SampleExtremes(
                _validated_count(each["samples"]), minima, maxima, magnitudes
            ),
            channels=_parse_channels(record.get("channels")),
            histogram=_parse_histogram(record.get("histogram")),
        ),
    )


def _parse_channels(record: dict[str, Any] | None) -> ChannelExtremes | None:
    if record is None:
        return None
    return ChannelExtremes(
        _validated_count(record["axis"]),
        _fill_missing(record["minimum"], np.inf),
        _fill_missing(record["maximum"], -np.inf),
    )


def _fill_missing(numbers: list[float | None], nothing: float) -> NDArray[np.float32]:
    return np.array([nothing if n is None else n for n in numbers], np.float32)


def _parse_histogram(record: dict[str, Any] | None) -> Histogram:
    if record is None:
        return Histogram.empty()
    counts = np.zeros(2 * SIDE, np.int64)
    given = [_validated_count(c) for c in record["counts"]]
    first = int(record["first"]) + SIDE
    if first < 0 or first + len(given) > len(counts):
        raise ValueError("a histogram reaches beyond its bins")
    counts[first : first + len(given)] = given
    return Histogram(int(record["exponent"]), counts)


def read_profile(path: Path) -> Profile:
    """Returns the profile in a file.

    Raises:
        InputDataError: It cannot be read or is not a profile.
    """
    try:
        content = path.read_text("utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise InputDataError(
            "the profile cannot be read", where=str(path), why=why, fix="check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InputDataError(
            "not a profile", where=str(path), why="it is not text", fix="profile the data again"
        ) from error
    return parse_profile(content, str(path))
