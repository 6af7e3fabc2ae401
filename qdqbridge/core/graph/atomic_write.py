"""Files that are there whole, or not at all, whoever else writes them meanwhile."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from qdqbridge.errors import OutputExistsError, OutputFileError, QdqBridgeError

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
