"""What goes on inside the bodies of If, Loop and Scan: which tensors there are, and what they hold.

onnxruntime shows no tensor of a body. So a body is a model of its own, and ``ControlSteps`` say how
often it runs and on what: what the branch that is taken computes, and what every step of a loop
does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qdqbridge.autoquant.profiling.samples import Sample
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.control_flow.bodies import Body, bodies_in, is_control
from qdqbridge.onnx_io.control_flow.conditional import Array, ControlSteps
from qdqbridge.targets.running import Execution, Recipe

Visit: TypeAlias = "Callable[[str, Sample], None]"
"""Called with the place of a body and all that it is given, once for each of its runs."""


def real_values(graph: Graph) -> list[Value]:
    """Returns every float tensor of a graph that is computed or fed, in topological order."""
    results = (value for node in graph.nodes for value in node.outputs)
    return [v for v in (*graph.inputs, *results) if v.name and _is_real(v)]


def _is_real(value: Value) -> bool:
    if not isinstance(value.type, TensorType) or not value.type.dtype.is_float:
        return False
    used = bool(value.users) or value.producer is not None
    return used and not value.type.dtype.is_small_float


def watched(graph: Graph) -> list[Value]:
    """Returns the float tensors of a graph, and behind them those of all bodies in it."""
    inner = (b.graph for bodies in bodies_in(graph).values() for b in bodies)
    return [*real_values(graph), *(value for body in inner for value in watched(body))]


# ---- recipes: plain data, which goes to other processes


@dataclass(frozen=True, slots=True)
class BodyRecipe:
    """A body.

    Attributes:
        attribute: Which one of its node.
        place: Names it.
        model: Runs it; None where ONNX cannot express it by itself.
        watched: How many tensors are looked at, those of bodies inside too.
        captured: Which operands of its node it captures.
    """

    attribute: str
    place: str
    model: ModelRecipe | None
    watched: int
    captured: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ControlRecipe:
    """A node with bodies.

    Attributes:
        steps: How it goes through its bodies.
        operands: Its operands: a number among those that the model shows, a constant, or None
            where it is left out.
        bodies: Those that can be looked at.
    """

    steps: ControlSteps
    operands: tuple[int | Array | None, ...]
    bodies: tuple[BodyRecipe, ...]


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A model whose tensors are looked at, those in bodies too.

    Attributes:
        recipe: Runs it: it shows the tensors, the results, and what nodes with bodies read.
        inputs: Its inputs, in order.
        shown: How many of what it shows are tensors to look at.
        results: How many are results.
        controls: Its nodes with bodies.
    """

    recipe: Recipe
    inputs: tuple[str, ...]
    shown: int
    results: int
    controls: tuple[ControlRecipe, ...]

    @staticmethod
    def of(graph: Graph, *, threads: int = 0) -> ModelRecipe:
        """Writes a model so that :func:`watched` tensors are seen.

        Args:
            graph: The model.
            threads: Threads of onnxruntime; 0 lets it choose.

        Raises:
            UnsupportedTargetError: ONNX cannot express it.
        """
        values, results = real_values(graph), list(graph.outputs)
        found = bodies_in(graph)
        shown: list[Value] = [*values, *results]
        controls: list[ControlRecipe] = []
        for node, bodies in found.items():
            operands: list[int | Array | None] = []
            for value in node.inputs:
                if value is None or not isinstance(value.type, TensorType):
                    operands.append(None)
                elif value.constant is not None:
                    operands.append(value.constant.numpy())
                else:
                    operands.append(len(shown))
                    shown.append(value)
            inner = tuple(_body(body, threads) for body in bodies)
            controls.append(ControlRecipe(ControlSteps.of(node), tuple(operands), inner))
        return ModelRecipe(
            Recipe.of(graph, shown, threads=threads),
            tuple(value.name for value in graph.inputs),
            len(values),
            len(results),
            tuple(controls),
        )

    def execution(self) -> ModelExecution:
        """Returns what runs it."""
        return ModelExecution(self)


