"""Tensor data in files next to the model: mapped when looked at, never from outside its folder."""

from __future__ import annotations

import mmap
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from qdqbridge.errors import InputDataError, InvalidModelError, ModelFileError, QdqBridgeError
from qdqbridge.onnx_io.inference.shapes import declared_types

_Read = TypeVar("_Read")

# ---- low-rank adapters in files of onnxruntime: arrays by the names of a model's inputs ----------
# Such a model reads the matrices of its adapters from inputs, which may have initializers without
# elements as defaults: without an adapter it computes what it was adapted from.

Array = NDArray[Any]


def read_adapter(path: Path) -> dict[str, Array]:
    """Returns the arrays of an ``.onnx_adapter`` file by the names of the inputs they are for.

    Raises:
        ModelFileError: The file cannot be read, or is none.
    """
    from onnxruntime import AdapterFormat

    name: Any = str(path)  # what it takes, whatever its annotation says
    try:
        held = AdapterFormat.read_adapter(name).get_parameters()
        return {key: np.array(value.numpy()) for key, value in sorted(held.items())}
    except Exception as error:  # onnxruntime has no common error of its own
        raise ModelFileError(
            "the adapter cannot be read",
            where=str(path),
            why=(str(error).splitlines() or [""])[0],
            fix="give the .onnx_adapter file that onnxruntime or Olive wrote",
        ) from error


def adapt(model: onnx.ModelProto, adapter: Mapping[str, Array], where: str) -> None:
    """Makes the arrays of an adapter constants of a model.

    Args:
        model: The model; it is changed.
        adapter: What :func:`read_adapter` returns.
        where: The adapter's file.

    Raises:
        InputDataError: The adapter is another model's.
    """
    graph, inputs = model.graph, declared_types(model.graph.input)
    for name, array in adapter.items():
        element, shape = inputs.get(name, (0, None))
        tensor = numpy_helper.from_array(array, name)
        fits = shape is None or (
            len(shape) == array.ndim
            and all(isinstance(a, str) or a == b for a, b in zip(shape, array.shape, strict=True))
        )
        if element != tensor.data_type or not fits:
            raise InputDataError(
                "the adapter does not fit the model",
                where=f"{where}, '{name}'",
                why="the model has no such input"
                if name not in inputs
                else f"it is {array.dtype}{list(array.shape)}, the input has the shape "
                f"{shape} and ONNX's element type {element}",
                fix="give the adapter that was made with this model",
            )
        defaults = [each for each in graph.initializer if each.name == name]
        for each in defaults:
            graph.initializer.remove(each)
        graph.initializer.append(tensor)


