"""The model inputs in a user's ``.npz`` file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from qdqbridge.app.cli.output import warn
from qdqbridge.app.report.inspection import misfits
from qdqbridge.core.arguments import path_of
from qdqbridge.core.graph.archive import read_arrays
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.errors import InputDataError

Array = NDArray[Any]
_LABELS = "labels"


def read_inputs(path: Path, inputs: Sequence[Value]) -> dict[str, Array]:
    """Returns one array per graph input.

    Arrays are found by the input's name; a model with one input takes the only array of a file
    whatever it is called, and a warning says so. An array named ``labels`` is left out.

    Raises:
        InputDataError: The file cannot be read, or its arrays are not the model's inputs.
    """
    from qdqbridge.autoquant.profiling.samples import arrays_of_inputs

    arrays = read_arrays(path_of(path))
    names = [value.name for value in inputs]
    if _LABELS in arrays and _LABELS not in names:
        warn(
            f"the array '{_LABELS}' of {path.name} is ignored: the model has no input of that name"
        )
        del arrays[_LABELS]
    fed = arrays_of_inputs(path, names, list(arrays), warn)
    arrays = {name: arrays[held] for name, held in fed.items()}
    for value in inputs:
        _check_axes(value, arrays[value.name], path)
    return arrays


def tell_misfits(graph: Graph, inputs: Mapping[str, Array]) -> None:
    """Warns of data that the quantization of the inputs does not fit."""
    for text in misfits(graph, inputs):
        warn(text)


def _check_axes(value: Value, array: Array, path: Path) -> None:
    wanted = value.type.shape
    if wanted is None or len(wanted) == array.ndim:
        return
    raise InputDataError(
        f"input '{value.name}' has {array.ndim} axes, the model wants {len(wanted)}",
        where=str(path),
        why=f"the array is {list(array.shape)}, the model wants [{', '.join(map(str, wanted))}]",
        fix=_axes_fix(wanted, array.shape),
    )


def _axes_fix(wanted: Sequence[int | str], have: Sequence[int]) -> str:
    for axis in range(len(wanted)) if len(wanted) == len(have) + 1 else ():
        rest = [*wanted[:axis], *wanted[axis + 1 :]]
        first = 1 if axis else 0  # any number of examples will do
        pairs = list(zip(rest, have, strict=True))[first:]
        if all(isinstance(want, str) or want == extent for want, extent in pairs):
            return f"insert the missing axis: numpy.expand_dims(array, {axis})"
    return "reshape it before it is saved"
