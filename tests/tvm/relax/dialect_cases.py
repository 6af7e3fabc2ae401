"""Calls of the dialect next to what the operator table says of them, built as one module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from qdqbridge.core.graph.types import QuantParams
from qdqbridge.tvm.relax import dialect
from tests.tvm.dialect.contract import Array, contract, every_code, params
from tests.tvm.relax.targets import UNOPTIMIZED, compiled

__all__ = ["Array", "Cases", "contract", "every_code", "params", "scale_of", "zero_of"]


def scale_of(p: QuantParams) -> Any:
    return relax.const(np.asarray(p.scale), "float32")


def zero_of(p: QuantParams) -> Any:
    return relax.const(np.asarray(p.zero_point), "int32")


@dataclass
class Cases:
    """Functions of one module, each with its inputs and what it must return."""

    target: dict[str, Any] = field(default_factory=lambda: UNOPTIMIZED)
    builder: Any = field(default_factory=lambda: relax.BlockBuilder())  # noqa: PLW0108
    expected: dict[str, tuple[list[Array], Array, str]] = field(default_factory=dict)

    def add(
        self,
        name: str,
        args: list[Any],
        attrs: dict[str, Any],
        expected: Array,
        *,
        symbolic: bool = True,
    ) -> None:
        """Adds a call; NumPy arrays among ``args`` are inputs of the function.

        With ``symbolic`` the first axis of the inputs of the highest rank is symbolic.
        """
        label = f"case{len(self.expected)}"
        flat = [e for arg in args for e in (arg if isinstance(arg, tuple) else (arg,))]
        inputs = [arg for arg in flat if isinstance(arg, np.ndarray)]
        names: dict[int, Any] = {}
        rank = max((array.ndim for array in inputs), default=0)
        variables: list[Any] = []
        for i, array in enumerate(inputs):
            shape: list[Any] = list(array.shape)
            if symbolic and len(shape) == rank > 1 and shape[0] > 1:
                shape[0] = names.setdefault(shape[0], tirx.Var(f"n{shape[0]}", "int64"))
            variables.append(relax.Var(f"x{i}", relax.TensorType(shape, str(array.dtype))))
        feed = iter(variables)

        def expression(arg: Any) -> Any:
            if isinstance(arg, tuple):
                return tuple(expression(member) for member in arg)
            return next(feed) if isinstance(arg, np.ndarray) else arg

        exprs = [expression(arg) for arg in args]
        with self.builder.function(label, variables):
            with self.builder.dataflow():
                value = self.builder.emit(dialect.call(name, exprs, attrs))
                result = self.builder.emit_output(value)
            self.builder.emit_func_output(result)
        self.expected[label] = (inputs, expected, f"{name} {attrs}")

    def module(self) -> tvm.IRModule:
        return self.builder.get()

    def check(self) -> None:
        """Builds, runs, and demands equal bits."""
        executable = compiled(self.module(), self.target)
        cpu: Any = tvm.cpu()
        machine = relax.VirtualMachine(executable, cpu)
        assert self.expected
        for label, (inputs, expected, text) in self.expected.items():
            tensors = [tvm.runtime.tensor(array.copy(order="C")) for array in inputs]
            got = machine[label](*tensors).numpy()
            assert got.dtype == expected.dtype, text
            assert got.shape == expected.shape, text
            wrong = np.flatnonzero((got != expected).ravel())
            where = wrong[:3]
            assert not wrong.size, (
                f"{text}: {wrong.size} of {got.size} differ, "
                f"{got.flat[where]} instead of {expected.flat[where]} at {where}"
            )
