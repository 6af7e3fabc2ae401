"""What a damaged model is put through, and where the good ones to damage come from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import qdqbridge as qb
from tests.onnx_io.scrambler import scrambled
from tests.onnx_io.test_equivalence import BASES
from tests.onnx_models import conv_model

LARGEST_SEED = 80_000


def put_through(data: bytes, folder: Path) -> str:
    """Reads, canonicalizes, verifies, prints, writes and reads again.

    Returns:
        How far it came: the name of the error that refused it, ``not written`` or ``written``;
        a file whose declared shapes contradict what its nodes compute may read as another graph.

    Raises:
        Exception: Whatever is no ``QdqBridgeError``; that is a finding.
    """
    path, copy = folder / "damaged.onnx", folder / "copy.onnx"
    path.write_bytes(data)
    try:
        graph = qb.load(path)
    except qb.QdqBridgeError as error:
        if not (error.what and str(error)):
            raise AssertionError("an error without words") from error
        return type(error).__name__
    graph.text()
    for note in qb.explain(graph):
        str(note)
    try:
        qb.save(graph, copy, overwrite=True)
    except qb.QdqBridgeError:
        return "not written"
    try:
        again = qb.load(copy)
    except qb.QdqBridgeError:  # declared shapes hid a contradiction, and are not written
        return "written, not read"
    return "written" if again.digest == graph.digest else "written, another digest"


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
