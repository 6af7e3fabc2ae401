"""Two engines, one model, the same data: every output and every intermediate value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from qdqbridge.core.graph.batches import batches
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import check_inputs
from qdqbridge.core.graph.types import QuantType, ValueType
from qdqbridge.targets.comparison.causes import MISREAD, UNEXPLAINED
from qdqbridge.targets.comparison.difference import Tally, TensorDifference
from qdqbridge.targets.comparison.engine import Engine, visible

Array = NDArray[Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found.

    Attributes:
        a: Name of one engine.
        b: Name of the other, the reference.
        local: True where every node was fed with the operands that ``b`` recorded.
        values: One entry per tensor that both know: intermediate ones in execution order, then
            the outputs.
        unmatched: Tensors of ``a`` that ``b`` does not have, or has in another type.
    """

    a: str
    b: str
    local: bool
    values: tuple[TensorDifference, ...]
    unmatched: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True where something was compared and no element differs."""
        return bool(self.values) and all(value.equal for value in self.values)

    @property
    def outputs(self) -> tuple[TensorDifference, ...]:
        """The entries of the model's outputs."""
        return tuple(value for value in self.values if value.is_output)

    @property
    def worst(self) -> TensorDifference | None:
        """The entry with the largest difference in LSB, then the largest share of mismatches."""
        return max(
            self.values,
            key=lambda v: (v.max_lsb or 0, not v.equal, v.fraction, v.max_abs),
            default=None,
        )

    @property
    def max_lsb(self) -> int:
        """The largest difference of stored integers anywhere."""
        return max((value.max_lsb or 0 for value in self.values), default=0)

    @property
    def unexplained(self) -> int:
        """Differing elements without a known cause (local comparison)."""
        return self._caused(UNEXPLAINED)

    @property
    def misread(self) -> int:
        """Differing elements that are faults of the engine, which computes another model."""
        return self._caused(MISREAD)

    def _caused(self, cause: str) -> int:
        return sum(value.causes.get(cause, 0) for value in self.values)

    def __str__(self) -> str:
        from qdqbridge.targets.comparison.tables import comparison_text

        return comparison_text(self)


def compare_engines(
    a: Engine,
    b: Engine,
    graph: Graph,
    data: Mapping[str, Array],
    *,
    size: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Runs both engines freely on the same data.

    Args:
        a: One engine.
        b: The reference.
        graph: A graph that has the model's inputs and knows the types of tensors.
        data: One array per graph input.
        size: Examples per batch.
        progress: Called with the batches done and their number.

    Raises:
        InputDataError: The data does not fit.
    """
    types = {name: value.type for name, value in visible(graph).items()}
    names, unmatched = _common(a, b)
    tallies: dict[str, Tally] = {}
    for number, batch in enumerate(batches(graph.inputs, data, size), 1):
        check_inputs(graph.inputs, batch.inputs)
        ours, theirs = a.run(batch.inputs, names), b.run(batch.inputs, names)
        for name in names:
            x, y = ours[name], theirs[name]
            if x.dtype != y.dtype or x.shape != y.shape or x.dtype == object:
                unmatched[name] = None
                continue
            if name not in tallies:
                type_ = a.types.get(name) or b.types.get(name) or types.get(name)
                tallies[name] = Tally(name, "", type_, name in b.outputs)
            tallies[name].add(x, y)
        if progress is not None:
            progress(number, batch.count)
    made_by = producers(graph)
    for tally in tallies.values():
        tally.node = made_by.get(tally.name, "")
    return Comparison(a.label, b.label, False, ordered(tallies.values()), tuple(unmatched))


def producers(graph: Graph) -> dict[str, str]:
    """Returns operator and name of the node behind each visible value."""
    return {
        name: f"{value.producer.op.name} {value.producer.name}"
        for name, value in visible(graph).items()
        if value.producer is not None
    }


def ordered(tallies: Sequence[Tally] | Any) -> tuple[TensorDifference, ...]:
    """Returns the finished tallies, outputs last."""
    differences = [tally.finish() for tally in tallies]
    return tuple(sorted(differences, key=lambda d: d.is_output))


def _common(a: Engine, b: Engine) -> tuple[list[str], dict[str, None]]:
    """Returns the tensors of ``a`` that ``b`` has too, and those that it does not."""
    known = set(b.names)
    names: list[str] = []
    unmatched: dict[str, None] = {}
    for name in a.names:
        if name in known and same_meaning(a.types.get(name), b.types.get(name)):
            names.append(name)
        else:
            unmatched[name] = None
    return names, unmatched


def same_meaning(a: ValueType | None, b: ValueType | None) -> bool:
    """True where stored values of both types can be compared as they are."""
    if a is None or b is None:
        return True
    if isinstance(a, QuantType) and isinstance(b, QuantType):
        return a.params.same_mapping(b.params)
    return type(a) is type(b) and a.dtype is b.dtype
