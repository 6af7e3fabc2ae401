"""Feeding more examples than a model takes at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.interpreter import array_of, check_mapping
from qdqbridge.errors import InputDataError

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One feeding of a model.

    Attributes:
        inputs: One array per graph input.
        rows: How many of its examples are real; the others repeat the last one.
        size: How many examples it has.
        count: How many batches there are in all.
    """

    inputs: dict[str, Array]
    rows: int
    size: int
    count: int


def batches(
    inputs: Sequence[Value], data: Mapping[str, Array], size: int | None = None
) -> Iterator[Batch]:
    """Yields ``data`` in pieces along axis 0 that the model takes.

    Data that fits is one batch. A model whose inputs all have the same fixed extent on axis 0
    gets that many examples at a time; the last batch is filled up by repeating its last example.

    Args:
        inputs: The graph's inputs.
        data: One array per graph input, by name.
        size: Examples per batch, for models that leave axis 0 open.

    Raises:
        InputDataError: There are no samples, or ``size`` is not the extent that the model fixes.
    """
    check_mapping(inputs, data)
    data = {name: array_of(name, array) for name, array in data.items()}
    _check_samples(inputs, data)
    step = _step(inputs, data, size)
    if step is None:
        rows = max((len(a) for a in data.values() if a.ndim), default=1)
        yield Batch(dict(data), rows, rows, 1)
        return
    total = len(next(iter(data.values())))
    fixed = _fixed(inputs) is not None
    count = -(-total // step)
    for start in range(0, total, step):
        parts = {name: array[start : start + step] for name, array in data.items()}
        rows = min(step, total - start)
        if rows < step and fixed:
            parts = {name: _filled(part, step) for name, part in parts.items()}
        yield Batch(parts, rows, step if fixed else rows, count)


def _check_samples(inputs: Sequence[Value], data: Mapping[str, Array]) -> None:
    """Refuses arrays of no samples, except for inputs with an extent that the model fixes to 0.

    Other extents than that of axis 0 may be 0: a cache's is, before the first token.
    """
    for value in inputs:
        array = data.get(value.name)
        if array is not None and array.shape[:1] == (0,) and 0 not in (value.type.shape or ()):
            raise InputDataError(
                f"no samples: input '{value.name}' has no elements",
                why=f"its shape is {list(array.shape)}",
                fix="feed at least one sample",
            )


def _step(inputs: Sequence[Value], data: Mapping[str, Array], size: int | None) -> int | None:
    """Returns the examples per batch, None where the data goes in whole."""
    fixed = _fixed(inputs)
    if size is not None and size < 1:
        raise InputDataError(f"a batch of {size} examples is none", fix="give 1 or more")
    if size is not None and fixed is not None and size != fixed:
        raise InputDataError(
            f"the model takes {fixed} examples at a time, not {size}",
            why=f"axis 0 of its inputs is fixed to {fixed}",
            fix="leave the batch size out",
        )
    step = fixed if size is None else size
    totals = {array.shape[0] if array.ndim else None for array in data.values()}
    if step is None or len(totals) != 1 or totals <= {step, 0, None}:
        return None
    return step


def _fixed(inputs: Sequence[Value]) -> int | None:
    """Returns the extent of axis 0 where all inputs fix it, and to the same number."""
    extents = {value.type.shape[0] if value.type.shape else None for value in inputs}
    extent = next(iter(extents), None)
    return extent if len(extents) == 1 and isinstance(extent, int) and extent > 0 else None


def _filled(array: Array, size: int) -> Array:
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])


def concat_batch_results(parts: Sequence[Array], batches_: Sequence[Batch], name: str) -> Array:
    """Returns the results of all batches as one array, without the examples filled in.

    Raises:
        InputDataError: The output has no axis of examples, so its batches cannot be joined.
    """
    if len(parts) == 1 and batches_[0].rows == batches_[0].size:
        return parts[0]
    for part, batch in zip(parts, batches_, strict=True):
        if not part.ndim or len(part) != batch.size:
            raise InputDataError(
                f"output '{name}' cannot be put together from batches",
                why=f"a batch has {batch.size} examples, the output has shape {part.shape}",
                fix="feed exactly as many examples as the model takes",
            )
    rows = [part[: batch.rows] for part, batch in zip(parts, batches_, strict=True)]
    return np.concatenate(rows)
