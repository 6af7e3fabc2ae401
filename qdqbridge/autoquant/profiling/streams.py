"""Calibration data in files, read sample by sample: memory does not grow with their number."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.samples import RunSamples, Sample, Samples
from qdqbridge.core.graph.archive import DAMAGES, NotRead, damage_of
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.interpreter import check_mapping, most_bytes
from qdqbridge.errors import InputDataError

_LABELS = "labels"
_IGNORED = f"the array '{_LABELS}' is ignored: the model has no input of that name"
_NPY = ".npy"
Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Header:
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def row(self) -> int:
        """Bytes of an example."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of samples.

    Attributes:
        path: The file.
        names: Name of the array in it, per input of the model.
        samples: How many it holds.
        step: Examples of a sample; None where the whole file is what one run is given.
    """

    path: Path
    names: Mapping[str, str]
    samples: int
    step: int | None

    def __iter__(self) -> Iterator[Sample]:
        return _stream_samples(self.path, self.names, self.samples, self.step)


@dataclass(frozen=True, slots=True)
class FileSamples:
    """Samples of a model in ``.npz`` files, one after the other.

    Attributes:
        files: The files.
        left_out: Numbers of samples that are passed over.
    """

    files: tuple[DataFile, ...]
    left_out: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return sum(file.samples for file in self.files) - len(self.left_out)

    def __iter__(self) -> Iterator[Sample]:
        return (row for number, row in enumerate(self._all()) if number not in self.left_out)

    def _all(self) -> Iterator[Sample]:
        for file in self.files:
            yield from file


def open_samples(
    path: Path, inputs: Sequence[Value], warn: Warn | None = None, *, labelled: bool = False
) -> FileSamples:
    """Returns the samples in an ``.npz`` file, or in all of a folder in the order of their names.

    Arrays are found by the input's name; a model with one input takes the only array of a file
    whatever it is called. An array named ``labels`` is left out. A file holds as many samples as
    there are examples along axis 0 of its arrays; where the model has no such axis it holds one,
    see :func:`~qdqbridge.autoquant.profiling.samples.is_one_run`.

    Args:
        path: The file or folder.
        inputs: The graph's inputs.
        warn: Called with what was assumed.
        labelled: Labels are read elsewhere: nothing is said of theirs.

    Raises:
        InputDataError: A file cannot be read, holds no sample, or other arrays than the model's
            inputs; or the folder holds no file.
    """
    found = sorted(path.glob("*.npz")) if os.path.isdir(path) else [path]
    if not found:
        raise InputDataError(
            "the folder holds no data", where=str(path), fix="put .npz files into it"
        )
    said: dict[str, None] = {}
    files: list[DataFile] = []
    for file in found:
        headers = _headers(file)
        chosen = _chosen(file, [value.name for value in inputs], headers, said)
        stand_ins = {name: _stand_in(headers[array]) for name, array in chosen.items()}
        try:
            check_mapping(inputs, stand_ins)
            samples = Samples.of(inputs, stand_ins)
        except InputDataError as error:
            raise InputDataError(
                error.what, where=str(file), why=error.why, fix=error.fix
            ) from error
        step = None if isinstance(samples, RunSamples) else samples.step
        files.append(DataFile(file, chosen, len(samples), step))
    if warn is not None:
        for text in said:
            if not (labelled and text == _IGNORED):
                warn(text)
    return FileSamples(tuple(files))


def _stand_in(header: _Header) -> NDArray[Any]:
    """Returns an array of that shape which takes no memory."""
    return np.broadcast_to(np.zeros((), header.dtype), header.shape)


def _chosen(
    path: Path, wanted: Sequence[str], headers: dict[str, _Header], said: dict[str, None]
) -> dict[str, str]:
    names = list(headers)
    if _LABELS in names and _LABELS not in wanted:
        said[_IGNORED] = None
        names.remove(_LABELS)
    if len(wanted) == 1 and len(names) == 1:
        if names != list(wanted) and path.suffix != _NPY:
            said[f"the array '{names[0]}' is fed to the model's only input, '{wanted[0]}'"] = None
        return {wanted[0]: names[0]}
    if set(names) != set(wanted):
        missing = [name for name in wanted if name not in names]
        unknown = [name for name in names if name not in wanted]
        raise InputDataError(
            "the data are not the inputs of the model",
            where=str(path),
            why=f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}",
            fix=f"name the arrays {', '.join(wanted)}",
        )
    return {name: name for name in wanted}


# ---- NumPy's files -----------------------------------------------------------------------------


def _headers(path: Path) -> dict[str, _Header]:
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as stream:
                return {path.stem: _header(stream)}
        with zipfile.ZipFile(path) as archive:
            found: dict[str, _Header] = {}
            for member in archive.namelist():
                with archive.open(member) as stream:
                    found[member.removesuffix(_NPY)] = _header(stream)
            return found
    except DAMAGES as error:  # all of them are the file's
        raise _unreadable(path, error) from error


def _header(stream: IO[bytes]) -> _Header:
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
    else:
        shape, fortran, dtype = npy.read_array_header_2_0(stream)
    if dtype.hasobject:
        raise NotRead("it holds Python objects")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > np.iinfo(np.int64).max:
        raise NotRead(f"no array has the shape {list(shape)}")
    header = _Header(shape, fortran, dtype)
    _stand_in(header)  # NumPy's own limit on the number of axes
    return header


def _stream_samples(
    path: Path, names: Mapping[str, str], samples: int, step: int | None
) -> Generator[Sample, None, None]:
    try:
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path)) if _is_zip(path) else None
            readers = {
                name: _reader(stack, path, archive, array, step) for name, array in names.items()
            }
            for _ in range(samples):
                yield {name: read() for name, read in readers.items()}
    except DAMAGES as error:  # all of them are the file's
        raise _unreadable(path, error) from error


def _is_zip(path: Path) -> bool:
    return zipfile.is_zipfile(path)


def _reader(
    stack: ExitStack, path: Path, archive: zipfile.ZipFile | None, array: str, step: int | None
) -> Callable[[], NDArray[Any]]:
    """Returns what reads the next ``step`` examples of an array, or all of it."""
    if archive is None:
        stream: IO[bytes] = stack.enter_context(path.open("rb"))
    else:
        member = array + _NPY if array + _NPY in archive.namelist() else array
        stream = stack.enter_context(archive.open(member))
    header = _header(stream)
    at_once = math.prod(header.shape) * header.dtype.itemsize
    if step is not None and not header.fortran:
        at_once = header.row * step
    if at_once > most_bytes():
        raise MemoryError(f"a sample has {at_once} bytes, and at most {most_bytes()} are read")
    if step is None:
        order = "F" if header.fortran else "C"
        return lambda: np.frombuffer(stream.read(at_once), header.dtype).reshape(
            header.shape, order=order
        )
    if header.fortran:  # its examples do not lie one behind the other
        whole = np.frombuffer(stream.read(at_once), header.dtype).reshape(header.shape[::-1]).T
        parts = iter(range(0, len(whole), step))
        return lambda: (start := next(parts), np.ascontiguousarray(whole[start : start + step]))[1]
    shape = (step, *header.shape[1:])

    def read() -> NDArray[Any]:
        data = bytearray(header.row * step)
        if stream.readinto(data) != len(data):  # type: ignore[attr-defined]
            raise NotRead("it ends too early")
        return np.frombuffer(data, header.dtype).reshape(shape)

    return read


def _unreadable(path: Path, error: Exception) -> InputDataError:
    return InputDataError(
        "cannot read the data file",
        where=str(path),
        why=damage_of(error),
        fix="check the path; write it with numpy.savez(path, name=array), numbers only",
    )
