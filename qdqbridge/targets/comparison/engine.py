"""What can run a model and show its intermediate values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard

from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.types import ValueType

Array = NDArray[Any]
OwnArithmetic: TypeAlias = (
    "Callable[[Node, Sequence[Array | None]], tuple[str, Sequence[Array]] | None]"
)
"""What an engine gives for a node and stored operands, bit for bit, and the cause of it; None where
it keeps the contract."""


class Engine(Protocol):
    """Something that runs a model.

    Attributes:
        label: Its name in reports.
        names: The tensors it can return: outputs first, then intermediate values.
        outputs: The names of the model's outputs.
        types: The types of its tensors, as far as it knows them.
    """

    label: str
    names: Sequence[str]
    outputs: Sequence[str]
    types: Mapping[str, ValueType]

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
        """Returns the tensors ``names`` as they are stored."""
        ...


def is_engine(side: object) -> TypeGuard[Engine]:
    """Returns whether something runs a model by names, and needs no engine to do it."""
    return hasattr(side, "names") and hasattr(side, "outputs")


class Interpreter:
    """A graph in NumPy."""

    label = "interpreter"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs: Sequence[str] = list(graph.output_names)
        self._values = visible(graph)
        self.names: Sequence[str] = list(self._values)
        self.types: Mapping[str, ValueType] = {n: v.type for n, v in self._values.items()}

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
        """Evaluates the numeric contract."""
        wanted = [self._values[name] for name in names]
        _, values = evaluate(self.graph, inputs, wanted=wanted)
        return {name: values[self._values[name]] for name in names}


class Runnable(Protocol):
    """An executable: a graph built for some machine."""

    @property
    def graph(self) -> Graph:
        """The graph that was built; its outputs are what ``run`` returns."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Returns the outputs by name."""
        ...


class Built:
    """An executable made by TVM; it shows what it was built to show."""

    label = "TVM"

    def __init__(self, executable: Runnable) -> None:
        self.executable = executable
        graph = executable.graph
        self.names: Sequence[str] = list(graph.output_names)
        self.outputs: Sequence[str] = list(graph.output_names)
        pairs = zip(graph.output_names, graph.outputs, strict=True)
        self.types: Mapping[str, ValueType] = {name: value.type for name, value in pairs}

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
        """Runs the executable."""
        results = self.executable.run(inputs)
        return {name: results[name] for name in names}


def visible(graph: Graph) -> dict[str, Value]:
    """Returns what can be compared, by name: the outputs, then named results of nodes."""
    values = dict(zip(graph.output_names, graph.outputs, strict=True))
    values.update((v.name, v) for v in graph.intermediates() if v.name not in values)
    return values
