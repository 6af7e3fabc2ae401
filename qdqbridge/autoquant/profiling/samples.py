"""Calibration data as single samples, from memory or files, so that nothing depends on batches."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qdqbridge.core.graph.atomic_write import DAMAGES, NotRead, damage_of
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.interpreter import array_of, check_inputs, check_mapping, most_bytes
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.matmul import GEMM
from qdqbridge.errors import InputDataError, UnsupportedTargetError

# ---- Calibration data as single samples, so that nothing depends on how it comes in batches ------


Array = NDArray[Any]
Sample = Mapping[str, Array]
GivenData: TypeAlias = (
    "Mapping[str, Array] | Array | Iterable[Mapping[str, Any] | Sequence[Any] | Array]"
)
"""What users give: arrays of many examples, or what each of several runs is given."""
_BATCH = 8
_AS_THEY_LIE = (Flow.ELEMENTWISE, Flow.CONVERT)


def examples(value: Value) -> int | None:
    """Returns what axis 0 of a graph input is fixed to, None where it is open.

    Where nobody declares it, a Gemm that transposes the input does: it sums along that axis.
    """
    shape = value.type.shape
    if shape and isinstance(shape[0], int):
        return shape[0]
    reached = [value]
    for current in reached:
        for node, index in current.users:
            gemm, weight = GEMM.of(node), node.optional(1)
            if gemm is not None and index == 0 and gemm.trans_a and weight is not None:
                terms = weight.type.shape and weight.type.shape[int(gemm.trans_b)]
                if isinstance(terms, int):
                    return terms
            elif node.op.flow in _AS_THEY_LIE and len(node.inputs) == 1:
                reached.append(node.output)
    return None


def is_one_run(inputs: Sequence[Value], arrays: Mapping[str, Array]) -> bool:
    """Returns whether arrays are what the model is given once, for it has no axis of examples.

    So it is where the model wants a single number, or declares of axis 0 what is not the number of
    examples of another input: a recurrent state of two layers, say, beside one piece of sound.

    Args:
        inputs: The graph's inputs.
        arrays: One array for each.
    """
    lengths = {value.name: arrays[value.name].shape[:1] for value in inputs}
    if len(set(lengths.values())) == 1 or (0,) in lengths.values():
        return False
    declared = [
        (value.name, value.type.shape[:1]) for value in inputs if value.type.shape is not None
    ]
    fixed = [(name, shape) for name, shape in declared if not shape or isinstance(shape[0], int)]
    return bool(fixed) and all(lengths[name] == shape for name, shape in fixed)


@contextmanager
def cut_along_examples(inputs: Sequence[Value]) -> Generator[None, None, None]:
    """Lets the error of a model that cannot run a sample say how samples are cut.

    Args:
        inputs: The graph's inputs.

    Raises:
        UnsupportedTargetError: What was raised, with another way out where axis 0 is open.
    """
    try:
        yield
    except UnsupportedTargetError as error:
        names = ", ".join(f"'{value.name}'" for value in inputs if examples(value) is None)
        if not names:
            raise
        fix = f"fix axis 0 of {names} in the model, if that does not number examples: data is cut "
        fix += "along it, one at a time"
        fixes = f"{error.fix}; or {fix}" if error.fix else fix
        raise UnsupportedTargetError(
            error.what, where=error.where, why=error.why, fix=fixes
        ) from error


def inputs_to_feed(inputs: Sequence[Value], given: Collection[str]) -> list[Value]:
    """Returns the inputs that data has to be for: those that something reads, and those given.

    Where nothing reads any, all.
    """
    return [value for value in inputs if value.users or value.name in given] or list(inputs)


def _with_unread(inputs: Sequence[Value], sample: Sample) -> Sample:
    """Returns what a run is given, with zeros for inputs that it leaves out."""
    left = [value for value in inputs if value.name not in sample]
    if not left:
        return sample
    extents: dict[object, int] = {}
    for value in inputs:
        if value.name in sample:
            extents.update(zip(value.type.shape or (), sample[value.name].shape, strict=False))
    return {**sample} | {
        value.name: np.zeros(
            [d if isinstance(d, int) else extents.get(d, 1) for d in value.type.shape or ()],
            value.type.dtype.numpy,
        )
        for value in left
    }


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Samples of a model, cut from arrays that hold many; nothing is copied.

    Attributes:
        arrays: One array per graph input that is fed; axis 0 numbers examples.
        step: Examples that the model takes at once: what axis 0 of an input is fixed to, else 1.
        inputs: The graph's inputs, where some of them are not fed: these get zeros.
    """

    arrays: Mapping[str, Array]
    step: int
    inputs: Sequence[Value] = ()

    @staticmethod
    def of(inputs: Sequence[Value], data: Mapping[str, Array]) -> Samples:
        """Returns the samples that ``data`` holds for a model.

        Args:
            inputs: The graph's inputs.
            data: One array per input, by name; what :func:`is_one_run` says is a single sample.

        Raises:
            InputDataError: There is no sample, the arrays hold different numbers of examples,
                examples are left over where the model takes several at once, or an example has
                not the shape or element type of its input.
        """
        check_mapping(inputs, data)
        every, inputs = inputs, inputs_to_feed(inputs, data)
        names = [value.name for value in inputs]
        if set(names) != set(data):
            raise InputDataError(
                "the data are not the inputs of the model",
                why=f"given: {', '.join(sorted(map(str, data))) or 'none'}",
                fix=f"give exactly: {', '.join(names)}",
            )
        arrays = {name: array_of(name, data[name]) for name in names}
        lengths = {name: a.shape[0] if a.ndim else 0 for name, a in arrays.items()}
        total = min(lengths.values(), default=0)
        if is_one_run(inputs, arrays):
            return RunSamples.of_runs([_with_unread(every, arrays)])
        if len(set(lengths.values())) > 1 or total == 0:
            listed = ", ".join(f"{name}: {count}" for name, count in lengths.items())
            raise InputDataError(
                "the inputs do not hold the same number of examples, or hold none",
                why=listed,
                fix="put the examples along axis 0 of every array; or, for a model without such an "
                "axis, what one run is given into each of several files",
            )
        fixed = (examples(value) for value in inputs)
        step = next((extent for extent in fixed if extent is not None), 1)
        if total % step:
            raise InputDataError(
                f"the model takes {step} examples at once and {total % step} are left over",
                why=f"axis 0 of its inputs is fixed to {step}, the data holds {total}",
                fix=f"give a multiple of {step} examples",
            )
        found = Samples(arrays, step, every if len(every) > len(inputs) else ())
        try:
            check_inputs(every, found[0])
        except InputDataError:
            check_inputs(inputs, arrays)  # says what is wrong with the shapes that were given
            raise
        return found

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values()))) // self.step

    def __getitem__(self, index: int) -> Sample:
        start = index * self.step
        cut = {name: array[start : start + self.step] for name, array in self.arrays.items()}
        return _with_unread(self.inputs, cut)

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    @property
    def together(self) -> bool:
        """Whether several may be joined along axis 0."""
        return self.step == 1

    @property
    def elements(self) -> int:
        """The elements of the first sample."""
        return sum(array[: self.step].size for array in self.arrays.values())

    def picked(self, indices: Sequence[int]) -> Samples:
        """Returns some of the samples, by their numbers."""
        rows = [index * self.step + offset for index in indices for offset in range(self.step)]
        arrays = {name: array[rows] for name, array in self.arrays.items()}
        return replace(self, arrays=arrays)

    def batches(self, inputs: Sequence[Value], size: int = _BATCH) -> list[Sample]:
        """Returns the samples, several at once where every input leaves axis 0 open.

        Args:
            inputs: The graph's inputs.
            size: How many.
        """
        takes_any = all(value.type.shape and examples(value) is None for value in inputs)
        # A model that fixes its batch is run as it is made, one sample at a time.
        if not self.together or not takes_any:
            return list(self)
        several = replace(self, step=size)
        return [several[index] for index in range(-(-len(self) // size))]


def samples_of(inputs: Sequence[Value], data: GivenData) -> Samples:
    """Returns the samples in a user's arrays.

    Args:
        inputs: The graph's inputs.
        data: Arrays as :meth:`Samples.of` takes them; or what each of several runs is given, by
            name, as arrays in the order of the inputs, or as the array of the only input, which
            may lack the axis of examples. Inputs that nothing reads may be left out.

    Raises:
        InputDataError: They do not fit the model.
    """
    if isinstance(data, Mapping):
        return Samples.of(inputs, cast("Mapping[str, Array]", data))
    if isinstance(data, np.ndarray):
        return Samples.of(inputs, _by_name(inputs, cast("Array", data), lacking=False))
    if not hasattr(data, "__iter__"):
        check_mapping(inputs, data)
    runs = [_with_unread(inputs, _by_name(inputs, run)) for run in data]
    if not runs:
        raise InputDataError("there is no sample", fix="give what at least one run is given")
    for run in runs:
        check_inputs(inputs, run)
    return batch_samples(runs)


def _by_name(inputs: Sequence[Value], run: object, *, lacking: bool = True) -> Sample:
    """Returns arrays by name.

    Args:
        inputs: The graph's inputs.
        run: What is given: by name, in the order of the inputs, or of the only one.
        lacking: The array of the only input may lack the axis of examples.
    """
    if isinstance(run, Mapping):
        given = cast("Mapping[str, object]", run)
        return {name: array_of(name, array) for name, array in given.items()}
    wanted = inputs_to_feed(inputs, ())
    if len(wanted) == 1:
        value, array = wanted[0], array_of(wanted[0].name, run)
        shape = value.type.shape
        # One image without the axis of images, as people have it at hand.
        alone = lacking and shape is not None and array.ndim == len(shape) - 1
        return {value.name: array[None] if alone else array}
    arrays = cast("list[object]", run if isinstance(run, list | tuple) else [])
    if len(arrays) != len(wanted):
        check_mapping(wanted, cast("object", run))
    pairs = zip(wanted, arrays, strict=True)
    return {value.name: array_of(value.name, array) for value, array in pairs}


def batch_samples(runs: Sequence[Sample]) -> Samples:
    """Returns samples given one by one; what has the same extents everywhere may be joined again.

    Args:
        runs: What each run of the model is given; at least one.
    """
    shapes = {name: array.shape for name, array in runs[0].items()}
    alike = all({name: a.shape for name, a in run.items()} == shapes for run in runs)
    counts = {shape[:1] for shape in shapes.values()}
    if not alike or len(counts) > 1 or () in counts:
        return RunSamples.of_runs(runs)
    arrays = {name: np.concatenate([run[name] for run in runs]) for name in shapes}
    return Samples(arrays, next(iter(counts))[0])


@dataclass(frozen=True, slots=True, eq=False)
class RunSamples(Samples):
    """Samples whose inputs have extents of their own, and may be single numbers.

    Attributes:
        runs: What each run was given, by name.
    """

    runs: Sequence[Sample] = ()

    @staticmethod
    def of_runs(runs: Sequence[Sample]) -> RunSamples:
        """Returns the samples that runs of a part of a model were given."""
        return RunSamples({}, 1, runs=tuple(runs))

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: int) -> Sample:
        return self.runs[index]

    @property
    def together(self) -> bool:
        """Whether several may be joined along axis 0."""
        return False

    @property
    def elements(self) -> int:
        """The elements of the first sample."""
        return sum(array.size for array in self.runs[0].values())

    def picked(self, indices: Sequence[int]) -> Samples:
        """Returns some of the samples, by their numbers."""
        return RunSamples.of_runs([self.runs[index] for index in indices])


# ---- Calibration data in files, read sample by sample: memory does not grow with their number ----


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
        names: Name of the array in it, per input of the model.
        samples: How many it holds.
        step: Examples of a sample; None where the whole file is what one run is given.
        inputs: The graph's inputs, where some of them are not fed.
    """

    path: Path
    names: Mapping[str, str]
    samples: int
    step: int | None
    inputs: Sequence[Value] = ()

    def __iter__(self) -> Iterator[Sample]:
        found = _stream_samples(self.path, self.names, self.samples, self.step)
        return (_with_unread(self.inputs, sample) for sample in found)


@dataclass(frozen=True, slots=True)
class FileSamples:
    """Samples of a model in ``.npz`` files, one after the other.

    Attributes:
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

    def file_of(self, number: int) -> Path:
        """Returns the file that holds a sample, by its number of those that are not left out."""
        kept = (n for n in range(sum(f.samples for f in self.files)) if n not in self.left_out)
        behind, place = 0, next(islice(kept, number, None))
        for file in self.files:
            behind += file.samples
            if place < behind:
                return file.path
        raise IndexError(number)


def named_samples(samples: object, numbers: Sequence[int]) -> str:
    """Returns samples by their numbers, and where they are of several files by these."""
    if not isinstance(samples, FileSamples) or len(samples.files) < 2:
        return ", ".join(map(str, numbers))
    return ", ".join(f"{number} ('{samples.file_of(number).name}')" for number in numbers)


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
        wanted = [value.name for value in inputs_to_feed(inputs, headers)]
        chosen = _chosen(file, wanted, headers, said)
        stand_ins = {name: _stand_in(headers[array]) for name, array in chosen.items()}
        try:
            check_mapping(inputs, stand_ins)
            samples = Samples.of(inputs, stand_ins)
        except InputDataError as error:
            raise InputDataError(
                error.what, where=str(file), why=error.why, fix=error.fix
            ) from error
        step = None if isinstance(samples, RunSamples) else samples.step
        unread = inputs if len(chosen) < len(inputs) else ()
        files.append(DataFile(file, chosen, len(samples), step, unread))
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
    return arrays_of_inputs(path, wanted, names, lambda text: said.update({text: None}))


def arrays_of_inputs(
    path: Path, wanted: Sequence[str], names: Sequence[str], warn: Callable[[str], None]
) -> dict[str, str]:
    """Returns which array of a file is fed to each input of a model, by name.

    Args:
        path: The file.
        wanted: The names of the inputs.
        names: Of the arrays. A model with one input takes the only array whatever it is called.
        warn: Called where it is called otherwise.

    Raises:
        InputDataError: The arrays are not the inputs of the model.
    """
    if len(wanted) == 1 and len(names) == 1:
        if names[0] != wanted[0] and path.suffix != _NPY:  # an .npy file has no names
            warn(f"the array '{names[0]}' is fed to the model's only input, '{wanted[0]}'")
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
    # Checked before anything is read: a header of a few bytes can claim any size.
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
