"""Arrays to ``.npz`` files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qdqbridge.graph.placing import placed

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
