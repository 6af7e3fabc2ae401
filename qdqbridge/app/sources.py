"""Models in files of any kind: ONNX, TFLite, or a Relax module that somebody has saved."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from qdqbridge.core.arguments import BIT_FOR_BIT, ReadingOptions, need_tvm, path_of
from qdqbridge.core.graph.graph import Graph, Header
from qdqbridge.errors import InputDataError

if TYPE_CHECKING:
    from qdqbridge.app.report.inspection import Inspection

File: TypeAlias = "str | PathLike[str]"
MODULES = (".json", ".py")
"""Suffixes of Relax modules."""
TOSA_FILES = (".tosa", ".mlir", ".mlirbc")
"""Suffixes of what is written with Arm's programs."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model file as it is written.

    Attributes:
        graph: The graph, verified, before any rule.
        header: Reads what the file says of itself.
        channels_last: Whether images lie channels-last in it.
    """

    file: Path
    graph: Graph
    header: Callable[[], Header]
    channels_last: bool = False

    def canonical(self, options: ReadingOptions = BIT_FOR_BIT) -> Graph:
        """Returns the graph, rewritten in place to the canonical form.

        Args:
            options: What is rewritten beyond what keeps every bit.
        """
        from qdqbridge.core.canonical import canonicalize
        from qdqbridge.core.graph.edit import verify

        graph = self.graph
        canonicalize(graph, options, channels_first=self.channels_last)
        verify(graph, str(self.file))
        if graph.as_read is not None:
            # Rewrites that change bits make the file's own nodes another model: it is written
            # canonically then.
            graph.as_read = graph.as_read.of(graph) if options == BIT_FOR_BIT else None
        return graph


def load_model(
    path: File,
    *,
    params: File | None = None,
    canonical: bool = True,
    options: ReadingOptions = BIT_FOR_BIT,
    adapter: File | None = None,
    optional_inputs: bool = False,
    encodings: File | None = None,
) -> Graph:
    """Reads an ONNX model, a TFLite file, or a Relax module in a file: ``.json`` or ``.py``.

    A ``.json`` is what ``tvm.ir.save_json`` writes. A ``.py`` is TVMScript; it is compared with
    what TVM itself writes and parsed, never run.

    Args:
        path: The file.
        params: An ``.npz`` file with the parameters of a module that are kept apart from it.
        canonical: As for :func:`qdqbridge.load`.
        options: What is rewritten beyond what keeps every bit.
        adapter: As for :func:`qdqbridge.load`.
        optional_inputs: As for :func:`qdqbridge.load`.
        encodings: As for :func:`qdqbridge.load`.

    Raises:
        ModelFileError: The file cannot be read, or holds something else.
        InvalidModelError: Its parts do not fit each other.
        UnsupportedModelError: Something in it is not supported; the error lists all of it.
        InputDataError: ``params`` cannot be read, the model is no module and needs none, or the
            adapter or the encodings are another model's.
    """
    source = _read_model_source(
        path_of(path), params, adapter, optional_inputs=optional_inputs, encodings=encodings
    )
    return source.canonical(options) if canonical else source.graph


def inspect_model(
    path: File,
    *,
    params: File | None = None,
    options: ReadingOptions = BIT_FOR_BIT,
    adapter: File | None = None,
    optional_inputs: bool = False,
    encodings: File | None = None,
) -> Inspection:
    """Returns what a model file holds: operators, quantization, interface, digest, notes.

    Raises:
        QdqBridgeError: As :func:`load_model`.
    """
    from qdqbridge.app.report.inspection import inspection, operators
    from qdqbridge.core.canonical import explanation
    from qdqbridge.onnx_io.control_flow.bodies import parts
    from qdqbridge.targets.profiles import products_in_pairs

    source = _read_model_source(
        path_of(path), params, adapter, optional_inputs=optional_inputs, encodings=encodings
    )
    header, raw = source.header(), operators(source.graph)  # before the graph is rewritten
    graph = source.canonical(options)
    # A body's reasons for what stays float are said with its own place.
    inside = [(body.place, body.graph) for body in parts(graph)]
    bodies = [body for _, body in inside]
    plain = adapter is None and encodings is None and not optional_inputs
    paired = products_in_pairs(path_of(path) if plain and is_onnx(path_of(path)) else graph)
    names = [each.node for each in paired]
    return inspection(header, raw, graph, explanation(graph, inside), bodies, names)


def is_module(path: Path) -> bool:
    """Returns whether a file holds a Relax module, by its suffix."""
    return path.suffix in MODULES


def is_tosa(path: Path) -> bool:
    """Returns whether ``path`` names a TOSA file, which is written and not read."""
    return path.suffix in TOSA_FILES


def is_tflite(path: Path) -> bool:
    """Returns whether a file is a TFLite model, by its suffix."""
    return path.suffix == ".tflite"


def is_onnx(path: Path) -> bool:
    """Returns whether a file is taken as ONNX: any that is not a module and no TFLite model."""
    return not is_module(path) and not is_tflite(path)


def read_file(
    file: Path,
    adapter: Path | None = None,
    *,
    optional_inputs: bool = False,
    encodings: Path | None = None,
) -> ModelSource:
    """Reads a TFLite file, or what is taken as ONNX, with the arrays of an adapter as constants.

    Args:
        adapter: The adapter's file.
        optional_inputs: Inputs of an ONNX model that have initializers stay inputs.
        encodings: A file that says how tensors are quantized.

    Raises:
        QdqBridgeError: As :func:`qdqbridge.load`.
    """
    from qdqbridge.core.canonical import canonicalize
    from qdqbridge.core.graph.edit import verify

    if is_tflite(file):
        if adapter is not None:
            raise InputDataError(
                "TFLite files have no adapters", where=str(adapter), fix="leave adapter out"
            )
        from qdqbridge.app.report.inspection import operators
        from qdqbridge.tflite_io.reader import read

        graph = read(file, canonicalize)
        if encodings is not None:
            _encode(graph, file, encodings)
        verify(graph, str(file))
        found = lambda: Header(file.name, None, {"tflite": 3}, "", operators(graph))  # noqa: E731
        return ModelSource(file, graph, found, channels_last=True)
    from qdqbridge.onnx_io.control_flow.bodies import verify_bodies
    from qdqbridge.onnx_io.reading.model_file import header
    from qdqbridge.onnx_io.reading.reader import read as read_onnx

    graph = read_onnx(file, canonicalize, adapter, optional_inputs=optional_inputs)
    if encodings is not None:
        _encode(graph, file, encodings)
    verify(graph, str(file))
    verify_bodies(graph)
    return ModelSource(file, graph, lambda: header(file))


def _encode(graph: Graph, file: Path, encodings: Path) -> None:
    """Puts a file of encodings into a graph."""
    from qdqbridge.targets.encodings import read_encodings
    from qdqbridge.targets.encodings.application import apply

    def in_file() -> Collection[str]:
        # Names of tensors that rules took away are known of the file alone; TFLite's are all in the
        # graph.
        if not is_onnx(file):
            return ()
        from qdqbridge.onnx_io.reading.model_file import read_model_apart
        from qdqbridge.onnx_io.reading.structure import tensor_names

        return tensor_names(read_model_apart(file)[0].graph)

    apply(graph, read_encodings(encodings), in_file)


def _read_model_source(
    file: Path,
    params: File | None,
    adapter: File | None,
    *,
    optional_inputs: bool,
    encodings: File | None,
) -> ModelSource:
    if is_module(file):
        for name, given in (("adapter", adapter), ("encodings", encodings)):
            if given is not None:
                raise InputDataError(
                    f"Relax modules have no {name.removesuffix('s')}s",
                    where=str(given),
                    fix=f"leave {name} out",
                )
        return _read_module(file, params)
    if params is not None:
        raise InputDataError(
            "the model holds its parameters itself", where=str(file), fix="leave --params out"
        )
    own, beside = (None if each is None else path_of(each) for each in (adapter, encodings))
    return read_file(file, own, optional_inputs=optional_inputs, encodings=beside)


def _read_module(file: Path, params: File | None) -> ModelSource:
    need_tvm()
    from qdqbridge.app.hosting import from_relax
    from qdqbridge.core.graph.atomic_write import read_arrays
    from qdqbridge.tvm.relax.read import channels_last
    from qdqbridge.tvm.relax.saved import read_module, summary

    module = read_module(file)
    arrays = None if params is None else read_arrays(path_of(params))
    graph = from_relax(module, arrays, canonical=False)
    return ModelSource(file, graph, lambda: summary(module, file.name), channels_last(module))
