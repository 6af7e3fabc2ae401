"""Calibration data as single samples, so that nothing depends on how it comes in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.errors import InputDataError
from qdqbridge.graph.graph import Value
from qdqbridge.graph.interpreter import check_mapping

Array = NDArray[Any]
Sample = Mapping[str, Array]
_BATCH = 8


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Samples of a model, cut from arrays that hold many; nothing is copied.

    Attributes:
        arrays: One array per graph input; axis 0 numbers examples.
        step: Examples that the model takes at once: what its inputs fix axis 0 to, else 1.
    """

    arrays: Mapping[str, Array]
    step: int

    @staticmethod
    def of(inputs: Sequence[Value], data: Mapping[str, Array]) -> Samples:
        """Returns the samples that ``data`` holds for a model.

        Args:
            inputs: The graph's inputs.
            data: One array per input, by name.

        Raises:
            InputDataError: There is no sample, the arrays hold different numbers of examples, or
                examples are left over where the model takes several at once.
        """
        check_mapping(inputs, data)
        names = [value.name for value in inputs]
        if set(names) != set(data):
            raise InputDataError(
                "the data are not the inputs of the model",
                why=f"given: {', '.join(sorted(data)) or 'none'}",
                fix=f"give exactly: {', '.join(names)}",
            )
        arrays = {name: np.asarray(data[name]) for name in names}
        lengths = {name: a.shape[0] if a.ndim else 0 for name, a in arrays.items()}
        total = min(lengths.values(), default=0)
        if len(set(lengths.values())) > 1 or total == 0:
            listed = ", ".join(f"{name}: {count}" for name, count in lengths.items())
            raise InputDataError(
                "the inputs do not hold the same number of examples, or hold none",
                why=listed,
                fix="put the examples along axis 0 of every array",
            )
        fixed = {value.type.shape[0] for value in inputs if value.type.shape}
        step = next((d for d in fixed if isinstance(d, int)), 1)
        if total % step:
            raise InputDataError(
                f"the model takes {step} examples at once and {total % step} are left over",
                why=f"axis 0 of its inputs is fixed to {step}, the data holds {total}",
                fix=f"give a multiple of {step} examples",
            )
        return Samples(arrays, step)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values()))) // self.step

    def __getitem__(self, index: int) -> Sample:
        start = index * self.step
        return {name: array[start : start + self.step] for name, array in self.arrays.items()}

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    @property
    def together(self) -> bool:
        """Whether several may be joined along axis 0."""
        return self.step == 1

    @property
    def elements(self) -> int:
        """The elements of the first sample."""
        return sum(array[: self.step].size for array in self.arrays.values())

    def picked(self, indices: Sequence[int]) -> Samples:
        """Returns some of the samples, by their numbers."""
        rows = [index * self.step + offset for index in indices for offset in range(self.step)]
        return Samples({name: array[rows] for name, array in self.arrays.items()}, self.step)

    def batches(self, inputs: Sequence[Value], size: int = _BATCH) -> list[Sample]:
        """Returns the samples, several at once where every input leaves axis 0 open.

        Args:
            inputs: The graph's inputs.
            size: How many.
        """
        shapes = [value.type.shape for value in inputs]
        if not self.together or not all(shape and isinstance(shape[0], str) for shape in shapes):
            return list(self)
        several = Samples(self.arrays, size)
        return [several[index] for index in range(-(-len(self) // size))]


@dataclass(frozen=True, slots=True, eq=False)
class RunSamples(Samples):
    """Samples whose inputs have extents of their own, and may be single numbers.

    Attributes:
        runs: What each run was given, by name.
    """

    runs: Sequence[Sample] = ()

    @staticmethod
    def of_runs(runs: Sequence[Sample]) -> RunSamples:
        """Returns the samples that runs of a part of a model were given."""
        return RunSamples({}, 1, tuple(runs))

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: int) -> Sample:
        return self.runs[index]

    @property
    def together(self) -> bool:
        """Whether several may be joined along axis 0."""
        return False

    @property
    def elements(self) -> int:
        """The elements of the first sample."""
        return sum(array.size for array in self.runs[0].values())

    def picked(self, indices: Sequence[int]) -> Samples:
        """Returns some of the samples, by their numbers."""
        return RunSamples.of_runs([self.runs[index] for index in indices])
