"""Engines that run a simulated graph, in parts: what does not change is not run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import computed
from qdqbridge.core.graph.types import TensorType
from qdqbridge.errors import UnsupportedTargetError

if TYPE_CHECKING:
    from qdqbridge.targets.running import Recipe

Array = NDArray[Any]
Arrays = dict[Value, Array]
Run = Callable[[Mapping[str, Array]], Sequence[Array]]
_LEAST = 6
"""Nodes of a part, at least."""


class SimulationEngine(Protocol):
    """Compiles a graph to a function from inputs by name to its outputs in order.

    Attributes:
        parts: In how many parts it likes to compile a model.
    """

    @property
    def parts(self) -> int: ...  # noqa: D102

    def __call__(self, graph: Graph) -> Run:
        """Returns the function."""
        ...


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """onnxruntime on the CPU.

    Attributes:
        threads: Threads; 0 lets it choose.
        parts: In how many parts a model is compiled.
    """

    threads: int = 0
    parts: int = 8

    def __call__(self, graph: Graph) -> Run:
        """Returns a function that runs ``graph``."""
        from qdqbridge.targets.running import Execution

        return Execution(self.recipe(graph)).run

    def recipe(self, graph: Graph) -> Recipe:
        """Returns what makes that function, here or elsewhere."""
        from qdqbridge.targets.running import Recipe

        spinning = self.parts == 1
        return Recipe.of(graph, list(graph.outputs), threads=self.threads, spinning=spinning)


@dataclass(frozen=True, slots=True)
class Tvm:
    """TVM's compiled module, with ``qnn.simulated_quantize`` in it.

    Attributes:
        target: A TVM target.
        parts: In how many parts a model is compiled.
    """

    target: str = "llvm"
    parts: int = 1

    def __call__(self, graph: Graph) -> Run:
        """Returns a function that runs ``graph``."""
        from qdqbridge.tvm.relax.executable import compile_relax

        executable = compile_relax(graph, self.target)
        return lambda inputs: list(executable.run(inputs).values())


@dataclass(frozen=True, slots=True)
class NumPy:
    """The interpreter.

    Attributes:
        exact: Compute in float64.
        parts: In how many parts a model is run.
    """

    exact: bool = False
    parts: int = 8

    def __call__(self, graph: Graph) -> Run:
        """Returns a function that runs ``graph``; float64 stays that between parts."""
        return lambda inputs: self._run(graph, inputs)

    def _run(self, graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
        arrays = {value: inputs[value.name] for value in graph.inputs}
        for node in graph.nodes:
            operands = [None if v is None else _array(v, arrays) for v in node.inputs]
            results = computed(node, operands, exact=self.exact)
            arrays.update(zip(node.outputs, results, strict=False))
        return [_array(value, arrays) for value in graph.outputs]


def _array(value: Value, arrays: Mapping[Value, Array]) -> Array:
    return arrays[value] if value.constant is None else value.constant.numpy()


ENGINES: Mapping[str, SimulationEngine] = {
    "onnxruntime": OnnxRuntime(), "tvm": Tvm(), "numpy": NumPy(), "exact": NumPy(exact=True),
}  # fmt: skip


def engine_of(engine: SimulationEngine | str) -> SimulationEngine:
    """Returns an engine by its name, or as it is.

    Raises:
        UnsupportedTargetError: There is none of that name.
    """
    if not isinstance(engine, str):
        return engine
    if engine not in ENGINES:
        raise UnsupportedTargetError(
            f"no engine is called {engine!r}", fix=f"use one of {', '.join(ENGINES)}"
        )
    return ENGINES[engine]


@dataclass(frozen=True, slots=True, eq=False)
class GraphPart:
    """Some nodes in a row.

    Attributes:
        inputs: What they read of others: samples, parameters, results of parts before.
        outputs: What later parts or the user read of theirs.
        run: Runs them.
        graph: They alone; None where nothing reads what they give.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    run: Run
    graph: Graph | None = None

    def __call__(self, arrays: Arrays) -> None:
        """Adds the results of the part to ``arrays``."""
        found = self.run({value.name: arrays[value] for value in self.inputs})
        arrays.update(zip(self.outputs, found, strict=True))


def parts_of(
    graph: Graph, wanted: Sequence[Value], engine: SimulationEngine, count: int
) -> list[GraphPart]:
    """Returns ``graph`` cut into at most ``count`` parts, where little is handed over.

    Args:
        graph: A graph whose values all have names of their own.
        wanted: Values that the user reads.
        engine: Compiles each part.
        count: How many.
    """
    cuts = [0, *_cuts(graph, count), len(graph.nodes)]
    return [
        _part(graph, graph.nodes[a:b], set(graph.nodes[b:]), wanted, engine)
        for a, b in pairwise(cuts)
    ]


def _part(
    graph: Graph,
    nodes: list[Node],
    later: set[Node],
    wanted: Sequence[Value],
    engine: SimulationEngine,
) -> GraphPart:
    made = dict.fromkeys(v for node in nodes for v in node.outputs)
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
    inputs = tuple(v for v in read if v not in made and not v.is_constant)
    asked = set(wanted)
    outputs = tuple(v for v in made if v in asked or any(n in later for n, _ in v.users))
    if not outputs:
        return GraphPart((), (), lambda inputs: [])
    own = replace(
        graph,
        inputs=list(inputs),
        outputs=list(outputs),
        output_names=[value.name for value in outputs],
        nodes=nodes,
        metadata={},
        notes=[],
    )
    return GraphPart(inputs, outputs, engine(own), own)


def _cuts(graph: Graph, count: int) -> list[int]:
    """Returns positions between nodes, about equally far apart, that few bytes cross."""
    total = len(graph.nodes)
    count = max(1, min(count, total // _LEAST))
    crossing = _crossing(graph)
    width = total / count
    cuts: list[int] = []
    for number in range(1, count):
        near = range(
            max(1, round((number - 0.4) * width)), min(total, round((number + 0.4) * width) + 1)
        )
        cuts.append(min(near, key=lambda p: (crossing[p], abs(p - number * width))))
    return sorted(set(cuts))


def _crossing(graph: Graph) -> list[int]:
    """Returns for every position how many elements are handed over there, for one sample."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    change = np.zeros(len(graph.nodes) + 2, np.int64)
    for node in graph.nodes:
        for value in node.outputs:
            last = max((position[reader] for reader, _ in value.users), default=-1)
            if last > position[node]:
                size = _elements(value)
                change[position[node] + 1] += size
                change[last + 1] -= size
    return np.cumsum(change).tolist()


def _elements(value: Value) -> int:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    if shape is None:
        return 1 << 20
    return int(np.prod([dim if isinstance(dim, int) else 1 for dim in shape], dtype=np.int64))
