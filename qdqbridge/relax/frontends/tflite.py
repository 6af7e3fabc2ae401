"""A TFLite file, float or quantized, as a graph."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from qdqbridge.canonical import canonicalize
from qdqbridge.errors import ModelFileError, UnsupportedModelError
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.verify import verify
from qdqbridge.relax.frontends.missing import imported
from qdqbridge.relax.read import read_function

_IDENTIFIER = b"TFL3"


def from_tflite(
    path: str | PathLike[str], *, canonical: bool = True, reroll: bool = False
) -> Graph:
    """Reads a TFLite file through TVM's frontend.

    A quantized file becomes the graph that a QDQ ONNX file of the same network is read as, whose
    images are channels-last outside and channels-first inside.

    Args:
        path: The ``.tflite`` file.
        canonical: Rewrite the graph to the canonical form.
        reroll: As for :func:`qdqbridge.load`.

    Returns:
        The graph; inputs and outputs have the names and types of the file's.

    Raises:
        ModelFileError: The file cannot be read, or is no TFLite file.
        UnsupportedModelError: The package ``tflite`` is not installed, TVM's frontend does not know
            an operator, or an operator has no counterpart here; all of them are listed.
    """
    schema = imported("tflite", "from_tflite", "tflite")
    file = Path(path)
    model = _parsed(schema, _content(file), file)
    module = _imported(model, file)
    subgraph = model.Subgraphs(0)
    names = [_name(subgraph, index) for index in subgraph.OutputsAsNumpy()]
    graph = read_function(module["main"], module, output_names=names, where=str(file))
    verify(graph, str(file))
    if canonical:
        verify(canonicalize(graph, reroll=reroll, channels_first=True), str(file))
    return graph


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelFileError(
            "the model file cannot be read", where=str(file), why=error.strerror or str(error)
        ) from error


def _parsed(schema: Any, content: bytes, file: Path) -> Any:
    if content[4:8] != _IDENTIFIER:
        raise ModelFileError(
            "it is no TFLite file",
            where=str(file),
            why=f"bytes 4 to 8 are {content[4:8]!r}, not {_IDENTIFIER!r}",
            fix="give a .tflite file of TensorFlow 2 or LiteRT",
        )
    try:
        model = schema.Model.GetRootAsModel(content, 0)
        count = int(model.SubgraphsLength())
    except Exception as error:  # flatbuffers raises struct.error, IndexError, TypeError
        raise _damaged(file, error) from error
    if count < 1:
        raise ModelFileError("the TFLite file holds no graph", where=str(file))
    return model


def _damaged(file: Path, error: Exception) -> ModelFileError:
    return ModelFileError(
        "the TFLite file is damaged", where=str(file), why=str(error) or type(error).__name__
    )


def _imported(model: Any, file: Path) -> Any:
    """Returns the model as TVM's frontend imports it; what that raises is mapped here."""
    from struct import error as truncated

    from tvm.relax.frontend.tflite import from_tflite as import_tflite

    from qdqbridge.relax.frontends.tflite_converter import CompletedConverter

    try:
        return import_tflite(model, op_converter=CompletedConverter)
    except truncated as error:
        raise _damaged(file, error) from error
    except Exception as error:  # TVM raises AssertionError, KeyError, or errors of its own
        raise UnsupportedModelError(
            "TVM's TFLite frontend cannot import the model",
            where=str(file),
            why=str(error).strip() or type(error).__name__,
            fix="convert the model to ONNX (tf2onnx) and load that",
        ) from error


def _name(subgraph: Any, index: int) -> str:
    return bytes(subgraph.Tensors(int(index)).Name() or b"").decode("utf-8", "replace")