def _body(body: Body, threads: int) -> BodyRecipe:
    try:
        model = ModelRecipe.of(body.graph, threads=threads)
    except UnsupportedTargetError:
        model = None
    return BodyRecipe(body.attribute, body.place, model, len(watched(body.graph)), body.captured)


# ---- running


class ModelExecution:
    """A model that is run, and what its tensors hold; those of bodies in each run of these."""

    def __init__(self, recipe: ModelRecipe) -> None:
        """Loads the model.

        Raises:
            UnsupportedTargetError: onnxruntime cannot load it.
        """
        self.recipe = recipe
        self._execution = Execution(recipe.recipe)
        self._controls = [_ControlExecution(control) for control in recipe.controls]

    def run(self, inputs: Mapping[str, Array], visit: Visit | None = None) -> list[list[Array]]:
        """Returns what each tensor holds: one array, and for tensors of bodies any number.

        Args:
            inputs: By name.
            visit: Called for each run of a body, not of those inside bodies.
        """
        return self.ran(inputs, visit)[0]

    def ran(
        self, inputs: Mapping[str, Array], visit: Visit | None = None
    ) -> tuple[list[list[Array]], list[Array]]:
        """Returns what the tensors hold, and the results."""
        arrays, recipe = self._execution.run(inputs), self.recipe
        found = [[array] for array in arrays[: recipe.shown]]
        for control in self._controls:
            found += control.seen(arrays, visit)
        return found, arrays[recipe.shown : recipe.shown + recipe.results]


class _ControlExecution:
    """The bodies of one node; a body that onnxruntime cannot run is not seen."""

    def __init__(self, recipe: ControlRecipe) -> None:
        self.recipe = recipe
        self._bodies: dict[str, ModelExecution | None] = {}
        for body in recipe.bodies:
            try:
                model = body.model
                self._bodies[body.attribute] = None if model is None else ModelExecution(model)
            except UnsupportedTargetError:
                self._bodies[body.attribute] = None

    def seen(self, arrays: Sequence[Array], visit: Visit | None) -> list[list[Array]]:
        """Returns what the tensors of the bodies hold, over all their runs."""
        recipe = self.recipe
        operands = [arrays[each] if isinstance(each, int) else each for each in recipe.operands]
        bodies = {body.attribute: body for body in recipe.bodies}
        found = {name: [list[Array]() for _ in range(body.watched)]
                 for name, body in bodies.items()}  # fmt: skip

        def call(attribute: str, own: Sequence[Array]) -> Sequence[Array]:
            body, execution = bodies.get(attribute), self._bodies.get(attribute)
            if body is None or execution is None:
                raise _Unseen
            given = [*own, *(operands[index] for index in body.captured)]
            feed = {
                name: np.asarray(array)
                for name, array in zip(execution.recipe.inputs, given, strict=True)
            }
            held, results = execution.ran(feed)
            for mine, more in zip(found[attribute], held, strict=True):
                mine.extend(more)
            if visit is not None:
                visit(body.place, feed)
            return results

        with suppress(_Unseen, UnsupportedTargetError):  # what was seen by then was seen
            recipe.steps.run(operands, call)
        return [tensor for body in recipe.bodies for tensor in found[body.attribute]]


class _Unseen(Exception):
    """A body is to be run that cannot be looked at."""


def runs_of_bodies(graph: Graph, samples: Sequence[Sample], most: int) -> dict[str, list[Sample]]:
    """Returns what the bodies of a graph are given, by place: runs spread evenly over all.

    Args:
        graph: The model.
        samples: What it is run on.
        most: How many runs of each body.
    """
    execution = ModelRecipe.of(graph).execution()
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        execution.run(sample, lambda place, feed: found.setdefault(place, []).append(feed))
    picked: dict[str, list[Sample]] = {}
    for place, runs in found.items():
        chosen = np.linspace(0, len(runs) - 1, min(most, len(runs))).astype(int)
        picked[place] = [runs[index] for index in chosen.tolist()]
    return picked


def has_bodies(graph: Graph) -> bool:
    """True where something in a graph has bodies."""
    return any(is_control(node) for node in graph.nodes)
