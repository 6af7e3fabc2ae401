"""Arrays in ``.npz`` files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qdqbridge.errors import InputDataError
from qdqbridge.graph.atomic_write import placed

Array = NDArray[Any]


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes an ``.npz`` file; unlike ``numpy.savez`` it takes any name.

    Raises:
        OutputFileError: The file cannot be written.
    """
    with (
        placed(path) as scratch,
        zipfile.ZipFile(scratch, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: Path) -> dict[str, Array]:
    """Returns the arrays of an ``.npz`` file by name; that of an ``.npy`` by the file's name.

    Raises:
        InputDataError: The file cannot be read, or holds something else than numbers.
    """
    try:
        with path.open("rb") as stream:  # numpy leaves a damaged file open
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {path.stem: loaded}
            with loaded:
                return {name: np.asarray(loaded[name]) for name in loaded.files}
    except OSError as error:
        why = error.strerror or str(error)
        raise _unreadable(path, why, "check the path") from error
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        # what NumPy raises of a damaged file
        pickled = "pickle" in str(error).lower()
        why = "it is damaged, holds Python objects, or is no NumPy file" if pickled else str(error)
        fix = "write it with numpy.savez(path, name=array), numbers only"
        raise _unreadable(path, why, fix) from error


def _unreadable(path: Path, why: str, fix: str) -> InputDataError:
    return InputDataError("cannot read the data file", where=str(path), why=why, fix=fix)
