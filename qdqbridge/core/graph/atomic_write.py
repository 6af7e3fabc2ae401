"""Files that are there whole, or not at all, and arrays in ``.npz`` files."""

from __future__ import annotations

import errno
import lzma
import os
import secrets
import tempfile
import threading
import time
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qdqbridge.core.graph.interpreter import most_bytes
from qdqbridge.errors import InputDataError, OutputExistsError, OutputFileError, QdqBridgeError

# ---- Files that are there whole, or not at all, whoever else writes them meanwhile ---------------


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_PATIENCE = 2.0
"""Seconds to wait for another process that moves files: longer, and the lock is somebody else's."""


_WAITING: ContextVar[dict[Path, Path] | None] = ContextVar("waiting", default=None)
"""Where new files are that another one, which is still being written, is moved together with."""


@contextmanager
def placed(
    path: Path,
    kind: type[QdqBridgeError] = OutputFileError,
    *,
    overwrite: bool = True,
    inside: bool = False,
) -> Generator[Path, None, None]:
    """Gives a new file beside ``path`` to write, and moves it there when that is done.

    The file ends in what ``path`` ends in, since some writers go by that.

    Args:
        path: Where the file shall be; what is there is replaced, behind a link as well. A device
            or a pipe is written to as it is.
        kind: The error for what the operating system refuses.
        overwrite: Replace a file that is there.
        inside: What is placed inside is moved in one turn with it, and is not there before.

    Raises:
        OutputFileError: The operating system refuses (or what ``kind`` says).
        OutputExistsError: A file is there, before or after it is written, and must not be replaced.
    """
    with placed_together([path], kind, overwrite=overwrite, inside=inside) as (scratch,):
        yield scratch


@contextmanager
def placed_together(
    paths: list[Path],
    kind: type[QdqBridgeError] = OutputFileError,
    *,
    overwrite: bool = True,
    inside: bool = False,
) -> Generator[list[Path], None, None]:
    """Gives a new file for each of ``paths``, as :func:`placed`; they are moved in one turn.

    So files that belong to each other do not mix with those of another thread or process.
    """
    scratch: dict[Path, Path] = {}
    place, outer = paths[0], _WAITING.get()
    token = _WAITING.set(scratch if inside else outer)
    try:
        places = [_behind_links(path) for path in paths]
        for place in places:
            if place.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a folder")
        _need_free(places, overwrite)
        for place in places:
            if place.is_file() or not place.exists():
                scratch[place] = _scratch(place)
        place = places[0]
        yield [scratch.get(place, place) for place in places]
        if outer is not None:
            outer |= scratch
            scratch.clear()
            return
        with _turn(place.parent):
            _need_free(list(scratch), overwrite)
            for place in list(scratch):
                with suppress(FileNotFoundError):
                    scratch[place].chmod(place.stat().st_mode & 0o777)
                os.replace(scratch[place], place)
                del scratch[place]
    except OSError as error:
        raise refused(place, error, kind) from error
    finally:
        _WAITING.reset(token)
        for left in scratch.values():
            with suppress(OSError):
                left.unlink()


def refused(
    path: Path, error: OSError, kind: type[QdqBridgeError] = OutputFileError
) -> QdqBridgeError:
    """Returns what to say where the operating system refuses to write ``path``."""
    return kind(
        "cannot write the file",
        where=str(path),
        why=error.strerror or str(error) or type(error).__name__,
        fix=f"{fix_of(error)}; what was there is unchanged",
    )


def fix_of(error: OSError) -> str:
    """Returns what helps against what the operating system says."""
    return _FIXES.get(error.errno or 0, "check the folder, its permissions and the free space")


_FIXES = {
    errno.EINVAL: "give another name",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOENT: "make the folder first",
    errno.ENOTDIR: "give the name of a file in a folder",
    errno.EISDIR: "give the name of a file in it",
    errno.EACCES: "check the permissions of the folder",
    errno.EPERM: "check the permissions of the folder",
    errno.EROFS: "choose a folder that can be written",
    errno.ENOSPC: "make space, or choose another folder",
    errno.EDQUOT: "make space, or choose another folder",
}


def write_text(path: Path, text: str) -> None:
    """Writes a text in UTF-8.

    Raises:
        OutputFileError: The operating system refuses.
    """
    with placed(path) as scratch:
        scratch.write_text(text, "utf-8")


def _behind_links(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        why = "its name holds a NUL, or half of a character"
        raise OSError(errno.EINVAL, why) from error


def _scratch(path: Path) -> Path:
    """Makes an empty file that is nobody else's, with the mode that any new file has."""
    ours = f".{path.name[:40]}.{secrets.token_hex(8)}{path.suffix[:20]}"
    with path.with_name(ours).open("xb"):
        return path.with_name(ours)


def _need_free(places: list[Path], overwrite: bool) -> None:
    there = [] if overwrite else [place for place in places if place.exists()]
    if there:
        raise OutputExistsError(
            "the file is there already",
            where=str(there[0]),
            fix="choose another name, or overwrite=True (on the command line --force)",
        )


@contextmanager
def _turn(folder: Path) -> Generator[None, None, None]:
    """Keeps other threads and processes from moving files in ``folder``, where it has locks."""
    lock = None
    try:
        with suppress(OSError):  # neither without locks nor without the right to read it
            lock = os.open(folder, os.O_RDONLY)
            _wait(lock)
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _wait(lock: int) -> None:
    until = time.monotonic() + _PATIENCE
    while fcntl and time.monotonic() < until:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.001)
    return None


# ---- Arrays in ``.npz`` files --------------------------------------------------------------------


Array = NDArray[Any]

# Headers that are cut off in a bracket end in a TokenError; a KeyError is a member that is not
# there, a RuntimeError one that is encrypted, a NotImplementedError a compression nobody has.
DAMAGES = (
    OSError, ValueError, EOFError, KeyError, RuntimeError, NotImplementedError, MemoryError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError,
)  # fmt: skip
"""What Python and NumPy raise of files that are no archives of arrays, or damaged ones."""


def bytes_written(write: Callable[[Path], object], name: str) -> int:
    """Returns how large the files are that something writes.

    Args:
        write: Writes a file of that path, and what lies beside it.
        name: What the file is called.
    """
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, name))
        return sum(file.stat().st_size for file in Path(folder).iterdir())


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


_PARSING = threading.Lock()
"""NumPy parses headers as Python, whose depth CPython 3.11 counts in all threads together."""


def read_arrays(path: Path) -> dict[str, Array]:
    """Returns the arrays of an ``.npz`` file by name; that of an ``.npy`` by the file's name.

    Raises:
        InputDataError: The file cannot be read, or holds something else than numbers.
    """
    try:
        with _PARSING, path.open("rb") as stream:  # numpy leaves a damaged file open
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
