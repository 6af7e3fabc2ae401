"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from qdqbridge.errors import OutputFileError, QdqBridgeError


@contextmanager
def placed(path: Path, kind: type[QdqBridgeError] = OutputFileError) -> Generator[Path, None, None]:
    """Gives a new file beside ``path`` to write, and moves it there when that is done.

    The file ends in what ``path`` ends in, since some writers go by that.

    Args:
        path: Where the file shall be; what is there is replaced, behind a link as well. A device
            or a pipe is written to as it is.
        kind: The error for what the operating system refuses.

    Raises:
        OutputFileError: The operating system refuses (or what ``kind`` says).
    """
    scratch, path = None, Path(os.path.realpath(path))
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            yield path
            return
        handle, name = tempfile.mkstemp(path.suffix, f".{path.name[:80]}.", path.parent)
        os.close(handle)
        scratch = Path(name)
        yield scratch
        _take_permissions(scratch, path)
        os.replace(scratch, path)
        scratch = None
    except OSError as error:
        raise refused(path, error, kind) from error
    finally:
        if scratch is not None:
            with suppress(OSError):
                scratch.unlink()


def refused(
    path: Path, error: OSError, kind: type[QdqBridgeError] = OutputFileError
) -> QdqBridgeError:
    """Returns what to say where the operating system refuses to write ``path``."""
    return kind(
        "cannot write the file",
        where=str(path),
        why=error.strerror or str(error) or type(error).__name__,
        fix="check the folder, its permissions and the free space; what was there is unchanged",
    )


def write_text(path: Path, text: str) -> None:
    """Writes a text in UTF-8.

    Raises:
        OutputFileError: The operating system refuses.
    """
    with placed(path) as scratch:
        scratch.write_text(text, "utf-8")


def _take_permissions(scratch: Path, path: Path) -> None:
    """Gives the new file the mode of the old one, or what any new file would have."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    with suppress(OSError):
        scratch.chmod(mode)
