"""A graph in onnxruntime: written in memory, any of its float values visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.copying import with_outputs
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.runtime.products import (
    keep_byte_products,
    keep_fused_products,
    keep_half_products,
    saturates,
)
from qdqbridge.onnx_io.runtime.session import run

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes a runner, in plain data: it goes to other processes and machines.

    Attributes:
        model: The ONNX file.
        inputs: The names of the graph's inputs.
        wanted: Where each value comes from: the name of an output, or of an input it is.
        optimized: Let onnxruntime fuse operators; results may change in the last bits.
        threads: Threads of onnxruntime; 0 lets it choose.
        spinning: Idle threads keep a core busy for a while: faster for one session, slower where
            there are several.
    """

    model: bytes
    inputs: tuple[str, ...]
    wanted: tuple[tuple[Literal["output", "input"], str], ...]
    optimized: bool
    threads: int
    spinning: bool = True

    @staticmethod
    def of(
        graph: Graph,
        values: Sequence[Value],
        *,
        optimized: bool = True,
        threads: int = 0,
        spinning: bool = True,
    ) -> Recipe:
        """Writes a graph so that ``values`` are visible.

        Raises:
            UnsupportedTargetError: ONNX cannot express the graph.
        """
        from qdqbridge.targets.profiles.export import exported_proto

        shown = with_outputs(graph, [v for v in values if v not in set(graph.inputs)])
        names = dict(zip(shown.outputs, shown.output_names, strict=True))
        model = exported_proto(shown)
        if not optimized:
            keep_half_products(model.graph)
        if saturates():
            keep_byte_products(model.graph)
        return Recipe(
            model.SerializeToString(),
            tuple(value.name for value in graph.inputs),
            tuple(("output", names[v]) if v in names else ("input", v.name) for v in values),
            optimized,
            threads,
            spinning,
        )


class Execution:
    """A recipe, loaded."""

    def __init__(self, recipe: Recipe) -> None:
        """Loads the model.

        Raises:
            UnsupportedTargetError: onnxruntime cannot load it.
        """
        self._wanted = recipe.wanted
        self._names = list(dict.fromkeys(name for kind, name in recipe.wanted if kind == "output"))
        self._session = _session(recipe)

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Returns the recipe's values for one feeding.

        Raises:
            UnsupportedTargetError: onnxruntime cannot run the graph on these inputs.
        """
        try:
            results = run(self._session, inputs, self._names) if self._names else []
        except Exception as error:  # onnxruntime has no common error of its own
            raise _error("cannot run the model", error) from error
        found = dict(zip(self._names, results, strict=True))
        return [
            np.asarray(found[name] if kind == "output" else inputs[name])
            for kind, name in self._wanted
        ]


class Runner(Execution):
    """Runs a graph with onnxruntime on the CPU and returns the values asked for.

    Attributes:
        inputs: The names of the graph's inputs.
        values: What :meth:`run` returns, in this order.
    """

    def __init__(
        self,
        graph: Graph,
        values: Sequence[Value] = (),
        *,
        optimized: bool = True,
        threads: int = 0,
        spinning: bool = True,
    ) -> None:
        """Writes the graph and loads it.

        Args:
            graph: Any graph that ONNX can express.
            values: Values to return beside nothing else; by default the graph's outputs.
            optimized: Let onnxruntime fuse operators; results may change in the last bits.
            threads: Threads of onnxruntime; 0 lets it choose.
            spinning: Idle threads keep a core busy for a while: faster for one session, slower
                where there are several.

        Raises:
            UnsupportedTargetError: ONNX cannot express the graph, or onnxruntime cannot load it.
        """
        self.values = list(values) or list(graph.outputs)
        self.inputs = [value.name for value in graph.inputs]
        recipe = Recipe.of(
            graph, self.values, optimized=optimized, threads=threads, spinning=spinning
        )
        super().__init__(recipe)


def _session(recipe: Recipe) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = recipe.threads
    keep_fused_products(options)
    if not recipe.spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not recipe.optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return ort.InferenceSession(recipe.model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no common error of its own
        raise _error("cannot load the model", error) from error


def _error(what: str, error: Exception) -> UnsupportedTargetError:
    message = " ".join(str(error).split())
    return UnsupportedTargetError(
        f"onnxruntime {what}",
        why=message if len(message) <= 400 else message[:400] + " …",
        fix="run it with another engine",
    )
