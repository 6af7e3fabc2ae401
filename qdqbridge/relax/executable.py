"""A compiled graph that runs under the model's own input and output names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import ir, relax

from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.interpreter import check_inputs
from qdqbridge.relax.emit import emit
from qdqbridge.relax.emit.scope import reason, tvm_dtype


class Executable:
    """Compiled machine code with the interface of the model.

    Attributes:
        graph: The graph it was compiled from.
        module: The Relax module before lowering.
        library: TVM's compiled module (``library.export_library(path)`` saves it).
    """

    def __init__(self, graph: Graph, module: ir.IRModule, library: Any) -> None:
        self.graph, self.module, self.library = graph, module, library
        self._device: Any = tvm.cpu()
        self._machine = relax.VirtualMachine(library, self._device)

    @property
    def input_names(self) -> list[str]:
        """The model's input names, in order."""
        return [value.name for value in self.graph.inputs]

    @property
    def output_names(self) -> list[str]:
        """The model's output names, in order."""
        return list(self.graph.output_names)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Runs the model.

        Args:
            inputs: One array per input; quantized inputs take stored integers.

        Returns:
            One array per output name; quantized outputs are stored integers.

        Raises:
            InputDataError: An input is missing, unknown, or of the wrong dtype or shape.
        """
        arrays = check_inputs(self.graph, inputs)
        if any(0 in array.shape for array in arrays):
            raise InputDataError("an input has no elements", fix="feed at least one sample")
        tensors = [tvm.runtime.tensor(_held(a), self._device) for a in arrays]
        result = self._machine["main"](*tensors)
        results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        types = [value.type.dtype.numpy for value in self.graph.outputs]
        return {
            name: tensor.numpy().astype(dtype, copy=False)  # sub-byte types run as bytes
            for name, tensor, dtype in zip(self.output_names, results, types, strict=True)
        }


def _held(array: NDArray[Any]) -> NDArray[Any]:
    """Returns an input as TVM holds it: a byte per element of a sub-byte type."""
    held = tvm_dtype(DType.of(array.dtype))
    return np.asarray(array, order="C").astype(held, copy=False)


def build(graph: Graph, target: Any = "llvm") -> Executable:
    """Compiles a graph with TVM.

    Args:
        graph: A canonical graph.
        target: A TVM target, or its string or dictionary form.

    Raises:
        UnsupportedTargetError: TVM cannot run a node or an element type of the graph, or the
            target does not exist.
    """
    module, _ = emit(graph)
    try:
        resolved = tvm.target.Target(target)
    except Exception as error:  # TVM raises ValueError, KeyError or its own
        raise UnsupportedTargetError(
            f"TVM has no target {target!r}",
            why=str(error).strip().splitlines()[-1],
            fix="use 'llvm', or a target dictionary such as {'kind': 'llvm', 'mcpu': 'znver5'}",
        ) from error
    if resolved.kind.name != "llvm":
        raise UnsupportedTargetError(
            f"the target {target!r} is not supported",
            why="only CPU (llvm) targets are",
            fix="use 'llvm', or a target dictionary such as {'kind': 'llvm', 'mcpu': 'znver5'}",
        )
    try:
        library = tvm.compile(module, resolved)
    except Exception as error:  # whatever a pass or LLVM raises
        raise UnsupportedTargetError(
            "TVM cannot build the module",
            why=reason(error),
            fix="run the graph with the interpreter, and report the module (to_relax)",
        ) from error
    return Executable(graph, module, library)
