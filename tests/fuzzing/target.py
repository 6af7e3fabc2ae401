"""What a damaged model is put through, and where the good ones to damage come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import qdqbridge as qb
from qdqbridge.pipeline import diff
from qdqbridge.sources import inspect_model, load_model
from tests.onnx_io.scrambler import scrambled
from tests.onnx_io.test_equivalence import BASES
from tests.onnx_models import conv_model

LARGEST_SEED = 80_000


def put_through(data: bytes, folder: Path) -> str:
    """Reads an ONNX file as a user would: text, explanation, inspection; writes and reads again.

    Returns:
        How far it came: the name of the error that refused it, ``not written`` or ``written``;
        a file whose declared shapes contradict what its nodes compute may read as another graph.

    Raises:
        Exception: Whatever is no ``QdqBridgeError``; that is a finding.
    """
    return _put(data, folder / "damaged.onnx", qb.load)


def put_module_through(data: bytes, folder: Path, suffix: str = ".json") -> str:
    """Reads a saved Relax module likewise, through both of its ways in.

    Raises:
        Exception: Whatever is no ``QdqBridgeError``.
    """
    path = folder / f"damaged{suffix}"
    result = _put(data, path, load_model)
    try:
        from qdqbridge.relax.saved import read_module

        module = read_module(path)
        qb.from_relax(module)
    except qb.QdqBridgeError as error:
        _worded(error)
    return result


def _put(data: bytes, path: Path, read: Callable[[Path], qb.Graph]) -> str:
    path.write_bytes(data)
    try:
        graph = read(path)
    except qb.QdqBridgeError as error:
        return _worded(error)
    copy = path.with_name("copy.onnx")
    graph.text()
    for note in qb.explain(graph):
        str(note)
    inspect_model(path)
    try:
        qb.save(graph, copy, overwrite=True)
    except qb.QdqBridgeError as error:
        _worded(error)
        return "not written"
    try:
        again = qb.load(copy)
    except qb.QdqBridgeError:  # declared shapes hid a contradiction, and are not written
        return "written, not read"
    if again.digest == graph.digest:
        return "written"
    for difference in diff(graph, again):
        str(difference)
    return "written, another digest"


def _worded(error: qb.QdqBridgeError) -> str:
    if not (error.what and str(error)):
        raise AssertionError("an error without words") from error
    return type(error).__name__


def seeds(folders: list[Path]) -> list[bytes]:
    """Returns valid models: our own, and the small ones of ``folders``."""
    return [*_built(), *(path.read_bytes() for path in _files(folders))]


def _built() -> Iterator[bytes]:
    for opset in (10, 13, 21):
        yield conv_model(opset).SerializeToString()
    for base in BASES.values():
        yield base().SerializeToString()
        for seed in range(3):
            yield scrambled(base(), seed)[0].SerializeToString()


def _files(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.rglob("*.onnx")):
            if os.path.getsize(path) <= LARGEST_SEED:
                yield path
