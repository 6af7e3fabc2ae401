"""Arrays in ``.npz`` files."""

from __future__ import annotations

import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qdqbridge.core.graph.atomic_write import placed
from qdqbridge.core.graph.interpreter import most_bytes
from qdqbridge.errors import InputDataError

Array = NDArray[Any]

# Headers that are cut off in a bracket end in a TokenError; a KeyError is a member that is not
# there, a RuntimeError one that is encrypted, a NotImplementedError a compression nobody has.
DAMAGES = (
    OSError, ValueError, EOFError, KeyError, RuntimeError, NotImplementedError, MemoryError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError,
)  # fmt: skip
"""What Python and NumPy raise of files that are no archives of arrays, or damaged ones."""


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
                check_members(loaded.zip)
                return {name: _array(loaded[name], name) for name in loaded.files}
    except OSError as error:
        why = error.strerror or str(error)
        raise _unreadable(path, why, "check the path") from error
    except DAMAGES as error:
        large = isinstance(error, MemoryError)  # NumPy's are of a class of its own
        if type(error) is not MemoryError and large and path.stat().st_size * _RATIO < most_bytes():
            large, error = False, NotRead("it says that it has more numbers than it can hold")
        raise _unreadable(
            path, damage_of(error), "feed fewer samples" if large else _FIX
        ) from error


_FIX = "write it with numpy.savez(path, name=array), numbers only"


def _array(member: Any, name: str) -> Array:
    if isinstance(member, bytes):  # what NumPy gives of a member that is no array
        raise NotRead(f"'{name}' in it is no array")
    return np.asarray(member)


class NotRead(ValueError):
    """What is found out here about an archive; other errors are Python's and NumPy's words."""


def damage_of(error: Exception) -> str:
    """Returns why a file is not read, in words for somebody who did not write NumPy."""
    if (isinstance(error, OSError) and error.strerror) or isinstance(error, NotRead | MemoryError):
        return getattr(error, "strerror", None) or str(error) or "memory is exhausted"
    return "it is damaged, holds Python objects, or is no NumPy file"


_UNPACKED, _RATIO = 1 << 28, 100
"""Bytes from which an archive is asked how far it is compressed; zeros are a thousandfold."""


def check_members(archive: zipfile.ZipFile) -> None:
    """Checks what the table of contents says, before anything is unpacked.

    Raises:
        MemoryError: The arrays are larger than a value may be: kilobytes can stand for gigabytes.
        NotRead: Two members have one name, or the arrays are all but empty.
    """
    names = archive.namelist()
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise NotRead(f"it holds '{twice}' twice")
    total = sum(member.file_size for member in archive.infolist())
    stored = sum(member.compress_size for member in archive.infolist())
    if total > _UNPACKED and total > _RATIO * stored:
        raise NotRead(
            f"unpacked it has {total} bytes, {total // max(stored, 1)} times those in the file; "
            "data that really are like that can be saved by numpy.savez, uncompressed"
        )
    if total > most_bytes():
        raise MemoryError(f"unpacked it has {total} bytes, and at most {most_bytes()} are read")


def _unreadable(path: Path, why: str, fix: str) -> InputDataError:
    return InputDataError("cannot read the data file", where=str(path), why=why, fix=fix)
