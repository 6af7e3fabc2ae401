"""Arrays from and to ``.npz`` files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qdqbridge.cli.output import warn
from qdqbridge.errors import InputDataError
from qdqbridge.graph.graph import Value

Array = NDArray[Any]
_LABELS = "labels"


def read_inputs(path: Path, inputs: Sequence[Value]) -> dict[str, Array]:
    """Returns one array per graph input.

    Arrays are found by the input's name; a model with one input takes the only array of a file
    whatever it is called. An array named ``labels`` is left out.

    Raises:
        InputDataError: The file cannot be read, or its arrays are not the model's inputs.
    """
    arrays = _read(path)
    names = [value.name for value in inputs]
    if _LABELS in arrays and _LABELS not in names:
        warn(f"the array '{_LABELS}' of {path.name} is no input of the model; it is left out")
        del arrays[_LABELS]
    if len(names) == 1 and len(arrays) == 1:
        arrays = {names[0]: next(iter(arrays.values()))}
    if set(arrays) != set(names):
        missing = [name for name in names if name not in arrays]
        unknown = [name for name in arrays if name not in names]
        raise InputDataError(
            "the data are not the inputs of the model",
            where=str(path),
            why=f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}",
            fix=f"name the arrays {', '.join(names)}",
        )
    for value in inputs:
        _check_axes(value, arrays[value.name], path)
    return arrays


def _read(path: Path) -> dict[str, Array]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {path.stem: loaded}
        with loaded:
            return {name: np.asarray(loaded[name]) for name in loaded.files}
    except OSError as error:
        why = error.strerror or str(error)
        raise _unreadable(path, why, "check the path") from error
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        pickled = "pickle" in str(error).lower()
        why = "it is damaged, holds Python objects, or is no NumPy file" if pickled else str(error)
        fix = "write it with numpy.savez(path, name=array), numbers only"
        raise _unreadable(path, why, fix) from error


def _unreadable(path: Path, why: str, fix: str) -> InputDataError:
    return InputDataError("cannot read the data file", where=str(path), why=why, fix=fix)


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
    if len(wanted) == len(have) + 1:
        for axis, extent in enumerate(wanted):
            rest = [*wanted[:axis], *wanted[axis + 1 :]]
            fits = all(
                isinstance(w, str) or w == h or i == 0
                for i, (w, h) in enumerate(zip(rest, have, strict=True))
            )
            if fits and (extent == 1 or axis == 0):
                return f"insert the missing axis: numpy.expand_dims(array, {axis})"
    return "reshape it before it is saved"


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes an ``.npz`` file; unlike ``numpy.savez`` it takes any name.

    Raises:
        InputDataError: The file cannot be written.
    """
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, np.asanyarray(array), allow_pickle=False)
    except OSError as error:
        raise InputDataError(
            "cannot write the arrays", where=str(path), why=error.strerror or str(error)
        ) from error
