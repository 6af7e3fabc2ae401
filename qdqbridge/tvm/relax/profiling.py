"""A float module that returns statistics of its tensors instead of results.

The tensors themselves never leave it: behind each of them stands a call of a kernel in
:mod:`qdqbridge.tvm.relax.statistics`, and they die as soon as in any other module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import ir, relax

from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import check_inputs
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.emitter import Expr, reason
from qdqbridge.tvm.relax.builder_turn import raise_interrupt
from qdqbridge.tvm.relax.building import compiled
from qdqbridge.tvm.relax.emit.module import ModuleEmitter
from qdqbridge.tvm.relax.kernels.codegen.cpu import target_of
from qdqbridge.tvm.relax.lowering import lowered
from qdqbridge.tvm.relax.statistics import FACTS, SIDE, SPLIT, both, extremes

Array = NDArray[Any]
Watched = tuple[Value, "int | None"]
"""A tensor, and the axis that numbers its channels."""


class _ProfilingEmitter(ModuleEmitter):
    def __init__(self, watched: Sequence[Watched], *, histograms: bool) -> None:
        super().__init__()
        self._watched, self._histograms = watched, histograms
        self._functions: dict[tuple[int, int | None], relax.GlobalVar] = {}

    def results(self, outputs: Sequence[Value]) -> list[Expr]:
        """Returns keys, facts and (with histograms) tables of each tensor, in turn."""
        del outputs
        return [part for value, axis in self._watched for part in self._statistics(value, axis)]

    def _statistics(self, value: Value, axis: int | None) -> list[Expr]:
        real = self.emitter.cast(self.emitter.value(value), "float32")
        rank = int(real.ty.ndim)
        channels = 1 if axis is None else real.ty.shape.values[axis]
        types = [_type((2, channels), "int32"), _type((len(FACTS),), "int64")]
        if self._histograms:
            types.append(_type((SPLIT * 2 * SIDE,), "int32"))
        operands: Any = [real]
        found = self.builder.emit(relax.call_tir(self._function(rank, axis), operands, types))
        return [self.builder.emit(relax.TupleGetItem(found, i)) for i in range(len(types))]

    def _function(self, rank: int, axis: int | None) -> relax.GlobalVar:
        key = (rank, axis)
        if key not in self._functions:
            kernel = both(rank, axis) if self._histograms else extremes(rank, axis)
            name = f"statistics_{rank}_{'all' if axis is None else axis}"
            kernel = kernel.with_attr("global_symbol", name)
            self._functions[key] = self.builder.add_func(kernel, name)
        return self._functions[key]


def _type(shape: Any, dtype: str) -> relax.TensorType:
    return relax.TensorType(shape, dtype)


class ProfilingModule:
    """A compiled module of statistics.

    Attributes:
        graph: The graph.
        module: The Relax module before lowering.
    """

    def __init__(
        self, graph: Graph, watched: Sequence[Watched], *, histograms: bool, target: Any = "llvm"
    ) -> None:
        """Emits and compiles.

        Args:
            graph: A canonical float graph.
            watched: The tensors to look at.
            histograms: Count values as well.
            target: A TVM target for CPUs.

        Raises:
            UnsupportedTargetError: TVM cannot express or build the module.
        """
        self.graph = graph
        self._parts = 3 if histograms else 2
        emitter = _ProfilingEmitter(watched, histograms=histograms)
        self.module: ir.IRModule = emitter.emit(graph)[0]
        resolved = target_of(target)
        try:
            library = compiled(lowered(self.module), resolved)
        except Exception as error:  # whatever a pass or LLVM raises
            raise_interrupt(error)
            raise UnsupportedTargetError(
                "TVM cannot build the module that takes statistics",
                why=reason(error),
                fix="profile with onnxruntime",
            ) from error
        self._device: Any = tvm.cpu()
        self._machine = relax.VirtualMachine(library, self._device)

    def run(self, sample: Mapping[str, Array]) -> list[list[Array]]:
        """Returns what the kernels say of each tensor: keys, facts, tables.

        Raises:
            InputDataError: An input is missing, unknown, or of the wrong dtype or shape.
        """
        arrays = check_inputs(self.graph.inputs, sample)
        tensors = [tvm.runtime.tensor(np.asarray(a, order="C"), self._device) for a in arrays]
        result = list(self._machine["main"](*tensors))
        found = [np.from_dlpack(tensor) for tensor in result]
        step = self._parts
        return [found[i : i + step] for i in range(0, len(found), step)]
