"""Models in files of any kind: ONNX, or a Relax module that TVM or somebody else has saved."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from qdqbridge.arguments import need_tvm, path_of
from qdqbridge.errors import InputDataError, ModelFileError, QdqBridgeError
from qdqbridge.graph.graph import Graph
from qdqbridge.hosting import from_relax
from qdqbridge.pipeline import explain, inspect, load, save

if TYPE_CHECKING:
    from qdqbridge.report.inspection import Inspection

File: TypeAlias = "str | PathLike[str]"
MODULES = (".json", ".py")
"""Suffixes of Relax modules; any other file is taken as ONNX."""


def load_model(
    path: File,
    *,
    params: File | None = None,
    canonical: bool = True,
    decomposed: bool = False,
    fold_affine: bool = False,
    reroll: bool = False,
) -> Graph:
    """Reads an ONNX model, or a Relax module in a file: ``.json`` or ``.py``.

    A ``.json`` is what ``tvm.ir.save_json`` writes. A ``.py`` is TVMScript; it is compared with
    what TVM itself writes and parsed, never run.

    Args:
        path: The file.
        params: An ``.npz`` file with the parameters of a module that are kept apart from it.
        canonical: As the next ones, see :func:`qdqbridge.load`.
        decomposed: Read fake-quantization in float arithmetic as Q and DQ.
        fold_affine: Fold float arithmetic per channel into integer products.
        reroll: Make one operator of each activation that is spelled step by step.

    Raises:
        ModelFileError: The file cannot be read, or holds something else.
        UnsupportedModelError: Something in it has no counterpart here; all of it is listed.
        InputDataError: ``params`` cannot be read, or the model is ONNX, which needs none.
    """
    file = path_of(path)
    options: dict[str, Any] = {
        "decomposed": decomposed, "fold_affine": fold_affine, "reroll": reroll,
    }  # fmt: skip
    if not is_module(file):
        _need_none(params, file)
        return load(file, canonical=canonical, **options)
    from qdqbridge.canonical import canonicalize
    from qdqbridge.graph.verify import verify

    module = _module(file)
    graph = _graph_of(module, file, params)
    if canonical:
        verify(canonicalize(graph, channels_first=_last(module), **options), str(file))
    return graph


def inspect_model(
    path: File,
    *,
    params: File | None = None,
    decomposed: bool = False,
    fold_affine: bool = False,
    reroll: bool = False,
) -> Inspection:
    """Returns what a model file holds, of whatever kind it is.

    Raises:
        QdqBridgeError: As :func:`load_model`.
    """
    file = path_of(path)
    options: dict[str, Any] = {
        "decomposed": decomposed, "fold_affine": fold_affine, "reroll": reroll,
    }  # fmt: skip
    if not is_module(file):
        _need_none(params, file)
        return inspect(file, **options)
    from qdqbridge.canonical import canonicalize
    from qdqbridge.graph.verify import verify
    from qdqbridge.relax.saved import summary
    from qdqbridge.report.inspection import inspection, operators

    module = _module(file)
    graph = _graph_of(module, file, params)
    raw = operators(graph)  # before the graph is rewritten in place
    verify(canonicalize(graph, channels_first=_last(module), **options), str(file))
    return inspection(summary(module, file.name), raw, graph, explain(graph))


def is_module(path: Path) -> bool:
    """Returns whether a file holds a Relax module, by its suffix."""
    return path.suffix in MODULES


@contextmanager
def as_onnx(path: File, graph: Graph) -> Generator[Path, None, None]:
    """Yields an ONNX file of a model: its own, or for a module one that lasts as long as this."""
    file = path_of(path)
    if not is_module(file):
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / f"{file.stem}.onnx"
        save(graph, exported)
        yield exported


def _module(file: Path) -> Any:
    need_tvm()
    from qdqbridge.relax.saved import read_module

    return read_module(file)


def _last(module: Any) -> bool:
    from qdqbridge.relax.read import channels_last

    return channels_last(module)


def _graph_of(module: Any, file: Path, params: File | None) -> Graph:
    arrays = None if params is None else _arrays(path_of(params))
    try:
        return from_relax(module, arrays, canonical=False)
    except QdqBridgeError:
        raise
    except Exception as error:  # TVM loads modules whose parts do not fit
        raise ModelFileError(
            "the module makes no sense",
            where=str(file),
            why=f"{type(error).__name__}: {error}"[:300],
            fix="save it anew; if TVM compiles it, please report it",
        ) from error


def _arrays(path: Path) -> dict[str, Any]:
    from qdqbridge.graph.archive import read_arrays

    return read_arrays(path)


def _need_none(params: File | None, file: Path) -> None:
    if params is not None:
        raise InputDataError(
            "an ONNX model holds its parameters itself", where=str(file), fix="leave --params out"
        )
