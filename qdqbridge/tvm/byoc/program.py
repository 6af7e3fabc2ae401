"""A region as a backend compiles it: records in order of execution, values by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.errors import GraphError
from qdqbridge.tvm.byoc.partition import describe
from qdqbridge.tvm.byoc.records import Record
from qdqbridge.tvm.byoc.table import Table

Array = NDArray[Any]
Compute: TypeAlias = "Callable[[Record, Sequence[Array]], Array | Sequence[Array]]"
"""Computes a record from the arrays of its inputs."""


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One composite of a region.

    Attributes:
        entry: The table's entry.
        record: What it computes.
        operands: The number of the value of each of ``record.inputs``; None for a constant.
        results: The numbers of its results; one, but for a split.
    """

    entry: str
    record: Record
    operands: tuple[int | None, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A region.

    Attributes:
        inputs: How many inputs it has; these are the values 0, 1 and so on.
        steps: What it computes, in order of execution.
        outputs: The numbers of the values that it returns.
    """

    inputs: int
    steps: tuple[ProgramStep, ...]
    outputs: tuple[int, ...]

    def run(self, compute: Compute, inputs: Sequence[Array]) -> list[Array]:
        """Returns the outputs, each step computed by ``compute``.

        Args:
            compute: A kernel library, or a simulator.
            inputs: One array per input, then anything.
        """
        values = dict(enumerate(inputs[: self.inputs]))
        for step in self.steps:
            operands: list[Array] = []
            for number, tensor in zip(step.operands, step.record.inputs, strict=True):
                data = tensor.data if number is None else values[number]
                assert data is not None
                operands.append(data)
            computed = compute(step.record, operands)
            results = [computed] if isinstance(computed, np.ndarray) else computed
            values |= dict(zip(step.results, results, strict=True))
        return [values[number] for number in self.outputs]


def program(region: Any, table: Table) -> Program:
    """Takes a Relax region apart, a function that TVM hands to a code generator.

    Args:
        region: A function with the attribute ``Codegen``.
        table: The table that made it.

    Raises:
        GraphError: It holds something else than composites of the table.
    """
    return _Reader(table).program(region)


class _Reader:
    def __init__(self, table: Table) -> None:
        self.table = table
        self.numbers: dict[Any, tuple[int, ...]] = {}
        self.functions: dict[Any, Any] = {}
        self.steps: list[ProgramStep] = []
        self.count = 0

    def program(self, region: Any) -> Program:
        from tvm import ir, relax

        for variable in region.params:
            self._numbered(variable, 1)
        inputs = self.count
        bindings = [b for block in region.body.blocks for b in block.bindings]
        for binding in bindings:
            variable, value = binding.var, binding.value
            if isinstance(value, relax.Function):
                self.functions[variable] = value
            elif isinstance(value, ir.Call) and value.op in self.functions:
                self._step(variable, value)
            else:
                self.numbers[variable] = self._of(value)
        return Program(inputs, tuple(self.steps), self._of(region.body.body))

    def _numbered(self, variable: Any, count: int) -> tuple[int, ...]:
        self.numbers[variable] = tuple(range(self.count, self.count + count))
        self.count += count
        return self.numbers[variable]

    def _of(self, value: Any) -> tuple[int, ...]:
        """Returns the numbers of a variable, a tuple, or a field of one."""
        if value in self.numbers:
            return self.numbers[value]
        if hasattr(value, "tuple_value"):
            return (self._of(value.tuple_value)[int(value.index)],)
        if hasattr(value, "fields"):
            return tuple(number for field in value.fields for number in self._of(field))
        raise GraphError(
            "a region holds something that is not a composite",
            why=f"it is {type(value).__name__}",
            fix="give the regions of qdqbridge.tvm.byoc.partition as they are",
        )

    def _step(self, variable: Any, call: Any) -> None:
        function = self.functions[call.op]
        arguments = dict(zip(function.params, call.args, strict=True))
        record = describe(function, self.table)
        operands: list[int | None] = []
        for tensor in record.inputs:
            number = None if tensor.is_constant else self._of(arguments[tensor.term.source])[0]
            operands.append(number)
        fields = getattr(variable.ty, "fields", None)
        results = self._numbered(variable, 1 if fields is None else len(fields))
        entry = str(function.attrs["Composite"]).removeprefix(f"{self.table.name}.")
        self.steps.append(ProgramStep(entry, record, tuple(operands), results))
