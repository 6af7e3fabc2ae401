"""What is asked of every engine: what it takes of a model, and what it computes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import ValueType

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one node of a model runs on an engine.

    The engine's own names are kept: it fuses, splits and renames nodes before it places them.

    Attributes:
        node: The node's name.
        operator: What the engine calls it.
        place: Where it runs, or in which precision.
        taken: False where the engine leaves it to something slower: another processor, or floats.
        why: Why it is not taken, in the engine's words; empty where the engine says nothing.
    """

    node: str
    operator: str
    place: str
    taken: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class EngineVerdict:
    """What an engine takes of a model.

    Attributes:
        engine: The engine, as reports name it.
        version: The versions that decide.
        placements: One entry per node of the model as the engine has made it.
        partitions: Into how many pieces it cuts what it takes.
    """

    engine: str
    version: str
    placements: tuple[Placement, ...]
    partitions: int

    @property
    def left(self) -> tuple[Placement, ...]:
        """The nodes that it does not take."""
        return tuple(each for each in self.placements if not each.taken)

    @property
    def takes_all(self) -> bool:
        """True where it takes everything, in one piece."""
        return not self.left and self.partitions <= 1


@dataclass(frozen=True, slots=True)
class NodeTime:
    """What one node takes, of those that an engine has made of a model.

    Attributes:
        node: The engine's name of it.
        operator: What the engine calls it.
        seconds: The shortest of several runs.
        names: Nodes and tensors of the model that it computes, as far as the engine says.
    """

    node: str
    operator: str
    seconds: float
    names: tuple[str, ...] = ()


class Judge(Protocol):
    """A model, opened by an engine.

    Attributes:
        label: The engine's name in reports.
        graph: The model as qdqbridge reads it, with the shapes that the engine gets.
        names: The tensors it can return: outputs first, then intermediate values.
        outputs: The names of the model's outputs.
        types: The types of its tensors, as far as it knows them.
    """

    label: str
    graph: Graph
    names: Sequence[str]
    outputs: Sequence[str]
    types: Mapping[str, ValueType]

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
        """Returns the tensors ``names`` as they are stored."""
        ...

    def taken(self) -> EngineVerdict:
        """Returns what the engine takes of the model, node by node."""
        ...
