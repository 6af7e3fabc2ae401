"""Models in files of any kind: ONNX, TFLite, or a Relax module that somebody has saved."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from qdqbridge.arguments import need_tvm, path_of
from qdqbridge.errors import InputDataError
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.header import Header
from qdqbridge.hosting import from_relax
from qdqbridge.pipeline import explain, inspect, is_tflite, load, save

if TYPE_CHECKING:
    from qdqbridge.report.inspection import Inspection

File: TypeAlias = "str | PathLike[str]"
MODULES = (".json", ".py")
"""Suffixes of Relax modules."""


def load_model(
    path: File,
    *,
    params: File | None = None,
    canonical: bool = True,
    decomposed: bool = False,
    fold_affine: bool = False,
    fuse: bool = False,
) -> Graph:
    """Reads an ONNX model, a TFLite file, or a Relax module in a file: ``.json`` or ``.py``.

    A ``.json`` is what ``tvm.ir.save_json`` writes. A ``.py`` is TVMScript; it is compared with
    what TVM itself writes and parsed, never run.

    Args:
        path: The file.
        params: An ``.npz`` file with the parameters of a module that are kept apart from it.
        canonical: As the next ones, see :func:`qdqbridge.load`.
        decomposed: Read fake-quantization in float arithmetic as Q and DQ.
        fold_affine: Fold float arithmetic per channel into integer products.
        fuse: Make one operator of each activation that is spelled step by step.

    Raises:
        ModelFileError: The file cannot be read, or holds something else.
        InvalidModelError: Its parts do not fit each other.
        UnsupportedModelError: Something in it has no counterpart here; all of it is listed.
        InputDataError: ``params`` cannot be read, or the model is no module and needs none.
    """
    file = path_of(path)
    options = {"decomposed": decomposed, "fold_affine": fold_affine, "fuse": fuse}
    if not is_module(file):
        _need_none(params, file)
        return load(file, canonical=canonical, **options)
    foreign = _foreign(file, params)
    return foreign.canonical(file, options) if canonical else foreign.graph


def inspect_model(
    path: File,
    *,
    params: File | None = None,
    decomposed: bool = False,
    fold_affine: bool = False,
    fuse: bool = False,
) -> Inspection:
    """Returns what a model file holds, of whatever kind it is.

    Raises:
        QdqBridgeError: As :func:`load_model`.
    """
    file = path_of(path)
    options = {"decomposed": decomposed, "fold_affine": fold_affine, "fuse": fuse}
    if is_onnx(file):
        _need_none(params, file)
        return inspect(file, **options)
    from qdqbridge.report.inspection import inspection, operators

    foreign = _foreign(file, params)
    raw = operators(foreign.graph)  # before the graph is rewritten in place
    graph = foreign.canonical(file, options)
    return inspection(foreign.header, raw, graph, explain(graph))


def is_module(path: Path) -> bool:
    """Returns whether a file holds a Relax module, by its suffix."""
    return path.suffix in MODULES


def is_onnx(path: Path) -> bool:
    """Returns whether a file is taken as ONNX: any that is no module and no TFLite model."""
    return not is_module(path) and not is_tflite(path)


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A graph of a file that is no ONNX, as it is written there.

    Attributes:
        graph: The raw graph.
        header: What its file says of itself.
        channels_last: Whether images lie channels-last in it.
    """

    graph: Graph
    header: Header
    channels_last: bool

    def canonical(self, file: Path, options: Mapping[str, bool]) -> Graph:
        from qdqbridge.canonical import canonicalize
        from qdqbridge.graph.verify import verify

        canonicalize(self.graph, channels_first=self.channels_last, **options)
        verify(self.graph, str(file))
        return self.graph


def _foreign(file: Path, params: File | None) -> _Foreign:
    if is_tflite(file):
        _need_none(params, file)
        return _tflite(file)
    need_tvm()
    from qdqbridge.relax.read import channels_last
    from qdqbridge.relax.saved import read_module, summary

    module = read_module(file)
    graph = from_relax(module, None if params is None else _arrays(params), canonical=False)
    return _Foreign(graph, summary(module, file.name), channels_last(module))


def _tflite(file: Path) -> _Foreign:
    from qdqbridge.report.inspection import operators

    graph = load(file, canonical=False)
    return _Foreign(graph, Header(file.name, None, {"tflite": 3}, "", operators(graph)), True)


@contextmanager
def as_onnx(path: File, graph: Graph) -> Generator[Path, None, None]:
    """Yields an ONNX file of a model: its own, or for another one that lasts as long as this."""
    file = path_of(path)
    if is_onnx(file):
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / f"{file.stem}.onnx"
        save(graph, exported)
        yield exported


def _arrays(path: File) -> dict[str, Any]:
    from qdqbridge.graph.archive import read_arrays

    return read_arrays(path_of(path))


def _need_none(params: File | None, file: Path) -> None:
    if params is not None:
        raise InputDataError(
            "the model holds its parameters itself", where=str(file), fix="leave --params out"
        )
