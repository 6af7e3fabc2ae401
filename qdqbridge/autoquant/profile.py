"""What a model did on some data: statistics of every float tensor, in a file anybody can read.

A profile of some samples and a profile of others merge into that of all, byte for byte, in any
order. It knows which model and which data it is of, and is refused elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.stats import TensorStats
from qdqbridge.errors import InputDataError
from qdqbridge.graph.graph import Graph, Value
from qdqbridge.graph.identity import origin_of, tensor_id
from qdqbridge.graph.types import TensorType

_MODULUS = 1 << 256


@dataclass(frozen=True, slots=True)
class Entry:
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
    tensors: Mapping[str, Entry] = field(default_factory=dict[str, Entry])

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


def observable(graph: Graph) -> list[Value]:
    """Returns every float tensor that is computed or fed, in topological order."""
    results = (value for node in graph.nodes for value in node.outputs)
    return [v for v in (*graph.inputs, *results) if v.name and _is_real(v)]


def _is_real(value: Value) -> bool:
    if not isinstance(value.type, TensorType) or not value.type.dtype.is_float:
        return False
    used = bool(value.users) or value.producer is not None
    return used and not value.type.dtype.is_small_float


def empty(graph: Graph, *, histograms: bool = True) -> Profile:
    """Returns the profile of no sample."""
    tensors: dict[str, Entry] = {}
    for value in observable(graph):
        operator, index = origin_of(value)
        shape = value.type.shape
        tensors[profile_id(value)] = Entry(value.name, operator, index, shape, TensorStats())
    return Profile(graph.digest, histograms=histograms, tensors=tensors)


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