class _MappedFile:
    """One file of external data, mapped once however many tensors read it."""

    __slots__ = ("__weakref__", "_identity", "_map", "_memory", "path")

    def __init__(self, path: Path, identity: tuple[int, ...]) -> None:
        self.path, self._identity = path, identity
        self._memory: np.memmap[Any, np.dtype[np.uint8]] | None = None
        self._map: NDArray[np.uint8] | None = None

    def check(self, where: str) -> None:
        """Checks that the bytes are those that were there when the model was read.

        Looking at what a shorter file no longer has would end the process. A file that is mapped
        stays what it is where another one has taken its name, or none has it.

        Raises:
            ModelFileError: It was written to; or it was removed or replaced, and is not mapped.
        """
        if self.kept():
            return
        try:
            identity = _identity(self.path.stat())
        except OSError as error:
            why = error.strerror or str(error)
            raise _changed(where, f"'{self.path.name}' cannot be opened: {why}") from error
        if identity != self._identity:
            was, now = self._identity[-1], identity[-1]
            size = f"had {was} bytes and has {now}" if was != now else "is another, or was written"
            raise _changed(where, f"'{self.path.name}' {size}")

    def kept(self) -> bool:
        """True where the bytes are mapped and nobody has written to them."""
        pages, now = self._pages(), _state(self.path)
        if pages is None or pages.size() != self._identity[-1]:
            return False
        return now == self._identity or now[:2] != self._identity[:2]

    def current(self) -> bool:
        """True where the file is still what it was."""
        return _state(self.path) == self._identity

    def view(self, offset: int, nbytes: int, where: str) -> NDArray[np.uint8]:
        """Returns bytes of the file; the view need not be aligned."""
        if self._map is None:
            try:
                with self.path.open("rb") as stream:
                    if _identity(os.fstat(stream.fileno())) != self._identity:
                        raise _changed(where, f"'{self.path.name}' is another, or was written")
                    self._memory = np.memmap(stream, np.uint8, "r")
                self._map = np.asarray(self._memory)
            except (OSError, ValueError) as error:  # ValueError: the file is empty
                raise ModelFileError(
                    "external data cannot be mapped",
                    where=where,
                    why=str(error),
                    fix="keep the data file in place while the model is in use",
                ) from error
        return self._map[offset : offset + nbytes]

    @property
    def size(self) -> int:
        return self._identity[-1]

    def _pages(self) -> mmap.mmap | None:
        return getattr(self._memory, "_mmap", None)  # NumPy has no other way to the map

    def release(self, offset: int, nbytes: int) -> None:
        """Tells the operating system that pages need not stay in memory; they can be read again."""
        pages = self._pages()
        advice = getattr(mmap, "MADV_DONTNEED", None)
        if pages is None or advice is None:
            return
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (offset + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length > 0:
            pages.madvise(advice, start, length)


_MAPPED: WeakValueDictionary[tuple[Path, tuple[int, ...]], _MappedFile] = WeakValueDictionary()


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _changed(where: str, why: str) -> ModelFileError:
    return ModelFileError(
        "external data changed after the model was read",
        where=where,
        why=why,
        fix="load the model again, and keep its data file in place while it is in use",
    )


# ---- Files that somebody else writes while a model is read
#
# What is read of a model and of its data then is of two models. So it is read again until nothing
# changed meanwhile.

_OPENED: ContextVar[dict[Path, _MappedFile] | None] = ContextVar("opened", default=None)
"""The data files of the model that is being read."""
_TRIES, _PAUSE = 7, 0.02
"""How often a model is read, and how many seconds lie between; each time twice as many."""


def read_unchanged(read: Callable[[], _Read], path: Path) -> _Read:
    """Returns what is read of a model that somebody else may be writing.

    Args:
        read: Reads the model and all that lies beside it.
        path: Its file.

    Raises:
        ModelFileError: The files changed at every attempt.
    """
    for attempt in range(_TRIES):
        before, opened = _state(path), dict[Path, _MappedFile]()
        token = _OPENED.set(opened)
        try:
            found = read()
        except QdqBridgeError:
            if attempt == _TRIES - 1 or _same_files(path, before, opened):
                raise
        else:
            alone = [*opened] == [path.resolve()]  # one file, open all the time
            if (alone and opened[path.resolve()].kept()) or _same_files(path, before, opened):
                return found
        finally:
            _OPENED.reset(token)
        time.sleep(_PAUSE * 2**attempt)
    raise ModelFileError(
        "the model was written while it was read",
        where=str(path),
        why=f"its files were other ones after each of {_TRIES} attempts",
        fix="load it when it is written; write new files elsewhere, and move them here",
    )


def _state(path: Path) -> tuple[int, ...]:
    try:
        return _identity(path.stat())
    except (OSError, ValueError):  # whoever reads it tells; ValueError: a NUL in the path
        return ()


def _same_files(path: Path, before: tuple[int, ...], opened: Mapping[Path, _MappedFile]) -> bool:
    """True where everything that was read is still there: it is of one model."""
    return _state(path) == before and all(file.current() for file in opened.values())


@dataclass(frozen=True, slots=True)
class _ByteRange:
    """What a tensor's ``external_data`` entries say."""

    location: str
    offset: int
    length: int | None


@dataclass(frozen=True, slots=True)
class ExternalBytes:
    """A tensor's data in a file.

    Attributes:
        load: Maps the data.
        check: Raises where they are not as they were.
        release: Tells the operating system that they are not needed in memory.
    """

    load: Callable[[], NDArray[np.uint8]]
    check: Callable[[], None]
    release: Callable[[], None]


def external_bytes(
    tensor: TensorProto, nbytes: int, folder: Path | None, where: str
) -> ExternalBytes:
    """Checks where a tensor's data lies.

    Returns:
        The data, which are not looked at yet.

    Args:
        tensor: A tensor whose ``data_location`` is EXTERNAL.
        nbytes: Bytes that its type and shape take.
        folder: Folder of the model file; None for a model that was not read from a file.
        where: File and tensor, for messages.

    Raises:
        ModelFileError: The file is missing, too short, or not inside ``folder``.
        InvalidModelError: The entries are malformed or disagree with ``nbytes``.
    """
    extent = _extent(tensor, where)
    if extent.length is not None and extent.length != nbytes:
        raise InvalidModelError(
            "a tensor's data does not fit its shape",
            where=where,
            why=f"its shape takes {nbytes} bytes, and length says {extent.length}",
            fix="export the model again",
        )
    if folder is None:
        raise ModelFileError(
            "a model in memory refers to external data",
            where=where,
            why=f"location is '{extent.location}', and the model's folder is not known",
            fix="give the path of the model file, or load the data into the model first",
        )
    path, status = _located(extent.location, folder, where)
    kept, offset = _mapped_file(path, status, where), extent.offset
    if offset + nbytes > kept.size:
        raise ModelFileError(
            "external data ends before the tensor does",
            where=where,
            why=f"offset {extent.offset} + {nbytes} bytes is beyond the {kept.size} bytes "
            f"of '{extent.location}'",
            fix="fetch the data file again (it may be a Git LFS pointer or a broken download)",
        )
    return ExternalBytes(
        lambda: kept.view(offset, nbytes, where),
        lambda: kept.check(where),
        lambda: kept.release(offset, nbytes),
    )


def file_bytes(path: Path) -> bytes:
    """Returns what is in a file; tensors that lie there are read from the same state of it.

    Raises:
        OSError: It cannot be opened.
    """
    path = path.resolve()
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return path.read_bytes()
    return _mapped_file(path, status, str(path)).view(0, status.st_size, str(path)).tobytes()


def _mapped_file(path: Path, status: os.stat_result, where: str) -> _MappedFile:
    """Returns a file that is mapped, the one that was opened before for the same model."""
    opened, key = _OPENED.get(), (path, _identity(status))
    mapped = (opened or {}).get(path) or _MAPPED.get(key)
    if mapped is None:
        mapped = _MAPPED[key] = _MappedFile(*key)
    if opened is not None:
        opened[path] = mapped
    with suppress(ModelFileError):  # of too many files some are mapped when they are looked at
        mapped.view(0, 0, where)
    return mapped


def _extent(tensor: TensorProto, where: str) -> _ByteRange:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        # protobuf hands out bytes where a string is not UTF-8
        if not (isinstance(entry.key, str) and isinstance(entry.value, str)):  # pyright: ignore
            raise InvalidModelError(
                "external data is described in bytes that are no text",
                where=where,
                why=f"an entry is {entry.key!r}: {entry.value!r}",
                fix="export the model again; the file is damaged",
            )
        if entry.key in entries:
            raise InvalidModelError(
                "external data is described twice",
                where=where,
                why=f"'{entry.key}' appears twice",
                fix="export the model again",
            )
        entries[entry.key] = entry.value
    numbers: dict[str, int] = {}
    for key in ("offset", "length"):
        text = entries.get(key, "").strip()
        if not text:
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise InvalidModelError(
                f"the {key} of external data is not a size",
                where=where,
                why=f"{key} is '{text[:40]}'",
                fix="export the model again",
            )
        numbers[key] = int(text)
    return _ByteRange(entries.get("location", ""), numbers.get("offset", 0), numbers.get("length"))


def _located(location: str, folder: Path, where: str) -> tuple[Path, os.stat_result]:
    """Returns the file of external data, which must be a regular file inside ``folder``."""
    fix = "put the data file into the model's folder and use its relative name"
    refuse = "external data is not a file inside the model's folder"
    windows = PureWindowsPath(location)
    if not location or "\0" in location or windows.drive or windows.root:
        why = f"location is '{location[:200]}'"
        raise ModelFileError(refuse, where=where, why=why, fix=fix)
    normal = PurePosixPath(os.path.normpath(location.replace("\\", "/")))
    if normal.parts[:1] == ("..",):
        why = f"location '{location[:200]}' leads out of the folder"
        raise ModelFileError(refuse, where=where, why=why, fix=fix)
    try:
        path = (folder / normal).resolve(strict=True)
        inside = path.is_relative_to(folder.resolve(strict=True))
        status = path.stat()
    except (OSError, RuntimeError, ValueError) as error:
        # RuntimeError: links that go round; ValueError: a NUL in the path
        why = f"'{location[:200]}' cannot be opened: {getattr(error, 'strerror', None) or error}"
        raise ModelFileError("external data is missing", where=where, why=why, fix=fix) from error
    if not inside:
        why = f"'{location[:200]}' is a link that leads out of the folder"
        raise ModelFileError(refuse, where=where, why=why, fix=fix)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        kind = "empty" if stat.S_ISREG(status.st_mode) else "not a regular file"
        why = f"'{location[:200]}' is {kind}"
        raise ModelFileError(refuse, where=where, why=why, fix=fix)
    return path, status
