"""The name under which TFLite files were read before :func:`qdqbridge.load` read them."""

from __future__ import annotations

import warnings
from os import PathLike

from qdqbridge.core.arguments import ReadingOptions
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.verify import verify
from qdqbridge.tflite_io.reader import read


def from_tflite(path: str | PathLike[str], *, canonical: bool = True, fuse: bool = False) -> Graph:
    """Reads a TFLite file; deprecated, :func:`qdqbridge.load` does.

    Args:
        path: The ``.tflite`` file.
        canonical: Rewrite the graph to the canonical form.
        fuse: As for :func:`qdqbridge.load`.

    Raises:
        ModelFileError: The file cannot be read, or is no TFLite file.
        UnsupportedModelError: Operators have no counterpart here; all of them are listed.
    """
    warnings.warn("use qdqbridge.load, which reads .tflite", DeprecationWarning, stacklevel=2)
    graph = read(path)
    verify(graph, str(path))
    if canonical:
        verify(canonicalize(graph, ReadingOptions(fuse=fuse), channels_first=True), str(path))
    return graph
