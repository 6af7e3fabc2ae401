"""Trials of a search for bits per layer, in a file with which a search that was killed goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.search.sensitivity_variants import Layer, LayerChange
from qdqbridge.autoquant.simulation.metrics import Metrics
from qdqbridge.core.graph.atomic_write import write_text
from qdqbridge.errors import InputDataError
from qdqbridge.targets.engines import NodeTime

_PARTS = ("trials", "times")


@dataclass(slots=True, eq=False)
class Trials:
    """What changes of layers gave, by :func:`name_of` them.

    Attributes:
        path: The file; None to keep nothing.
        key: What the trials are of; a file of something else is refused.
    """

    path: Path | None
    key: str
    _found: dict[str, dict[str, Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._found = {part: {} for part in _PARTS}
        if self.path is None or not self.path.exists():
            return
        try:
            saved = json.loads(self.path.read_text("utf-8"))
            of, found = saved["of"], {part: dict(saved.get(part, {})) for part in _PARTS}
        except OSError as error:
            raise InputDataError(
                "cannot read the file of trials", where=str(self.path), why=str(error.strerror),
                fix="name a file that may be written; it need not exist",
            ) from error  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # another file
            raise InputDataError(
                f"'{self.path}' holds no trials", why=str(error), fix="remove it, or give another"
            ) from error
        if of != self.key:
            raise InputDataError(
                f"'{self.path}' holds trials of another model, data or target",
                fix="remove it, or give another file",
            )
        self._found = found

    def get(self, name: str) -> Metrics | None:
        """Returns how close the outputs were before."""
        known = self._found["trials"].get(name)
        if known is None:
            return None
        found, unseen = Metrics(**known), known.get("unseen")
        return found if unseen is None else replace(found, unseen=Metrics(**unseen))

    def add(self, name: str, metrics: Metrics) -> Metrics:
        """Keeps how close the outputs are."""
        self._found["trials"][name] = asdict(metrics)
        self._write()
        return metrics

    def times(self, name: str) -> list[NodeTime] | None:
        """Returns what an engine's nodes took before, by the graph's digest."""
        rows = self._found["times"].get(name)
        return rows and [NodeTime(node, op, t, tuple(names)) for node, op, t, names in rows]

    def add_times(self, name: str, times: Sequence[NodeTime]) -> Sequence[NodeTime]:
        """Keeps what an engine's nodes take."""
        self._found["times"][name] = [[t.node, t.operator, t.seconds, t.names] for t in times]
        self._write()
        return times

    def _write(self) -> None:
        if self.path is None:
            return
        write_text(self.path, json.dumps({"of": self.key, **self._found}, indent=1))


def name_of(changes: Mapping[Layer, LayerChange]) -> str:
    """Returns a name of a set of changes that is the same in another process."""
    each = sorted(f"{layer.kind} {layer.name}: {change}" for layer, change in changes.items())
    return hashlib.sha256("\n".join(each).encode()).hexdigest()


def key_of(made: Quantized, samples: Samples, engine: str = "") -> str:
    """Returns what trials are of: the model, how it was quantized, the samples, who timed it."""
    digest = hashlib.sha256(made.graph.digest.encode())
    digest.update(repr(made.target.weights).encode() + engine.encode())
    for sample in (*samples, *(() if made.unseen is None else made.unseen)):
        for name in sorted(sample):
            digest.update(name.encode() + np.ascontiguousarray(sample[name]).tobytes())
    return digest.hexdigest()
