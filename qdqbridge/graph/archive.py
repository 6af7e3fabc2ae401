"""Arrays to ``.npz`` files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qdqbridge.errors import InputDataError

Array = NDArray[Any]


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
