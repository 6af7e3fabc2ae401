"""A TFLite file, float or quantized, as a graph."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import Shape
from qdqbridge.errors import ModelFileError
from qdqbridge.onnx_io.assembly import Assembly
from qdqbridge.onnx_io.external_data import file_bytes, read_unchanged
from qdqbridge.tflite_io.conversion import FileState, SubgraphConversion, UnknownForm, named, refuse
from qdqbridge.tflite_io.operators import ROWS
from qdqbridge.tflite_io.schema import Model, parsed

_Output = tuple[str, str, DType, Shape]


def read(
    path: str | PathLike[str], normal: Callable[[Graph], Graph] = lambda graph: graph
) -> Graph:
    """Reads a TFLite file.

    Args:
        path: The ``.tflite`` file; its weights stay in it and are mapped.
        normal: As for :func:`qdqbridge.onnx_io.reading.reader.read`.

    Returns:
        The raw graph: inputs and outputs with the file's names, element types and layout; inside,
        images are turned to channels-first around each operator that wants them so.

    Raises:
        ModelFileError: The file cannot be read, is no TFLite file, or is damaged.
        InvalidModelError: It contradicts itself.
        UnsupportedModelError: The package ``tflite`` is not installed, or operators have no
            counterpart here; all of them are listed.
    """
    file = Path(path)
    try:
        return read_unchanged(lambda: _graph(parsed(_content(file), str(file)), file, normal), file)
    except UnknownForm as error:
        raise ModelFileError(
            "the TFLite file contradicts itself", where=str(file), why=str(error)
        ) from error


def _content(file: Path) -> bytes:
    try:
        return file_bytes(file)
    except OSError as error:
        raise ModelFileError(
            "the model file cannot be read", where=str(file), why=error.strerror or str(error)
        ) from error


def _graph(model: Model, file: Path, normal: Callable[[Graph], Graph]) -> Graph:
    state = FileState(model, ROWS)
    main = model.subgraphs[0]
    names = model.signatures.get(0, {})
    assembly = Assembly(file)
    conversion = SubgraphConversion(state, main, assembly)
    labels = [conversion.tensor(index).name or names.get(index, "input") for index in main.inputs]
    shapes = named(
        model.metadata,
        (
            _tflite_symbolic_shape(conversion.tensor(index).shape, index == main.inputs[0], label)
            for index, label in zip(main.inputs, labels, strict=True)
        ),
    )
    for index, label, shape in zip(main.inputs, labels, shapes, strict=True):
        dtype = conversion.dtype(conversion.tensor(index))
        conversion.stored_names[index] = assembly.input(label, dtype, shape)
    results = [  # before anything inside takes their names
        assembly.name(conversion.tensor(index).name or names.get(index, "output"))
        for index in main.outputs
    ]
    conversion.run()
    refuse(state, str(file))
    outputs: list[_Output] = [
        (conversion.stored(index), name, conversion.dtype(conversion.tensor(index)), None)
        for index, name in zip(main.outputs, results, strict=True)
    ]
    for variable in state.resources.values():
        name = assembly.name(f"{variable.name}:next")
        outputs.append((variable.stored, name, conversion.dtype(variable.tensor), None))
    metadata = {"description": model.description} if model.description else {}
    graph = assembly.graph(outputs, metadata, normal)
    graph.notes.extend(state.notes)
    return graph


def _tflite_symbolic_shape(shape: tuple[int, ...] | None, first: bool, name: str) -> Shape:
    """Returns extents whose open ones have names: the first input's leading one is the batch."""
    if shape is None:
        return None
    return tuple(
        extent if extent >= 0 else "batch" if first and axis == 0 else f"{name}:{axis}"
        for axis, extent in enumerate(shape)
    )
